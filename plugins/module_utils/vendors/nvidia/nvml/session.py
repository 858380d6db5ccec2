# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read `model` values and make single changes with NVML.

Use one Session per process.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
from pathlib import Path
from typing import Any, Iterable, Protocol, Sequence

from ....errors import NvmlError
from ....model import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    GpuInstanceProfile,
    Host,
    LostGpu,
    Mig,
    NvLink,
    Placement,
    Process,
    Telemetry,
)
from ....printable import printable
from . import pci as bus
from .calls import INVALID_ARGUMENT, NO_PERMISSION, Calls

_ARCHITECTURES = {5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper", 10: "blackwell", 13: "rubin"}
# NVML_GPU_VIRTUALIZATION_MODE_VGPU: a virtual GPU in a guest.
_VGPU_GUEST = 2
# Device node of the GPUs in the Windows Subsystem for Linux.
WSL_DEVICE = "/dev/dxg"
_COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive_process"}
# Number of longs in a bitmap of NUMA nodes. Linux has at most 1024 nodes (CONFIG_NODES_SHIFT).
NUMA_NODE_WORDS = 16
# Kind of the placeholder process for all processes that NVML does not list.
UNKNOWN = "unknown"
# NVML's values for "no such instance" in process lists, and for "no value" in sizes.
_NO_ID, _NO_SIZE = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


class Observer(Protocol):
    """Reads GPU data that NVML does not provide."""

    def observe(self, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
        """Return the GPUs with the additional data."""


class Session(Calls):
    """One NVML session, as a context manager. It is not thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        #: Called each time the GPUs are observed.
        self.observers: Sequence[Observer] = ()
        #: Whether NO_PERMISSION concerns only one GPU, as in a container without its device node. For users other than
        #: root, it concerns all GPUs.
        self.denied_is_lost = os.geteuid() == 0
        #: Number of completed changes of the last `change`.
        self.completed = 0
        #: By model: each list of MIG profiles that GPUs reported, and these GPUs' UUIDs.
        self._profiles: dict[tuple[str, int], dict[tuple[GpuInstanceProfile, ...], set[str]]] = {}
        #: GPUs by UUID, as last read.
        self._read: dict[str, Gpu] = {}
        #: GPUs that are readable but count as lost: UUID, and the failure.
        self._given_up: dict[str, NvmlError] = {}

    # ------------------------------------------------------------------ reading

    @property
    def simulated(self) -> bool:
        """Return whether the library is the collection's simulated NVML.

        The simulated library exports an additional symbol.
        """
        return hasattr(self._nvml.nvmlLib, "gpusimVersion")

    @property
    def private(self) -> bool:
        """Return whether only this process simulates the GPUs.

        Services and containers do not see such GPUs (docs/simulator.md).
        """
        return self.simulated and "GPUSIM_STATE" in os.environ

    def observe(self, telemetry: bool = False, only: str | None = None) -> Host:
        """Read everything that planning needs.

        If `telemetry` is true, also reads the current utilization. If `only` is a UUID, reads only this GPU, and
        returns the others as last read.

        A GPU for which a call fails is in `lost` with the failure. So is a GPU on the PCI bus that the driver does not
        list. Raises NvmlError if a call for the host fails.
        """
        cuda = self._best_effort("nvmlSystemGetCudaDriverVersion_v2")
        readings = [self._read_gpu(index, telemetry, only) for index in range(self._call("nvmlDeviceGetCount"))]
        readings = self._without_sick_profiles(readings)
        gpus = tuple(gpu for gpu in readings if isinstance(gpu, Gpu))
        for observer in self.observers:
            gpus = observer.observe(gpus)
        driver_version = self._call("nvmlSystemGetDriverVersion")
        lost = [gpu for gpu in readings if isinstance(gpu, LostGpu)]
        return Host(
            driver_version=driver_version,
            nvml_version=self._call("nvmlSystemGetNVMLVersion"),
            cuda_version=None if cuda is None else "%d.%d" % (cuda // 1000, cuda % 1000 // 10),
            simulated=self.simulated,
            gpus=gpus,
            lost=with_bus(gpus, lost, self.simulated, driver_version),
        )

    def give_up(self, gpu: str, error: NvmlError) -> None:
        """Count a GPU as lost for the rest of the session.

        NVML can read the GPU, but a change of it failed.
        """
        self._given_up[gpu] = error

    def memory_by_process(self, gpu: str) -> dict[int, int]:
        """Return the memory of each process on a GPU in bytes, by PID.

        Adds the memory on all MIG instances. Raises NvmlError.
        """
        handle = self._call("nvmlDeviceGetHandleByUUID", gpu, gpu=gpu)
        memory: dict[int, int] = {}
        for entry in self._call("nvmlDeviceGetComputeRunningProcesses", handle, gpu=gpu):
            if entry.usedGpuMemory not in (None, _NO_SIZE):
                memory[entry.pid] = memory.get(entry.pid, 0) + entry.usedGpuMemory
        return memory

    def _read_gpu(self, index: int, telemetry: bool, only: str | None) -> Gpu | LostGpu:
        handle = None
        try:
            with self._error_context(str(index)):
                handle = self._call("nvmlDeviceGetHandleByIndex", index)
                uuid = self._call("nvmlDeviceGetUUID", handle)
            self._handles[uuid] = handle
            self._indices[uuid] = index
            read = self._read.get(uuid)
            if uuid in self._given_up:
                return self._lost(index, handle, self._given_up[uuid])
            if only in (None, uuid) or read is None or read.index != index:
                with self._error_context(uuid):
                    self._read[uuid] = self._whole_gpu(index, handle, uuid, telemetry)
            return self._read[uuid]
        except NvmlError as error:
            if error.gpu is None or (error.code == NO_PERMISSION and not self.denied_is_lost):
                raise
            return self._lost(index, handle, error)

    def _without_sick_profiles(self, readings: Sequence[Gpu | LostGpu]) -> list[Gpu | LostGpu]:
        """Count GPUs without MIG profiles as lost if others of the same model have some.

        Compares only GPUs in the same mode, because driver 535 lists no profiles while MIG mode is off.
        """
        gpus = [gpu for gpu in readings if isinstance(gpu, Gpu) and gpu.mig.capable]
        listed = {(gpu.name, gpu.mig.enabled) for gpu in gpus if gpu.mig.profiles}
        sick = {gpu.index for gpu in gpus if not gpu.mig.profiles and (gpu.name, gpu.mig.enabled) in listed}
        problem = "it reports no MIG profile, unlike the other GPUs of its model"
        call = "nvmlDeviceGetGpuInstanceProfileInfo"
        return [
            self._lost(each.index, self._handles[each.uuid], NvmlError("", problem, call=call, gpu=each.uuid))
            if isinstance(each, Gpu) and each.index in sick
            else each
            for each in readings
        ]

    def _lost(self, index: int, handle: Any, error: NvmlError) -> LostGpu:
        """Return the lost GPU with its UUID, address and name, as far as known.

        They are what the GPU still reports, or reported earlier in this session.
        """
        identity: dict[str, Any] = {}
        if handle is not None:
            for name, call in (
                ("uuid", "nvmlDeviceGetUUID"),
                ("pci", "nvmlDeviceGetPciInfo"),
                ("name", "nvmlDeviceGetName"),
            ):
                with contextlib.suppress(NvmlError):
                    identity[name] = self._call(call, handle)
        earlier = next((gpu for gpu in self._read.values() if gpu.index == index), None)
        uuid, pci, name = (identity.get(each) for each in ("uuid", "pci", "name"))
        address = pci and _pci_address(pci)
        if earlier is not None and uuid in (None, earlier.uuid):
            uuid, name, address = earlier.uuid, earlier.name, earlier.pci_address
        return LostGpu(
            index,
            error.problem,
            uuid=uuid,
            pci_address=address,
            name=name,
            call=error.call,
            code=error.code,
            code_name=error.code_name,
        )

    def _whole_gpu(self, index: int, handle: Any, uuid: str, telemetry: bool) -> Gpu:
        pci = self._optional("nvmlDeviceGetPciInfo", handle)
        memory = self._optional("nvmlDeviceGetMemoryInfo", handle)
        architecture = self._best_effort("nvmlDeviceGetArchitecture", handle)
        capability = self._best_effort("nvmlDeviceGetCudaComputeCapability", handle)
        compute_mode = self._optional("nvmlDeviceGetComputeMode", handle)
        persistence = self._best_effort("nvmlDeviceGetPersistenceMode", handle)
        name = self._call("nvmlDeviceGetName", handle)
        processes = self._processes(handle)
        mig = self._mig(handle, (name, 0 if pci is None else pci.pciDeviceId), uuid, processes)
        address = None if pci is None else _pci_address(pci)
        return Gpu(
            index=index,
            uuid=uuid,
            name=name,
            pci_address=address,
            memory_total_bytes=None if memory is None else memory.total,
            mig=mig,
            serial=self._best_effort("nvmlDeviceGetSerial", handle),
            architecture=None
            if architecture is None
            else _ARCHITECTURES.get(architecture, "unknown (%d)" % architecture),
            compute_capability=None if capability is None else "%d.%d" % tuple(capability),
            compute_mode_fixed=None if mig.enabled else self._compute_mode_fixed(handle, compute_mode),
            compute_mode=None if mig.enabled or compute_mode is None else _COMPUTE_MODES.get(compute_mode),
            persistence_mode=None if persistence is None else bool(persistence),
            numa_node=self._numa_node(handle, address),
            nvlinks=self._nvlinks(handle) if telemetry else (),
            processes=processes,
            telemetry=self._telemetry(handle) if telemetry else None,
        )

    def _compute_mode_fixed(self, handle: Any, mode: int | None) -> str | None:
        """Return why the compute mode cannot be set, or None.

        Returns only reasons that are known without trying.
        """
        if mode is None:
            return "the driver reports no compute mode for it"
        if self._best_effort("nvmlDeviceGetVirtualizationMode", handle) == _VGPU_GUEST:
            return "it is a virtual GPU of a guest, which has only the default mode"
        if not self.simulated and os.path.exists(WSL_DEVICE):  # noqa: PTH110
            return "in the Windows Subsystem for Linux it belongs to Windows"
        return None

    def _numa_node(self, handle: Any, address: str | None) -> int | None:
        # Prefer the kernel's NUMA node for the slot. Without /sys, use NVML's nearest memory node.
        # nvmlDeviceGetNumaNodeId is only for GPUs that are NUMA nodes themselves (with a Grace CPU).
        try:
            node = int(Path("/sys/bus/pci/devices", address or "none", "numa_node").read_text())
            return node if node >= 0 else None
        except (OSError, ValueError):
            words = self._best_effort(
                "nvmlDeviceGetMemoryAffinity", handle, NUMA_NODE_WORDS, self._nvml.NVML_AFFINITY_SCOPE_NODE
            )
        bits = (
            []
            if words is None
            else [64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1]
        )
        return bits[0] if bits else None

    def _nvlinks(self, handle: Any) -> tuple[NvLink, ...]:
        links = []
        for link in range(self._nvml.NVML_NVLINK_MAX_LINKS):
            state = self._best_effort("nvmlDeviceGetNvLinkState", handle, link)
            if state is None:
                break
            if state:
                remote = self._best_effort("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
                links.append(NvLink(link, None if remote is None else _pci_address(remote)))
        return tuple(links)

    def _telemetry(self, handle: Any) -> Telemetry:
        memory = self._best_effort("nvmlDeviceGetMemoryInfo", handle)
        rates = self._best_effort("nvmlDeviceGetUtilizationRates", handle)
        power = self._best_effort("nvmlDeviceGetPowerUsage", handle)
        limit = self._best_effort("nvmlDeviceGetEnforcedPowerLimit", handle)
        return Telemetry(
            memory_used_bytes=None if memory is None else memory.used,
            memory_free_bytes=None if memory is None else memory.free,
            gpu_utilization_percent=None if rates is None else rates.gpu,
            memory_utilization_percent=None if rates is None else rates.memory,
            power_watts=None if power is None else power / 1000.0,
            power_limit_watts=None if limit is None else limit / 1000.0,
            temperature_celsius=self._best_effort("nvmlDeviceGetTemperature", handle, self._nvml.NVML_TEMPERATURE_GPU),
        )

    def _processes(self, handle: Any) -> tuple[Process, ...]:
        """Return the processes on a GPU.

        In MIG mode, these are the processes of all instances, if the caller has permission (nvml.h).
        """
        compute = self._optional("nvmlDeviceGetComputeRunningProcesses", handle)
        graphics = self._optional("nvmlDeviceGetGraphicsRunningProcesses", handle)
        mps = self._optional("nvmlDeviceGetMPSComputeRunningProcesses", handle)
        found = []
        if compute is None:
            # NVML may not list all of the GPU's processes. Add a placeholder, so that the GPU counts as in use.
            found.append(Process(0, UNKNOWN, "NVML does not list the processes of this GPU"))
        # MPS clients are in both lists (H200, driver 580).
        clients = {_identity(entry) for entry in mps or ()}
        plain = [entry for entry in compute or () if _identity(entry) not in clients]
        for kind, listed in (("compute", plain), ("graphics", graphics), ("mps", mps)):
            found += [self._process(kind, entry) for entry in listed or ()]
        return tuple(found)

    def _process(self, kind: str, entry: Any) -> Process:
        _pid, gpu_instance, compute_instance = _identity(entry)
        return Process(
            pid=entry.pid,
            kind=kind,
            name=_line(self._best_effort("nvmlSystemGetProcessName", entry.pid)),
            gpu_memory_bytes=None if entry.usedGpuMemory in (None, _NO_SIZE) else entry.usedGpuMemory,
            gpu_instance_id=None if gpu_instance == _NO_ID else gpu_instance,
            compute_instance_id=None if compute_instance == _NO_ID else compute_instance,
        )

    # ------------------------------------------------------------------ reading MIG

    def _mig(self, handle: Any, model: tuple[str, int], uuid: str, processes: Sequence[Process]) -> Mig:
        modes = self._optional("nvmlDeviceGetMigMode", handle)
        if modes is None:
            return Mig()
        enabled, pending = bool(modes[0]), bool(modes[1])
        profiles = self._profiles_of(handle, model, uuid)
        instances = self._gpu_instances(handle, profiles, processes) if enabled else ()
        return Mig(True, enabled, pending, profiles, instances)

    def _profiles_of(self, handle: Any, model: tuple[str, int], uuid: str) -> tuple[GpuInstanceProfile, ...]:
        """Return a GPU's MIG profiles.

        A list that two GPUs of a model have reported is used for all GPUs of the model, which saves most of the calls
        on large hosts. One GPU's list is not enough, because a faulty GPU may report too few profiles, and no call
        distinguishes an unsupported profile from a fault.
        """
        lists = self._profiles.setdefault(model, {})
        agreed = [profiles for profiles, uuids in lists.items() if profiles and len(uuids) > 1]
        if agreed:
            return max(agreed, key=len)
        profiles = self._gpu_instance_profiles(handle)
        lists.setdefault(profiles, set()).add(uuid)
        return profiles

    def _gpu_instance_profiles(self, handle: Any) -> tuple[GpuInstanceProfile, ...]:
        profiles = []
        for enum in range(self._nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            info = self._optional("nvmlDeviceGetGpuInstanceProfileInfo", handle, enum, also=(INVALID_ARGUMENT,))
            if info is None:
                continue
            placements = self._list(
                self._nvml.c_nvmlGpuInstancePlacement_t, "nvmlDeviceGetGpuInstancePossiblePlacements", handle, info.id
            )
            profiles.append(
                GpuInstanceProfile(
                    name=_text(info.name).replace("MIG ", ""),
                    enum=enum,
                    profile_id=info.id,
                    compute_slices=info.sliceCount,
                    memory_mib=info.memorySizeMB,
                    multiprocessors=info.multiprocessorCount,
                    decoders=info.decoderCount,
                    encoders=info.encoderCount,
                    jpegs=info.jpegCount,
                    ofas=info.ofaCount,
                    max_instances=info.instanceCount,
                    placements=tuple(sorted(Placement(p.start, p.size) for p in placements)),
                )
            )
        return tuple(profiles)

    def _gpu_instances(
        self, handle: Any, profiles: Sequence[GpuInstanceProfile], processes: Sequence[Process]
    ) -> tuple[GpuInstance, ...]:
        mig_uuids = self._mig_uuids(handle)
        instances = []
        for profile in profiles:
            for found in self._list(
                self._nvml.c_nvmlGpuInstance_t, "nvmlDeviceGetGpuInstances", handle, profile.profile_id
            ):
                info = self._call("nvmlGpuInstanceGetInfo", found)
                inside = tuple(p for p in processes if p.kind == UNKNOWN or p.gpu_instance_id == info.id)
                compute, places = self._compute_instances(found, info.id, mig_uuids, inside)
                placement = Placement(info.placement.start, info.placement.size)
                instances.append(GpuInstance(info.id, profile.name, placement, compute, inside, places))
        return tuple(sorted(instances, key=lambda i: i.placement))

    def _mig_uuids(self, handle: Any) -> dict[tuple[int, int], str]:
        """Return the UUIDs of the GPU's MIG devices.

        The keys are (GPU instance id, compute instance id). Skips an index without a MIG device.
        """
        uuids = {}
        for index in range(self._call("nvmlDeviceGetMaxMigDeviceCount", handle)):
            device = self._optional("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            if device is not None:
                ids = (
                    self._call("nvmlDeviceGetGpuInstanceId", device),
                    self._call("nvmlDeviceGetComputeInstanceId", device),
                )
                uuids[ids] = self._call("nvmlDeviceGetUUID", device)
        return uuids

    def _compute_instances(
        self, instance: Any, instance_id: int, mig_uuids: dict[tuple[int, int], str], processes: Sequence[Process]
    ) -> tuple[tuple[ComputeInstance, ...], tuple[tuple[int, tuple[Placement, ...]], ...]]:
        found: list[ComputeInstance] = []
        places: dict[int, tuple[Placement, ...]] = {}
        for profile in self._compute_profiles(instance):
            if profile.sliceCount not in places:
                possible = self._list(
                    self._nvml.c_nvmlComputeInstancePlacement_t,
                    "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
                    instance,
                    profile.id,
                    optional=True,
                )
                places[profile.sliceCount] = tuple(sorted(Placement(p.start, p.size) for p in possible))
            for compute in self._list(
                self._nvml.c_nvmlComputeInstance_t, "nvmlGpuInstanceGetComputeInstances", instance, profile.id
            ):
                info = self._call("nvmlComputeInstanceGetInfo_v2", compute)
                found.append(
                    ComputeInstance(
                        id=info.id,
                        compute_slices=profile.sliceCount,
                        placement=Placement(info.placement.start, info.placement.size),
                        mig_uuid=mig_uuids.get((instance_id, info.id)),
                        processes=tuple(p for p in processes if p.kind == UNKNOWN or p.compute_instance_id == info.id),
                    )
                )
        return tuple(sorted(found, key=lambda c: c.placement)), tuple(sorted(places.items()))

    def _compute_profiles(self, instance: Any) -> list[Any]:
        infos = []
        for enum in range(self._nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            info = self._optional(
                "nvmlGpuInstanceGetComputeInstanceProfileInfo",
                instance,
                enum,
                self._nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
                also=(INVALID_ARGUMENT,),
            )
            if info is not None:
                infos.append(info)
        return infos

    # ------------------------------------------------------------------ single actions

    def set_mig_mode(self, gpu: str, enabled: bool) -> int:
        """Request a MIG mode and return the activation status.

        The status is SUCCESS if the mode is active, and IN_USE or RESET_REQUIRED if it is pending.
        """
        return self._call("nvmlDeviceSetMigMode", self._handle(gpu), int(enabled), gpu=gpu)

    def mig_mode(self, gpu: str) -> tuple[bool, bool]:
        """Return (current MIG mode, pending MIG mode)."""
        current, pending = self._call("nvmlDeviceGetMigMode", self._handle(gpu), gpu=gpu)
        return bool(current), bool(pending)

    def set_compute_mode(self, gpu: str, mode: str) -> None:
        codes = {name: code for code, name in _COMPUTE_MODES.items()}
        self._call("nvmlDeviceSetComputeMode", self._handle(gpu), codes[mode], gpu=gpu)

    def change(self, changes: Iterable[tuple[str, tuple[Any, ...]]]) -> None:
        """Create and destroy instances in the order of `changes`.

        A change is (name of a method of this class, its arguments). `completed` counts completed changes. Raises
        NvmlError at the first change that fails.
        """
        self.completed = 0
        for name, arguments in changes:
            getattr(self, name)(*arguments)
            self.completed += 1

    def create_gpu_instance(self, gpu: str, profile_id: int, placement: Placement) -> None:
        where = self._nvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        self._call(
            "nvmlDeviceCreateGpuInstanceWithPlacement", self._handle(gpu), profile_id, ctypes.byref(where), gpu=gpu
        )

    def destroy_gpu_instance(self, gpu: str, gpu_instance_id: int) -> None:
        self._call("nvmlGpuInstanceDestroy", self._gpu_instance(gpu, gpu_instance_id), gpu=gpu)

    def create_compute_instance(
        self, gpu: str, profile_id: int, gpu_instance_start: int, compute_slices: int, start: int | None
    ) -> None:
        """Create a compute instance in the GPU instance with this profile and start.

        `start` is its placement in the GPU instance.
        """
        instance = self._gpu_instance_at(gpu, profile_id, gpu_instance_start)
        with self._error_context(gpu):
            profile = next((p for p in self._compute_profiles(instance) if p.sliceCount == compute_slices), None)
        if profile is None:
            raise NvmlError(
                self._label(gpu),
                "the GPU instance at %d offers no compute instance of %d slices" % (gpu_instance_start, compute_slices),
                gpu=gpu,
            )
        if start is None:
            self._call("nvmlGpuInstanceCreateComputeInstance", instance, profile.id, gpu=gpu)
        else:
            where = self._nvml.c_nvmlComputeInstancePlacement_t(start, compute_slices)
            call = "nvmlGpuInstanceCreateComputeInstanceWithPlacement"
            self._call(call, instance, profile.id, ctypes.byref(where), gpu=gpu)

    def destroy_compute_instance(self, gpu: str, gpu_instance_id: int, compute_instance_id: int) -> None:
        instance = self._gpu_instance(gpu, gpu_instance_id)
        compute = self._call("nvmlGpuInstanceGetComputeInstanceById", instance, compute_instance_id, gpu=gpu)
        self._call("nvmlComputeInstanceDestroy", compute, gpu=gpu)

    # ------------------------------------------------------------------ finding

    def _handle(self, gpu: str) -> Any:
        if gpu not in self._handles:
            # Search by UUID, because after a reset, an index may mean another GPU.
            self._handles[gpu] = self._call("nvmlDeviceGetHandleByUUID", gpu, gpu=gpu)
        return self._handles[gpu]

    def _gpu_instance(self, gpu: str, gpu_instance_id: int) -> Any:
        return self._call("nvmlDeviceGetGpuInstanceById", self._handle(gpu), gpu_instance_id, gpu=gpu)

    def _gpu_instance_at(self, gpu: str, profile_id: int, start: int) -> Any:
        with self._error_context(gpu):
            for found in self._list(
                self._nvml.c_nvmlGpuInstance_t, "nvmlDeviceGetGpuInstances", self._handle(gpu), profile_id
            ):
                if self._call("nvmlGpuInstanceGetInfo", found).placement.start == start:
                    return found
        raise NvmlError(
            self._label(gpu), "no GPU instance of profile id %d starts at placement %d" % (profile_id, start), gpu=gpu
        )


def _identity(entry: Any) -> tuple[int, int, int]:
    """Return a listed process's PID, and NVML's ids of its instances."""
    gpu_instance, compute_instance = (getattr(entry, n, _NO_ID) for n in ("gpuInstanceId", "computeInstanceId"))
    return entry.pid, gpu_instance, compute_instance


def _line(text: str | None) -> str | None:
    """Make a user's text printable. NVML truncates such texts."""
    return None if text is None else printable(text)


def _text(value: bytes | str) -> str:
    """Return a value as text. Older releases of nvidia-ml-py return bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _pci_address(pci: Any) -> str:
    """Return a PCI address as domain:bus:device.function, as in sysfs.

    NVML pads the domain to eight digits.
    """
    return "%04x:%02x:%02x.0" % (pci.domain, pci.bus, pci.device)


def with_bus(gpus: Sequence[Gpu], lost: Sequence[LostGpu], simulated: bool, driver: str) -> tuple[LostGpu, ...]:
    """Return the lost GPUs, and add GPUs that the driver does not list.

    If only one lost GPU has no address, its address is added if it can be determined. `driver` is the driver's version.
    Simulated GPUs are not on the machine's bus, unless `gpusim kernel-files` simulates the bus.
    """
    if simulated and not os.path.ismount(bus.DEVICES):
        return tuple(lost)
    known = {(gpu.pci_address or "").lower() for gpu in (*gpus, *lost)}
    missing = [address for address in bus.expected_gpus() if address not in known]
    unplaced = [gpu for gpu in lost if gpu.pci_address is None]
    elsewhere = [gpu for gpu in gpus if gpu.pci_address is None]
    if len(missing) == len(unplaced) == 1 and not elsewhere:
        # If one GPU has no address and one address has no GPU, they belong together.
        placed = dataclasses.replace(
            unplaced[0], pci_address=missing[0], uuid=unplaced[0].uuid or bus.uuid_of(missing[0])
        )
        return tuple(placed if gpu is unplaced[0] else gpu for gpu in lost)
    if len(missing) <= len(unplaced) + len(elsewhere):
        return tuple(lost)
    return (*lost, *(_missing(address, driver) for address in missing))


def _missing(address: str, driver: str) -> LostGpu:
    problem = "it is on the PCI bus, but missing in the driver"
    known = bus.minimum_driver(bus.device_id_of(address))
    minimum = None
    if known is not None and _numbers(driver) < _numbers(known[1]):
        model, minimum, source = known
        if "." not in minimum:
            minimum = "branch %s" % minimum
        problem += ". The driver %s is older than %s, which %s needs (%s)" % (driver, minimum, model, source)
    return LostGpu(None, problem, uuid=bus.uuid_of(address), pci_address=address, minimum_driver=minimum)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".") if number.isdigit())
