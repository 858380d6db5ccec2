# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Group workloads that can share a card, and decide whether it is worth it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from ..counted import counted
from ..numerics import np
from .chance import BIN_BYTES, duty_chances, memory_chances
from .demand import padded_memory
from .evidence import Evidence, gather
from .model import Fleet, Policy, SizingError
from .search import Group, Limits, Search, Weight


@dataclass(frozen=True)
class Card:
    """The workloads on one card, and how full the card is. Ratios are shares of time."""

    names: tuple[str, ...]
    #: Highest sum of the workloads' memory, observed and with margins.
    memory_seen_bytes: float
    memory_bytes: float
    #: Probability that the sum exceeds the memory of the card.
    memory_over_ratio: float
    #: The higher of the observed and the expected share of saturated time.
    saturated_ratio: float


@dataclass(frozen=True)
class Sharing:
    """The result for cards of one size.

    `cards` have all workloads except those in `left_alone`.
    """

    card_bytes: float
    cards: tuple[Card, ...]
    #: (name, reason) of workloads that must not be changed, because they have too little data or are too large for the
    #: card.
    left_alone: tuple[tuple[str, str], ...]
    #: False if all workloads should keep their own cards. `reason` says why, or how many cards sharing saves.
    worth_it: bool
    reason: str

    @property
    def gpus(self) -> int:
        """Return the total number of cards. Each workload in `left_alone` has its own."""
        return len(self.cards) + len(self.left_alone)


class Weigher:
    """Evaluates groups of workloads.

    All workloads of `fleet` must have enough evidence.
    """

    def __init__(self, fleet: Fleet, known: Sequence[Evidence], card_bytes: float, policy: Policy) -> None:
        self.policy, self.card = policy, card_bytes
        self.memory, self.duty = fleet.whole_memory(), fleet.whole_duty()
        self.median = np.median(self.memory, axis=1)
        self.rise = self.memory.max(axis=1) - self.median
        self.padded = padded_memory(fleet, tuple(known), policy)
        self.memory_chance = memory_chances(fleet, known, policy)
        self.duty_chance = duty_chances(fleet, known, policy)
        self.bins = int(card_bytes // BIN_BYTES)
        # Weight of the expected saturation: 1 until a workload's history has all hours of the day, and then less with
        # each day, so that observed saturation counts more. Workloads that have never worked at the same time will
        # probably not do so later.
        self.unseen = np.array(
            [1.0 if one.day_ratio < 1 else policy.prior_days / (one.days + policy.prior_days) for one in known]
        )

    def weigh(self, group: Group) -> Weight:
        """Evaluate a group by rules 1 to 4 of docs/sizing.md.

        The sum of memory with margins must fit at every sample. Several peaks must fit at the same time. The
        probability that the sum exceeds the card's memory must be low. It is calculated as if the workloads were
        independent.
        """
        rows = list(group)
        if not self._peaks_fit(rows):
            return Weight(False)
        over = self._beyond(self.memory_chance, rows, self.bins)
        if over > self.policy.planned_over_ratio:
            return Weight(False, over=over)
        saturated = self.saturated(rows)
        return Weight(saturated <= self.policy.saturated_card_ratio, saturated, over)

    def _peaks_fit(self, rows: list[int]) -> bool:
        if self.padded[rows].sum(axis=0).max() > self.card:
            return False
        rises = np.sort(self.rise[rows])[::-1][: self.policy.peaks_at_once]
        return bool(self.median[rows].sum() + rises.sum() <= self.card * (1 - self.policy.free_ratio))

    def memory_fits(self, rows: list[int]) -> bool:
        """Return whether the memory fits by rules 1 to 3 of docs/sizing.md."""
        return self._peaks_fit(rows) and (
            self._beyond(self.memory_chance, rows, self.bins) <= self.policy.planned_over_ratio
        )

    def saturated(self, rows: list[int]) -> float:
        """Return the share of time with more than 100 % duty.

        This is the higher of the observed and the expected share.
        """
        seen = float((self.duty[rows].sum(axis=0) > 100).mean())
        return max(seen, float(self.unseen[rows].max()) * self._beyond(self.duty_chance, rows, 100))

    @staticmethod
    def _beyond(chances: np.ndarray, rows: list[int], most: int) -> float:
        """Return the probability that a sum of independent values is above `most`.

        Row i of `chances` has the probabilities of the values 0, 1, 2, … of workload i.
        """
        total = chances[rows[0]][: most + 1]
        for row in rows[1:]:
            total = np.convolve(total, chances[row])[: most + 1]
        return max(0.0, 1.0 - float(total.sum()))

    def card_of(self, group: Group, names: Sequence[str], weight: Weight) -> Card:
        """Return the Card for a group."""
        rows = list(group)
        return Card(
            tuple(names[i] for i in rows),
            float(self.memory[rows].sum(axis=0).max()),
            float(self.padded[rows].sum(axis=0).max()),
            weight.over,
            weight.saturated,
        )


def share(fleet: Fleet, card_bytes: float, policy: Policy | None = None) -> Sharing:
    """Group workloads on as few cards of `card_bytes` as the rules allow.

    Workloads with too little evidence are left out. A card's duty is the sum of its workloads' duties. Their memory,
    with margins, fits on each card. A card is saturated for at most `saturated_card_ratio` of the time, and the mean
    over all cards is at most `saturated_ratio`. Raises SizingError if the card has no memory.
    """
    policy = policy or Policy()
    if not np.isfinite(card_bytes) or card_bytes <= 0:
        raise SizingError("card", "%r bytes" % card_bytes, "Pass the memory of the card in bytes.")
    known = gather(fleet, policy)
    highest = padded_memory(fleet, known, policy).max(axis=1, initial=0.0)
    left, rows = [], []
    for i, name in enumerate(fleet.names):
        if not known[i].enough:
            left.append((name, "too little data: %s" % known[i].missing))
        elif highest[i] > card_bytes:
            need = "may need %.1f GiB, and the card has %.1f" % (highest[i] / 2**30, card_bytes / 2**30)
            left.append((name, need))
        else:
            rows.append(i)
    if not rows:
        reason = "leave exclusive: no workload has enough data and fits"
        return Sharing(card_bytes, (), tuple(left), False, reason)
    judged = fleet.part(rows)
    weigher = Weigher(judged, [known[i] for i in rows], card_bytes, policy)
    limits = Limits(
        policy.planned_saturated_ratio, policy.planned_over_ratio, policy.rounds, policy.candidates, policy.seed
    )
    search = Search(weigher.weigh, weigher.median, card_bytes, limits)
    groups = search.run()
    saved = len(rows) - len(groups)
    worth_it = saved > 0 and saved >= policy.least_saving_ratio * len(fleet.names)
    if worth_it:
        reason = "saves %d of %s" % (saved, counted(len(fleet.names), "card"))
    else:
        groups = [(i,) for i in range(len(rows))]
        reason = "leave exclusive: sharing would save %d of %s, less than %.0f %%" % (
            saved,
            counted(len(fleet.names), "card"),
            100 * policy.least_saving_ratio,
        )
    cards = tuple(weigher.card_of(group, judged.names, search.weight(group)) for group in groups)
    return Sharing(card_bytes, cards, tuple(left), worth_it, reason)
