# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# ruff: noqa: PTH208
"""Tell whether a process uses a GPU whose node it has open, or may only have been handed the file.

An open file can be handed to another process (unix(7), SCM_RIGHTS), and services that take messages from every user keep what is
passed along: D-Bus, the socket of syslog, any that reads control messages. So an open node alone is no reason to end a process or
to stop a unit of the system. A process that uses a GPU has a node of the driver mapped, which only it itself can do.
"""

from __future__ import annotations

import os
import re

from .accounts import account_of
from .file_worker import NoAnswerError, ask, task
from .holders.cgroup import parse_cgroup
from .holders.model import DEVICE_HANDLE
from .holders.open_files import device_of
from .holders.processes import owner_of
from .model import Holder, Process
from .peer_owner import own_container
from .proc_files import link, read

#: A line of /proc/PID/maps: addresses, and a path that names a node of the driver. A process has some thousands of lines.
_MAPPED = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .*?(/\S*/nvidia\S*)", re.MULTILINE)
_MOST_BYTES = 1 << 24
_NODE = re.compile(r"/nvidia\d+$|/nvidia-uvm$")
_GPU_NODE = re.compile(r"/nvidia(?:\d+|-caps/nvidia-cap\d+)$")
#: The first user id of accounts of people (login.defs(5), UID_MIN).
_FIRST_USER = 1000


def may_be_handed(holder: Holder | Process) -> bool:
    """Return whether a holder is a process of the system that has a node open and shows no use of it, so that it is not ended.

    Sessions and managers of users, containers and jobs are not of the system. What watches GPUs has them open by itself.
    """
    if not isinstance(holder, Holder) or holder.kind != DEVICE_HANDLE or holder.pid is None or holder.watches:
        return False
    return not holder.job and _is_of_system(holder) and not has_mapped(holder.pid)


def has_mapped(pid: int) -> bool:
    """Return whether a process has a node of the driver mapped, by the node's number; by its name where no driver has numbers.

    Of a process that does not answer nothing shows that it has.
    """
    try:
        return bool(ask(account_of("/proc/%d" % pid), _has_mapped, pid, sorted(_majors())))
    except (OSError, NoAnswerError):
        return False


@task
def _has_mapped(pid: int, majors: list[int]) -> bool:
    """Asked in a child: what a process has mapped, and each file of it, may never be told."""
    for start, end, path in _MAPPED.findall(read("/proc/%d/maps" % pid, _MOST_BYTES)):
        if not majors:
            if _NODE.search(path):
                return True
            continue
        # The path is of the mount namespace of the process that opened it, and so may be any user's choice.
        device = device_of("/proc/%d/map_files/%s-%s" % (pid, start, end))
        if device is not None and device[0] in majors:
            return True
    return False


def has_open(pid: int) -> bool:
    """Return whether a process has a GPU's node open just now. Where that may not be looked at, or takes too long, it has."""
    try:
        return bool(ask(account_of("/proc/%d" % pid), _has_open, pid, sorted(_majors())))
    except NoAnswerError:
        return True
    except OSError as error:
        return not isinstance(error, (FileNotFoundError, ProcessLookupError))


@task
def _has_open(pid: int, majors: list[int]) -> bool:
    """Asked in a child: a process may have a million files open, and some of a server that is gone."""
    folder = "/proc/%d/fd" % pid
    paths = ("%s/%s" % (folder, name) for name in os.listdir(folder))
    if majors:
        return any(device and device[0] in majors for device in map(device_of, paths))
    return any(_GPU_NODE.search(link(path) or "") for path in paths)


def _majors() -> set[int]:
    return {int(number) for number in re.findall(r"^\s*(\d+) nvidia", read("/proc/devices"), re.MULTILINE)}


def _is_of_system(holder: Holder) -> bool:
    unit = holder.unit_or_container
    if unit is not None:
        return unit.endswith((".service", ".scope")) and not unit.startswith("user@") and " container " not in unit
    text = read("/proc/%d/cgroup" % (holder.pid or 0))
    if any(line.split(":", 2)[-1].startswith("/user.slice/") for line in text.split("\n")):
        return False
    if parse_cgroup(text, own_container()).container_id:
        return False
    # Without systemd the cgroup says nothing: what runs as an account of the system counts as of the system.
    owner = owner_of(holder.pid or 0)
    return owner is None or owner < _FIRST_USER
