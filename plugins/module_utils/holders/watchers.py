# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# ruff: noqa: PTH116, PTH120
"""Processes that keep GPUs open and run nothing on them: they talk to NVML or to the driver and never make a context.

A change of instances passes them by; a reset and a change of MIG mode want them gone (nvml.h, nvmlDeviceSetMigMode). So a
process is none by its name: they are known by the file that they execute, and by who may change it.
"""

from __future__ import annotations

import os
import re

from ..accounts import account_of
from ..file_worker import NoAnswerError, ask, task
from .processes import Processes, executable_of

#: File names of the programs that a host or cluster runs as containers too; and of all programs.
_IN_CONTAINERS = (
    "nvidia-persistenced",
    "nv-hostengine",
    "dcgm-exporter",
    "nv-fabricmanager",
    "nvidia-device-plugin",
    "gpu-feature-discovery",
)
WATCHERS = (*_IN_CONTAINERS, "nvidia-smi", "nvtop")
#: Where a host has them.
DIRECTORIES = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")
#: Units of the system that watch under a user of their own: the role dcgm_exporter's, which is Python; and the driver's, whose
#: program a package may have replaced. Only root's systemd puts a process there.
WATCHER_UNITS = ("dcgm-exporter.service", "nvidia-persistenced.service")
#: A container as its cgroup has it; containers.py asks Docker for its name.
UNNAMED = re.compile(r"docker container ([0-9a-f]{12})")


def is_watcher(processes: Processes, pid: int) -> bool:
    """Return whether a process only watches GPUs. One that opens an instance's capability is in that instance all the same."""
    origin = processes.origin(pid)
    if origin.unit_or_container in WATCHER_UNITS:
        return True
    if origin.container_id or origin.pod or processes.in_container(pid):
        # Root there names files at will. What a pod was given the kubelet tells besides, and a container may have its name by
        # Docker: with_names asks.
        container = origin.unit_or_container
        believed = bool(origin.pod) or is_named_so(container) or bool(UNNAMED.fullmatch(container or ""))
        return believed and any(processes.is_roots(pid, program) for program in _IN_CONTAINERS)
    return any(processes.is_roots(pid, program) for program in WATCHERS) or _executes_the_hosts_own(processes, pid)


def is_named_so(container: str | None) -> bool:
    """Return whether a container of root's engine has the name of a watcher: who names one there is root."""
    _engine, found, name = (container or "").rpartition("container ")
    return bool(found) and "@" not in (container or "") and any(program in name for program in _IN_CONTAINERS)


def _executes_the_hosts_own(processes: Processes, pid: int) -> bool:
    """Whether it executes a watcher that the host has and that root alone can change: any user may run nvidia-smi.

    The path that the kernel shows is the process's own word, by a mount or a root of its own, and tells the name alone.
    """
    process = "%s/%d" % (processes.proc, pid)
    name = executable_of(pid, processes.proc)
    hosts = {_file_of(directory, name) for directory in DIRECTORIES} - {None} if name in WATCHERS else set()
    if not hosts:
        return False
    try:
        device, inode = ask(account_of(process), _identity, process + "/exe")
    except (OSError, NoAnswerError):
        # It has ended, or its file is on a file system that does not answer, which none of the host's own is.
        return False
    return (device, inode) in hosts


@task
def _identity(path: str) -> list[int]:
    """Asked in a child: the file that a process executes may be on a file system of a user's own."""
    status = os.stat(path)
    return [status.st_dev, status.st_ino]


def _file_of(directory: str, name: str) -> tuple[int, int] | None:
    """Device and inode of the host's program; None where it has none, or others than root may change it."""
    path = os.path.realpath("%s/%s" % (directory, name))
    try:
        status = os.stat(path)
        return (status.st_dev, status.st_ino) if all(_only_root_changes(step) for step in _steps(path)) else None
    except OSError:
        return None


def _steps(path: str) -> list[str]:
    """The path and the directories above it."""
    steps = [path]
    while steps[-1] != os.path.dirname(steps[-1]):
        steps.append(os.path.dirname(steps[-1]))
    return steps


def _only_root_changes(path: str) -> bool:
    # The mode of a link says that any user may; the kernel's path has no links.
    status = os.lstat(path)
    return status.st_uid == 0 and not status.st_mode & (0o002 if status.st_gid == 0 else 0o022)
