# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the state of a host's GPUs as values, independent of NVML and Ansible.

Field names include units. None means that the driver reports no value, and never zero.
"""

# `frozen` makes dataclasses.
# pylint: disable=invalid-field-call
from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, Mapping, Protocol, Sequence, Tuple

from .frozen import frozen

#: (GPU UUID, GPU instance id). The id is None for the whole GPU.
Place = Tuple[str, "int | None"]
#: Marks fields that only the planner uses, and that `to_data` omits.
INTERNAL = {"internal": True}
#: Names of MPS's programs: the daemon, and the servers that it starts.
MPS_CONTROL, MPS_SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"


# Use a real dataclass, because its compiled comparisons are faster, and the planner compares placements all the time.
@dataclass(frozen=True, order=True)
class Placement:
    """An instance's placement, in memory placement units or compute slices."""

    start: int
    size: int

    @property
    def mask(self) -> int:
        """Return the occupied units as a bit mask."""
        return ((1 << self.size) - 1) << self.start


@frozen
class GpuInstanceProfile:
    """A GPU instance profile as NVML reports it for a GPU.

    `enum` is the argument for nvmlDeviceGetGpuInstanceProfileInfo. `profile_id` is another number, for the calls that
    create and list instances. `placements` are all placements that the hardware supports, free or used.
    """

    name: str
    enum: int
    profile_id: int
    compute_slices: int
    memory_mib: int
    multiprocessors: int
    decoders: int
    encoders: int
    jpegs: int
    ofas: int
    max_instances: int
    placements: tuple[Placement, ...]

    #: Fields with the number of media engines, of which a GPU has a fixed number.
    ENGINES = ("decoders", "encoders", "jpegs", "ofas")

    @property
    def units(self) -> int:
        """Return the number of memory placement units of an instance with this profile."""
        return self.placements[0].size if self.placements else 0


@frozen
class Process:
    """A process that NVML reports. `kind` is compute, graphics or mps."""

    pid: int
    kind: str
    name: str | None = None
    gpu_memory_bytes: int | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None

    def __str__(self) -> str:
        if not self.pid:
            return "an unknown holder, perhaps (%s)" % self.name
        return "pid %d%s" % (self.pid, " (%s)" % self.name if self.name else "")


@frozen
class Holder:
    """A process, container or allocation that holds a GPU or a GPU instance.

    `gpu_instance_id` is None if the holder uses the whole GPU or an unknown instance. `who` names the holder in
    messages. `watches` is true for a holder, such as a monitoring agent, that has the GPU open without running anything
    on it. It blocks resets and changes of the MIG mode, because they require that no process has the GPU open. It does
    not block changes of instances. `started_seconds` is when the process started, as a Unix time.
    """

    gpu_uuid: str
    gpu_instance_id: int | None
    kind: str
    who: str
    pid: int | None = None
    user: str | None = None
    command: str | None = None
    unit_or_container: str | None = None
    job: str | None = None
    watches: bool = False
    started_seconds: float | None = None
    #: Start of the process in clock ticks since boot, which changes of the clock do not affect. It identifies the
    #: process together with the PID.
    started_ticks: int | None = field(default=None, metadata=INTERNAL)
    #: Whether the holder's unit or container listens on TCP, and how many clients are connected to it. Both are None if
    #: they are unknown or were not read (`holders.sockets`).
    listens: bool | None = None
    clients: int | None = None
    #: CPU time of the process in seconds.
    cpu_seconds: float | None = field(default=None, metadata=INTERNAL)
    #: Whether the holder comes only from a scheduler's record. Such a holder may have no process.
    recorded: bool = field(default=False, metadata=INTERNAL)

    def __str__(self) -> str:
        return self.who

    def blocks(self, gpu_instance_id: int | None = None) -> bool:
        """Return whether the holder blocks destroying a GPU instance.

        For None, returns whether it blocks a reset or a change of the MIG mode.
        """
        if gpu_instance_id is None:
            return True
        return not self.watches and self.gpu_instance_id in (None, gpu_instance_id)


def _held_by() -> Any:
    """Define a field for holders, which `holders.mark.mark` sets.

    The field is empty if holders were not read.
    """
    return field(default=(), metadata=INTERNAL)


@frozen
class ComputeInstance:
    """A compute instance, which is one MIG device.

    `placement` is in the GPU instance's compute slices.
    """

    id: int
    compute_slices: int
    placement: Placement
    mig_uuid: str | None = None
    processes: tuple[Process, ...] = ()
    held_by: tuple[Holder, ...] = _held_by()


