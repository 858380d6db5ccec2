# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# ruff: noqa: PTH116, PTH120
"""Identify watchers: processes that keep GPUs open but never create a context.

Watchers use NVML or the driver. They block a reset and a change of the MIG mode (nvml.h, nvmlDeviceSetMigMode), but not
changes of instances. A process is a watcher if it executes a watcher's file and only root can change this file.
"""

from __future__ import annotations

import os
import re

from ..processes.accounts import account_of
from ..processes.file_worker import NoAnswerError, ask, task
from .processes import Processes, executable_of

#: Names of watchers that may also run in containers. `WATCHERS` has all watchers.
_IN_CONTAINERS = (
    "nvidia-persistenced",
    "nv-hostengine",
    "dcgm-exporter",
    "nv-fabricmanager",
    "nvidia-device-plugin",
    "gpu-feature-discovery",
)
WATCHERS = (*_IN_CONTAINERS, "nvidia-smi", "nvtop")
#: Directories of the host's watchers.
DIRECTORIES = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")
#: System units whose processes are watchers although their executable does not show it. dcgm-exporter.service of the
#: role dcgm_exporter runs Python. A package may have replaced the executable of nvidia-persistenced.service. Only
#: root's systemd starts processes in these units.
WATCHER_UNITS = ("dcgm-exporter.service", "nvidia-persistenced.service")
#: A Docker container that only has the id from the cgroup. containers.py asks Docker for its name.
UNNAMED = re.compile(r"docker container ([0-9a-f]{12})")


def is_watcher(processes: Processes, pid: int) -> bool:
    """Return whether a process only watches GPUs.

    The caller must check separately whether the process holds an instance, which means that it has the instance's
    capability open.
    """
    origin = processes.origin(pid)
    if origin.unit_or_container in WATCHER_UNITS:
        return True
    if origin.container_id or origin.pod or processes.in_container(pid):
        # Root in a container can give files any name, so the container's name must match too. For pods this is not
        # necessary, because the kubelet's checkpoint lists their GPUs. `with_names` checks the names of Docker
        # containers later.
        container = origin.unit_or_container
        believed = bool(origin.pod) or is_named_so(container) or bool(UNNAMED.fullmatch(container or ""))
        return believed and any(processes.is_roots(pid, program) for program in _IN_CONTAINERS)
    return any(processes.is_roots(pid, program) for program in WATCHERS) or _executes_the_hosts_own(processes, pid)


def is_named_so(container: str | None) -> bool:
    """Return whether a container of root's engine has a watcher's name.

    Only root can choose this name.
    """
    _engine, separator, name = (container or "").rpartition("container ")
    return bool(separator) and "@" not in (container or "") and any(program in name for program in _IN_CONTAINERS)


def _executes_the_hosts_own(processes: Processes, pid: int) -> bool:
    """Return whether a process executes a watcher's file from the host's directories.

    Any user may run nvidia-smi, but only root may be able to change the file. The path in /proc only provides the
    program's name, because a process can choose the path with a mount or another root directory.
    """
    process = "%s/%d" % (processes.proc, pid)
    name = executable_of(pid, processes.proc)
    hosts = {_file_of(directory, name) for directory in DIRECTORIES} - {None} if name in WATCHERS else set()
    if not hosts:
        return False
    try:
        device, inode = ask(account_of(process), _identity, process + "/exe")
    except (OSError, NoAnswerError):
        # The process has ended, or its file is on a file system that does not answer, which is not the host's.
        return False
    return (device, inode) in hosts


@task
def _identity(path: str) -> list[int]:
    """Return the identity of the executed file. Runs in a child process.

    The file may be on a user's own file system, which may hang.
    """
    status = os.stat(path)
    return [status.st_dev, status.st_ino]


def _file_of(directory: str, name: str) -> tuple[int, int] | None:
    """Return the (device, inode) of a program on the host.

    Returns None if the program is missing or if a user other than root may change it.
    """
    path = os.path.realpath("%s/%s" % (directory, name))
    try:
        status = os.stat(path)
        return (status.st_dev, status.st_ino) if all(_only_root_changes(step) for step in _steps(path)) else None
    except OSError:
        return None


def _steps(path: str) -> list[str]:
    """Return a path and all its parent directories."""
    steps = [path]
    while steps[-1] != os.path.dirname(steps[-1]):
        steps.append(os.path.dirname(steps[-1]))
    return steps


def _only_root_changes(path: str) -> bool:
    # Resolve the path, because a symbolic link's own mode would permit changes by every user.
    status = os.lstat(path)
    return status.st_uid == 0 and not status.st_mode & (0o002 if status.st_gid == 0 else 0o022)
