# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Histories and the numbers of the rules.

Units: seconds, bytes, duty in percent of one GPU (0 to 100).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Sequence

import numpy as np

from ...module_utils.errors import FleetError

DAY_SECONDS = 86400.0


class SizingError(FleetError):
    """A history or a policy is invalid. Nothing was computed."""


@dataclass(frozen=True)
class Policy:
    """Every number of the rules, one set for all fleets and cards. docs/sizing.md explains them.

    Raises SizingError for a number out of range.
    """

    #: Minimum samples and time (the minimum of KRR).
    least_samples: int = 100
    least_seconds: float = 3 * 3600.0
    #: Minimum share of time with samples.
    least_covered_ratio: float = 0.5
    #: Margin on the observed maximum without evidence. It is divided by the root of 1 + days.
    memory_margin_ratio: float = 0.3
    #: Days of a workload's own history that weigh as much as the fleet's.
    prior_days: float = 1.0
    #: Maximum probability that a card's memory is exceeded: 4 seconds of a day.
    memory_over_ratio: float = 5e-5
    #: Number of workloads that must fit at their observed maximum at once, with the others at their medians.
    peaks_at_once: int = 2
    #: Share of the card that stays free at these peaks, for the driver and a context of each process.
    free_ratio: float = 0.05
    #: Maximum share of samples over 100 % duty, of all cards and of any one card.
    saturated_ratio: float = 0.01
    saturated_card_ratio: float = 0.03
    #: Minimum duty of a working GPU. Less is noise.
    working_percent: float = 1.0
    #: Assumed share of work in a workload's busiest hour, if its busy hours are unknown.
    busy_hour_ratio: float = 0.9
    #: Number of own working samples that weigh as much as the fleet's, for the level of work and its variation.
    level_samples: float = 5.0
    shape_samples: float = 100.0
    #: Quantile of duty for the compute need, and its headroom.
    compute_quantile: float = 0.95
    compute_headroom_ratio: float = 0.15
    #: Minimum share of saved cards.
    least_saving_ratio: float = 0.05
    #: Search: number of rounds, cards tried per workload, and seed.
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
                    "%r is not %s" % (value, "a share from 0 to 1" if ratio else "a number of at least 0"),
                    "The default is %r." % item.default,
                )
        if self.candidates < 1:
            raise SizingError("policy.candidates", "0 allows no card", "Set 1 or more.")


@dataclass(frozen=True, eq=False)
class Fleet:
    """Histories of n workloads at t common times.

    names: n distinct names. times: (t,) seconds since 1970, UTC, increasing. duty: (n, t) percent. memory: (n, t) bytes.
    card: (n,) memory of each workload's current card in bytes, NaN if unknown. No workload has needed more so far.
    Missing samples are NaN. Raises SizingError for invalid shapes, times or values.
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
        """Build a fleet from anything that NumPy converts to arrays.

        Sorts by name, so the order of workloads has no effect.
        """
        order = sorted(range(len(names)), key=lambda i: names[i])
        count, length = len(names), len(times)
        cards = np.full(count, np.nan) if card is None else np.broadcast_to(np.asarray(card, float), (count,))
        tables = []
        for what, table in (("duty", duty), ("memory", memory)):
            found = np.asarray(table, float) if count else np.empty((0, length))
            if found.shape != (count, length):
                raise SizingError(
                    what,
                    "its shape is %s, and the fleet needs %s" % (found.shape, (count, length)),
                    "Pass one row per workload and one column per time, and NaN for missing samples.",
                )
            tables.append(found[order])
        return cls(
            tuple(names[i] for i in order), np.asarray(times, float), tables[0], tables[1], np.array(cards)[order]
        )

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise SizingError("workload " + twice, "the name is not unique", "Merge its series, or rename one.")
        if not np.all(np.isfinite(self.times)) or np.any(np.diff(self.times) <= 0):
            raise SizingError("times", "they do not increase", "Sort the samples by time, and remove duplicates.")
        for what, table, most in (("duty", self.duty, 100.0), ("memory", self.memory, np.inf)):
            wrong = np.argwhere((table < 0) | (table > most) | np.isinf(table))
            if len(wrong):
                row, column = wrong[0]
                raise SizingError(
                    "%s of %s at %.0f" % (what, self.names[row], self.times[column]),
                    "%g is impossible" % table[row, column],
                    "Pass NaN for samples that the source marks as wrong.",
                )
        if np.any(self.card <= 0) or np.any(np.isinf(self.card)):
            raise SizingError(
                "card", "a card has no memory", "Pass the memory of each card in bytes, or NaN if it is unknown."
            )

    @property
    def step(self) -> float:
        """Median time between two samples in seconds. 0 for fewer than two samples."""
        return float(np.median(np.diff(self.times))) if len(self.times) > 1 else 0.0

    def part(self, rows: Sequence[int]) -> Fleet:
        """Return a fleet with these workloads only."""
        rows = list(rows)
        return Fleet(
            tuple(self.names[i] for i in rows), self.times, self.duty[rows], self.memory[rows], self.card[rows]
        )

    def between(self, start: int, end: int) -> Fleet:
        """Return a fleet with the samples from index start up to, but without, index end."""
        cut = slice(start, end)
        return Fleet(self.names, self.times[cut], self.duty[:, cut], self.memory[:, cut], self.card)

    def whole_duty(self) -> np.ndarray:
        """Return (n, t) percent. Missing samples are 0."""
        return np.nan_to_num(self.duty)

    def whole_memory(self) -> np.ndarray:
        """Return (n, t) bytes.

        Missing samples repeat the last one, and are 0 before the first.
        """
        known = ~np.isnan(self.memory)
        last = np.maximum.accumulate(np.where(known, np.arange(known.shape[1]), -1), axis=1)
        found = np.take_along_axis(self.memory, np.maximum(last, 0), axis=1)
        return np.where(last >= 0, np.nan_to_num(found), 0.0)
