# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""List a host's GPUs, their MIG devices, and known GPUs that are lost."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import pynvml as nvml

#: Errors of NVML as a whole: the driver was unloaded, or no longer matches the loaded library. A new process loads the
#: new library.
GONE = (
    nvml.NVML_ERROR_UNINITIALIZED,
    nvml.NVML_ERROR_DRIVER_NOT_LOADED,
    nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)
#: Errors of the whole GPU, whichever call returns them.
FAULTS = (
    nvml.NVML_ERROR_INSUFFICIENT_POWER,
    nvml.NVML_ERROR_IRQ_ISSUE,
    nvml.NVML_ERROR_GPU_IS_LOST,
    nvml.NVML_ERROR_RESET_REQUIRED,
)


class NvmlGoneError(Exception):
    """NVML no longer answers this process."""


def ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML. Return None if NVML reports an error. Raises NvmlGoneError."""
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        if error.value in GONE:
            raise NvmlGoneError(str(error)) from error
        return None


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@dataclass(frozen=True, order=True)
class Entity:
    """Labels of a GPU or a MIG device."""

    uuid: str
    gpu_uuid: str
    gpu_index: str
    model: str
    mig_profile: str = ""
    mig_instance: str = ""

    #: Names of the labels, in the order of `values`.
    NAMES = ("uuid", "gpu_uuid", "gpu_index", "model", "mig_profile", "mig_instance")

    @property
    def values(self) -> Tuple[str, ...]:
        return (self.uuid, self.gpu_uuid, self.gpu_index, self.model, self.mig_profile, self.mig_instance)


@dataclass
class MigDevice:
    entity: Entity
    handle: Any
    #: NVML's number of the MIG device on its GPU. Numbers may have gaps.
    number: int
    gpu_instance: int
    compute_instance: int

    @property
    def shares_memory(self) -> bool:
        """Return whether another compute instance already counts this memory.

        Compute instances of a GPU instance share its memory.
        """
        return self.compute_instance != 0


@dataclass
class Gpu:
    entity: Entity
    #: None if the GPU is lost.
    handle: Any
    index: int
    pci_bus_id: str = ""
    mig_devices: List[MigDevice] = field(default_factory=list)

    @property
    def lost(self) -> bool:
        return self.handle is None

    @property
    def devices(self) -> List[Tuple[Entity, Any]]:
        """Return the devices for workloads: the MIG devices, or the GPU itself."""
        return [(mig.entity, mig.handle) for mig in self.mig_devices] or [(self.entity, self.handle)]


class Gpus:
    """Scans for GPUs repeatedly. A file records known GPUs until it is deleted."""

    def __init__(self, record: Optional[Path] = None) -> None:
        self.record = record
        self.lock = threading.Lock()
        self.known: Dict[str, Dict[str, str]] = self._read()
        #: The logged reason why a GPU has no handle or UUID, by index.
        self.unreachable: Dict[int, str] = {}

    def scan(self) -> List[Gpu]:
        """Return all GPUs by index, including lost GPUs.

        Raises NvmlGoneError, or nvml.NVMLError if NVML cannot count the GPUs.
        """
        with self.lock:
            return self._scan()

    def _scan(self) -> List[Gpu]:
        gpus: Dict[str, Gpu] = {}
        for index in range(count()):
            gpu = self._gpu(index)
            if gpu is not None:
                gpus[gpu.entity.uuid] = gpu
        known = dict(self.known)
        for uuid, gpu in gpus.items():
            known[uuid] = {"index": gpu.entity.gpu_index, "model": gpu.entity.model}
        if known != self.known:
            self.known = known
            self._write()
        for uuid, was in self.known.items():
            if uuid not in gpus:
                gpus[uuid] = Gpu(Entity(uuid, uuid, was["index"], was["model"]), None, int(was["index"]))
        return sorted(gpus.values(), key=lambda gpu: (gpu.index, gpu.entity.uuid))

    def _gpu(self, index: int) -> Optional[Gpu]:
        """Return the GPU with this index, or None if it has no UUID.

        A lost GPU has no handle.
        """
        call = "nvmlDeviceGetHandleByIndex"
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            call = "nvmlDeviceGetUUID"
            uuid = text(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError as error:
            if error.value in GONE:
                raise NvmlGoneError(str(error)) from error
            self._log(index, "%s failed: %s (NVML code %d)" % (call, error, error.value))
            return None
        self.unreachable.pop(index, None)
        model = text(ask(nvml.nvmlDeviceGetName, handle) or "")
        if is_lost(handle):
            return Gpu(Entity(uuid, uuid, str(index), model or self.known.get(uuid, {}).get("model", "")), None, index)
        gpu = Gpu(Entity(uuid, uuid, str(index), model), handle, index)
        pci = ask(nvml.nvmlDeviceGetPciInfo, handle)
        if pci is not None:
            gpu.pci_bus_id = text(pci.busId)
        mode = ask(nvml.nvmlDeviceGetMigMode, handle)
        if mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE:
            for number in range(ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
                mig = mig_device(gpu, number)
                if mig is not None:
                    gpu.mig_devices.append(mig)
        return gpu

    def _log(self, index: int, reason: str) -> None:
        """Log once why a GPU cannot be reached.

        A GPU that was never reached has no series to show this.
        """
        if self.unreachable.get(index) != reason:
            self.unreachable[index] = reason
            print("GPU %d cannot be reached: %s" % (index, reason), flush=True)

    def _read(self) -> Dict[str, Dict[str, str]]:
        try:
            known = json.loads(self.record.read_text()) if self.record else {}
            return {uuid: {"index": str(int(was["index"])), "model": str(was["model"])} for uuid, was in known.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _write(self) -> None:
        if self.record is None:
            return
        new = self.record.with_name(self.record.name + ".new")
        try:
            new.write_text(json.dumps(self.known, indent=2, sort_keys=True) + "\n")
            new.replace(self.record)
        except OSError as error:
            print("cannot record the known GPUs: %s" % error, flush=True)


def count() -> int:
    """Return the number of GPUs. Raises nvml.NVMLError if it is unknown.

    No GPU counts as lost then.
    """
    try:
        return nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        if error.value in GONE:
            raise NvmlGoneError(str(error)) from error
        raise


def is_lost(handle: Any) -> bool:
    """Return whether the GPU is lost, by reading its temperature.

    The driver may cache names and UUIDs.
    """
    try:
        nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
    except nvml.NVMLError as error:
        if error.value in GONE:
            raise NvmlGoneError(str(error)) from error
        return error.value in FAULTS
    return False


def mig_device(gpu: Gpu, number: int) -> Optional[MigDevice]:
    handle = ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu.handle, number)
    if handle is None:
        return None
    uuid = ask(nvml.nvmlDeviceGetUUID, handle)
    instance, compute = ask(nvml.nvmlDeviceGetGpuInstanceId, handle), ask(nvml.nvmlDeviceGetComputeInstanceId, handle)
    if uuid is None or instance is None or compute is None:
        return None
    # Read the profile from the name, such as "NVIDIA H100 80GB HBM3 MIG 1g.10gb", which needs no privileges.
    profile = text(ask(nvml.nvmlDeviceGetName, handle) or "").rpartition(" MIG ")[2]
    entity = Entity(
        text(uuid),
        gpu.entity.uuid,
        gpu.entity.gpu_index,
        gpu.entity.model,
        profile,
        # The second number distinguishes a GPU instance's compute instances.
        "%d.%d" % (instance, compute) if compute else str(instance),
    )
    return MigDevice(entity, handle, number, instance, compute)
