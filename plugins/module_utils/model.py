# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the state of a host's GPUs as values independent of NVML and Ansible.

Units are in the names. None means that the driver reports no value, and never zero.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Mapping

from .frozen import frozen

#: Marks fields for the planner, which `to_data` omits.
INTERNAL = {"internal": True}
#: Programs of MPS: the daemon, and the servers that it starts.
MPS_CONTROL, MPS_SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"


# A real dataclass, since its compiled comparisons are faster and the planner compares placements all the time.
@dataclass(frozen=True, order=True)
class Placement:
    """The place of an instance, in memory placement units or compute slices."""

    start: int
    size: int

    @property
    def mask(self) -> int:
        """Return its units as a bit mask."""
        return ((1 << self.size) - 1) << self.start


@frozen
class GpuInstanceProfile:
    """A GPU instance profile of one GPU, as NVML reports it.

    `enum` is the argument of nvmlDeviceGetGpuInstanceProfileInfo. `profile_id` is a different number, which create and list take.
    `placements` are all placements of the hardware, free and used.
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

    #: Fields that count media engines, of which a GPU has a fixed number.
    ENGINES = ("decoders", "encoders", "jpegs", "ofas")

    @property
    def units(self) -> int:
        """Return the memory placement units of an instance of this profile."""
        return self.placements[0].size if self.placements else 0


@frozen
class Process:
    """A process reported by NVML. `kind` is compute, graphics or mps."""

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
    """A process, container or allocation that holds a GPU or one of its GPU instances.

    `gpu_instance_id` is None for the whole GPU or an unknown instance. `who` names the holder in messages.
    A holder that `watches`, such as a monitoring agent, has the GPU open without running anything on it. It blocks resets and
    changes of MIG mode, which require a closed GPU, but no change of instances.
    `started_seconds` is the start of the process as a Unix time. It has held the GPU since then at the earliest.
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
    #: The start in ticks since boot, which no clock change affects. With the pid it identifies the process.
    started_ticks: int | None = field(default=None, metadata=INTERNAL)
    #: Whether its unit or container has a listening TCP socket, and the number of clients connected to such sockets. None if
    #: that was not read or is unknown (`holders.sockets`).
    listens: bool | None = None
    clients: int | None = None
    #: CPU time of the process.
    cpu_seconds: float | None = field(default=None, metadata=INTERNAL)

    def __str__(self) -> str:
        return self.who

    def blocks(self, gpu_instance_id: int | None = None) -> bool:
        """Return whether it blocks destroying a GPU instance.

        None asks for a reset or a change of MIG mode.
        """
        if gpu_instance_id is None:
            return True
        return not self.watches and self.gpu_instance_id in (None, gpu_instance_id)


def _held_by() -> Any:
    """Define the field of the holders that `holders.mark.mark` finds.

    Empty if holders were not read.
    """
    return field(default=(), metadata=INTERNAL)


@frozen
class ComputeInstance:
    """A compute instance, which is one MIG device.

    `placement` is in compute slices of its GPU instance.
    """

    id: int
    compute_slices: int
    placement: Placement
    mig_uuid: str | None = None
    processes: tuple[Process, ...] = ()
    held_by: tuple[Holder, ...] = _held_by()


@frozen
class GpuInstance:
    """A GPU instance with its compute instances and NVML's processes."""

    id: int
    profile: str
    placement: Placement
    compute_instances: tuple[ComputeInstance, ...] = ()
    processes: tuple[Process, ...] = ()
    #: Possible placements of compute instances by number of slices, as this GPU instance reports them.
    compute_placements: tuple[tuple[int, tuple[Placement, ...]], ...] = field(default=(), metadata=INTERNAL)
    held_by: tuple[Holder, ...] = _held_by()


@frozen
class Mig:
    """The MIG state of a GPU. If `capable` is False, the rest is empty.

    `enabled` and `pending` differ while a mode change waits for a reset. `profiles` is empty if the driver cannot list them with
    MIG mode off, like driver 535.
    """

    capable: bool = False
    enabled: bool = False
    pending: bool = False
    profiles: tuple[GpuInstanceProfile, ...] = ()
    instances: tuple[GpuInstance, ...] = ()


@frozen
class NvLink:
    """One active NVLink, with the PCI address of its other end if known."""

    link: int
    remote_pci_address: str | None = None


