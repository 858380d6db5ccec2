# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the amount and coverage of a history. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..counted import counted
from ..numerics import np
from .model import DAY_SECONDS, Fleet, Policy

_HOURS = 24


@dataclass(frozen=True)
class Evidence:
    """Amount and coverage of one workload's history.

    `missing` says which evidence is insufficient, or is empty.
    """

    #: Number of samples with both duty and memory, and the time that they cover.
    samples: int
    days: float
    #: Share of samples that exist, from the workload's first sample to the fleet's last sample.
    covered_ratio: float
    #: Share of the 24 hours of the day (UTC) with at least one sample.
    day_ratio: float
    missing: str = ""

    @property
    def enough(self) -> bool:
        """Return whether there is enough evidence."""
        return not self.missing

    @property
    def confidence(self) -> float:
        """Return the confidence, from 0 to 1.

        The confidence increases with days and decreases with gaps. It is 0 without enough evidence.
        """
        return self.covered_ratio * self.days / (self.days + 1) if self.enough else 0.0


def gather(fleet: Fleet, policy: Policy) -> tuple[Evidence, ...]:
    """Return each workload's evidence, in the order of the fleet.

    Policy has the minimum amounts, which are the same as in KRR.
    """
    complete = ~np.isnan(fleet.duty) & ~np.isnan(fleet.memory)
    hours = np.floor(fleet.times / 3600).astype(int) % _HOURS
    found = []
    for row in complete:
        seen = np.flatnonzero(row)
        samples = len(seen)
        if not samples:
            found.append(Evidence(0, 0.0, 0.0, 0.0, "no data"))
            continue
        seconds = samples * fleet.step
        covered = samples / (len(row) - int(seen[0]))
        missing = ""
        if samples < policy.least_samples:
            missing = "%s, fewer than %d" % (counted(samples, "sample"), policy.least_samples)
        elif seconds < policy.least_seconds:
            missing = "%.1f h of samples, less than %.1f h" % (seconds / 3600, policy.least_seconds / 3600)
        elif covered < policy.least_covered_ratio:
            missing = "samples for %.0f %% of its time, less than %.0f %%" % (
                100 * covered,
                100 * policy.least_covered_ratio,
            )
        found.append(Evidence(samples, seconds / DAY_SECONDS, covered, len(np.unique(hours[seen])) / _HOURS, missing))
    return tuple(found)


def shared_margin(days: float, policy: Policy) -> float:
    """Return the margin on the sum of histories that share a card, as a ratio.

    The margin decreases with the number of days, but never reaches 0. Other rules of sharing cover the peaks of single workloads.
    """
    return policy.memory_margin_ratio / float(np.sqrt(1 + days))


def drift(memory: np.ndarray) -> np.ndarray:
    """Return (n,) bytes: the rise of the median between the halves of the history.

    `memory` is (n, t) bytes. The result is 0 if the second half's median is lower. A rise is expected to continue,
    because its cause may be a leak, a growing cache or a new kind of use.
    """
    half = memory.shape[1] // 2
    if not half:
        return np.zeros(len(memory))
    return np.maximum(0.0, np.median(memory[:, half:], axis=1) - np.median(memory[:, :half], axis=1))
