# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Divide GPUs, GPU hours and costs among classes. Pure.

Each GPU hour has exactly one class, so rows always add up to totals. A GPU or instance is divided among its tenants by
quota, and a GPU among its instances by memory. A GPU's remainder is unassigned. Parts are whole numbers of the smallest
unit, so that no sum depends on rounding.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Iterable, Mapping, Sequence

from .ledger_model import (
    CLASSES,
    FREE,
    GPU_UNITS,
    HOUR_UNITS,
    IDLE,
    IN_USE,
    NOT_ASSIGNED,
    RESERVED_UNUSED,
    RESIZABLE,
    STALLED,
    STANDBY,
    UNASSIGNED,
    UNHEALTHY,
    UNKNOWN,
    WORKING,
    Ledger,
    Row,
)
from .model import Finding

HOURS_PER_MONTH = 730.5
#: A smaller remainder of a GPU is a rounding error.
_LEAST_REMAINDER = 0.001

#: The class of each verdict.
CLASS_OF = {
    "unhealthy": UNHEALTHY,
    "broken_metrics": UNKNOWN,
    "stalled": STALLED,
    "held_without_process": IDLE,
    "idle": IDLE,
    "standby": STANDBY,
    "saturated": IN_USE,
    "oversized_memory": RESIZABLE,
    "oversized_compute": RESIZABLE,
    "no_data": UNKNOWN,
    "free": FREE,
    "right": IN_USE,
}


@dataclass(frozen=True)
class _Part:
    """A part of a GPU.

    `size` is a ratio of the GPU. `now` and `past` have the ratio of each class, now and over the window.
    """

    size: float
    now: Mapping[str, float]
    past: Mapping[str, float]
    finding: Finding | None = None
    mig_instance: str = ""


@dataclass
class _Cell:
    """A GPU or an instance with its tenants."""

    finding: Finding
    tenants: list[Finding] = field(default_factory=list)


def ledger(findings: Iterable[Finding], window_seconds: float) -> Ledger:
    """Return the ledger of the GPUs of these findings.

    `window_seconds` is 0 without history.
    """
    rows: list[Row] = []
    ordered = sorted(findings, key=lambda found: found.holding.subject.rack_order)
    for _place, of_gpu in itertools.groupby(ordered, key=lambda found: found.holding.subject.place[:2]):
        rows += _rows_of_gpu(list(of_gpu), window_seconds)
    return Ledger(tuple(rows))


