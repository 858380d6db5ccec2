# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host's GPUs are, as read from NVML: plain frozen values, free of NVML and of Ansible.

Units are in the names. A value of None means that the driver could not tell ("no data"), never zero.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Mapping

from .frozen import frozen

#: Marks fields that are the planner's business and that `to_data` leaves out.
INTERNAL = {"internal": True}
#: The programs of MPS: the daemon, and the servers that it starts.
MPS_CONTROL, MPS_SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"


# Compiled as `dataclass` does it: the planner compares placements all the time.
@dataclass(frozen=True, order=True)
class Placement:
    """Where an instance sits: a GPU instance in memory placement units, a compute instance in compute slices."""

    start: int
    size: int

    @property
    def mask(self) -> int:
        """The units it takes, one bit each."""
        return ((1 << self.size) - 1) << self.start


@frozen
class GpuInstanceProfile:
    """A GPU instance profile of one GPU, as NVML reports it.

    `enum` is the argument of nvmlDeviceGetGpuInstanceProfileInfo, `profile_id` the number that create and list take:
    two different numbers. `placements` are all that the hardware has, whether free or not.
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

    #: Fields that count media engines; a GPU has a fixed number of each to give away.
    ENGINES = ("decoders", "encoders", "jpegs", "ofas")

    @property
    def units(self) -> int:
        """Memory placement units that an instance of this profile takes."""
        return self.placements[0].size if self.placements else 0


@frozen
class Process:
    """A process that NVML lists. `kind` is compute, graphics or mps."""

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
    """A process, container or allocation that counts as using a GPU or one of its GPU instances.

    `gpu_instance_id` None is the whole GPU, or one that cannot be told. `who` names it in messages. A holder that
    `watches` keeps the GPU open without running anything on it: it is in the way of a reset and of a change of MIG
    mode, which want the GPU closed, and not of a change of instances. `started_seconds` is when the process of `pid` began, as a
    Unix time: since then at most it holds the GPU.
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
    #: The same in the kernel's count, which no clock moves: with the pid it is one process and no other.
    started_ticks: int | None = field(default=None, metadata=INTERNAL)
    #: Whether its unit or container has a TCP socket that listens, and how many clients are connected to such; None where
    #: there was no look, or it cannot be determined (holders_sockets).
    listens: bool | None = None
    clients: int | None = None
    #: CPU time that the process has taken so far.
    cpu_seconds: float | None = field(default=None, metadata=INTERNAL)

    def __str__(self) -> str:
        return self.who

    def blocks(self, gpu_instance_id: int | None = None) -> bool:
        """Whether it is in the way of destroying that GPU instance; None asks for a reset or a change of MIG mode."""
        if gpu_instance_id is None:
            return True
        return not self.watches and self.gpu_instance_id in (None, gpu_instance_id)


def _held_by() -> Any:
    """Who counts as using the thing, as `holders_mark.mark` wrote it down; empty where there was no look."""
    return field(default=(), metadata=INTERNAL)


@frozen
class ComputeInstance:
    """A compute instance: one MIG device. `placement` counts compute slices within its GPU instance."""

    id: int
    compute_slices: int
    placement: Placement
    mig_uuid: str | None = None
    processes: tuple[Process, ...] = ()
    held_by: tuple[Holder, ...] = _held_by()


@frozen
class GpuInstance:
    """A GPU instance with its compute instances and with the processes that NVML lists in it."""

    id: int
    profile: str
    placement: Placement
    compute_instances: tuple[ComputeInstance, ...] = ()
    processes: tuple[Process, ...] = ()
    #: Where a compute instance of so many slices may start, as this GPU instance reports it.
    compute_placements: tuple[tuple[int, tuple[Placement, ...]], ...] = field(default=(), metadata=INTERNAL)
    held_by: tuple[Holder, ...] = _held_by()


@frozen
class Mig:
    """The MIG side of a GPU. Where `capable` is False the rest is empty.

    `enabled` and `pending` differ while a mode change waits for a reset. `profiles` is empty where the driver cannot
    list them while MIG mode is off (driver 535 cannot).
    """

    capable: bool = False
    enabled: bool = False
    pending: bool = False
    profiles: tuple[GpuInstanceProfile, ...] = ()
    instances: tuple[GpuInstance, ...] = ()


@frozen
class NvLink:
    """One active NVLink: the link's number and the PCI address at its other end (None: the driver does not say)."""

    link: int
    remote_pci_address: str | None = None


