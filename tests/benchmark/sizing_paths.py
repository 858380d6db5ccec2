# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the sizes that right-sizing proposes for single workloads.

The rules size random subsets of the containers for other cards. The plan uses one part of the trace, and the benchmark
scores the plan on the other part. The same curves also run five times slower. The history gate (`least_history_hours`)
is off.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.geometry import geometry
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.model import FleetGpu, Problem, Shape, Workload
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.pack import pack
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.mode import decide
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.model import Need, Wish
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.chance import duty_chances
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.demand import demands
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.evidence import drift, gather
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.model import Fleet, Policy
from tests.benchmark import sizing_trace as trace

MODELS = ("H100-80GB", "H200-141GB")
SPLITS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
STRETCHES = (1, 5)
#: A workload's default settings, and the settings with which it gets a quota.
MIG, QUOTA = Wish(), Wish(isolation="quota", latency="batch")
PATHS = (("default", MIG), ("quota", QUOTA))


@dataclass
class Score:
    """How many workloads all plans have.

    `gpus` are the plans' GPUs.
    """

    gpus: int = 0
    shrunk: int = 0
    over_memory: int = 0
    over_compute: int = 0

    def percent(self, count: int) -> float:
        return 100 * count / self.shrunk if self.shrunk else 0.0


def stretched(fleet: Fleet, times: int) -> Fleet:
    """Return the fleet with the same curves in `times` the time."""
    return Fleet(
        fleet.names, fleet.times[0] + times * (fleet.times - fleet.times[0]), fleet.duty, fleet.memory, fleet.card
    )


def plans(fleet: Fleet, subsets: int, share: float, seed: int):
    """Yield each random subset's (part for the plan, part for scoring)."""
    chance = random.Random(seed)
    for _subset in range(subsets):
        rows = sorted(chance.sample(range(len(fleet.names)), max(1, round(share * len(fleet.names)))))
        for times in STRETCHES:
            part = stretched(fleet.part(rows), times)
            for split in SPLITS:
                for reverse in (False, True):
                    yield trace.halves(part, reverse, split)


def shipped(seen: Fleet, later: Fleet | None = None) -> list[Need | None]:
    """Return the needs by this version's rules.

    None keeps the whole GPU. If `later` is set, the memory is the maximum of both parts, so that no workload exceeds it.
    """
    if later is not None:
        most = np.maximum(seen.whole_memory().max(axis=1), later.whole_memory().max(axis=1))
        return [
            need and dataclasses.replace(need, memory_bytes=float(most[row])) for row, need in enumerate(shipped(seen))
        ]
    return [
        Need(min(found.memory_bytes, float(seen.card[row])), found.compute_percent, 1.0, "")
        if found.evidence.enough
        else None
        for row, found in enumerate(demands(seen))
    ]


def past(seen: Fleet) -> list[Need | None]:
    """Return the needs by the rules of 2026-11-21, for comparison.

    The margin on memory became smaller with each day, and the compute was the duty expected for the next hours.
    """
    policy = Policy()
    known = gather(seen, policy)
    rows = [row for row, item in enumerate(known) if item.enough]
    part, evidence = seen.part(rows), [known[row] for row in rows]
    memory, duty = part.whole_memory(), part.whole_duty()
    expected = np.cumsum(duty_chances(part, evidence, policy), axis=1) if rows else []
    found: list[Need | None] = [None] * len(known)
    for place, row in enumerate(rows):
        margin = policy.memory_margin_ratio / np.sqrt(1 + evidence[place].days)
        most = memory[place].max()
        need = max(most, min(most * (1 + margin) + drift(memory[place : place + 1])[0], float(part.card[place])))
        busy = max(
            float(np.quantile(duty[place], policy.compute_quantile)),
            float(np.searchsorted(expected[place], policy.compute_quantile - 1e-9)),
        )
        found[row] = Need(float(need), min(100.0, busy * (1 + policy.compute_headroom_ratio)), 1.0, "")
    return found


@lru_cache(maxsize=None)
def gpus_for(model: str, shapes: tuple[tuple[Shape, int], ...]) -> int:
    """Return how many of a model's GPUs these shapes need.

    `shapes` has (shape, count).
    """
    every = [shape for shape, count in shapes for _each in range(count)]
    workloads = tuple(Workload("w%d" % number, (shape,)) for number, shape in enumerate(every))
    gpus = tuple(FleetGpu("host", index, model) for index in range(len(every)))
    return pack(Problem(gpus, workloads, ()), "heuristic").score.gpus


def shape_for(need: Need | None, wish: Wish, model: str) -> Shape:
    return decide(wish if need else Wish(mode="exclusive"), need, model).shape


def capacity(shape: Shape, model: str) -> tuple[float, float]:
    """Return the memory in bytes and the percentage of the GPU's compute."""
    rules = geometry(model)
    if shape.kind == "whole":
        return float("inf"), 100.0
    if shape.kind == "mig":
        profile = rules.capacity.profiles[shape.profile]
        return profile.memory_mib * 2.0**20, 100 * profile.compute_slices / rules.capacity.compute_slices
    return shape.memory_mib * 2.0**20, float(shape.sm_percent)


def scores(fleet: Fleet, rule, subsets: int, share: float, seed: int, hindsight: bool = False) -> dict[str, Score]:
    """Score a sizing rule over all plans and models, for each of PATHS.

    With `hindsight`, the rule also gets the part for scoring.
    """
    total = {name: Score() for name, _wish in PATHS}
    for seen, later in plans(fleet, subsets, share, seed):
        needs = rule(seen, later) if hindsight else rule(seen)
        peaks, busy = later.whole_memory().max(axis=1), np.quantile(later.whole_duty(), 0.95, axis=1)
        for name, wish in PATHS:
            for model in MODELS:
                shapes = [shape_for(need, wish, model) for need in needs]
                total[name].gpus += gpus_for(model, tuple(sorted(Counter(shapes).items())))
                for row, shape in enumerate(shapes):
                    memory, compute = capacity(shape, model)
                    total[name].shrunk += shape.kind != "whole"
                    total[name].over_memory += bool(peaks[row] > memory)
                    total[name].over_compute += bool(busy[row] > compute)
    return total
