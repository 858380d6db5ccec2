# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Estimate the need of a workload from its own history and the fleet's. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .chance import duty_chances
from .evidence import Evidence, drift, gather, memory_margin
from .model import Fleet, Policy


@dataclass(frozen=True)
class Demand:
    """Need of a workload.

    If there is too little evidence, the figures are None and the workload must not be changed.
    """

    name: str
    evidence: Evidence
    #: The observed maximum of memory use, and the same maximum with a margin. With the margin, it is at most the memory
    #: of the current card.
    memory_seen_bytes: float | None = None
    memory_bytes: float | None = None
    memory_margin_ratio: float | None = None
    #: A quantile of the duty plus headroom, at most 100. The higher of the observed and the expected quantile is used.
    compute_percent: float | None = None
    #: Share of samples in which the workload works.
    working_ratio: float | None = None

    @property
    def reason(self) -> str:
        """Return the data behind the estimate as text, or which data is missing."""
        known = self.evidence
        if not known.enough:
            return "too little data: %s" % known.missing
        return "at most %.1f GiB in %.1f days, plus %.0f %%; works %.0f %% of the time; confidence %.2f" % (
            self.memory_seen_bytes / 2**30,
            known.days,
            100 * self.memory_margin_ratio,
            100 * self.working_ratio,
            known.confidence,
        )


def padded_memory(fleet: Fleet, known: tuple[Evidence, ...], policy: Policy) -> np.ndarray:
    """Return (n, t) bytes: observed memory plus margin and drift.

    The margin and the drift do not raise a value above the memory of the workload's current card.
    """
    memory = fleet.whole_memory()
    margins = np.array([memory_margin(item.days, policy) for item in known])
    padded = memory * (1 + margins[:, None]) + drift(memory)[:, None]
    # Never return less than the observed memory, even if the size of the card is wrong.
    return np.maximum(memory, np.fmin(padded, fleet.card[:, None]))


def demands(fleet: Fleet, policy: Policy | None = None) -> tuple[Demand, ...]:
    """Return the need of each workload, sorted by name.

    The distributions of the fleet use only workloads with enough evidence.

    The memory need is based on the maximum and not on a percentile, because a process that cannot get memory dies. KRR uses the
    maximum plus 15 %. Here, the margin gets smaller with a longer history (evidence.memory_margin). If the level of memory use
    has risen, the same rise is expected again and added.
    """
    policy = policy or Policy()
    known = gather(fleet, policy)
    rows = [i for i, item in enumerate(known) if item.enough]
    judged = fleet.part(rows)
    seen = tuple(known[i] for i in rows)
    found = [Demand(name, item) for name, item in zip(fleet.names, known)]
    if not rows:
        return tuple(found)
    memory = judged.whole_memory().max(axis=1)
    padded = padded_memory(judged, seen, policy).max(axis=1)
    duty = judged.whole_duty()
    to_come = np.cumsum(duty_chances(judged, seen, policy), axis=1)
    for place, i in enumerate(rows):
        quantile = max(
            float(np.quantile(duty[place], policy.compute_quantile)),
            float(np.searchsorted(to_come[place], policy.compute_quantile - 1e-9)),
        )
        found[i] = Demand(
            fleet.names[i],
            known[i],
            float(memory[place]),
            float(padded[place]),
            memory_margin(known[i].days, policy),
            min(100.0, quantile * (1 + policy.compute_headroom_ratio)),
            float((duty[place] >= policy.working_percent).mean()),
        )
    return tuple(found)
