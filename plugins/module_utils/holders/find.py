# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the holders of GPUs and instances: processes, containers, allocations.

NVML lists only processes that have a context. This module also finds jobs between two kernels, containers that have a
GPU, and schedulers' allocations. If a scan cannot find out whether a GPU is in use, the GPU gets a holder of kind
`unknown`. Scan again right before each destructive step, because holders change all the time.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Sequence, Tuple

from ..model import MPS_CONTROL, MPS_SERVER, Holder, Host, to_data
from ..printable import printable
from ..processes.command import Run, run_tool
from ..processes.file_worker import one_look
from ..processes.proc_files import read
from .containers import HAS_OPEN, WATCHES, containers, with_names
from .devices import Devices, Place
from .hidden_files import IN_MAPS, IN_RING, IN_SOCKET, NO_RIGHT, distinct_files
from .model import (
    CONTAINER,
    DEVICE_HANDLE,
    KUBELET,
    MPS,
    PROCESS,
    SLURM,
    SLURM_DAEMON,
    UNKNOWN,
    short,
    unknown,
)
from .processes import COMMAND_LENGTH, Processes, scan
from .watchers import is_watcher

if TYPE_CHECKING:
    from . import use_count

#: Values of `Holder.kind`.
KINDS = (PROCESS, DEVICE_HANDLE, CONTAINER, SLURM, KUBELET, MPS, UNKNOWN)

#: Process names and subcommands of the collection's own scans, which root runs outside of containers. Their processes
#: do not count as holders, because they end soon and pause while a run changes the host (`transaction.looking`). Only a
#: killed process that hangs in the driver counts.
LOOK = (("gpu-layout", "gpu-layout-nvml"), {"metrics", "holders", "keep-serve", "vgpu-agent"})

KUBELET_DIRECTORY = "/var/lib/kubelet"

#: Time limit in seconds for the whole scan. A tool that still runs then may continue until its own time limit.
_LOOK_SECONDS = 20.0
_VGPU_MODULE = "/sys/module/nvidia_vgpu_vfio"
#: Maximum number of PIDs in a message.
_PIDS_SHOWN = 5
# Number of scans in a row that must find hidden references, because processes open and close files during a scan.
_SCANS = 3
# Message (problem, fix) for each reason why a process is a suspect.
_SUSPECTS = {
    IN_RING: (
        "a process has files registered with io_uring, and the kernel does not show whether a GPU is among them",
        "End the process, or let it unregister its files.",
    ),
    IN_SOCKET: (
        "a process does not receive files that were sent to its Unix socket, and a GPU may be among them",
        "End the process, or let it receive the files.",
    ),
    IN_MAPS: ("the mappings of a process cannot be read in time", "End the process, or the server of its file system."),
    NO_RIGHT: (
        "the mappings of a process cannot be read",
        "Run as root. If this host is a container, give it the capabilities CAP_SYS_PTRACE and CAP_SYS_ADMIN.",
    ),
}
#: Maximum length of each of a holder's texts, with escaped control characters.
_TEXT_LENGTH = 4 * COMMAND_LENGTH


def find_holders(
    host: Host,
    proc: str = "/proc",
    dev: str = "/dev",
    run: Run = run_tool,
    kubelet_directory: str = KUBELET_DIRECTORY,
    sockets: bool = False,
) -> Tuple[Holder, ...]:
    """Return all holders of the host's GPUs.

    The result is sorted by GPU (in the host's order), instance, kind and PID. `host` must be a current observation. If
    `sockets` is true, `listens` and `clients` are set.

    This process and its children are not holders, because they have the GPUs open for this run
    (nvml/bounded_session.py). Only an abandoned child that hangs in the driver is a holder. Raises no errors. For data
    that cannot be read, the result has a holder of kind "unknown", with the reason and the fix.
    """
    if not host.gpus:
        return ()
    devices = Devices(host, proc, dev)
    deadline = time.monotonic() + _LOOK_SECONDS
    with one_look(deadline):
        processes, hidden = _scanned(devices, proc, deadline)
        holders = [
            *_of_mps(host, devices, processes, run),
            *_of_processes(host, devices, processes),
            *containers(devices, processes, host.gpus),
            *_of_slurm(host, devices, processes, run, deadline),
            *_of_kubelet(host, devices, processes, kubelet_directory),
            *_not_seen(host, devices, processes),
            *_hidden(host, hidden),
        ]
        order = {gpu.uuid: gpu.index for gpu in host.gpus}
        complete = [_with_times(_printable(holder), processes) for holder in with_names(_without_repeats(holders), run)]
        if sockets:
            from .sockets import with_sockets

            complete = with_sockets(complete, processes, deadline)
    return tuple(sorted(complete, key=lambda h: (order[h.gpu_uuid], *_sort_key(h))))


