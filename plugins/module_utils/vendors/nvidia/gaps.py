# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find values that a GPU does not report, unlike other GPUs of its model.

Pure functions. An NVML error such as NOT_SUPPORTED means either a faulty GPU, or a healthy driver or model that lacks a
feature. In both cases a value is missing. A comparison with other GPUs of the model shows whether the GPU is faulty.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterator

from ...errors import NvmlError
from ...frozen import frozen
from ...model import Gpu, Host, LostGpu, Mig

# First branch that reports MIG profiles while MIG mode is off.
_PROFILES_WITHOUT_MIG = 550


@frozen
class Gap:
    """A value that a GPU does not report, and the NVML call that should report it.

    `completed` is a copy of the GPU with another GPU's value. It is None if no other GPU has the value and the GPU
    cannot work without it.
    """

    gpu: Gpu
    call: str
    problem: str
    completed: Gpu | None

    def lost(self) -> LostGpu:
        """Return the GPU as a lost one."""
        gpu, call, code = self.gpu, self.call, NvmlError.UNKNOWN
        return LostGpu(gpu.index, self.problem, gpu.uuid, gpu.pci_address, gpu.name, call, code, "Unknown")


def gaps(host: Host) -> Iterator[Gap]:
    """Yield values that a GPU does not report, unlike other GPUs of its model."""
    for gpu in host.gpus:
        peers = [peer for peer in host.gpus if peer.name == gpu.name and peer is not gpu]
        mig = gpu.mig
        profiles = max((peer.mig.profiles for peer in peers), key=len, default=())
        call = "nvmlDeviceGetGpuInstanceProfileInfo"
        if not mig.capable and any(peer.mig.capable for peer in peers):
            completed = dataclasses.replace(gpu, mig=Mig(True, profiles=profiles))
            yield Gap(gpu, "nvmlDeviceGetMigMode", "it reports no MIG, unlike other GPUs of its model", completed)
        elif mig.capable and set(mig.profiles) < set(profiles):
            completed = dataclasses.replace(gpu, mig=dataclasses.replace(mig, profiles=profiles))
            problem = "it reports fewer MIG profiles than other GPUs of its model"
            yield Gap(gpu, call, problem + _advice(host, gpu), completed)
        elif mig.capable and not mig.profiles and not _advice(host, gpu):
            yield Gap(gpu, call, "it reports no MIG profiles", None)
        sizes = [peer.memory_total_bytes for peer in peers if peer.memory_total_bytes is not None]
        if gpu.memory_total_bytes is None and sizes:
            completed = dataclasses.replace(gpu, memory_total_bytes=sizes[0])
            problem = "it reports no memory size, unlike other GPUs of its model"
            yield Gap(gpu, "nvmlDeviceGetMemoryInfo", problem, completed)
        # A GPU in a guest reports its compute mode, so it has no gap. If a layout needs another mode, the plan fails.
        if gpu.compute_mode is None and gpu.compute_mode_fixed and any(not peer.compute_mode_fixed for peer in peers):
            completed = dataclasses.replace(gpu, compute_mode="default", compute_mode_fixed=None)
            problem = "%s, unlike other GPUs of its model" % gpu.compute_mode_fixed
            yield Gap(gpu, "nvmlDeviceGetComputeMode", problem, completed)
        if _unlisted(gpu) and any(not _unlisted(peer) for peer in peers):
            problem = "NVML does not list its processes, unlike those of other GPUs of its model"
            yield Gap(gpu, "nvmlDeviceGetComputeRunningProcesses", problem, _listed(gpu))


def _advice(host: Host, gpu: Gpu) -> str:
    """Return the fix if the driver lists no MIG profiles in this mode, or ""."""
    if gpu.mig.enabled or gpu.mig.profiles or int(host.driver_version.partition(".")[0]) >= _PROFILES_WITHOUT_MIG:
        return ""
    text = " (a driver before %d lists none while MIG mode is off: upgrade it, or run nvidia-smi -i %s -mig 1 once)"
    return text % (_PROFILES_WITHOUT_MIG, gpu.uuid)


def _unlisted(gpu: Gpu) -> bool:
    """Return whether the GPU has a process with pid 0.

    It replaces processes that NVML does not list.
    """
    return any(process.pid == 0 for process in gpu.processes)


def _listed(gpu: Gpu) -> Gpu:
    """Return a copy of the GPU without placeholder processes (pid 0)."""

    def listed(part: Any) -> Any:
        kept = {name: tuple(each for each in getattr(part, name) if each.pid != 0) for name in ("processes", "held_by")}
        return dataclasses.replace(part, **kept)

    instances = tuple(
        dataclasses.replace(listed(each), compute_instances=tuple(map(listed, each.compute_instances)))
        for each in gpu.mig.instances
    )
    mig = dataclasses.replace(gpu.mig, instances=instances)
    whole: Gpu = listed(gpu)
    return dataclasses.replace(whole, mig=mig)
