# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Paths as the kernel writes them, compared with paths of the host.
# ruff: noqa: PTH116, PTH119, PTH120
"""Processes that keep GPUs open and run nothing on them: they talk to NVML or to the driver and never make a context.

A change of instances passes them by; a reset and a change of MIG mode want them gone (nvml.h, nvmlDeviceSetMigMode). So nobody
is one for calling himself so: they are known by the file that they execute, and by who may change it.
"""

from __future__ import annotations

import os

from .holders_proc import Processes

#: File names of the programs.
WATCHERS = (
    "nvidia-persistenced",
    "nv-hostengine",
    "dcgm-exporter",
    "nv-fabricmanager",
    "nvidia-device-plugin",
    "gpu-feature-discovery",
    "nvidia-smi",
    "nvtop",
)
#: Units of the system that watch under a user of their own: the role dcgm_exporter's, which is Python; and the driver's, whose
#: program a package may have replaced. Only root's systemd puts a process there.
WATCHER_UNITS = ("dcgm-exporter.service", "nvidia-persistenced.service")


def is_watcher(processes: Processes, pid: int) -> bool:
    """Return whether a process only watches GPUs. One that opens an instance's capability is in that instance all the same."""
    return (
        any(processes.is_roots(pid, program) for program in WATCHERS)
        or _executes_the_hosts_own(processes, pid)
        or processes.origin(pid).unit_or_container in WATCHER_UNITS
    )


def _executes_the_hosts_own(processes: Processes, pid: int) -> bool:
    """Whether it executes a watcher that the host has and that root alone can change: any user may run nvidia-smi.

    The path is the process's own word, by a mount or a root of its own: it has to lead to the same file from here.
    """
    link = "%s/%d/exe" % (processes.proc, pid)
    try:
        path = os.readlink(link)
        executed = os.stat(link)
        if os.path.basename(path) not in WATCHERS or not os.path.samestat(executed, os.stat(path)):
            return False
        return all(_only_root_changes(step) for step in _steps(path))
    except OSError:
        # It has ended, or the file is gone.
        return False


def _steps(path: str) -> list[str]:
    """The path and the directories above it."""
    steps = [path]
    while steps[-1] != os.path.dirname(steps[-1]):
        steps.append(os.path.dirname(steps[-1]))
    return steps


def _only_root_changes(path: str) -> bool:
    # Of a link, which the kernel's path has none of, the mode says that anybody may.
    status = os.lstat(path)
    return status.st_uid == 0 and not status.st_mode & (0o002 if status.st_gid == 0 else 0o022)
