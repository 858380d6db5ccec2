# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the histories of workloads that may change, and calculate their needs.

The amount of data is limited: a workload has one series per figure with at most MOST_POINTS points, and a query covers
a few dozen GPUs. Longer windows have longer steps. A step's value is its maximum, so that no peak is averaged away.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Callable, Mapping, Sequence

from ...module_utils.layout.profile_name import parse_profile_name
from ..audit.asking import GPUS_A_QUERY, in_halves
from ..audit.model import Window
from ..audit.prometheus import Course, Prometheus
from ..audit.series import ROLL_UP_SECONDS, SERIES
from ..counted import counted
from ..numerics import np
from ..packing.geometry import geometry
from ..sizing.demand import Demand, demands
from ..sizing.model import Fleet, Policy
from .model import GpuToday, Need, Occupant

#: Maximum number of points in a series. It corresponds to two weeks in steps of five minutes.
MOST_POINTS = 4032
_FIGURES = ("memory", "busy", "compute")
_BY = "host, gpu_uuid, mig_instance"


@dataclass(frozen=True)
class Grid:
    """The times of a range query.

    The times are multiples of the step, like the evaluation times of recording rules.
    """

    start: int
    end: int
    step: int

    @classmethod
    def of(cls, window: Window) -> Grid:
        """Return a window's grid, with at most MOST_POINTS times."""
        steps = max(1, math.ceil(window.seconds / ROLL_UP_SECONDS / (MOST_POINTS - 1)))
        step = steps * ROLL_UP_SECONDS
        end = int(window.end_seconds // step) * step
        start = math.ceil(window.start_seconds / step) * step
        return cls(min(start, end), end, step)

    @property
    def times(self) -> list[int]:
        """Return all times, in seconds since the epoch."""
        return list(range(self.start, self.end + 1, self.step))


def histories(
    server: Prometheus,
    occupants: Sequence[Occupant],
    window: Window,
    selector: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> tuple[dict[str, dict[str, np.ndarray]], Grid, list[str]]:
    """Read histories. Returns (samples by workload and metric, grid, notes).

    Memory is in bytes. The busy ratio and the compute are in percent. Missing samples are NaN. Raises PrometheusError.
    """
    grid = Grid.of(window)
    notes: list[str] = []
    uuids = sorted({one.gpu_uuid for one in occupants})
    found: dict[tuple, dict[str, np.ndarray]] = {}
    for figure in _FIGURES:
        say("reading %s of %s" % (SERIES[figure].name, counted(len(uuids), "GPU")))
        for at in range(0, len(uuids), GPUS_A_QUERY):
            notes += _read(server, figure, uuids[at : at + GPUS_A_QUERY], grid, selector, found)
    empty = np.full(len(grid.times), np.nan)
    by_name = {}
    for one in occupants:
        rows = found.get((one.key[0], one.gpu_uuid, one.mig_instance), {})
        by_name[one.name] = {figure: rows.get(figure, empty) for figure in _FIGURES}
    return by_name, grid, list(dict.fromkeys(notes))


def _read(server, figure, uuids, grid: Grid, selector: str, found) -> list[str]:
    """Read one metric of these GPUs into `found`. Returns the server's warnings."""
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
            # Drop impossible values: DCGM's blank values, counters that were read twice, percentages instead of ratios.
            if 0 <= index < len(row) and series.least <= value <= series.most:
                row[index] = value if figure == "memory" else min(100.0, 100 * value)
        found.setdefault(place, {})[figure] = row
    return notes


def _expression(name: str, where: str, grid: Grid, highest: bool) -> str:
    """Return PromQL for the maximum of each step.

    This is the step's highest sample if `highest` is true. Otherwise, it is the highest five-minute average, for ratios
    without a roll-up.
    """
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
    """Return the input of sizing.

    `cards` has the memory of each workload's current GPU or instance, in bytes.

    The duty is the SM activity, or if that is unknown, the share of time in which a kernel ran. For a workload that
    needs low latency, it is the higher of the two, because a part of a GPU would prolong the workload's short bursts.
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
    """Return the Need of each workload by name, or why it is unknown."""
    by_name = {one.name: one for one in occupants}
    found: dict[str, Need | str] = {}
    for demand in demands(fleet, policy):
        one = by_name[demand.name]
        found[demand.name] = _need(demand, one, gpus[one.key].model)
    return found


def _need(demand: Demand, one: Occupant, model: str) -> Need | str:
    if not demand.evidence.enough or demand.unseen:
        return demand.reason
    # Convert the compute, which is relative to the instance, to a share of the GPU.
    share = 1.0
    if one.shape.kind == "mig":
        slices = geometry(model).capacity.compute_slices
        share = parse_profile_name(one.shape.profile).gpu_slices / slices
    return Need(demand.memory_bytes, demand.compute_percent * share, demand.evidence.confidence, demand.reason)


def need_of_tenant(one: Occupant, policy: Policy, margin: float | None = None) -> Need | str:
    """Return a tenant's need, or why it is unknown.

    `margin` is the margin learnt from the fleet, as a ratio, or None for `memory_margin_ratio`. Tenants' compute is not
    measured, so the tenant keeps its share of the SMs.
    """
    memory = one.finding.holding.memory
    if memory is None or memory.max is None:
        return "the use of its quota is unknown"
    days = memory.seconds / 86400
    if memory.seconds < policy.least_seconds or memory.coverage_ratio < policy.least_covered_ratio:
        return "too little data: %.1f hours of samples" % (memory.seconds / 3600)
    if memory.max == 0:
        return "it has not used its quota yet, so its need is unknown"
    margin = policy.memory_margin_ratio if margin is None else margin
    quota = one.shape.memory_mib * 2**20
    need = max(memory.max, min(memory.max * (1 + margin), quota))
    reason = "at most %.1f GiB in %.1f days, plus %.0f %%; its share of the SMs is not measured" % (
        memory.max / 2**30,
        days,
        100 * margin,
    )
    confidence = memory.coverage_ratio * days / (days + 1)
    return Need(need, float(one.shape.sm_percent), confidence, reason)


def with_wish(need: Need | str | None, one: Occupant) -> Need | str | None:
    """Return the need, with the inventory's values in place of measured ones."""
    wish = one.wish
    if wish.memory_bytes is None and wish.sm_percent is None:
        return need
    if isinstance(need, Need):
        return dataclasses.replace(
            need,
            memory_bytes=need.memory_bytes if wish.memory_bytes is None else float(wish.memory_bytes),
            compute_percent=need.compute_percent if wish.sm_percent is None else float(wish.sm_percent),
            reason="%s; changed in the inventory (%s)" % (need.reason, wish.where),
            measured=wish.memory_bytes is None or wish.sm_percent is None,
        )
    if wish.memory_bytes is not None and wish.sm_percent is not None:
        reason = "set in the inventory (%s)" % wish.where
        return Need(float(wish.memory_bytes), float(wish.sm_percent), 1.0, reason, measured=False)
    return need
