# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a trace of duty and memory per container, and apply simple rules to it.

The rules are for comparison. A trace is a CSV file, possibly gzipped, with the columns timestamp (seconds), container,
duty_percent and memory_used_bytes. An empty cell is a missing sample.
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
#: The first part of the trace's times. `forward` plans on this part, and `reverse` plans on the rest.
SPLIT = 0.6


class TraceError(Exception):
    """The reason why the benchmark cannot read the trace."""


def read(path: str, card_bytes: float) -> Fleet:
    """Return all containers at the trace's times.

    Raise TraceError if the trace is unreadable.
    """
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
    """Return the containers with more than this number of duty samples."""
    return fleet.part(np.flatnonzero((~np.isnan(fleet.duty)).sum(axis=1) > samples))


def halves(fleet: Fleet, reverse: bool, split: float = SPLIT) -> tuple[Fleet, Fleet]:
    """Return (part for the plan, part for scoring).

    Memory from before the cut is carried over into the second part.
    """
    cut = int(len(fleet.times) * split)
    whole = Fleet(fleet.names, fleet.times, fleet.whole_duty(), fleet.whole_memory(), fleet.card)
    parts = (whole.between(0, cut), whole.between(cut, len(fleet.times)))
    return parts[::-1] if reverse else parts


@dataclass(frozen=True)
class Verdict:
    """A plan's score.

    Fields: number of GPUs, GPUs whose memory was exceeded, and samples above 100 % duty in percent.
    """

    gpus: int
    over: int
    saturated: float

    @property
    def holds(self) -> bool:
        return self.over == 0 and self.saturated <= 1.0


def judge(groups, fleet: Fleet, card_bytes: float) -> Verdict:
    """Score a plan.

    `groups` has one group of container names per GPU. Raise ValueError if one of the fleet's containers is in no group
    or in two.
    """
    row = {name: place for place, name in enumerate(fleet.names)}
    groups = [[row[name] for name in group] for group in groups]
    if sorted(place for group in groups for place in group) != list(range(len(row))):
        raise ValueError("a container is on no GPU, or on two")
    memory, duty = fleet.whole_memory(), fleet.whole_duty()
    over = sum(int(memory[group].sum(axis=0).max() > card_bytes) for group in groups)
    saturated = np.mean([(duty[group].sum(axis=0) > 100).mean() for group in groups])
    return Verdict(len(groups), over, 100 * float(saturated))


# --- Rules for comparison ---


def krr_rule(fleet: Fleet, card_bytes: float):
    """Group by the 95th percentile of duty and the memory maximum plus 15 %.

    These are KRR's rules for CPU and memory, with first-fit decreasing.
    """
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
    """Group containers by their joint use, with best fit.

    The peak of the summed memory times 1.3 must fit. The summed duty times 1.2 may exceed 100 % in at most 1 % of the
    samples.
    """
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