def blocking(holders: Iterable[Holder], gpu_uuid: str, gpu_instance_id: int | None = None) -> Tuple[Holder, ...]:
    """Return the holders that block destroying a GPU instance.

    If `gpu_instance_id` is None, return the holders that block a reset or a change of the MIG mode.
    """
    return tuple(h for h in holders if h.gpu_uuid == gpu_uuid and h.blocks(gpu_instance_id))


def _scanned(devices: Devices, proc: str, deadline: float) -> tuple[Processes, int]:
    """Return the processes, and the number of hidden references to the driver.

    A hidden reference is one that no open file explains. If the driver's use count shows no hidden reference, the
    suspects are removed from the processes.
    """
    modules = proc + "/modules"
    if not devices.has_driver:
        return scan(devices, proc, deadline), 0
    hidden = 0
    for _again in range(_SCANS):
        before = read(modules)
        processes = scan(devices, proc, deadline)
        if not before:
            break
        found = _compared(devices, processes, before, read(modules))
        if found.accounted:
            processes = replace(processes, suspects=())
        hidden = found.hidden
        if not hidden or time.monotonic() > deadline:
            break
    return processes, hidden


def _compared(devices: Devices, processes: Processes, before: str, after: str) -> use_count.Verdict:
    """Compare the driver's use count with the files that the scan found.

    `before` and `after` have the content of /proc/modules before and after the scan.
    """
    from . import use_count

    def taken(files: Iterable[Sequence[int]]) -> int:
        return sum(use_count.references((file[2], file[3]), devices.listed_majors) for file in files)

    files = [file for file in processes.driver_files if taken([file])]
    apart = distinct_files(files)
    mapped = sum(
        count * use_count.references(number, devices.listed_majors)
        for number, count in processes.driver_mappings.items()
    )
    found = use_count.Found(
        None if apart is None else taken(apart),
        taken(files if apart is None else apart) + mapped,
        complete=processes.complete and not processes.unreadable and not processes.crowded,
        # Threads with one table of open files are listed once, as the main thread.
        uses=any(file[0] not in processes.own for file in files),
    )
    return use_count.compare(before, after, found)


def _hidden(host: Host, references: int) -> list[Holder]:
    if not references:
        return []
    problem = (
        "the driver has %d more references than open files (/proc/modules): something that the scan cannot see uses it"
    )
    cure = "End processes that may hide a GPU (docs/holders-detection.md, Hidden files), or reboot the host."
    return unknown(host.gpus, problem % references, cure)


def _of_mps(host: Host, devices: Devices, processes: Processes, run: Run) -> list[Holder]:
    if not any(processes.named(MPS_CONTROL)):
        return []
    from .mps import mps

    return mps(devices, processes, host.gpus, run)


def _is_mps(processes: Processes, pid: int) -> bool:
    """Return whether a process is an MPS daemon or server."""
    words = processes.arguments(pid)
    return bool(words) and words[0].rpartition("/")[2] in (MPS_CONTROL, MPS_SERVER)


