# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What packing is asked and what it answers: plain frozen values. Memory in MiB, compute in percent of a GPU's SMs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError

#: Ways to share a GPU by quotas of memory and SMs; a GPU is in one of them, or in MIG mode, or held whole.
SHARES = ("vgpu", "mps", "time_slicing")
KINDS = ("whole", "mig", *SHARES)
POLICIES = ("binpack", "spread")
AIMS = ("gpus", "cost")
#: What the GPUs of one workload can be kept within.
DOMAINS = ("host", "numa", "link")


class PackingError(FleetError):
    """A problem that contradicts itself; names the host's GPU or the workload."""


@dataclass(frozen=True, order=True)
class Shape:
    """What a workload takes of one GPU: a MIG profile, a quota (one of SHARES), or all of it."""

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
    """A GPU: its host, NVML's index there, and the catalogue key of its model.

    `numa_node` None is a host without NUMA; `link_group` None a GPU without NVLink. `cost` is in any whole unit, the same for
    the whole fleet.
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
        """What it shares with the GPUs that a workload can be kept together on."""
        if within == "numa":
            return (self.host, self.numa_node)
        if within == "link":
            return (self.host, self.index, "alone") if self.link_group is None else (self.host, self.link_group)
        return (self.host,)


@dataclass(frozen=True)
class Workload:
    """A demand: one of `options` on each of `gpus` GPUs; options are in the order of preference of the heuristic only.

    `within`: what its GPUs are kept within, one of DOMAINS. `near`: workloads with the same word stand on one host. `apart`:
    those with the same word stand on different hosts, or different GPUs where `apart_on` is gpu. `hosts`: the only ones that it
    may stand on. `weight`: what leaving it out counts; by default the GPUs it asks for.
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
        """Whether more than its size decides where it can stand."""
        return self.gpus > 1 or (self.near, self.apart, self.hosts) != (None, None, None)

    @property
    def counts(self) -> int:
        return self.gpus if self.weight is None else self.weight


@dataclass(frozen=True)
class Standing:
    """Something that stands on a GPU: a MIG instance at `start`, a tenant, or the whole GPU; and whose it is.

    In an answer `new` says that it is to be made. `workload` None is an instance that is not needed and blocks nothing.
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
    """What counts as a good answer, and how long to look for it.

    First as little as can be is left out, then GPUs (or cost) are as few as can be (`spread`: as evenly loaded), then workloads
    moved, then instances destroyed. `most_moved` and `most_destroyed` bound the last two whatever that costs. `reserve_gpus`:
    GPUs of a model that stay empty. `headroom_*`: percent of a GPU that quotas leave free.
    `seconds` bounds the search, in the solver's own deterministic time, so that the same problem has the same answer.
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
    """What an answer costs, in the order in which it counts. `spread` is 0 under binpack, `cost` 0 where GPUs are the aim."""

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
    """An answer. `unplaced`: the reason by workload. `moved`: workloads that lose where they stood.

    `by`: cp-sat or heuristic. `proven`: nothing better exists, in GPUs (or cost, or spread) and all that counts before.
    `proven_churn`: nor in moves and destroyed instances. `bound`: no answer has fewer GPUs (less cost); None: not known.
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