@frozen
class Telemetry:
    """What a GPU is doing just now. Utilisation is the share of the sample period in which a kernel ran, not load."""

    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    gpu_utilization_percent: int | None = None
    memory_utilization_percent: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: int | None = None


def short_label(index: int, uuid: str) -> str:
    """Return a GPU's index with "GPU-" and the eight digits of its UUID that tell the GPUs of a host apart."""
    return "gpu %d (%s)" % (index, uuid[:12])


@frozen
class Setting:
    """A setting of a GPU that NVML does not have, as its observer read it: the value, or why there is none."""

    value: str | None
    problem: str | None = None


@frozen
class Gpu:
    """One physical GPU. `compute_mode` is default, exclusive_process or prohibited, None where MIG hides it.

    `pci_address` is None for a GPU that is not on a PCI bus, `memory_total_bytes` for one without memory of its own (GB10, Thor),
    which has no figure in NVML.
    """

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
    #: Why its compute mode cannot be set; None where nothing says so.
    compute_mode_fixed: str | None = field(default=None, metadata=INTERNAL)
    #: Settings by name that the observers of techniques read; a setting that was not looked at is missing.
    settings: Mapping[str, Setting] = field(default_factory=dict, hash=False, metadata=INTERNAL)
    #: For a change of MIG mode, which wants the whole GPU free.
    held_by: tuple[Holder, ...] = _held_by()

    @property
    def label(self) -> str:
        """How messages name this GPU."""
        return "gpu %d (%s, %s)" % (self.index, self.name, self.uuid)

    def setting(self, name: str) -> str | None:
        """Return the value of a setting; None if it was not looked at, or there is none."""
        return self.settings[name].value if name in self.settings else None

    def with_instances(self, instances: tuple[GpuInstance, ...], mig_enabled: bool) -> Gpu:
        """Return the GPU with these instances and this MIG mode."""
        mig = dataclasses.replace(self.mig, enabled=mig_enabled, pending=mig_enabled, instances=instances)
        return dataclasses.replace(self, mig=mig)

    @property
    def short_label(self) -> str:
        """How lines about many GPUs name this one."""
        return short_label(self.index, self.uuid)


@frozen
class LostGpu:
    """A GPU that cannot be used: an NVML call for it fails, or it is on the PCI bus and the driver does not count it.

    `call`, `code` and `code_name` are those of the failure. The identity is None as far as the GPU does not answer.
    `index` is None for a GPU that the driver does not count.
    """

    index: int | None
    problem: str
    uuid: str | None = None
    pci_address: str | None = None
    name: str | None = None
    call: str | None = None
    code: int | None = None
    code_name: str | None = None

    #: NVML's codes of a GPU that fell off the bus (XID 79), and of one that this user or container may not read.
    OFF_THE_BUS, DENIED = 15, 4

    @property
    def label(self) -> str:
        """Return how messages name this GPU: by its index and UUID, or its PCI address where it has none."""
        identity = self.uuid or self.pci_address
        if self.index is None:
            return "the GPU at %s" % identity
        return "gpu %d (%s)" % (self.index, identity) if identity else "gpu %d" % self.index

    @property
    def state(self) -> str:
        """Return what is wrong with it as a predicate."""
        if self.index is None:
            return "is missing"
        if self.code == self.DENIED:
            return "cannot be read"
        return "is lost" if self.code in (None, self.OFF_THE_BUS) else "does not work"

    def __str__(self) -> str:
        return "%s %s: %s" % (self.label, self.state, self.problem)


@frozen
class Host:
    """All that one NVML session saw on a host. GPUs are in index order; those that do not work are in `lost` alone."""

    driver_version: str
    nvml_version: str
    cuda_version: str | None
    simulated: bool
    gpus: tuple[Gpu, ...]
    lost: tuple[LostGpu, ...] = ()


def lost_of(host: Host, gpu_uuid: str) -> LostGpu | None:
    """Return the lost GPU that has this UUID, or may have it; None where the GPU works, or is gone."""
    if any(gpu.uuid == gpu_uuid for gpu in host.gpus):
        return None
    candidates = [gpu for gpu in host.lost if gpu.uuid in (None, gpu_uuid)]
    return max(candidates, key=lambda gpu: gpu.uuid is not None, default=None)


def to_data(value: Any) -> Any:
    """The value as dictionaries, lists and scalars, fit for JSON and for a module's return."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        told = (f.name for f in dataclasses.fields(value) if not f.metadata.get("internal"))
        return {name: to_data(getattr(value, name)) for name in told}
    if isinstance(value, (tuple, list)):
        return [to_data(item) for item in value]
    return value
