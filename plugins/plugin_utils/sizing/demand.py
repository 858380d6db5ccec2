# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one workload needs, from its history and the fleet's. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .chance import duty_chances
from .evidence import Evidence, drift, gather, memory_margin
from .model import Fleet, Policy


@dataclass(frozen=True)
class Demand:
    """Of one workload. Where the evidence is too little the figures are None, and it is to be left as it is."""

    name: str
    evidence: Evidence
    #: The maximum seen; and with the margin, never more than the card it has today.
    memory_seen_bytes: float | None = None
    memory_bytes: float | None = None
    memory_margin_ratio: float | None = None
    #: The quantile of duty with headroom: of what was seen, and of the hours to come where that is more; at most 100.
    compute_percent: float | None = None
    #: The share of its samples in which it works.
    working_ratio: float | None = None

    @property
    def reason(self) -> str:
        """In words, why it is so much."""
        known = self.evidence
        if not known.enough:
            return "too little data: %s" % known.missing
        return "at most %.1f GiB seen in %.1f days, and %.0f %% on top; works %.0f %% of the time; confidence %.2f" % (
            self.memory_seen_bytes / 2**30,
            known.days,
            100 * self.memory_margin_ratio,
            100 * self.working_ratio,
            known.confidence,
        )


def padded_memory(fleet: Fleet, known: tuple[Evidence, ...], policy: Policy) -> np.ndarray:
    """(n, t) bytes: the memory seen with margin and drift, and no more than the card that each workload has today."""
    memory = fleet.whole_memory()
    margins = np.array([memory_margin(item.days, policy) for item in known])
    padded = memory * (1 + margins[:, None]) + drift(memory)[:, None]
    # What a history shows is never cut, even where the card's size is told wrong.
    return np.maximum(memory, np.fmin(padded, fleet.card[:, None]))


def demands(fleet: Fleet, policy: Policy | None = None) -> tuple[Demand, ...]:
    """One for each workload, sorted by name. The fleet's experience is that of workloads with enough evidence.

    Memory is never a percentile: a process that asks for more than there is dies. KRR takes the maximum and 15 %;
    here the share falls with the days seen (evidence.memory_margin) and a level that rises counts twice.
    """
    policy = policy or Policy()
    known = gather(fleet, policy)
    rows = [i for i, item in enumerate(known) if item.enough]
    told = fleet.part(rows)
    seen = tuple(known[i] for i in rows)
    found = [Demand(name, item) for name, item in zip(fleet.names, known)]
    if not rows:
        return tuple(found)
    memory = told.whole_memory().max(axis=1)
    padded = padded_memory(told, seen, policy).max(axis=1)
    duty = told.whole_duty()
    to_come = np.cumsum(duty_chances(told, seen, policy), axis=1)
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
