# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the statistics of each subject over a window.

The server computes all quantiles and maxima. A response has one row per subject and statistic.

The server reads roll-ups of 15 minutes for windows of several days, and roll-ups of five minutes for shorter windows.
Rules of the role gpu_monitoring record both. Without a roll-up, the raw series is read.

No sample is read twice, because the load on the server grows with the number of samples. Impossible values are dropped.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Callable, Mapping, Sequence

from .asking import Asking
from .history import Key
from .lasting import Piece, lasting
from .model import Stat
from .series import (
    BY,
    HELD,
    LONG_SECONDS,
    LONG_WINDOW_SECONDS,
    OVER_TIME,
    ROLL_UP_SECONDS,
    Series,
    key_of,
)

#: Times, in seconds before the end of the window, between which it is checked how long a subject has been held.
_CUTS = tuple(hours * 3600 for hours in (1, 3, 6, 12, 24, 72, 168, 336))

#: Note for a server without the roll-ups of a series.
RULES_MISSING = (
    "Some recording rules are missing. Figures are correct; queries are slower. "
    "Load the current rules of the role gpu_monitoring."
)

#: Function that returns a subject's key from the labels of a sample.
KeyOf = Callable[[Mapping[str, str]], Key]


@dataclass(frozen=True)
class Found:
    """The series or roll-up from which statistics are read.

    `source` is its name, and `step_seconds` the time between two samples. `counts` has the number of samples per
    subject. `peaks` is the name of the series for the p99 and the maximum.
    """

    source: str
    step_seconds: float
    counts: Mapping[Key, float]
    peaks: str

    def of(self, figure: str) -> str:
        """Return the name of the series from which a statistic is read."""
        return self.peaks if figure in ("p99", "max") else self.source


