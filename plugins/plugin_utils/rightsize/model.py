# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dataclasses of right-sizing. All are frozen. Unknown values are None, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

from ...module_utils.errors import FleetError
from ...module_utils.model import Gpu
from ..audit.ledger_model import Sum
from ..audit.model import Finding, Window
from ..packing.model import SHARES, Shape, Standing

#: Version of the JSON. Keys may be added within a version. Readers must ignore unknown keys.
SCHEMA_VERSION = 1

#: Sharing modes, named as in `gpu_layout`.
MODES = ("exclusive", "mig", *SHARES)
#: Required isolation from other workloads on the same GPU. "quota" is not a security boundary.
ISOLATIONS = ("hardware", "quota", "none")
#: Required latency: "low" if clients wait for the workload, "batch" if the workload itself can wait.
LATENCIES = ("low", "normal", "batch")
#: Where a workload may move: only within its host, or within the whole fleet.
REACHES = ("host", "fleet")

RISKS = ("none", "low", "medium", "high")


class RightsizeError(FleetError):
    """The inventory has an invalid setting, or a proposal cannot be made or written."""


@dataclass(frozen=True)
class Wish:
    """An entry of `gpu_rightsize_workloads`: settings for matching workloads.

    `match` is a glob for names and places of workloads on the hosts with this entry. `memory_bytes` and `sm_percent`
    replace measured needs. `where` names the entry in messages.
    """

    where: str = "gpu_rightsize_workloads"
    match: str = "*"
    leave: bool = False
    mode: str = "auto"
    profile: str = ""
    isolation: str = "hardware"
    latency: str = "normal"
    memory_bytes: int | None = None
    sm_percent: int | None = None
    near: str | None = None
    apart: str | None = None
    apart_on: str = "host"

    @property
    def forces(self) -> bool:
        """Return whether the entry sets a mode or profile.

        Such a setting applies even if it frees no GPU.
        """
        return self.mode != "auto" or bool(self.profile)


@dataclass(frozen=True)
class Need:
    """A workload's need. Compute is a percentage of a whole GPU.

    `confidence` is from 0 to 1, and 1 for values from the inventory.
    """

    memory_bytes: float
    compute_percent: float
    confidence: float
    reason: str
    measured: bool = True


@dataclass(frozen=True)
class Decision:
    """A workload's sharing mode and share of a GPU, with the reason."""

    mode: str
    shape: Shape
    reason: str


@dataclass(frozen=True)
class Occupant:
    """A workload and its current place.

    `holders` is the list from gpu_info. `left` is why the workload is excluded, or "".
    """

    name: str
    key: tuple[str, int]
    gpu_uuid: str
    shape: Shape
    start: int | None
    finding: Finding
    wish: Wish = Wish()
    mig_instance: str = ""
    holders: tuple[Mapping[str, Any], ...] = ()
    left: str = ""

    @property
    def place(self) -> str:
        """Return the current place as text."""
        return self.finding.holding.subject.__str__()

    @property
    def standing(self) -> Standing:
        """Return the current place in the format of the packing."""
        return Standing(*self.key, self.shape, self.start, self.name)


@dataclass(frozen=True)
class GpuToday:
    """A GPU as its host reports it.

    `left` is why the GPU is excluded, or "". Nothing moves to or from an excluded GPU.
    """

    host: str
    gpu: Gpu
    model: str
    occupants: tuple[Occupant, ...] = ()
    #: Instances without a holder.
    vacant: tuple[Standing, ...] = ()
    price_per_hour: float | None = None
    left: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return (self.host, self.gpu.index)

    @property
    def used(self) -> bool:
        return bool(self.occupants)


@dataclass(frozen=True)
class Outcome:
    """The result for one workload.

    `change` is "stays", "resized" (same GPU, another share), "moved" or "left" (excluded).
    """

    name: str
    host: str
    gpu_index: int
    verdict: str
    today: str
    change: str
    mode: str
    reason: str
    then_host: str = ""
    then_gpu_index: int | None = None
    then: str = ""
    need: Need | None = None
    risk: str = "none"
    risks: tuple[str, ...] = ()