def _of_slurm(host: Host, devices: Devices, processes: Processes, run: Run, deadline: float) -> list[Holder]:
    if not any(processes.named(SLURM_DAEMON)):
        return []
    from .slurm import slurm

    return slurm(host, devices, processes, run, deadline)


def _of_kubelet(host: Host, devices: Devices, processes: Processes, directory: str) -> list[Holder]:
    if not Path(directory).exists():
        return []
    from .kubelet import kubelet

    return kubelet(host, devices, processes, directory)


def _of_processes(host: Host, devices: Devices, processes: Processes) -> list[Holder]:
    """Return the processes that NVML lists or that have a node open.

    A process of both kinds is returned once, as NVML lists it.
    """
    kinds: dict[int, dict[Place, str]] = {}
    names: dict[int, str | None] = {}
    for pid, seen in processes.seen.items():
        own = seen.name in LOOK[0] and processes.runs_as_root(pid) and not processes.in_container(pid)
        if own and not LOOK[1].isdisjoint(processes.arguments(pid)) and not processes.was_killed(pid):
            continue
        places = {place for place in map(devices.place, seen.nodes) if place}
        inside = {gpu for gpu, instance in places if instance is not None}
        for gpu, instance in places:
            # A process in an instance always has the GPU's node open too.
            if instance is not None or gpu not in inside:
                kinds.setdefault(pid, {})[gpu, instance] = DEVICE_HANDLE
    for gpu in host.gpus:
        for process in gpu.processes:
            kind = MPS if process.kind == "mps" or _is_mps(processes, process.pid) else PROCESS
            places_of = kinds.setdefault(process.pid, {})
            places_of.pop((gpu.uuid, None), None)
            places_of[gpu.uuid, process.gpu_instance_id] = kind
            names[process.pid] = process.name
    return [
        _process(processes, pid, names.get(pid), place, kind)
        for pid, places in kinds.items()
        for place, kind in places.items()
    ]


def _process(processes: Processes, pid: int, name: str | None, place: Place, kind: str) -> Holder:
    command, user, origin = processes.command(pid) or name, processes.user(pid), processes.origin(pid)
    details = [text for text in (short(command), user and "user %s" % user, origin.unit_or_container) if text]
    who = "pid %d" % pid + (" (%s)" % ", ".join(details) if details else "")
    watches = False
    if kind == DEVICE_HANDLE:
        watches = place[1] is None and is_watcher(processes, pid)
        who += WATCHES if watches else HAS_OPEN
    if processes.was_killed(pid):
        who += ", was killed, and hangs in the kernel (check its log for Xid 119 or 120)"
    return Holder(
        place[0],
        place[1],
        kind,
        who,
        pid,
        user,
        command,
        origin.unit_or_container,
        origin.job or origin.pod,
        watches,
    )


def _not_seen(host: Host, devices: Devices, processes: Processes) -> list[Holder]:
    cure = "Run as root (become: true). If this host is a container, give it the capability CAP_SYS_PTRACE."
    holders = []
    if not devices.can_be_open:
        pass
    elif processes.unreadable:
        pids = processes.unreadable
        shown = ", ".join(str(pid) for pid in pids[:_PIDS_SHOWN]) + (", ..." if len(pids) > _PIDS_SHOWN else "")
        problem = "the open files of %d processes cannot be seen (pid %s)" % (len(pids), shown)
        holders += unknown(host.gpus, problem, cure)
    elif processes.crowded:
        who = ", ".join("pid %d, user %s" % (pid, processes.user(pid)) for pid in processes.crowded[:_PIDS_SHOWN])
        who += ", ..." if len(processes.crowded) > _PIDS_SHOWN else ""
        problem = "the open files of %d processes could not be read in time (%s)" % (len(processes.crowded), who)
        holders += unknown(
            host.gpus, problem, "End processes with very many open files (ls /proc/PID/fd), and run again."
        )
    elif not processes.complete:
        holders += unknown(host.gpus, "the processes of other users cannot be seen", cure)
    if Path(_VGPU_MODULE).is_dir():
        from .kernel import virtual_machines

        for gpu in host.gpus:
            for name in virtual_machines(gpu):
                problem = "nvidia_vgpu_vfio assigned a part of the GPU to a virtual machine (%s)" % name
                holders += unknown([gpu], problem, "Shut the virtual machine down and remove the device.")
    if os.geteuid() != 0:
        # In MIG mode, NVML lists all processes only to root (nvml.h, nvmlDeviceGetComputeRunningProcesses_v3).
        instances = [gpu for gpu in host.gpus if gpu.mig.enabled]
        holders += unknown(instances, "NVML lists the processes of other users to root only", cure)
    if devices.can_be_open:
        for reason, (problem, cure_of_it) in _SUSPECTS.items():
            pids = sorted({one.pid for one in processes.suspects if one.reason == reason})
            if pids:
                holders += _suspected(host, processes, pids, problem, cure_of_it)
    if devices.uncertain:
        problem = "/proc/driver/nvidia does not list the number of the GPU's device node"
        holders += unknown(devices.uncertain, problem, "Reload the driver, or reboot the host.")
    return holders


