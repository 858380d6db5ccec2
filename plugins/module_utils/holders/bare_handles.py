# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# ruff: noqa: PTH208
"""Check whether a process uses a GPU, or may only have received an open GPU node.

Users can pass open files to other processes (unix(7), SCM_RIGHTS), and services that read control messages, such as
D-Bus and syslog, keep them open. So an open node alone is no reason to end a system process or stop a system unit. A
process that uses a GPU also maps one of the driver's nodes, which no other process can do for it.
"""

from __future__ import annotations

import os
import re

from ..model import Holder, Process
from ..processes.accounts import account_of
from ..processes.file_worker import NoAnswerError, ask, task
from ..processes.proc_files import link, read
from .cgroup import parse_cgroup
from .hidden_files import has_mapped_node
from .model import DEVICE_HANDLE
from .open_files import RING, device_of
from .peer_owner import own_container
from .processes import owner_of
from .tasks import can_compare, folder_of, live_task, tables

_GPU_NODE = re.compile(r"/nvidia(?:\d+|-caps/nvidia-cap\d+)$")
#: Lowest user id of regular accounts (UID_MIN in login.defs(5)).
_FIRST_USER = 1000


def may_be_handed(holder: Holder | Process) -> bool:
    """Return whether a holder is a system process with an open but unused node.

    Processes of user sessions, user managers, containers and jobs are not system processes. Watchers are excluded,
    because they open the nodes themselves.
    """
    if not isinstance(holder, Holder) or holder.kind != DEVICE_HANDLE or holder.pid is None or holder.watches:
        return False
    return not holder.job and _is_of_system(holder) and not has_mapped(holder.pid)


def has_mapped(pid: int) -> bool:
    """Return whether a process maps one of the driver's nodes.

    Nodes are matched by device number. If no driver has registered device numbers, they are matched by name. Returns
    False if the process does not answer.
    """
    try:
        return bool(ask(account_of("/proc/%d" % pid), _has_mapped, pid, sorted(_majors())))
    except (OSError, NoAnswerError):
        return False


@task
def _has_mapped(pid: int, majors: list[int]) -> bool:
    """Implement `has_mapped` in a child process, because the reads may hang."""
    return has_mapped_node(folder_of("/proc", pid, live_task("/proc", pid)), majors)


def has_open(pid: int) -> bool:
    """Return whether a process has a GPU node open.

    Searches the file tables of all threads, memory mappings and io_uring rings. Returns True if the check takes too
    long or the caller may not read the files.
    """
    try:
        return bool(ask(account_of("/proc/%d" % pid), _has_open, pid, sorted(_majors())))
    except NoAnswerError:
        return True
    except OSError as error:
        return not isinstance(error, (FileNotFoundError, ProcessLookupError))


def has_rdma_open(pid: int) -> bool:
    """Return whether a process has an RDMA device open.

    Through such a device, other hosts may write to its GPU memory. Returns True if the check takes too long.
    """
    try:
        majors = sorted(_majors("infiniband_verbs"))
        return bool(majors) and bool(ask(account_of("/proc/%d" % pid), _has_open, pid, majors))
    except NoAnswerError:
        return True
    except OSError as error:
        return not isinstance(error, (FileNotFoundError, ProcessLookupError))


@task
def _has_open(pid: int, majors: list[int]) -> bool:
    """Implement `has_open` in a child process, because it may hang or take long.

    A process may have a million open files, and some may be on a file system that hangs.
    """
    for task_id, folder in tables("/proc", pid, can_compare()):
        try:
            names = os.listdir(folder + "/fd")
        except (FileNotFoundError, ProcessLookupError):
            if task_id == pid:
                raise
            # The thread has ended.
            continue
        if any(_is_node("%s/fd/%s" % (folder, name), majors) for name in names):
            return True
    return _has_mapped(pid, majors)


def _is_node(path: str, majors: list[int]) -> bool:
    """Return whether an open file is a driver's node, or may contain one.

    An io_uring ring may contain a node.
    """
    target = link(path) or ""
    if target == RING:
        return True
    if majors:
        device = device_of(path)
        return device is not None and device[0] in majors
    return bool(_GPU_NODE.search(target))


def _majors(driver: str = "nvidia") -> set[int]:
    return {int(number) for number in re.findall(r"^\s*(\d+) %s" % driver, read("/proc/devices"), re.MULTILINE)}


def _is_of_system(holder: Holder) -> bool:
    unit = holder.unit_or_container
    if unit is not None:
        return unit.endswith((".service", ".scope")) and not unit.startswith("user@") and " container " not in unit
    text = read("/proc/%d/cgroup" % (holder.pid or 0))
    if any(line.split(":", 2)[-1].startswith("/user.slice/") for line in text.split("\n")):
        return False
    if parse_cgroup(text, own_container()).container_id:
        return False
    # Without systemd, cgroups do not identify system processes. Accounts below _FIRST_USER then count as the system.
    owner = owner_of(holder.pid or 0)
    return owner is None or owner < _FIRST_USER
