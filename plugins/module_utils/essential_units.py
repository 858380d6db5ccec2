# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Name the services that no run ends or stops, whatever they hold.

An open file can be handed to another process (unix(7), SCM_RIGHTS). D-Bus takes files from every user and keeps them until the
receiver reads, so any user can make the bus, or a service on it, have a GPU's node open. Ending it would bring down the host for
something that it does not use. Only services in whose cgroup no user starts anything are in the list: not cron, not sshd. Of all
others systemd says whether they are on the bus.
"""

from __future__ import annotations

import re

from . import systemd
from .command import run_tool

_ESSENTIAL = re.compile(
    r"(?:dbus|dbus-broker|polkit|NetworkManager|wpa_supplicant|firewalld|accounts-daemon|udisks2|upower|avahi-daemon|ModemManager|rtkit-daemon"
    r"|systemd-(?:journald|logind|udevd|resolved|networkd|machined|userdbd|homed|timesyncd|hostnamed|localed|timedated|oomd|portabled|importd)"
    r")\.service"
)

_SERVICE = re.compile(r"[A-Za-z0-9:_.\\@-]+\.service")


def is_essential(unit: str | None) -> bool:
    """Return whether this is such a service, by its full name as the kernel has it in the path of the cgroup."""
    return bool(unit and _ESSENTIAL.fullmatch(unit))


def is_on_bus(unit: str | None) -> bool:
    """Return whether systemd knows a service by a name on D-Bus; False where it does not say."""
    if not unit or not _SERVICE.fullmatch(unit):
        return False
    try:
        (said,) = systemd.show(run_tool, [unit], ["BusName"])
    except (systemd.NoAnswerError, OSError):
        return False
    return said["BusName"] != ""
