# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the histories of a fleet and the parameters of the sizing rules.

Times are in seconds and memory is in bytes. Duty is in percent of one GPU (0 to 100).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Sequence

from ...module_utils.errors import FleetError
from ..numerics import np

DAY_SECONDS = 86400.0


class SizingError(FleetError):
    """A history or a policy is invalid."""


@dataclass(frozen=True)
class Policy:
    """Parameters of the sizing rules. docs/sizing.md explains them.

    The defaults are used for all fleets and cards. Raises SizingError if a number is out of range.
    """

    #: Minimum number of samples, and minimum time in seconds, as in KRR.
    least_samples: int = 100
    least_seconds: float = 3 * 3600.0
    #: Minimum share of time with samples.
    least_covered_ratio: float = 0.5
    #: Share of sized workloads that must stay within their memory. `gpu_rightsize_confidence` sets it.
    confidence: float = 0.99
    #: Minimum number of cycles of work, without which a workload keeps its memory, however long its history is.
    least_cycles: float = 20
    #: Minimum margin on the observed maximum, and margin on the largest excess if the fleet is too small to learn one.
    least_margin_ratio: float = 0.05
    memory_margin_ratio: float = 0.3
    #: Number of days after which a workload's own history has the same weight as the fleet's.
    prior_days: float = 1.0
    #: Maximum probability that memory use exceeds a card's memory, for a confidence of 0.99: 4 seconds per day.
    memory_over_ratio: float = 5e-5
    #: Number of workloads whose observed maximums must fit on a card together, while the others use their medians.
    peaks_at_once: int = 2
    #: Share of the card that must stay free during such peaks, for the driver and each process's context.
    free_ratio: float = 0.05
    #: Maximum share of samples with more than 100 % duty: the average over all cards, and on any single card.
    saturated_ratio: float = 0.01
    saturated_card_ratio: float = 0.05
    #: Minimum duty that counts as work. A lower duty is noise.
    working_percent: float = 1.0
    #: Assumed share of time with work in the busiest hour, if the history does not have all hours of the day.
    busy_hour_ratio: float = 0.9
    #: Numbers of samples with work for which a workload's own samples have the same weight as the fleet's: for the
    #: level of work, and for its variation.
    level_samples: float = 5.0
    shape_samples: float = 100.0
    #: Quantile of the duty for the compute need, and the headroom above it.
    compute_quantile: float = 0.95
    compute_headroom_ratio: float = 0.15
    #: Minimum share of cards that sharing must save to be worth it.
    least_saving_ratio: float = 0.05
    #: Parameters of the search: number of rounds, cards to try per workload, and random seed.
    rounds: int = 800
    candidates: int = 64
    seed: int = 1

    @property
    def planned_over_ratio(self) -> float:
        """Return the limit for the probability of exceeded memory at this confidence."""
        return self.memory_over_ratio * (1 - self.confidence) / 0.01

    @property
    def planned_saturated_ratio(self) -> float:
        """Return the limit for the mean saturation in a plan.

        The limit is below `saturated_ratio`, so that a plan stays within that limit with the confidence. The relation was
        measured (docs/sizing.md).
        """
        return self.saturated_ratio * min(1.0, float(np.sqrt((1 - self.confidence) / 0.03)))

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            ratio = item.name.endswith(("_ratio", "_quantile", "confidence"))
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

    names: n distinct names. times: (t,) seconds since 1970, UTC, increasing. duty: (n, t) percent. memory: (n, t)
    bytes. card: (n,) memory of each workload's current card in bytes, which limits its past use, or NaN. Missing
    samples are NaN. Raises SizingError for invalid shapes, times or values.
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
        """Build a fleet from arguments that NumPy can convert to arrays.

        Workloads are sorted by name, so that their order does not affect results.
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
        """Return the median time between samples in seconds, or 0 for fewer than two."""
        return float(np.median(np.diff(self.times))) if len(self.times) > 1 else 0.0

    def part(self, rows: Sequence[int]) -> Fleet:
        """Return a fleet with only the workloads in these rows."""
        rows = list(rows)
        return Fleet(
            tuple(self.names[i] for i in rows), self.times, self.duty[rows], self.memory[rows], self.card[rows]
        )

    def between(self, start: int, end: int) -> Fleet:
        """Return a fleet with only the samples from index `start` to before `end`."""
        cut = slice(start, end)
        return Fleet(self.names, self.times[cut], self.duty[:, cut], self.memory[:, cut], self.card)

    def whole_duty(self) -> np.ndarray:
        """Return the duty as (n, t) percent. Missing samples are 0."""
        return np.nan_to_num(self.duty)

    def whole_memory(self) -> np.ndarray:
        """Return the memory as (n, t) bytes.

        A missing sample has the value of the last sample before it, or 0 if there is none.
        """
        known = ~np.isnan(self.memory)
        last = np.maximum.accumulate(np.where(known, np.arange(known.shape[1]), -1), axis=1)
        found = np.take_along_axis(self.memory, np.maximum(last, 0), axis=1)
        return np.where(last >= 0, np.nan_to_num(found), 0.0)