@frozen
class GpuInstance:
    """A GPU instance, its compute instances, and the processes that NVML reports."""

    id: int
    profile: str
    placement: Placement
    compute_instances: tuple[ComputeInstance, ...] = ()
    processes: tuple[Process, ...] = ()
    #: Possible placements of compute instances in this GPU instance: (number of slices, placements).
    compute_placements: tuple[tuple[int, tuple[Placement, ...]], ...] = field(default=(), metadata=INTERNAL)
    held_by: tuple[Holder, ...] = _held_by()

    @property
    def start(self) -> int:
        """Return the start of the placement."""
        return self.placement.start

    @property
    def uuids(self) -> tuple[str | None, ...]:
        """Return the UUIDs of the MIG devices in the GPU instance."""
        return tuple(compute.mig_uuid for compute in self.compute_instances)


@frozen
class Mig:
    """A GPU's MIG state, and its division.

    If `capable` is False, all other fields are empty. While a mode change waits for a reset, `enabled` and `pending`
    differ. `profiles` is empty if the driver cannot list profiles while MIG mode is off, as driver 535.
    """

    divider: ClassVar[str] = "mig"
    capable: bool = False
    enabled: bool = False
    pending: bool = False
    profiles: tuple[GpuInstanceProfile, ...] = ()
    instances: tuple[GpuInstance, ...] = ()


@frozen
class NvLink:
    """An active NVLink, with the PCI address of its other end if it is known."""

    link: int
    remote_pci_address: str | None = None


@frozen
class Telemetry:
    """Current readings of a GPU.

    Utilization is the share of the sample period in which a kernel ran. It does not measure load.
    """

    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    gpu_utilization_percent: int | None = None
    memory_utilization_percent: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: int | None = None


def short_label(index: int, uuid: str) -> str:
    """Return a GPU's index and short UUID ("GPU-" and eight digits)."""
    return "gpu %d (%s)" % (index, uuid[:12])


@frozen
class Setting:
    """A GPU setting that NVML does not report: its value, or the reason without one."""

    value: str | None
    problem: str | None = None


class Part(Protocol):
    """A part of a divided device with its own identity, such as a MIG instance."""

    @property
    def profile(self) -> str:
        """Return the kind of the part, as in layouts."""

    @property
    def start(self) -> int:
        """Return the part's position on its device. Positions are unique."""

    @property
    def uuids(self) -> Sequence[str | None]:
        """Return the part's identities.

        A later part at the same position has other identities.
        """


class Division(Protocol):
    """The current or desired division of one device.

    Each divider has its own class, with frozen values. Plans and messages show desired divisions.
    """

    #: Key of the divider.
    divider: ClassVar[str]

    @property
    def instances(self) -> Sequence[Any]:
        """Return the division's parts.

        Parts of a current division have the members of `Part`. Parts of a desired division have a profile, and a start
        that may be None.
        """


class Device(Protocol):
    """A GPU of any vendor.

    The values are frozen, and `dataclasses.replace` accepts them.
    """

    #: Keys of the vendor, and of the divider for the device.
    vendor: ClassVar[str]
    divider: ClassVar[str]

    @property
    def index(self) -> int:
        """Return the driver's number for the device."""

    @property
    def uuid(self) -> str:
        """Return the identity of the device."""

    @property
    def name(self) -> str:
        """Return the model's name."""

    @property
    def pci_address(self) -> str | None:
        """Return the PCI address, or None if the device is not on a PCI bus."""

    @property
    def numa_node(self) -> int | None:
        """Return the nearest NUMA node, or None if it is unknown."""

    @property
    def memory_total_bytes(self) -> int | None:
        """Return the size of the memory, or None if it is unknown."""

    @property
    def processes(self) -> Sequence[Any]:
        """Return the processes that the driver reports."""

    @property
    def held_by(self) -> Sequence[Any]:
        """Return the device's holders, as set by `Vendor.with_holders`."""

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Return the settings that observers read."""

    @property
    def division(self) -> Division | None:
        """Return the current division, or None if the device is whole."""

    @property
    def label(self) -> str:
        """Return the name of the device for messages."""

    @property
    def short_label(self) -> str:
        """Return the device's short name, for lines about many devices."""

    def setting(self, name: str) -> str | None:
        """Return the value of a setting, or None if it was not read or has no value."""


