# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Identify services that are never ended or stopped, even if they hold a GPU.

Any user can pass an open file to another process (unix(7), SCM_RIGHTS). D-Bus accepts files from all users and keeps
them until the receiver reads them. So a user can cause the bus, or a service on it, to have a GPU node open. Ending
this service would break the host, although the service does not use the GPU.

The list has only services without user processes in their cgroup. cron and sshd have such processes, so they are not in
it. For other services, `is_on_bus` queries systemd.
"""

from __future__ import annotations

import re

from .. import systemd
from ..processes.command import run_tool

_ESSENTIAL = re.compile(
    r"(?:dbus|dbus-broker|polkit|NetworkManager|wpa_supplicant|firewalld|accounts-daemon|udisks2|upower|avahi-daemon|ModemManager|rtkit-daemon"
    r"|systemd-(?:journald|logind|udevd|resolved|networkd|machined|userdbd|homed|timesyncd|hostnamed|localed|timedated|oomd|portabled|importd)"
    r")\.service"
)

_SERVICE = re.compile(r"[A-Za-z0-9:_.\\@-]+\.service")


def is_essential(unit: str | None) -> bool:
    """Return whether a service must never be stopped.

    `unit` is the service's name in the cgroup.
    """
    return bool(unit and _ESSENTIAL.fullmatch(unit))


def is_on_bus(unit: str | None) -> bool:
    """Return whether a service has a name on D-Bus.

    Returns False if systemd does not answer.
    """
    if not unit or not _SERVICE.fullmatch(unit):
        return False
    try:
        (values,) = systemd.show(run_tool, [unit], ["BusName"])
    except (systemd.NoAnswerError, OSError):
        return False
    return values["BusName"] != ""