def booked(findings: Sequence[Finding], window_seconds: float) -> tuple[tuple[Finding, ...], Ledger]:
    """Return the findings with their waste according to the ledger, and the ledger."""
    book = ledger(findings, window_seconds)
    waste = _waste_by_finding(book)
    return (
        tuple(
            replace(found, verdict=replace(found.verdict, waste_per_month=waste.get(found.id))) for found in findings
        ),
        book,
    )


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Divide a whole number in proportion to weights.

    The parts add up to the number. The largest remainders are rounded up.
    """
    whole = math.fsum(weights)
    if not whole > 0:
        return [total, *[0] * (len(weights) - 1)] if weights else []
    exact = [total * weight / whole for weight in weights]
    parts = [math.floor(value) for value in exact]
    order = sorted(range(len(weights)), key=lambda number: (parts[number] - exact[number], number))
    for number in order[: total - sum(parts)]:
        parts[number] += 1
    return parts


def _rows_of_gpu(findings: Sequence[Finding], window_seconds: float) -> list[Row]:
    cells: dict[str, _Cell] = {}
    for found in findings:
        if found.holding.subject.kind != "tenant":
            cells[found.holding.subject.mig_instance] = _Cell(found)
    for found in findings:
        subject = found.holding.subject
        # A tenant without recent samples has been removed.
        removed = found.verdict.word == "no_data" and found.holding.silent_seconds > 0
        if subject.kind == "tenant" and subject.mig_instance in cells and not removed:
            cells[subject.mig_instance].tenants.append(found)
    if not cells:
        return []
    sizes = _sizes([cell.finding for cell in cells.values()])
    parts: list[_Part] = []
    for cell, size in zip(cells.values(), sizes):
        parts += _parts_of_cell(cell, size, window_seconds)
    remainder = 1 - math.fsum(sizes)
    if remainder > _LEAST_REMAINDER:
        parts.append(_Part(remainder, {UNASSIGNED: 1.0}, {UNASSIGNED: 1.0}))
    return _rows(findings[0], parts, _price([cell.finding for cell in cells.values()], sizes), window_seconds)


def _sizes(cells: Sequence[Finding]) -> list[float]:
    """Return each cell's size as a ratio of its GPU.

    Cells of unknown size share the rest equally.
    """
    known = [found.holding.gpu_ratio for found in cells]
    unknown = sum(size is None for size in known)
    rest = max(0.0, 1 - math.fsum(size for size in known if size is not None))
    return [rest / unknown if size is None else size for size in known]


def _price(cells: Sequence[Finding], sizes: Sequence[float]) -> float | None:
    """Return the price of the whole GPU per hour, or None if it is unknown."""
    for found, size in zip(cells, sizes):
        if found.holding.price_per_hour is not None and size:
            return found.holding.price_per_hour / size
    return None


def _parts_of_cell(cell: _Cell, size: float, window_seconds: float) -> list[_Part]:
    found = cell.finding
    instance = found.holding.subject.mig_instance
    word = CLASS_OF[found.verdict.word]
    now, past = _now(found), _past(found, window_seconds)
    if not cell.tenants or word == UNHEALTHY or found.verdict.word == "broken_metrics":
        return [_Part(size, now, past, found, instance)]
    parts = []
    quotas = _quotas(cell)
    for tenant, quota in zip(cell.tenants, quotas):
        tenant_now, tenant_past = _now(tenant), _past(tenant, window_seconds)
        if word == FREE:
            # Nothing runs, but the tenant's quota is reserved.
            tenant_now, tenant_past = {IDLE: 1.0}, {IDLE if name == FREE else name: part for name, part in past.items()}
        elif word in (IDLE, STANDBY, STALLED) or UNKNOWN in tenant_now:
            tenant_now, tenant_past = now, past
        parts.append(_Part(size * quota, tenant_now, tenant_past, tenant, instance))
    remainder = 1 - math.fsum(quotas)
    if remainder > _LEAST_REMAINDER:
        parts.append(_Part(size * remainder, {UNASSIGNED: 1.0}, {UNASSIGNED: 1.0}, None, instance))
    return parts


def _quotas(cell: _Cell) -> list[float]:
    """Return each tenant's share of its GPU or instance.

    Tenants without a quota share the rest equally.
    """
    limits = [tenant.holding.memory_total_bytes for tenant in cell.tenants]
    known = math.fsum(limit for limit in limits if limit)
    unlimited = sum(not limit for limit in limits)
    total = max(cell.finding.holding.memory_total_bytes or known, known)
    if not total:
        return [1 / len(limits)] * len(limits)
    rest = (total - known) / total
    return [limit / total if limit else rest / unlimited for limit in limits]


def _now(found: Finding) -> dict[str, float]:
    """Return the ratios of the current classes."""
    word = CLASS_OF[found.verdict.word]
    if word != RESIZABLE:
        return {word: 1.0}
    return {RESIZABLE: found.verdict.waste_ratio, IN_USE: 1 - found.verdict.waste_ratio}


def _past(found: Finding, window_seconds: float) -> dict[str, float]:
    """Return the ratio of each class over the window.

    An idle workload was in use before it became quiet. Time without samples is unknown.
    """
    word, holding = CLASS_OF[found.verdict.word], found.holding
    if word in (UNHEALTHY, UNKNOWN) or not window_seconds:
        return {word: 1.0}
    stats = (holding.memory, holding.busy, holding.processes)
    known = min(window_seconds, max((stat.seconds for stat in stats if stat), default=0.0))
    if word in WORKING:
        seconds = {name: ratio * known for name, ratio in _now(found).items()}
    else:
        lasts = holding.stalled_seconds if word == STALLED else holding.quiet.seconds if holding.quiet else known
        quiet = min(window_seconds, lasts)
        seconds = {word: quiet, IN_USE: max(0.0, known - quiet)}
    seconds[UNKNOWN] = max(0.0, window_seconds - math.fsum(seconds.values()))
    return {name: value / window_seconds for name, value in seconds.items()}


def _rows(first: Finding, parts: Sequence[_Part], price: float | None, window_seconds: float) -> list[Row]:
    subject = first.holding.subject
    cells = [(number, word) for number, part in enumerate(parts) for word in CLASSES if word in {*part.now, *part.past}]
    now = [parts[number].size * parts[number].now.get(word, 0.0) for number, word in cells]
    past = [parts[number].size * parts[number].past.get(word, 0.0) for number, word in cells]
    gpus = apportion(GPU_UNITS, now)
    hours = apportion(round(window_seconds / 3600 * HOUR_UNITS), past)
    costs: Sequence[float | None] = [None] * len(cells)
    if price is not None:
        costs = [float(cost) for cost in apportion(round(price * HOURS_PER_MONTH), now)]
    rows = []
    for (number, word), gpu_units, hour_units, cost in zip(cells, gpus, hours, costs):
        part = parts[number]
        if gpu_units or hour_units or cost:
            rows.append(
                Row(
                    subject.host,
                    subject.gpu_uuid,
                    subject.gpu_index,
                    part.mig_instance,
                    part.finding.holding.subject.name if part.finding else "",
                    part.finding.id if part.finding else "",
                    word,
                    gpu_units / GPU_UNITS,
                    hour_units / HOUR_UNITS,
                    cost,
                )
            )
    return rows


def _waste_by_finding(book: Ledger) -> dict[str, float | None]:
    """Return each finding's wasted cost per month, or None for an unknown price."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in book.rows:
        if row.finding:
            found[row.finding].append(row)
    return {
        name: None
        if all(row.cost_per_month is None for row in rows)
        else math.fsum(row.cost_per_month or 0.0 for row in rows if row.word in (*RESERVED_UNUSED, *NOT_ASSIGNED))
        for name, rows in found.items()
    }
