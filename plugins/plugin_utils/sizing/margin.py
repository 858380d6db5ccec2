# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Learn the margin on the observed memory of workloads from the fleet. Pure.

The rule is split conformal prediction (Vovk et al., Algorithmic Learning in a Random World, 2005). Each history is cut
in two, and the excess is the maximum of one part divided by the maximum of the other. The margin is the quantile of all
excesses at the given confidence. It does not depend on the workloads' speed, because it contains no time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..counted import counted
from ..numerics import np
from .model import Fleet, Policy

#: Shares of a history at which it is cut. Each part predicts the other, because a busy part may follow a quiet one.
CUTS = (0.3, 0.4, 0.5, 0.6, 0.7)
#: Uninterrupted work of this length counts as one cycle.
CYCLE_SECONDS = 3600.0


@dataclass(frozen=True)
class Margin:
    """The margin on observed maxima of memory.

    ratio: share of the maximum that is added. confidence: share of workloads that are expected to stay within their
    memory. comparisons, workloads: size of the sample. learnt: whether the sample is large enough for the confidence.
    """

    ratio: float
    confidence: float
    comparisons: int = 0
    workloads: int = 0
    learnt: bool = False

    @property
    def promise(self) -> str:
        """Say how often a workload may exceed the memory of its new size."""
        if not self.learnt:
            return (
                "%s of %s are too few to learn a margin for the confidence %g. Memory is sized by the largest excess seen plus "
                "a fixed margin, without a promise."
                % (
                    counted(self.comparisons, "comparison"),
                    counted(self.workloads, "workload"),
                    self.confidence,
                )
            )
        return "At most %s workloads sized like this will exceed its memory. The margin is %.0f %%, learnt from %s." % (
            odds(self.confidence),
            100 * self.ratio,
            counted(self.workloads, "workload"),
        )


def odds(confidence: float) -> str:
    """Return how many may fail, as text: 1 of 100 for 0.99."""
    many = 100 if confidence <= 0.99 else round(1 / (1 - confidence))
    return "%g of %d" % (round((1 - confidence) * many, 1), many)


def cycles(duty: np.ndarray, step: float, policy: Policy) -> np.ndarray:
    """Return (n,): the number of cycles of work.

    A cycle starts when work starts, and again after each hour of uninterrupted work. `duty` is (n, t) percent, `step`
    the seconds between samples.
    """
    working = duty >= policy.working_percent
    hour = max(1, round(CYCLE_SECONDS / step)) if step else 1
    place = np.arange(duty.shape[1])
    idle = np.maximum.accumulate(np.where(working, -1, place), axis=1)
    counted: np.ndarray = (working & ((place - idle - 1) % hour == 0)).sum(axis=1)
    return counted


def excesses(memory: np.ndarray) -> np.ndarray:
    """Divide the maximum of one part of a history by the maximum of the other.

    Returns a value for each history, cut and direction. `memory` is (n, t) bytes. Parts without memory use are not
    compared.
    """
    length = memory.shape[1]
    found = [np.empty(0)]
    for share in CUTS:
        at = int(length * share)
        if 0 < at < length:
            first, last = memory[:, :at].max(axis=1), memory[:, at:].max(axis=1)
            both = (first > 0) & (last > 0)
            found += [last[both] / first[both], first[both] / last[both]]
    return np.concatenate(found)


def margin(fleet: Fleet, policy: Policy) -> Margin:
    """Return the margin for the fleet's workloads.

    With too few comparisons for the confidence, it is the largest excess plus `memory_margin_ratio`.
    """
    found = np.sort(excesses(fleet.whole_memory()))
    rank = math.ceil((len(found) + 1) * policy.confidence - 1e-9)
    sample = (policy.confidence, len(found), len(fleet.names))
    if not len(found) or rank > len(found):
        largest = float(found[-1]) if len(found) else 1.0
        return Margin(max(1.0, largest) * (1 + policy.memory_margin_ratio) - 1, *sample)
    learnt = float(found[max(rank, 1) - 1]) - 1
    return Margin(max(policy.least_margin_ratio, learnt), *sample, True)
