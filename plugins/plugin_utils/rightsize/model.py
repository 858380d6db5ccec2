# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The values of right-sizing. All are frozen. Unknown values are None, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

from ...module_utils.errors import FleetError
from ...module_utils.model import Gpu
from ..audit.model import Finding, Window
from ..packing.model import Shape, Standing

#: Version of the JSON. A reader of version n reads every proposal of version n and ignores keys that were added later.
SCHEMA_VERSION = 1

#: Modes of sharing, named as in `gpu_layout`.
MODES = ("exclusive", "mig", "mps", "vgpu", "time_slicing")
#: Required isolation from other workloads of a GPU: hardware, quotas (not a security boundary), or none.
ISOLATIONS = ("hardware", "quota", "none")
#: Cost of waiting: low for workloads with waiting clients, batch for those that can wait.
LATENCIES = ("low", "normal", "batch")
#: Where a workload may move: within its host, or within the fleet.
REACHES = ("host", "fleet")

RISKS = ("none", "low", "medium", "high")


class RightsizeError(FleetError):
    """The inventory has an invalid setting, or a proposal cannot be made or written."""


@dataclass(frozen=True)
class Wish:
    """Settings of the workloads whose name or place matches, on the hosts with the variable.

    `memory_bytes` and `sm_percent` replace measured needs. `where` names the entry in messages.
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
        """Return whether it forces a mode or profile, even if no GPU is freed."""
        return self.mode != "auto" or bool(self.profile)


@dataclass(frozen=True)
class Need:
    """Need of a workload, relative to its whole GPU.

    `confidence` is from 0 to 1, and 1 for values of the inventory.
    """

    memory_bytes: float
    compute_percent: float
    confidence: float
    reason: str
    measured: bool = True


@dataclass(frozen=True)
class Decision:
    """How a workload will use a GPU, with the reason."""

    mode: str
    shape: Shape
    reason: str


@dataclass(frozen=True)
class Occupant:
    """A workload in its current place.

    `holders` are from gpu_info. `left` is the reason if it is excluded.
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
        """Its current place as text."""
        return self.finding.holding.subject.__str__()

    @property
    def standing(self) -> Standing:
        """Its current place for the packing."""
        return Standing(*self.key, self.shape, self.start, self.name)


@dataclass(frozen=True)
class GpuToday:
    """A GPU as reported by its host.

    `left` is the reason if it is excluded: nothing moves to or from it.
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

    `change` is stays, resized (on its GPU), moved, or left (excluded).
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
    """A host's new layout, with the plan for applying it."""

    host: str
    layout: tuple[Mapping[str, Any], ...]
    #: Whether the layout differs from the current one. If not, workloads only move to existing instances.
    changes_layout: bool
    before: tuple[str, ...]
    after: tuple[str, ...]
    plan: tuple[str, ...]
    #: Numbers of GPU instances.
    created: int
    destroyed: int
    kept: int
    #: Devices in use that the plan disturbs, with their users.
    disturbs: tuple[Mapping[str, Any], ...]
    freed_gpus: tuple[int, ...]
    saved_per_month: float | None


@dataclass(frozen=True)
class Reclaimable:
    """An idle unit or container. `spared` is the reason if it must not be stopped."""

    host: str
    kind: str
    name: str
    runtime: str
    gpus: tuple[str, ...]
    quiet_seconds: float
    holders: tuple[str, ...]
    waste_per_month: float | None
    spared: str = ""
    #: Quiet time after which its GPUs are idle. Its processes must be at least this old.
    idle_after_seconds: float = 0.0


@dataclass(frozen=True)
class Proposal:
    """A finished proposal."""

    made_at_seconds: float
    window: Window
    prometheus: str
    hosts: tuple[HostChange, ...]
    workloads: tuple[Outcome, ...]
    reclaim: tuple[Reclaimable, ...]
    #: Number of GPUs of hosts that answered, used today, and used with the proposal.
    gpus: int
    used_today: int
    used_then: int
    saved_per_month: float | None
    currency: str
    #: Workloads that have to be restarted in another place, and GPU instances that are destroyed.
    moved: int
    destroyed: int
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @property
    def saved_gpus(self) -> int:
        """Number of freed GPUs."""
        return self.used_today - self.used_then