@dataclass(frozen=True)
class HostChange:
    """The new layout of a host, with the plan for applying it."""

    host: str
    layout: tuple[Mapping[str, Any], ...]
    #: Whether the layout changes. If not, workloads only move to existing instances.
    changes_layout: bool
    before: tuple[str, ...]
    after: tuple[str, ...]
    plan: tuple[str, ...]
    #: Numbers of GPU instances that the plan creates, destroys and keeps.
    created: int
    destroyed: int
    kept: int
    #: Devices in use that the plan disturbs, and the processes that use them.
    disturbs: tuple[Mapping[str, Any], ...]
    freed_gpus: tuple[int, ...]
    saved_per_month: float | None
    #: Number of destroyed instances that have a workload today.
    destroyed_in_use: int = 0
    #: GPUs that are free today and used with the proposal.
    taken_gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Step:
    """A step of applying the proposal: "stop", "apply" or "start".

    `command` runs on the controller. It has one command per line, or is empty if no command is known.
    """

    host: str
    kind: str
    text: str
    command: str


@dataclass(frozen=True)
class Reclaimable:
    """An idle unit, container or Slurm job.

    `spared` is why it must not be stopped, or "". If `stop` is false, it is only announced.
    """

    host: str
    kind: str
    name: str
    runtime: str
    gpus: tuple[str, ...]
    quiet_seconds: float
    holders: tuple[str, ...]
    waste_per_month: float | None
    spared: str = ""
    #: Quiet time in seconds after which its GPUs count as idle. Its processes must also be at least this old.
    idle_after_seconds: float = 0.0
    #: Minimum quiet time in seconds before a stop. Its owner is notified earlier.
    stop_quiet_seconds: float = 0.0
    stop: bool = True
    #: Power, by GPU UUID, in the lowest hour of the week of GPUs with held instances.
    rest_watts: Mapping[str, float] = field(default_factory=dict)
    #: The owner in the audit's ledger. Unknown texts are empty.
    user: str = ""
    team: str = ""
    contact: str = ""


@dataclass(frozen=True)
class LeasePool:
    """The use of an entry with leases, and the number of GPUs that it needs.

    `offered_gpus` is the part of its GPUs that fixed instances and tenants leave. A need is in GPUs: the larger share of memory
    and of compute of each lease. `needed_gpus` and `proposed_gpus` are None if there is too little data. The waiting hours are
    those in which at least one request waited.
    """

    host: str
    entry: str
    gpus: int
    offered_gpus: float
    leased_mean_gpus: float
    leased_max_gpus: float
    waiting_max_gpus: float
    free_min_gpus: float
    waiting_hours: float
    hours: float
    needed_gpus: float | None = None
    proposed_gpus: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Colocation:
    """An online workload, and the offline workloads that fit on its GPU.

    docs/vgpu-colocate.md describes such GPUs. `left_ratio` is the share of time that online work leaves below the
    waterline, `need_ratio` the share that the offline
    workloads used, and `progress_ratio` the part of it that they get. `freed` names their present GPUs. `entry` is the
    layout entry.
    """

    host: str
    gpu_index: int
    online: str
    offline: tuple[str, ...]
    freed: tuple[str, ...]
    saved_per_month: float | None
    memory_bytes: float
    left_ratio: float
    need_ratio: float
    progress_ratio: float
    entry: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class Proposal:
    """A finished proposal."""

    made_at_seconds: float
    window: Window
    prometheus: str
    hosts: tuple[HostChange, ...]
    workloads: tuple[Outcome, ...]
    reclaim: tuple[Reclaimable, ...]
    #: Numbers of GPUs on hosts that answered: in total, in use today, and in use with the proposal.
    gpus: int
    used_today: int
    used_then: int
    saved_per_month: float | None
    currency: str
    #: Numbers of workloads that must restart elsewhere, and of destroyed GPU instances.
    moved: int
    destroyed: int
    notes: tuple[str, ...] = ()
    #: Steps that apply the proposal, in order.
    steps: tuple[Step, ...] = ()
    #: The ledger's sums by class, today and with the proposal. GPU hours are those of the window, and 0 with the
    #: proposal.
    ledger_today: Mapping[str, Sum] = field(default_factory=dict)
    ledger_then: Mapping[str, Sum] = field(default_factory=dict)
    #: A sentence about how often a resized workload may exceed its memory. Empty if none is resized.
    promise: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: Entries with leases, which are not part of the overlay.
    lease_pools: tuple[LeasePool, ...] = ()
    #: Workloads that could share a GPU as online and offline tenants, which are not part of the overlay.
    colocations: tuple[Colocation, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def saved_gpus(self) -> int:
        """Return the number of freed GPUs."""
        return self.used_today - self.used_then
