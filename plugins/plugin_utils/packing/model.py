# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Problems and results of packing, as frozen values.

Memory is in MiB, compute in percent of a GPU's SMs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError

#: Ways to share a GPU by quotas of memory and SMs. A GPU uses one of these, or MIG, or serves one workload.
SHARES = ("vgpu", "mps", "time_slicing")
KINDS = ("whole", "mig", *SHARES)
POLICIES = ("binpack", "spread")
AIMS = ("gpus", "cost")
#: Domains within which the GPUs of one workload can be kept.
DOMAINS = ("host", "numa", "link")


class PackingError(FleetError):
    """A contradictory problem. Names the GPU and its host, or the workload."""


@dataclass(frozen=True, order=True)
class Shape:
    """The part of one GPU that a workload needs: a MIG profile, a quota (one of SHARES), or the whole GPU."""

    kind: str
    profile: str = ""
    memory_mib: int = 0
    sm_percent: int = 0

    def __str__(self) -> str:
        if self.kind in SHARES:
            return "%s with %d MiB and %d %% of the SMs" % (self.kind, self.memory_mib, self.sm_percent)
        return self.profile if self.kind == "mig" else "a whole GPU"


WHOLE = Shape("whole")


def mig(profile: str) -> Shape:
    return Shape("mig", profile)


def share(kind: str, memory_mib: int, sm_percent: int) -> Shape:
    return Shape(kind, "", memory_mib, sm_percent)


@dataclass(frozen=True)
class FleetGpu:
    """A GPU: its host, its NVML index, and the catalogue key of its model.

    `numa_node` is None on a host without NUMA, `link_group` is None without NVLink. `cost` is a whole number in any unit that
    the whole fleet shares.
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
        """Return the key of its domain: a workload kept within one stays on GPUs with equal keys."""
        if within == "numa":
            return (self.host, self.numa_node)
        if within == "link":
            return (self.host, self.index, "alone") if self.link_group is None else (self.host, self.link_group)
        return (self.host,)


@dataclass(frozen=True)
class Workload:
    """A demand for one of `options` on each of `gpus` GPUs.

    Only the heuristic prefers earlier options.

    `within`: one of DOMAINS, its GPUs share it. `near`: workloads with the same word run on one host. `apart`: workloads with
    the same word run on different hosts, or on different GPUs if `apart_on` is gpu. `hosts`: the only hosts allowed.
    `weight`: the cost of leaving it out, by default its number of GPUs.
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
        """Return whether more than its size restricts its place."""
        return self.gpus > 1 or (self.near, self.apart, self.hosts) != (None, None, None)

    @property
    def counts(self) -> int:
        return self.gpus if self.weight is None else self.weight


@dataclass(frozen=True)
class Standing:
    """A part of a GPU in a layout: a MIG instance at `start`, a tenant's quota, or the whole GPU, with its workload.

    In a result, `new` means that it has to be created. Without a workload it is an unneeded instance that blocks nothing.
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

    Goals, in this order: fewest workloads left out, fewest GPUs (or least cost, or with `spread` most even loads), fewest
    moves, fewest destroyed instances. `most_moved` and `most_destroyed` are strict limits. `reserve_gpus`: GPUs of a model that
    stay empty. `headroom_*`: percent of a GPU that quotas leave free.
    `seconds` limits the search in the solver's deterministic time, so that the same problem has the same result.
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
    """The costs of a result, most important first.

    `spread` is 0 with binpack, `cost` is 0 if the aim is GPUs.
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
    """A result.

    `unplaced`: reasons by workload. `moved`: workloads that lose their current place.

    `by`: cp-sat or heuristic. `proven`: no result is better in GPUs (or cost, or spread) and more important goals.
    `proven_churn`: nor in moves and destroyed instances. `bound`: lower bound of GPUs (or cost), None if unknown.
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
