# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The histories of workloads that may change, read from the server in bounded amounts; and what they need, from these.

One series of at most MOST_POINTS for each figure and workload; a few dozen GPUs a query. Where the window is longer than so many
steps of five minutes, a step is longer, and stands for the highest value in it: a peak is never averaged away.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Callable, Mapping, Sequence

import numpy as np

from ...module_utils.layout.profile_name import parse_profile_name
from ..audit.asking import GPUS_A_QUERY, in_halves
from ..audit.model import Window
from ..audit.prometheus import Course, Prometheus
from ..audit.series import ROLL_UP_SECONDS, SERIES
from ..packing.geometry import geometry
from ..sizing.demand import Demand, demands
from ..sizing.evidence import memory_margin
from ..sizing.model import Fleet, Policy
from .model import GpuToday, Need, Occupant

#: Two weeks of five minutes.
MOST_POINTS = 4032
_FIGURES = ("memory", "busy", "compute")
_BY = "host, gpu_uuid, mig_instance"


@dataclass(frozen=True)
class Grid:
    """The times that are asked for: multiples of the step, as the rules record them."""

    start: int
    end: int
    step: int

    @classmethod
    def of(cls, window: Window) -> Grid:
        steps = max(1, math.ceil(window.seconds / ROLL_UP_SECONDS / (MOST_POINTS - 1)))
        step = steps * ROLL_UP_SECONDS
        end = int(window.end_seconds // step) * step
        start = math.ceil(window.start_seconds / step) * step
        return cls(min(start, end), end, step)

    @property
    def times(self) -> list[int]:
        return list(range(self.start, self.end + 1, self.step))


def histories(
    server: Prometheus,
    occupants: Sequence[Occupant],
    window: Window,
    selector: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> tuple[dict[str, dict[str, np.ndarray]], Grid, list[str]]:
    """By workload's name and figure (memory in bytes, busy and compute in percent) the samples, NaN where there is none.

    Gives the times and what was noticed besides. Raises PrometheusError.
    """
    grid = Grid.of(window)
    notes: list[str] = []
    uuids = sorted({one.gpu_uuid for one in occupants})
    found: dict[tuple, dict[str, np.ndarray]] = {}
    for figure in _FIGURES:
        say("reading %s of %d GPUs" % (SERIES[figure].name, len(uuids)))
        for at in range(0, len(uuids), GPUS_A_QUERY):
            notes += _read(server, figure, uuids[at : at + GPUS_A_QUERY], grid, selector, found)
    empty = np.full(len(grid.times), np.nan)
    by_name = {}
    for one in occupants:
        there = found.get((one.key[0], one.gpu_uuid, one.mig_instance), {})
        by_name[one.name] = {figure: there.get(figure, empty) for figure in _FIGURES}
    return by_name, grid, list(dict.fromkeys(notes))


def _read(server, figure, uuids, grid: Grid, selector: str, found) -> list[str]:
    """Add a figure of these GPUs to `found`. Returns what the server warns of."""
    series = SERIES[figure]
    notes: list[str] = []

    def query(where: str) -> Sequence[Course]:
        answer = server.query_range(_expression(series.roll_up, where, grid, True), grid.start, grid.end, grid.step)
        if not answer.courses:
            raw = _expression(series.name, where, grid, figure == "memory")
            answer = server.query_range(raw, grid.start, grid.end, grid.step)
        notes.extend("%s warns: %s" % (server.name, warning) for warning in answer.warnings)
        return answer.courses

    for course in in_halves(query, selector, uuids):
        labels = course.labels
        place = (labels.get("host", ""), labels.get("gpu_uuid", ""), labels.get("mig_instance", ""))
        row = np.full(len(grid.times), np.nan)
        for at, value in course.values.items():
            index = round((at - grid.start) / grid.step)
            # Whatever is impossible was not measured: DCGM's blanks, counters read twice, percent where ratios belong.
            if 0 <= index < len(row) and series.least <= value <= series.most:
                row[index] = value if figure == "memory" else min(100.0, 100 * value)
        found.setdefault(place, {})[figure] = row
    return notes


def _expression(name: str, where: str, grid: Grid, highest: bool) -> str:
    """The highest value of each step; of a ratio that is not rolled up, the highest average of five minutes."""
    if highest:
        inner = "max_over_time(%s{%s}[%ds])" % (name, where, grid.step)
    else:
        inner = "avg_over_time(%s{%s}[%ds])" % (name, where, ROLL_UP_SECONDS)
        if grid.step > ROLL_UP_SECONDS:
            inner = "max_over_time(%s[%ds:%ds])" % (inner, grid.step, ROLL_UP_SECONDS)
    return "max by (%s) (%s)" % (_BY, inner)


def fleet_of(
    occupants: Sequence[Occupant], found: Mapping[str, Mapping[str, np.ndarray]], grid: Grid, cards: Mapping[str, float]
) -> Fleet:
    """What sizing asks for. `cards`: bytes of the GPU or instance that each workload has today.

    Duty is how much of the SMs was at work; how much of the time something ran, where that is not known. For a workload that
    cannot wait it is the higher of the two: a part of the GPU would make its short bursts long.
    """
    duty = []
    for one in occupants:
        busy, compute = found[one.name]["busy"], found[one.name]["compute"]
        known = np.fmax(busy, compute) if one.wish.latency == "low" else np.where(np.isnan(compute), busy, compute)
        duty.append(known)
    memory = [found[one.name]["memory"] for one in occupants]
    return Fleet.of(
        [one.name for one in occupants], grid.times, duty, memory, [cards.get(one.name, np.nan) for one in occupants]
    )


def needs(fleet: Fleet, occupants: Sequence[Occupant], gpus: Mapping[tuple, GpuToday], policy: Policy) -> dict:
    """By name a Need, or the reason in words why there is none."""
    by_name = {one.name: one for one in occupants}
    found: dict[str, Need | str] = {}
    for demand in demands(fleet, policy):
        one = by_name[demand.name]
        found[demand.name] = _need(demand, one, gpus[one.key].model)
    return found


def _need(demand: Demand, one: Occupant, model: str) -> Need | str:
    if not demand.evidence.enough:
        return demand.reason
    # A figure of an instance is a share of that instance.
    share = 1.0
    if one.shape.kind == "mig":
        slices = geometry(model).capacity.compute_slices
        share = parse_profile_name(one.shape.profile).gpu_slices / slices
    return Need(demand.memory_bytes, demand.compute_percent * share, demand.evidence.confidence, demand.reason)


def need_of_tenant(one: Occupant, policy: Policy) -> Need | str:
    """Of a tenant only the memory is measured; its share of the SMs stays as it is."""
    memory = one.finding.holding.memory
    if memory is None or memory.max is None:
        return "what it uses of its quota is not known"
    days = memory.seconds / 86400
    if memory.seconds < policy.least_seconds or memory.coverage_ratio < policy.least_covered_ratio:
        return "too little data: %.1f hours of samples" % (memory.seconds / 3600)
    if memory.max == 0:
        return "it has used nothing of its quota yet: what it needs is not known"
    margin = memory_margin(days, policy)
    quota = one.shape.memory_mib * 2**20
    need = max(memory.max, min(memory.max * (1 + margin), quota))
    reason = "at most %.1f GiB seen in %.1f days, and %.0f %% on top; its share of the SMs is not measured" % (
        memory.max / 2**30,
        days,
        100 * margin,
    )
    confidence = memory.coverage_ratio * days / (days + 1)
    return Need(need, float(one.shape.sm_percent), confidence, reason)


def with_wish(need: Need | str | None, one: Occupant) -> Need | str | None:
    """The need with what the inventory says in its place."""
    wish = one.wish
    if wish.memory_bytes is None and wish.sm_percent is None:
        return need
    if isinstance(need, Need):
        return dataclasses.replace(
            need,
            memory_bytes=need.memory_bytes if wish.memory_bytes is None else float(wish.memory_bytes),
            compute_percent=need.compute_percent if wish.sm_percent is None else float(wish.sm_percent),
            reason="%s; the inventory says otherwise (%s)" % (need.reason, wish.where),
            measured=wish.memory_bytes is None or wish.sm_percent is None,
        )
    if wish.memory_bytes is not None and wish.sm_percent is not None:
        reason = "the inventory says so (%s)" % wish.where
        return Need(float(wish.memory_bytes), float(wish.sm_percent), 1.0, reason, measured=False)
    return need
