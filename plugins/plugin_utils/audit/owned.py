# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Divide the rows of the ledger among workloads. Pure.

A part's current workloads get its GPUs and costs, and its latest hours: as many as the oldest of them has run. Slurm
jobs with known devices get earlier hours. The rows still add up to the same totals.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Iterator, Mapping, Sequence

from .ledger import apportion
from .ledger_model import (
    GPU_UNITS,
    HOUR_UNITS,
    IDLE,
    IN_USE,
    RESIZABLE,
    STALLED,
    STANDBY,
    UNHEALTHY,
    UNKNOWN,
    Ledger,
    Row,
)
from .model import Finding
from .workload_model import Workload
from .workloads import Ages, Workloads

#: Classes of a held part, the latest first. Classes with the same number alternate.
_ORDER = {IDLE: 0, STANDBY: 0, STALLED: 0, IN_USE: 1, RESIZABLE: 1, UNHEALTHY: 2, UNKNOWN: 2}


@dataclass(frozen=True)
class Past:
    """An ended workload that held a whole device for some seconds of the window."""

    workload: Workload
    seconds: float


def divided(
    book: Ledger,
    findings: Sequence[Finding],
    workloads: Workloads,
    window_seconds: float,
    past: Mapping[tuple[str, str, str], Sequence[Past]] | None = None,
) -> Ledger:
    """Return the ledger with each row's workloads.

    `past` has ended workloads by device.
    """
    by_id = {found.id: found for found in findings}
    rows: list[Row] = []
    for name, of_finding in itertools.groupby(book.rows, key=lambda row: row.finding):
        found = by_id.get(name)
        held = list(of_finding)
        if found is None:
            rows += held
            continue
        place = found.holding.subject.place
        ended = () if found.holding.subject.kind == "tenant" else (past or {}).get(place, ())
        rows += _rows(held, workloads.of(found), window_seconds, ended)
    return Ledger(tuple(rows))


def _rows(rows: Sequence[Row], ages: Ages, window_seconds: float, ended: Sequence[Past]) -> Iterator[Row]:
    held = [row for row in rows if row.word in _ORDER]
    yield from (row for row in rows if row.word not in _ORDER)
    hours = {row.word: round(row.gpu_hours * HOUR_UNITS) for row in held}
    whole = sum(round(row.gpu_hours * HOUR_UNITS) for row in rows)
    # If a single workload's age is unknown, assume 0, so that it does not get the hours of earlier workloads.
    seconds = {workload: min(age or 0.0, window_seconds) for workload, age in ages.items()}
    share = max(seconds.values(), default=0.0) / window_seconds if window_seconds else 0.0
    current = _latest(hours, min(sum(hours.values()), round(whole * share)))
    rest = {word: units - current[word] for word, units in hours.items()}
    earlier = _earlier(rest, ended, whole, window_seconds)
    for row in held:
        if ages:
            yield from _of_workloads(row, seconds, current[row.word])
        units = rest[row.word] - sum(of_word.get(row.word, 0) for of_word in earlier.values())
        left = replace(row, gpu_hours=units / HOUR_UNITS)
        if ages:
            left = replace(left, gpus=0.0, cost_per_month=None if row.cost_per_month is None else 0.0)
        if left.gpus or left.gpu_hours or left.cost_per_month:
            yield left
        for workload, of_word in earlier.items():
            if of_word.get(row.word):
                gone = replace(row, gpus=0.0, cost_per_month=None if row.cost_per_month is None else 0.0)
                yield replace(gone, gpu_hours=of_word[row.word] / HOUR_UNITS, owner=workload)


def _latest(hours: Mapping[str, int], total: int) -> dict[str, int]:
    """Return the latest hours by class, in units with the sum `total`."""
    taken = dict.fromkeys(hours, 0)
    for number in range(3):
        words = [word for word in hours if _ORDER[word] == number]
        units = [hours[word] for word in words]
        part = min(total, sum(units))
        for word, value in zip(words, apportion(part, units) if part else ()):
            taken[word] = value
        total -= part
    return taken


def _earlier(
    rest: Mapping[str, int], ended: Sequence[Past], whole: int, window_seconds: float
) -> dict[Workload, dict[str, int]]:
    """Return the hours of ended workloads by class, in units."""
    if not window_seconds or not ended:
        return {}
    exact = [whole * past.seconds / window_seconds for past in ended]
    total = min(sum(rest.values()), round(sum(exact)))
    left = dict(rest)
    found: dict[Workload, dict[str, int]] = {}
    for past, units in zip(ended, apportion(total, exact) if total else ()):
        of_word = found.setdefault(past.workload, {})
        # Take the same share of each class.
        parts = apportion(units, list(left.values())) if sum(left.values()) else []
        for word, part in zip(left, parts):
            of_word[word] = of_word.get(word, 0) + part
            left[word] -= part
    return found


def _of_workloads(row: Row, seconds: Mapping[Workload, float], units: int) -> Iterator[Row]:
    """Divide the hours in proportion to the ages, and GPUs and costs equally."""
    equal = [1.0] * len(seconds)
    weights = list(seconds.values()) if any(seconds.values()) else equal
    hours = apportion(units, weights)
    gpus = apportion(round(row.gpus * GPU_UNITS), equal)
    costs = apportion(round(row.cost_per_month or 0.0), equal)
    for workload, of_hours, of_gpus, cost in zip(seconds, hours, gpus, costs):
        if of_hours or of_gpus or cost:
            yield replace(
                row,
                gpus=of_gpus / GPU_UNITS,
                gpu_hours=of_hours / HOUR_UNITS,
                cost_per_month=None if row.cost_per_month is None else float(cost),
                owner=workload,
            )
