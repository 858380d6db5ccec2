# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a trace of duty and memory per container, split it, and apply simple rules for comparison.

A trace is CSV, gzipped or not: timestamp (seconds), container, duty_percent, memory_used_bytes; an empty cell is no sample.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.model import Fleet, SizingError

GIB = 2**30
COLUMNS = ("timestamp", "container", "duty_percent", "memory_used_bytes")
#: The first share of the times; forward plans on it, reverse on the rest.
SPLIT = 0.6


class TraceError(Exception):
    """The trace cannot be read; the text says why."""


def read(path: str, card_bytes: float) -> Fleet:
    """All containers on the times of the trace. Raises TraceError."""
    file = Path(path)
    try:
        with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
            rows = list(csv.DictReader(lines))
        if not rows or not set(COLUMNS) <= set(rows[0]):
            raise TraceError(f"{file.name} has no rows with the columns {', '.join(COLUMNS)}")
        times = sorted({float(row["timestamp"]) for row in rows})
        names = sorted({row["container"] for row in rows})
        column = {time: place for place, time in enumerate(times)}
        line = {name: place for place, name in enumerate(names)}
        tables = np.full((2, len(names), len(times)), np.nan)
        for row in rows:
            for table, cell in zip(tables, (row["duty_percent"], row["memory_used_bytes"])):
                if cell:
                    table[line[row["container"]], column[float(row["timestamp"])]] = float(cell)
    except (OSError, ValueError) as error:
        raise TraceError(f"{file.name} cannot be read: {error}") from None
    try:
        return Fleet.of(names, times, tables[0], tables[1], card_bytes)
    except SizingError as error:
        raise TraceError(f"{file.name}: {error}") from None


def lasting(fleet: Fleet, samples: int) -> Fleet:
    """The containers with more than so many samples of duty."""
    return fleet.part(np.flatnonzero((~np.isnan(fleet.duty)).sum(axis=1) > samples))


def halves(fleet: Fleet, reverse: bool, split: float = SPLIT) -> tuple[Fleet, Fleet]:
    """(to plan on, to judge on). Memory before a half is carried into it, as the whole trace has it."""
    cut = int(len(fleet.times) * split)
    whole = Fleet(fleet.names, fleet.times, fleet.whole_duty(), fleet.whole_memory(), fleet.card)
    parts = (whole.between(0, cut), whole.between(cut, len(fleet.times)))
    return parts[::-1] if reverse else parts


@dataclass(frozen=True)
class Verdict:
    """Of a plan, on what came: GPUs, how many of them ran over their memory, samples over 100 % duty in percent."""

    gpus: int
    over: int
    saturated: float

    @property
    def holds(self) -> bool:
        return self.over == 0 and self.saturated <= 1.0


def judge(groups, fleet: Fleet, card_bytes: float) -> Verdict:
    """groups: names of containers, one group a GPU; every container of the fleet must be in one."""
    row = {name: place for place, name in enumerate(fleet.names)}
    groups = [[row[name] for name in group] for group in groups]
    if sorted(place for group in groups for place in group) != list(range(len(row))):
        raise ValueError("a container is on no GPU, or on two")
    memory, duty = fleet.whole_memory(), fleet.whole_duty()
    over = sum(int(memory[group].sum(axis=0).max() > card_bytes) for group in groups)
    saturated = np.mean([(duty[group].sum(axis=0) > 100).mean() for group in groups])
    return Verdict(len(groups), over, 100 * float(saturated))


# --- Rules to compare with ------------------------------------------------------------------------------------------


def krr_rule(fleet: Fleet, card_bytes: float):
    """Duty's 95th percentile and the maximum of memory + 15 % (KRR's rules for CPU and memory), first-fit decreasing."""
    memory = 1.15 * fleet.whole_memory().max(axis=1)
    duty = np.quantile(fleet.whole_duty(), 0.95, axis=1)
    order = np.argsort(-np.maximum(memory / card_bytes, duty / 100), kind="stable")
    groups: list[list[int]] = []
    for item in order:
        for group in groups:
            if memory[[*group, item]].sum() <= card_bytes and duty[[*group, item]].sum() <= 100:
                group.append(item)
                break
        else:
            groups.append([item])
    return [[fleet.names[i] for i in group] for group in groups]


def joint_rule(fleet: Fleet, card_bytes: float):
    """Peak of the summed memory times 1.3, summed duty times 1.2 over 100 in at most 1 % of the samples; best fit."""
    memory, duty = fleet.whole_memory(), fleet.whole_duty()
    groups: list[list[int]] = []
    for item in np.argsort(-memory.max(axis=1), kind="stable"):
        best = None
        for place, group in enumerate(groups):
            peak = 1.3 * memory[[*group, item]].sum(axis=0).max()
            busy = (1.2 * duty[[*group, item]].sum(axis=0) > 100).mean()
            if peak <= card_bytes and busy <= 0.01 and (best is None or peak > best[0]):
                best = (peak, place)
        if best is None:
            groups.append([item])
        else:
            groups[best[1]].append(item)
    return [[fleet.names[i] for i in group] for group in groups]
