# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The quiet times of one holder: the present one, and the longest that ended. Pure; times in seconds since the epoch, rising.

What happened while there was no sample is not known. Such a gap never makes the present quiet time longer. But where it lies
between two quiet times, these count as one: a host that is off on Saturdays rests for the whole weekend.
"""

from __future__ import annotations

from typing import Sequence

#: An interval of time: start and end, in seconds since the epoch.
Span = tuple[float, float]

#: Of the present quiet time so much has samples. After a longer gap it begins again.
LEAST_COVERED_RATIO = 0.9


class Rhythm:
    """What is told in the order of time by `works` and `gap`; `longest_seconds` is 0 while no quiet time has ended.

    `excluded` are spans that do not count as quiet, as public holidays.
    """

    def __init__(self, began_seconds: float, excluded: Sequence[Span] = ()) -> None:
        self.longest_seconds = 0.0
        self._excluded = excluded
        # The parts of the present quiet time that have samples: all but the last are ended by a gap.
        self._ended: list[Span] = []
        self._since = began_seconds

    def works(self, start: float, end: float) -> None:
        """There was work within the span."""
        self._end_part(start)
        first: float | None = None
        for begin, stop in self._ended:
            # It worked right up to the gap or right after it: nothing says that it rested within.
            if stop <= begin:
                first = None
                continue
            first = begin if first is None else first
            self.longest_seconds = max(self.longest_seconds, self._length(first, stop))
        self._ended = []
        self._since = max(end, self._since)

    def gap(self, start: float, end: float) -> None:
        """There was no sample within the span."""
        self._end_part(start)
        self._since = max(end, self._since)

    def quiet_seconds(self, now: float) -> float:
        """Return for how long up to now it has been quiet, as far back as there were samples; 0 where it works."""
        parts = [*self._ended, (self._since, max(now, self._since))]
        covered, found = 0.0, 0.0
        for start, end in reversed(parts):
            covered += end - start
            if covered >= LEAST_COVERED_RATIO * (now - start):
                found = self._length(start, now)
        return found

    def _end_part(self, at: float) -> None:
        self._ended.append((self._since, max(at, self._since)))

    def _length(self, start: float, end: float) -> float:
        off = sum(max(0.0, min(end, last) - max(start, first)) for first, last in self._excluded)
        return max(0.0, end - start - off)
