# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# ruff: noqa: PTH116, PTH120
"""Identify watchers: processes that keep GPUs open for NVML or the driver and never create a context.

They do not block changes of instances, but do block a reset and a change of MIG mode (nvml.h, nvmlDeviceSetMigMode). They are
identified by the file that they execute and by who may change it, not by name.
"""

from __future__ import annotations

import os
import re

from ..accounts import account_of
from ..file_worker import NoAnswerError, ask, task
from .processes import Processes, executable_of

#: Programs that also run in containers, and all programs.
_IN_CONTAINERS = (
    "nvidia-persistenced",
    "nv-hostengine",
    "dcgm-exporter",
    "nv-fabricmanager",
    "nvidia-device-plugin",
    "gpu-feature-discovery",
)
WATCHERS = (*_IN_CONTAINERS, "nvidia-smi", "nvtop")
#: Directories of these programs.
DIRECTORIES = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")
#: System units of watchers with a separate user: the role dcgm_exporter's (Python), and the driver's, whose program a package may
#: have replaced. Only root's systemd starts processes there.
WATCHER_UNITS = ("dcgm-exporter.service", "nvidia-persistenced.service")
#: A container id from a cgroup. containers.py queries Docker for the name.
UNNAMED = re.compile(r"docker container ([0-9a-f]{12})")


def is_watcher(processes: Processes, pid: int) -> bool:
    """Return whether a process only watches GPUs. The caller checks for an open capability of an instance."""
    origin = processes.origin(pid)
    if origin.unit_or_container in WATCHER_UNITS:
        return True
    if origin.container_id or origin.pod or processes.in_container(pid):
        # Root in a container can name files freely. A pod is covered by the kubelet's records. Docker's name of a container is
        # checked later, in with_names.
        container = origin.unit_or_container
        believed = bool(origin.pod) or is_named_so(container) or bool(UNNAMED.fullmatch(container or ""))
        return believed and any(processes.is_roots(pid, program) for program in _IN_CONTAINERS)
    return any(processes.is_roots(pid, program) for program in WATCHERS) or _executes_the_hosts_own(processes, pid)


def is_named_so(container: str | None) -> bool:
    """Return whether a container of root's engine has a watcher's name, which only root can choose."""
    _engine, separator, name = (container or "").rpartition("container ")
    return bool(separator) and "@" not in (container or "") and any(program in name for program in _IN_CONTAINERS)


def _executes_the_hosts_own(processes: Processes, pid: int) -> bool:
    """Return whether it executes the host's own watcher, which only root can change. Any user may run nvidia-smi.

    The path in /proc only gives the name, since a process can choose it by a mount or its root directory.
    """
    process = "%s/%d" % (processes.proc, pid)
    name = executable_of(pid, processes.proc)
    hosts = {_file_of(directory, name) for directory in DIRECTORIES} - {None} if name in WATCHERS else set()
    if not hosts:
        return False
    try:
        device, inode = ask(account_of(process), _identity, process + "/exe")
    except (OSError, NoAnswerError):
        # It has ended, or its file is on a file system that does not answer, and so is not the host's.
        return False
    return (device, inode) in hosts


@task
def _identity(path: str) -> list[int]:
    """Run in a child process, since the executed file may be on a user's own file system."""
    status = os.stat(path)
    return [status.st_dev, status.st_ino]


def _file_of(directory: str, name: str) -> tuple[int, int] | None:
    """Return device and inode of the host's program, or None if it is missing or others than root may change it."""
    path = os.path.realpath("%s/%s" % (directory, name))
    try:
        status = os.stat(path)
        return (status.st_dev, status.st_ino) if all(_only_root_changes(step) for step in _steps(path)) else None
    except OSError:
        return None


def _steps(path: str) -> list[str]:
    """Return the path and its parent directories."""
    steps = [path]
    while steps[-1] != os.path.dirname(steps[-1]):
        steps.append(os.path.dirname(steps[-1]))
    return steps


def _only_root_changes(path: str) -> bool:
    # The path is resolved, so it has no links, whose mode would allow every user.
    status = os.lstat(path)
    return status.st_uid == 0 and not status.st_mode & (0o002 if status.st_gid == 0 else 0o022)