class Figures:
    """Reader of the statistics of a window.

    The window has `seconds` and ends at the evaluation time of `asking`. Anomalies are added to `notes`. Queries group
    samples by the labels `by`, which the function `key` converts to a subject's key. `dropped` counts impossible values
    by series.
    """

    def __init__(self, asking: Asking, seconds: float, notes: list[str]) -> None:
        self.asking = asking
        self.seconds = seconds
        self.span = round(seconds)
        self.notes = notes
        self.dropped: Counter[str] = Counter()
        cuts = [0, *(cut for cut in _CUTS if cut < self.span), self.span]
        self._spans = list(zip(cuts, cuts[1:]))

    def source(self, series: Series, by: str = BY, key: KeyOf = key_of) -> Found | None:
        """Return the longest existing roll-up that suits the window, or the raw series.

        Returns None if the server has neither.
        """
        if series.long and self.span >= LONG_WINDOW_SECONDS and self._reaches_as_far(series.long, series.roll_up):
            counts = self._over("count", series.long, by, key, [(0, self.span)])[0]
            return Found(series.long, LONG_SECONDS, counts, series.peaks)
        counts = self._over("count", series.roll_up, by, key, [(0, self.span)])[0]
        if counts:
            return Found(series.roll_up, ROLL_UP_SECONDS, counts, series.roll_up)
        step = self._distance(series)
        if step is None:
            return None
        counts = self._over("count", series.name, by, key, [(0, self.span)])[0]
        return Found(series.name, step, counts, series.name)

    def stats(self, series: Series, found: Found | None, by: str = BY, key: KeyOf = key_of) -> dict[Key, Stat]:
        """Return the statistics of each subject.

        Leaves out subjects for which a statistic is missing.
        """
        if found is None:
            return {}
        figures = {}
        questions = {
            figure: "max by (%s) (%s)"
            % (by, OVER_TIME[figure] % ("%s{%%(where)s}[%ds]" % (found.of(figure), self.span)))
            for figure in series.figures
        }
        for figure, answer in zip(questions, self.asking.ask_all(list(questions.values()))):
            figures[figure] = {key(sample.labels): sample.value for sample in answer}
        return self._judged(series, found, figures)

    def recorded_seconds(self, series: str) -> dict[Key, float]:
        """Return for how much of the window a five-minute roll-up has samples.

        The result is in seconds, by subject.
        """
        counts = self._over("count", series, BY, key_of, [(0, self.span)])[0]
        return {key: count * ROLL_UP_SECONDS for key, count in counts.items()}

    def held(self) -> dict[Key, float]:
        """Return for how many seconds each subject has been held.

        Only includes subjects that are held now. The time is 0 if it is less than an hour or if samples are missing.
        """
        now = self.asking.ask("last_over_time(%s{%%(where)s}[15m]) > 0" % HELD)
        return {**{key_of(sample.labels): 0.0 for sample in now}, **self.lasting_seconds(HELD)}

    def lasting_seconds(self, series: str) -> dict[Key, float]:
        """Return for each subject how many seconds its roll-up has stayed above 0.

        The roll-up covers five minutes. Leaves out times below one hour.
        """
        return dict(lasting(self._pieces(series, "min", self._spans), lambda value: value > 0, ROLL_UP_SECONDS))

    def _reaches_as_far(self, long: str, short: str) -> bool:
        """Return whether the long roll-up covers as much of the window as the short one.

        The long roll-up covers less if its recording rule was added within the window.
        """
        ago = " offset %ds" % (self.span - 3600)
        now, then, before = self.asking.ask_all(
            [
                "count(last_over_time(%s{%%(where)s}[1h]%s))" % (name, at)
                for name, at in ((long, ""), (long, ago), (short, ago))
            ]
        )
        return bool(now) and (not before or (bool(then) and then[0].value >= before[0].value))

    def _distance(self, series: Series) -> float | None:
        """Return the shortest sample interval of a series without a roll-up.

        A longer interval would hide gaps.
        """
        dense = self.asking.ask("max(count_over_time(%s{%%(where)s}[1h]))" % series.name)
        if not dense:
            return None
        self.notes.append(RULES_MISSING)
        return 3600 / dense[0].value if dense[0].value > 0 else ROLL_UP_SECONDS

    def _over(
        self,
        figure: str,
        source: str,
        by: str,
        key: KeyOf,
        pieces: Sequence[tuple[int, int]],
    ) -> list[dict[Key, float]]:
        """Return a statistic by subject, for each piece of the window.

        For a subject with several series, the highest value counts.
        """
        inner = [
            OVER_TIME[figure]
            % ("%s{%%(where)s}[%ds]%s" % (source, oldest - newest, " offset %ds" % newest if newest else ""))
            for newest, oldest in pieces
        ]
        answers = self.asking.ask_all(["max by (%s) (%s)" % (by, one) for one in inner])
        return [{key(sample.labels): sample.value for sample in answer} for answer in answers]

    def _judged(self, series: Series, found: Found, figures: Mapping[str, Mapping[Key, float]]) -> dict[Key, Stat]:
        """Build the statistics of each subject for which all statistics are known.

        Impossible values count as missing.
        """
        stats = {}
        for key, count in found.counts.items():
            known = {name: values[key] for name, values in figures.items() if key in values}
            fit = {name: value for name, value in known.items() if series.least <= value <= series.most}
            if len(fit) < len(known):
                self.dropped[series.name] += len(known) - len(fit)
            if len(fit) == len(series.figures):
                seconds = min(count * found.step_seconds, self.seconds)
                stats[key] = Stat(seconds=seconds, coverage_ratio=seconds / self.seconds, **fit)
        return stats

    def _pieces(self, source: str, figure: str, spans: Sequence[tuple[int, int]]) -> list[Piece]:
        figures = self._over(figure, source, BY, key_of, spans)
        counts = self._over("count", source, BY, key_of, spans)
        return [Piece(*span, *values) for span, *values in zip(spans, figures, counts)]