def _suspected(host: Host, processes: Processes, pids: list[int], problem: str, cure: str) -> list[Holder]:
    """Return one holder per GPU for all suspects with this reason.

    For a single process, the holder has its PID, user and command.
    """
    shown = []
    for pid in pids[:_PIDS_SHOWN]:
        texts = [text for text in (short(processes.command(pid)), processes.user(pid)) if text]
        shown.append("pid %d%s" % (pid, " (%s)" % ", user ".join(texts) if texts else ""))
    more = ["%d more" % (len(pids) - _PIDS_SHOWN)] if len(pids) > _PIDS_SHOWN else []
    details = {}
    if len(pids) == 1:
        details = {"pid": pids[0], "user": processes.user(pids[0]), "command": processes.command(pids[0])}
    return unknown(host.gpus, "%s: %s" % (problem, ", ".join(shown + more)), cure, **details)


def _with_times(holder: Holder, processes: Processes) -> Holder:
    return holder if holder.pid is None else replace(holder, **asdict(processes.times(holder.pid)))


def _printable(holder: Holder) -> Holder:
    """Escape and truncate a holder's texts, because users choose the names in them."""
    texts = {name: getattr(holder, name) for name in ("who", "user", "command", "unit_or_container", "job")}
    return replace(holder, **{name: _cut(printable(text)) for name, text in texts.items() if text is not None})


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_LENGTH else text[: _TEXT_LENGTH - 3] + "..."


def _without_repeats(holders: Iterable[Holder]) -> list[Holder]:
    """Keep one holder for each process and GPU or instance.

    If several sources found a process, the first holder is kept, because it has the most details.
    """
    found: dict[tuple[object, ...], Holder] = {}
    for holder in holders:
        key = (holder.gpu_uuid, holder.gpu_instance_id, holder.pid if holder.pid is not None else holder)
        found.setdefault(key, holder)
    return list(found.values())


def _sort_key(holder: Holder) -> tuple[int, int, int, str]:
    instance = -1 if holder.gpu_instance_id is None else holder.gpu_instance_id
    return instance, KINDS.index(holder.kind), holder.pid or 0, holder.who


def gpus(host: Host, holders: Iterable[Holder] | None, profiles: bool = False) -> list[dict[str, Any]]:
    """Return the GPUs and their instances as data, with their holders.

    None for `holders` means that no scan was made. `holders` of each GPU and instance is then None too.
    """
    seen = None if holders is None else tuple(holders)
    data: list[dict[str, Any]] = to_data(host.gpus)
    for gpu in data:
        gpu["holders"] = None if seen is None else to_data(blocking(seen, gpu["uuid"]))
        if not profiles:
            del gpu["mig"]["profiles"]
        for instance in gpu["mig"]["instances"]:
            instance["holders"] = None if seen is None else to_data(blocking(seen, gpu["uuid"], instance["id"]))
    return data