@frozen
class Gpu:
    """A physical NVIDIA GPU, with the members of `Device`.

    `compute_mode` is "default", "exclusive_process" or "prohibited". It is None if MIG hides it. `pci_address` is None
    if the GPU is not on a PCI bus. `memory_total_bytes` is None if the GPU shares the memory of the CPU (GB10, Thor),
    because NVML then reports no value.
    """

    vendor: ClassVar[str] = "nvidia"
    divider: ClassVar[str] = Mig.divider
    index: int
    uuid: str
    name: str
    pci_address: str | None
    memory_total_bytes: int | None
    mig: Mig = Mig()
    serial: str | None = None
    architecture: str | None = None
    compute_capability: str | None = None
    compute_mode: str | None = None
    persistence_mode: bool | None = None
    numa_node: int | None = None
    nvlinks: tuple[NvLink, ...] = ()
    processes: tuple[Process, ...] = ()
    telemetry: Telemetry | None = None
    #: Why the GPU's compute mode cannot be set, or None.
    compute_mode_fixed: str | None = field(default=None, metadata=INTERNAL)
    #: Settings by name, as techniques' observers read them. Settings that were not read are missing.
    settings: Mapping[str, Setting] = field(default_factory=dict, hash=False, metadata=INTERNAL)
    #: Holders that block a change of the MIG mode, for which the GPU must be unused.
    held_by: tuple[Holder, ...] = _held_by()

    @property
    def label(self) -> str:
        """Return the name of the GPU for messages."""
        return "gpu %d (%s, %s)" % (self.index, self.name, self.uuid)

    @property
    def division(self) -> Mig | None:
        """Return the MIG state if the GPU has or may have instances, or None."""
        return self.mig if self.mig.enabled or self.mig.instances else None

    def setting(self, name: str) -> str | None:
        """Return the value of a setting.

        Returns None if the setting was not read or has no value.
        """
        return self.settings[name].value if name in self.settings else None

    def with_instances(self, instances: tuple[GpuInstance, ...], mig_enabled: bool) -> Gpu:
        """Return a copy of the GPU with these instances and this MIG mode."""
        mig = dataclasses.replace(self.mig, enabled=mig_enabled, pending=mig_enabled, instances=instances)
        return dataclasses.replace(self, mig=mig)

    @property
    def short_label(self) -> str:
        """Return the GPU's short name, for lines about many GPUs."""
        return short_label(self.index, self.uuid)


@frozen
class LostGpu:
    """A GPU whose NVML calls fail, or that the driver does not list.

    `call`, `code` and `code_name` describe the failure. Parts of the identity that the GPU does not report are None.
    `index` is None if the driver does not list the GPU. `minimum_driver` is set if the driver is too old for the GPU.
    """

    index: int | None
    problem: str
    uuid: str | None = None
    pci_address: str | None = None
    name: str | None = None
    call: str | None = None
    code: int | None = None
    code_name: str | None = None
    minimum_driver: str | None = field(default=None, metadata=INTERNAL)

    #: NVML error codes: the GPU has fallen off the bus (Xid 79), and this user or container may not read the GPU.
    OFF_THE_BUS, DENIED = 15, 4

    @property
    def label(self) -> str:
        """Return the GPU's name for messages: its index and UUID, or its PCI address."""
        identity = self.uuid or self.pci_address
        if self.index is None:
            return "the GPU at %s" % identity
        return "gpu %d (%s)" % (self.index, identity) if identity else "gpu %d" % self.index

    @property
    def state(self) -> str:
        """Return the GPU's state as a predicate, such as "is lost"."""
        if self.index is None:
            return "is missing"
        if self.code == self.DENIED:
            return "cannot be read"
        return "is lost" if self.code in (None, self.OFF_THE_BUS) else "does not work"

    def __str__(self) -> str:
        return "%s %s: %s" % (self.label, self.state, self.problem)


@frozen
class Work:
    """The measured work of a GPU or a GPU instance.

    Values that are not measured are None. Utilization, power and traffic are measured for the whole GPU. With MIG, the
    utilization is None.
    """

    index: int
    seconds: float
    #: The highest sample, of kernels and of the engines for video, JPEG and optical flow.
    utilization_percent: int | None = None
    #: The share of the time in which kernels ran, including kernels between samples.
    kernels_ratio: float | None = None
    #: The highest share of time of an engine. None if the engines for JPEG or optical flow are not measured.
    engines_ratio: float | None = None
    bandwidth_ratio: float | None = None
    pcie_bytes_per_second: float | None = None
    nvlink_bytes_per_second: float | None = None
    watts: float | None = None


@frozen
class Host:
    """The result of an NVML session on a host, with GPUs in the order of their index.

    GPUs that do not work are only in `lost`.
    """

    driver_version: str
    nvml_version: str
    cuda_version: str | None
    simulated: bool
    gpus: tuple[Gpu, ...]
    lost: tuple[LostGpu, ...] = ()


def parts_of(device: Any) -> tuple[Any, ...]:
    """Return the parts of a device, or the desired parts of a target.

    Returns an empty tuple if the device or target is not divided.
    """
    return () if device.division is None else tuple(device.division.instances)


def lost_of(host: Host, gpu_uuid: str) -> LostGpu | None:
    """Return the lost GPU that has, or may have, this UUID.

    Returns None if the GPU works or was removed.
    """
    if any(gpu.uuid == gpu_uuid for gpu in host.gpus):
        return None
    candidates = [gpu for gpu in host.lost if gpu.uuid in (None, gpu_uuid)]
    return max(candidates, key=lambda gpu: gpu.uuid is not None, default=None)


def to_data(value: Any) -> Any:
    """Return a value as dictionaries, lists and scalars for JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (f.name for f in dataclasses.fields(value) if not f.metadata.get("internal"))
        return {name: to_data(getattr(value, name)) for name in names}
    if isinstance(value, (tuple, list)):
        return [to_data(item) for item in value]
    return value
