# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is sized, and by which numbers. Units: seconds, bytes, duty in percent of one GPU (0 to 100)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Sequence

import numpy as np

from ...module_utils.errors import FleetError

DAY_SECONDS = 86400.0


class SizingError(FleetError):
    """A history or a policy is malformed. Nothing was computed of it."""


@dataclass(frozen=True)
class Policy:
    """Every number of the rules, one set for all fleets and cards. Where each comes from: docs/sizing.md.

    Raises SizingError where one is outside of what it can be.
    """

    #: Fewer samples or less time than this is too little to say anything (the least that KRR asks for).
    least_samples: int = 100
    least_seconds: float = 3 * 3600.0
    #: Nor is a history that is mostly gaps.
    least_covered_ratio: float = 0.5
    #: Memory over the maximum seen, without any evidence; divided by the root of 1 + days seen.
    memory_margin_ratio: float = 0.3
    #: Days of own history that weigh as much as the fleet's experience.
    prior_days: float = 1.0
    #: The share of time that a card's memory may be over by the distributions: 4 seconds of a day.
    memory_over_ratio: float = 5e-5
    #: So many workloads of a card may be at the highest memory they ever showed at once, the others at their medians.
    peaks_at_once: int = 2
    #: What these peaks leave free of the card: the driver's own memory, and a context of each process.
    free_ratio: float = 0.05
    #: Samples over 100 % duty, of all cards' together and of any one card's.
    saturated_ratio: float = 0.01
    saturated_card_ratio: float = 0.03
    #: From this on a GPU works; below it is noise.
    working_percent: float = 1.0
    #: The share of its busiest hour that a workload works in, where its busy hours are unknown.
    busy_hour_ratio: float = 0.9
    #: Working samples that weigh as much as the fleet's: for how hard a workload works, and for how that varies.
    level_samples: float = 5.0
    shape_samples: float = 100.0
    #: Compute demand: this quantile of duty, and headroom on it.
    compute_quantile: float = 0.95
    compute_headroom_ratio: float = 0.15
    #: Sharing that saves less than this share of the cards is not proposed.
    least_saving_ratio: float = 0.05
    #: The search for fewer cards: rounds, how many cards an arrival looks at, and the seed of its choices.
    rounds: int = 800
    candidates: int = 64
    seed: int = 1

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            ratio = item.name.endswith(("_ratio", "_quantile"))
            if not np.isfinite(value) or value < 0 or (ratio and value > 1):
                raise SizingError(
                    "policy." + item.name,
                    "%r is not %s" % (value, "a share from 0 to 1" if ratio else "a number from 0 on"),
                    "The default is %r." % item.default,
                )
        if self.candidates < 1:
            raise SizingError("policy.candidates", "0 leaves no card to look at", "Ask for 1 or more.")


@dataclass(frozen=True, eq=False)
class Fleet:
    """Histories of n workloads at t common times.

    names: n distinct names. times: (t,) seconds since 1970, UTC, rising. duty: (n, t) percent. memory: (n, t) bytes.
    card: (n,) bytes of the card that each has today, NaN where unknown: no workload has needed more than that yet.
    A sample that is missing is NaN. Raises SizingError where shapes, times or values cannot be.
    """

    names: tuple[str, ...]
    times: np.ndarray
    duty: np.ndarray
    memory: np.ndarray
    card: np.ndarray

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        times: Sequence[float],
        duty: Sequence[Sequence[float]],
        memory: Sequence[Sequence[float]],
        card: Sequence[float] | float | None = None,
    ) -> Fleet:
        """Of anything NumPy takes for arrays; sorted by name, so that the order in which workloads come never matters."""
        order = sorted(range(len(names)), key=lambda i: names[i])
        count, length = len(names), len(times)
        cards = np.full(count, np.nan) if card is None else np.broadcast_to(np.asarray(card, float), (count,))
        tables = []
        for what, table in (("duty", duty), ("memory", memory)):
            found = np.asarray(table, float) if count else np.empty((0, length))
            if found.shape != (count, length):
                raise SizingError(
                    what,
                    "its shape is %s for %d workloads and %d times" % (found.shape, count, length),
                    "Give one row a workload and one column a time, NaN where there is no sample.",
                )
            tables.append(found[order])
        return cls(
            tuple(names[i] for i in order), np.asarray(times, float), tables[0], tables[1], np.array(cards)[order]
        )

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise SizingError("workload " + twice, "it is there twice", "Merge its series, or tell them apart by name.")
        if not np.all(np.isfinite(self.times)) or np.any(np.diff(self.times) <= 0):
            raise SizingError("times", "they do not rise", "Sort the samples by time and leave one of equal times out.")
        for what, table, most in (("duty", self.duty, 100.0), ("memory", self.memory, np.inf)):
            wrong = np.argwhere((table < 0) | (table > most) | np.isinf(table))
            if len(wrong):
                row, column = wrong[0]
                raise SizingError(
                    "%s of %s at %.0f" % (what, self.names[row], self.times[column]),
                    "%g cannot be" % table[row, column],
                    "Leave samples out (NaN) that a source marks as wrong.",
                )
        if np.any(self.card <= 0) or np.any(np.isinf(self.card)):
            raise SizingError(
                "card", "a card has no bytes", "Give each card's memory in bytes, or NaN where it is unknown."
            )

    @property
    def step(self) -> float:
        """Seconds between two samples: the median; 0 with fewer than two."""
        return float(np.median(np.diff(self.times))) if len(self.times) > 1 else 0.0

    def part(self, rows: Sequence[int]) -> Fleet:
        """These workloads only."""
        rows = list(rows)
        return Fleet(
            tuple(self.names[i] for i in rows), self.times, self.duty[rows], self.memory[rows], self.card[rows]
        )

    def between(self, start: int, end: int) -> Fleet:
        """The samples from index start on, before index end."""
        cut = slice(start, end)
        return Fleet(self.names, self.times[cut], self.duty[:, cut], self.memory[:, cut], self.card)

    def whole_duty(self) -> np.ndarray:
        """(n, t) percent; a missing sample counts as 0."""
        return np.nan_to_num(self.duty)

    def whole_memory(self) -> np.ndarray:
        """(n, t) bytes; a missing sample is the last one before it, 0 before the first."""
        there = ~np.isnan(self.memory)
        last = np.maximum.accumulate(np.where(there, np.arange(there.shape[1]), -1), axis=1)
        found = np.take_along_axis(self.memory, np.maximum(last, 0), axis=1)
        return np.where(last >= 0, np.nan_to_num(found), 0.0)
