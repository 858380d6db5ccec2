# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Estimate a workload's need from its own history and the fleet's. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..counted import counted
from ..numerics import np
from .evidence import Evidence, drift, gather, shared_margin
from .margin import Margin, cycles, margin
from .model import Fleet, Policy


@dataclass(frozen=True)
class Demand:
    """Need of a workload.

    If there is too little evidence, the figures are None and the workload must not be changed.
    """

    name: str
    evidence: Evidence
    #: The observed maximum of memory use, without and with a margin. With the margin, it is at most the current card's
    #: memory.
    memory_seen_bytes: float | None = None
    memory_bytes: float | None = None
    memory_margin_ratio: float | None = None
    #: A quantile of the observed duty plus headroom, at most 100.
    compute_percent: float | None = None
    #: Share of samples in which the workload works.
    working_ratio: float | None = None
    #: Number of cycles of work, and which number is missing. If `unseen` is not empty, the memory need is the current
    #: card's memory (inf if unknown), because the history does not show the need during work.
    cycles: int = 0
    unseen: str = ""

    @property
    def reason(self) -> str:
        """Return the data behind the estimate as text, or which data is missing."""
        known = self.evidence
        if not known.enough:
            return "too little data: %s" % known.missing
        if self.unseen:
            return "too little work seen: %s" % self.unseen
        return "at most %.1f GiB in %.1f days, plus %.0f %%; works %.0f %% of the time; confidence %.2f" % (
            self.memory_seen_bytes / 2**30,
            known.days,
            100 * self.memory_margin_ratio,
            100 * self.working_ratio,
            known.confidence,
        )


def padded_memory(fleet: Fleet, known: tuple[Evidence, ...], policy: Policy) -> np.ndarray:
    """Return (n, t) bytes: observed memory plus margin and drift, for cards.

    Margin and drift do not raise a value above the memory of the workload's current card.
    """
    memory = fleet.whole_memory()
    margins = np.array([shared_margin(item.days, policy) for item in known])
    padded = memory * (1 + margins[:, None]) + drift(memory)[:, None]
    # Never return less than the observed memory, even if the size of the card is wrong.
    return np.maximum(memory, np.fmin(padded, fleet.card[:, None]))


def fleet_margin(fleet: Fleet, policy: Policy) -> Margin:
    """Return the margin on memory, learnt from the workloads with enough evidence."""
    return margin(fleet.part([i for i, item in enumerate(gather(fleet, policy)) if item.enough]), policy)


def demands(fleet: Fleet, policy: Policy | None = None) -> tuple[Demand, ...]:
    """Return the need of each workload, sorted by name.

    The margin is learnt only from workloads with enough evidence.

    The memory need is based on the maximum and not on a percentile, because a process that cannot get memory dies. KRR
    uses the maximum plus 15 %. Here, the margin is the later excess of comparable workloads (margin.py). If the level
    of memory use has risen, an equal rise is expected again and added.
    """
    policy = policy or Policy()
    known = gather(fleet, policy)
    rows = [i for i, item in enumerate(known) if item.enough]
    judged = fleet.part(rows)
    found = [Demand(name, item) for name, item in zip(fleet.names, known)]
    if not rows:
        return tuple(found)
    memory, duty = judged.whole_memory(), judged.whole_duty()
    seen, rises = memory.max(axis=1), drift(memory)
    ratio = margin(judged, policy).ratio
    worked = cycles(duty, fleet.step, policy)
    busy = np.quantile(duty, policy.compute_quantile, axis=1) * (1 + policy.compute_headroom_ratio)
    for place, i in enumerate(rows):
        few = worked[place] < policy.least_cycles
        card = float(judged.card[place])
        need = np.inf if few else seen[place] * (1 + ratio) + rises[place]
        # Never return less than the observed memory, even if the size of the card is wrong.
        need = max(float(seen[place]), need if np.isnan(card) else min(need, card))
        found[i] = Demand(
            fleet.names[i],
            known[i],
            float(seen[place]),
            need,
            ratio,
            min(100.0, float(busy[place])),
            float((duty[place] >= policy.working_percent).mean()),
            int(worked[place]),
            "%s, fewer than %g" % (counted(int(worked[place]), "cycle of work", "cycles of work"), policy.least_cycles)
            if few
            else "",
        )
    return tuple(found)
