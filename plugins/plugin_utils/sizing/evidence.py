# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much a history shows. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .model import DAY_SECONDS, Fleet, Policy

_HOURS = 24


@dataclass(frozen=True)
class Evidence:
    """Of one workload. `missing` says what is too little, and is empty where there is enough."""

    #: Samples with duty and memory, and the time they stand for.
    samples: int
    days: float
    #: Of the time from its first sample to the fleet's last.
    covered_ratio: float
    #: Of the hours of the day (UTC), at least one of whose samples is there.
    day_ratio: float
    missing: str = ""

    @property
    def enough(self) -> bool:
        return not self.missing

    @property
    def confidence(self) -> float:
        """0 to 1: grows with days and falls with gaps; 0 where there is too little."""
        return self.covered_ratio * self.days / (self.days + 1) if self.enough else 0.0


def gather(fleet: Fleet, policy: Policy) -> tuple[Evidence, ...]:
    """One for each of the fleet's workloads, in its order. The least amounts are KRR's, as Policy has them."""
    there = ~np.isnan(fleet.duty) & ~np.isnan(fleet.memory)
    hours = np.floor(fleet.times / 3600).astype(int) % _HOURS
    found = []
    for row in there:
        seen = np.flatnonzero(row)
        samples = len(seen)
        if not samples:
            found.append(Evidence(0, 0.0, 0.0, 0.0, "no data"))
            continue
        seconds = samples * fleet.step
        covered = samples / (len(row) - int(seen[0]))
        missing = ""
        if samples < policy.least_samples:
            missing = "%d samples, and %d are the least" % (samples, policy.least_samples)
        elif seconds < policy.least_seconds:
            missing = "%.1f hours of samples, and %.1f are the least" % (seconds / 3600, policy.least_seconds / 3600)
        elif covered < policy.least_covered_ratio:
            missing = "samples of %.0f %% of its time, and %.0f %% are the least" % (
                100 * covered,
                100 * policy.least_covered_ratio,
            )
        found.append(Evidence(samples, seconds / DAY_SECONDS, covered, len(np.unique(hours[seen])) / _HOURS, missing))
    return tuple(found)


def memory_margin(days: float, policy: Policy) -> float:
    """What is added to the maximum seen, as a share of it: falls as days come in, never to 0."""
    return policy.memory_margin_ratio / float(np.sqrt(1 + days))


def drift(memory: np.ndarray) -> np.ndarray:
    """(n, t) bytes -> (n,) bytes: how much higher the second half's median is than the first's, 0 where it is not.

    A level that rose over the history is assumed to rise as much again: a leak, a cache that fills, a new regime.
    """
    half = memory.shape[1] // 2
    if not half:
        return np.zeros(len(memory))
    return np.maximum(0.0, np.median(memory[:, half:], axis=1) - np.median(memory[:, :half], axis=1))
