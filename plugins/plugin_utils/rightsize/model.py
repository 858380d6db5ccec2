# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What right-sizing speaks of. All frozen; what is not known is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

from ...module_utils.errors import FleetError
from ...module_utils.model import Gpu
from ..audit.model import Finding, Window
from ..packing.model import Shape, Standing

#: Of the JSON that proposals are written as. A reader of version n reads what has n, whatever keys came since.
SCHEMA_VERSION = 1

#: How a workload can have a GPU, in the words of `gpu_layout`.
MODES = ("exclusive", "mig", "mps", "vgpu", "time_slicing")
#: What must keep workloads of one GPU apart: the hardware; quotas, which bind those who mean no harm; nothing.
ISOLATIONS = ("hardware", "quota", "none")
#: What waiting costs a workload: an answer that a client waits for; something; nothing.
LATENCIES = ("low", "normal", "batch")
#: How far a workload may go: nowhere but to another place on its host, or anywhere in the fleet.
REACHES = ("host", "fleet")

RISKS = ("none", "low", "medium", "high")


class RightsizeError(FleetError):
    """The inventory asks for what cannot be meant, or a proposal cannot be made or written."""


@dataclass(frozen=True)
class Wish:
    """What the inventory says of workloads: of those whose name or place matches, on the hosts that have the variable.

    `memory_bytes` and `sm_percent` replace what history says. `where` names the entry in messages.
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
        """Whether it says what to do, so that history is not asked whether that is worth it."""
        return self.mode != "auto" or bool(self.profile)


@dataclass(frozen=True)
class Need:
    """What a workload takes of the whole GPU that it is on. `confidence` from 0 to 1; 1 where the inventory says it."""

    memory_bytes: float
    compute_percent: float
    confidence: float
    reason: str
    measured: bool = True


@dataclass(frozen=True)
class Decision:
    """How a workload is to have a GPU; the reason in words."""

    mode: str
    shape: Shape
    reason: str


@dataclass(frozen=True)
class Occupant:
    """A workload where it stands today. `holders` are gpu_info's; `left` says why it stays as it is, where it does."""

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
        return self.finding.holding.subject.__str__()

    @property
    def standing(self) -> Standing:
        return Standing(*self.key, self.shape, self.start, self.name)


@dataclass(frozen=True)
class GpuToday:
    """A GPU as its host tells it. `left`: why it takes no part; nothing is put on it, and nothing taken off."""

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
    """What the proposal means for one workload. `change`: stays, resized (on its GPU), moved, or left (out of it)."""

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
    """A host's new layout and what it would cause, in the planner's words."""

    host: str
    layout: tuple[Mapping[str, Any], ...]
    #: Whether that is another layout than today's. Where it is not, workloads only go to instances that are there.
    changes_layout: bool
    before: tuple[str, ...]
    after: tuple[str, ...]
    plan: tuple[str, ...]
    #: GPU instances.
    created: int
    destroyed: int
    kept: int
    #: What would be ended, and for whom.
    disturbs: tuple[Mapping[str, Any], ...]
    freed_gpus: tuple[int, ...]
    saved_per_month: float | None


@dataclass(frozen=True)
class Reclaimable:
    """A unit or container that holds GPUs and uses none. `spared` says why it is not to be stopped, where it is not."""

    host: str
    kind: str
    name: str
    runtime: str
    gpus: tuple[str, ...]
    quiet_seconds: float
    holders: tuple[str, ...]
    waste_per_month: float | None
    spared: str = ""
    #: From when on a quiet time on what it holds is idle: none of its processes began later than that.
    idle_after_seconds: float = 0.0


@dataclass(frozen=True)
class Proposal:
    """The whole."""

    made_at_seconds: float
    window: Window
    prometheus: str
    hosts: tuple[HostChange, ...]
    workloads: tuple[Outcome, ...]
    reclaim: tuple[Reclaimable, ...]
    #: GPUs of hosts that answered; in use today, and with the proposal.
    gpus: int
    used_today: int
    used_then: int
    saved_per_month: float | None
    currency: str
    #: Workloads that have to be restarted elsewhere, or on another part of their GPU; GPU instances that go.
    moved: int
    destroyed: int
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @property
    def saved_gpus(self) -> int:
        return self.used_today - self.used_then