@frozen
class Telemetry:
    """Current readings of a GPU.

    Utilization is the share of the sample period in which a kernel ran, not load.
    """

    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    gpu_utilization_percent: int | None = None
    memory_utilization_percent: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: int | None = None


def short_label(index: int, uuid: str) -> str:
    """Return a GPU's index, and its UUID shortened to "GPU-" and eight digits."""
    return "gpu %d (%s)" % (index, uuid[:12])


@frozen
class Setting:
    """A GPU's setting that is not in NVML: its value, or why it has none."""

    value: str | None
    problem: str | None = None


@frozen
class Gpu:
    """One physical GPU.

    `compute_mode` is default, exclusive_process, prohibited, or None if MIG hides it. `pci_address` is None without a PCI bus.
    `memory_total_bytes` is None for a GPU that shares the memory of the CPU (GB10, Thor), since NVML reports no value.
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
    #: Why its compute mode cannot be set, or None.
    compute_mode_fixed: str | None = field(default=None, metadata=INTERNAL)
    #: Settings by name, from the observers of techniques. Settings that were not read are missing.
    settings: Mapping[str, Setting] = field(default_factory=dict, hash=False, metadata=INTERNAL)
    #: Holders that block a change of MIG mode, which requires an unused GPU.
    held_by: tuple[Holder, ...] = _held_by()

    @property
    def label(self) -> str:
        """Return its name in messages."""
        return "gpu %d (%s, %s)" % (self.index, self.name, self.uuid)

    def setting(self, name: str) -> str | None:
        """Return the value of a setting, or None if it was not read or has none."""
        return self.settings[name].value if name in self.settings else None

    def with_instances(self, instances: tuple[GpuInstance, ...], mig_enabled: bool) -> Gpu:
        """Return the GPU with these instances and this MIG mode."""
        mig = dataclasses.replace(self.mig, enabled=mig_enabled, pending=mig_enabled, instances=instances)
        return dataclasses.replace(self, mig=mig)

    @property
    def short_label(self) -> str:
        """Return its name in lines about many GPUs."""
        return short_label(self.index, self.uuid)


@frozen
class LostGpu:
    """A GPU whose NVML calls fail, or that is missing in the driver.

    `call`, `code` and `code_name` describe the failure. Parts of the identity that the GPU does not report are None.
    `index` is None for a GPU that is missing in the driver.
    """

    index: int | None
    problem: str
    uuid: str | None = None
    pci_address: str | None = None
    name: str | None = None
    call: str | None = None
    code: int | None = None
    code_name: str | None = None

    #: NVML's codes for a GPU that fell off the bus (XID 79), and for one that this user or container may not read.
    OFF_THE_BUS, DENIED = 15, 4

    @property
    def label(self) -> str:
        """Return its name in messages: index and UUID, or the PCI address without a UUID."""
        identity = self.uuid or self.pci_address
        if self.index is None:
            return "the GPU at %s" % identity
        return "gpu %d (%s)" % (self.index, identity) if identity else "gpu %d" % self.index

    @property
    def state(self) -> str:
        """Return its problem as a predicate, such as "is lost"."""
        if self.index is None:
            return "is missing"
        if self.code == self.DENIED:
            return "cannot be read"
        return "is lost" if self.code in (None, self.OFF_THE_BUS) else "does not work"

    def __str__(self) -> str:
        return "%s %s: %s" % (self.label, self.state, self.problem)


@frozen
class Host:
    """The result of one NVML session on a host. GPUs are in index order.

    Unusable ones are only in `lost`.
    """

    driver_version: str
    nvml_version: str
    cuda_version: str | None
    simulated: bool
    gpus: tuple[Gpu, ...]
    lost: tuple[LostGpu, ...] = ()


def lost_of(host: Host, gpu_uuid: str) -> LostGpu | None:
    """Return the lost GPU that has, or may have, this UUID.

    None if the GPU works or was removed.
    """
    if any(gpu.uuid == gpu_uuid for gpu in host.gpus):
        return None
    candidates = [gpu for gpu in host.lost if gpu.uuid in (None, gpu_uuid)]
    return max(candidates, key=lambda gpu: gpu.uuid is not None, default=None)


def to_data(value: Any) -> Any:
    """Return a value as dictionaries, lists and scalars, for JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (f.name for f in dataclasses.fields(value) if not f.metadata.get("internal"))
        return {name: to_data(getattr(value, name)) for name in names}
    if isinstance(value, (tuple, list)):
        return [to_data(item) for item in value]
    return value
