# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dataclasses of problems and results of packing. All are frozen.

Memory is in MiB. Compute is in percent of the SMs of a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError

from ..techniques.protocol import FleetTechnique
from ..techniques.registry import PROPOSED, technique_of

#: Modes that share a GPU by quotas of memory and SMs. A GPU has one of these modes, or MIG, or serves a single
#: workload.
SHARES = tuple(technique.key for technique in PROPOSED)
KINDS = ("whole", "mig", *SHARES)
POLICIES = ("binpack", "spread")
AIMS = ("gpus", "cost")
#: Kinds of domains. A workload may require that all its GPUs are in one domain of a kind.
DOMAINS = ("host", "numa", "link")


class PackingError(FleetError):
    """The problem is contradictory.

    The error names the GPU and its host, or the workload.
    """


@dataclass(frozen=True, order=True)
class Shape:
    """The part of one GPU that a workload needs.

    It is a MIG profile, a quota (one of SHARES), or the whole GPU.
    """

    kind: str
    profile: str = ""
    memory_mib: int = 0
    sm_percent: int = 0

    def __str__(self) -> str:
        if self.kind in SHARES:
            return "%s with %d MiB and %d %% of the SMs" % (self.kind, self.memory_mib, self.sm_percent)
        return self.profile if self.kind == "mig" else "a whole GPU"

    @property
    def technique(self) -> FleetTechnique | None:
        """Return the technique of a quota, or None if the shape is no quota."""
        return technique_of(self.kind)

    @property
    def is_tenant(self) -> bool:
        """Return whether the layout contains the name of a workload with this shape."""
        return self.technique is not None and self.technique.has_tenants


WHOLE = Shape("whole")


def mig(profile: str) -> Shape:
    return Shape("mig", profile)


def share(kind: str, memory_mib: int, sm_percent: int) -> Shape:
    return Shape(kind, "", memory_mib, sm_percent)


@dataclass(frozen=True)
class FleetGpu:
    """A GPU of the fleet.

    `index` is NVML's index. `model` is a key of the catalogue. `numa_node` is None on a host without NUMA, `link_group`
    without NVLink. `cost` is an integer, in one unit for the whole fleet.
    """

    host: str
    index: int
    model: str
    numa_node: int | None = None
    link_group: int | None = None
    cost: int = 1

    @property
    def key(self) -> tuple[str, int]:
        return (self.host, self.index)

    @property
    def label(self) -> str:
        return "%s gpu %d (%s)" % (self.host, self.index, self.model)

    def domain(self, within: str) -> tuple:
        """Return the key of the GPU's domain of the kind `within`.

        Two GPUs are in the same domain if their keys are equal.
        """
        if within == "numa":
            return (self.host, self.numa_node)
        if within == "link":
            return (self.host, self.index, "alone") if self.link_group is None else (self.host, self.link_group)
        return (self.host,)


@dataclass(frozen=True)
class Workload:
    """A demand for `gpus` GPUs, with one of the shapes in `options` on each.

    The heuristic prefers earlier options. The exact search does not.

    `within`: one of DOMAINS. All GPUs of the workload must be in one domain of this kind. `near`: workloads with the
    same value run on the same host. `apart`: workloads with the same value run on different hosts, or on different GPUs
    if `apart_on` is "gpu". `hosts`: names of the allowed hosts, or None if all hosts are allowed. `weight`: cost of
    leaving the workload out. The default is its number of GPUs.
    """

    name: str
    options: tuple[Shape, ...]
    gpus: int = 1
    within: str = "host"
    near: str | None = None
    apart: str | None = None
    apart_on: str = "host"
    hosts: frozenset[str] | None = None
    weight: int | None = None

    @property
    def bound(self) -> bool:
        """Return whether more than size restricts the workload's place."""
        return self.gpus > 1 or (self.near, self.apart, self.hosts) != (None, None, None)

    @property
    def counts(self) -> int:
        return self.gpus if self.weight is None else self.weight


@dataclass(frozen=True)
class Standing:
    """A part of a GPU in a layout, and the workload that uses it.

    The part is a MIG instance at `start`, a quota, or the whole GPU. `workload` is None for a free MIG instance. In a
    result, such an instance stays because it blocks nothing. `new` is true if the part must be created.
    """

    host: str
    index: int
    shape: Shape
    start: int | None = None
    workload: str | None = None
    new: bool = False

    @property
    def key(self) -> tuple[str, int]:
        return (self.host, self.index)


@dataclass(frozen=True)
class Rules:
    """Goals and limits of the search.

    The goals, in this order: the fewest workloads left out, the fewest GPUs, the fewest moves, the fewest destroyed
    instances. If `aim` is "cost", the lowest cost replaces the fewest GPUs. If `policy` is "spread", an even load does.

    `most_moved` and `most_destroyed` are strict limits. `reserve_gpus` maps models to the number of GPUs that must stay
    empty. `headroom_*` is the percentage of each GPU that quotas must leave free. `seconds` limits the search in the
    solver's deterministic time, so that the same problem always has the same result.
    """

    policy: str = "binpack"
    aim: str = "gpus"
    most_moved: int | None = None
    most_destroyed: int | None = None
    reserve_gpus: Mapping[str, int] = field(default_factory=dict)
    headroom_memory_percent: int = 0
    headroom_sm_percent: int = 0
    seed: int = 1
    workers: int = 1
    seconds: float = 30.0


@dataclass(frozen=True)
class Problem:
    gpus: tuple[FleetGpu, ...]
    workloads: tuple[Workload, ...]
    today: tuple[Standing, ...] = ()
    rules: Rules = Rules()


@dataclass(frozen=True)
class Score:
    """A result's costs, the most important first.

    `spread` is 0 with the policy "binpack". `cost` is 0 with the aim "gpus".
    """

    unplaced: int
    spread: int
    cost: int
    gpus: int
    moved: int
    destroyed: int

    def as_tuple(self) -> tuple[int, ...]:
        return (self.unplaced, self.spread, self.cost, self.gpus, self.moved, self.destroyed)


@dataclass(frozen=True)
class Packing:
    """A result of packing.

    `unplaced`: reason for each workload that was not placed. `moved`: workloads that lose their current place.

    `by`: "cp-sat" or "heuristic".
    `proven`: true if the number of GPUs (or the cost, or the spread) and all more important goals are proven to be optimal.
    `proven_churn`: true if the moves and destroyed instances are proven to be optimal as well.
    `bound`: lower bound of the number of GPUs (or of the cost) if the fewest workloads are left out, or None if unknown.
    """

    standing: tuple[Standing, ...]
    unplaced: Mapping[str, str]
    moved: tuple[str, ...]
    score: Score
    by: str
    proven: bool = False
    proven_churn: bool = False
    bound: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def claim(self) -> str:
        """Say how near the number of GPUs (or the cost) is to the optimum."""
        if self.proven:
            return "proven optimal"
        if self.bound is None:
            return "not proven optimal"
        amount = self.score.cost or self.score.spread or self.score.gpus
        unit = "" if self.score.cost or self.score.spread else " GPU%s" % ("" if amount - self.bound == 1 else "s")
        return "within %d%s of the optimum" % (amount - self.bound, unit)
