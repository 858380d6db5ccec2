# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the current and the longest earlier quiet time of a holder.

Pure. Times are in seconds since the epoch, increasing.

Gaps between samples prove nothing. They never extend the current quiet time. A gap between two quiet times joins them:
a host that is off on Saturdays is quiet for the whole weekend.
"""

from __future__ import annotations

from typing import Sequence

#: An interval of time: start and end, in seconds since the epoch.
Span = tuple[float, float]

#: Minimum share of the current quiet time with samples. It restarts after a longer gap.
LEAST_COVERED_RATIO = 0.9


class Rhythm:
    """Quiet times, built by calls of `works` and `gap` in order of time.

    `longest_seconds` is the longest quiet time that ended, or 0. `excluded` has spans that do not count as quiet, for example
    holidays.
    """

    def __init__(self, began_seconds: float, excluded: Sequence[Span] = ()) -> None:
        self.longest_seconds = 0.0
        self._excluded = excluded
        # Parts of the current quiet time with samples. All but the last are followed by a gap.
        self._ended: list[Span] = []
        self._since = began_seconds

    def works(self, start: float, end: float) -> None:
        """Add work within the span."""
        self._end_part(start)
        first: float | None = None
        for begin, stop in self._ended:
            # It worked right before or after the gap, so the gap does not count as quiet.
            if stop <= begin:
                first = None
                continue
            first = begin if first is None else first
            self.longest_seconds = max(self.longest_seconds, self._length(first, stop))
        self._ended = []
        self._since = max(end, self._since)

    def gap(self, start: float, end: float) -> None:
        """Add a span without samples."""
        self._end_part(start)
        self._since = max(end, self._since)

    def quiet_seconds(self, now: float) -> float:
        """Return the quiet time up to now in seconds, as far back as there are samples.

        0 if it works.
        """
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
