# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the current and the longest earlier quiet time of a holder.

Pure. Times are in seconds since the epoch and increase from call to call.

A gap without samples proves nothing, so it never extends the current quiet time. Between two earlier quiet times, a gap
counts as quiet and joins them. For example, a host that is off on Saturdays is quiet for the whole weekend.
"""

from __future__ import annotations

from typing import Sequence

#: A span of time: start and end, in seconds since the epoch.
Span = tuple[float, float]

#: Minimum share of the current quiet time with samples. If a gap is too long, the quiet time starts after it.
LEAST_COVERED_RATIO = 0.9


class Rhythm:
    """Calculates quiet times from calls of `works` and `gap` in order of time.

    `longest_seconds` is the longest quiet time that has ended, or 0. `excluded` has spans that do not count as quiet,
    such as holidays.
    """

    def __init__(self, began_seconds: float, excluded: Sequence[Span] = ()) -> None:
        self.longest_seconds = 0.0
        self._excluded = excluded
        # Parts of the current quiet time with samples, each followed by a gap. The last part starts at `_since`.
        self._ended: list[Span] = []
        self._since = began_seconds

    def works(self, start: float, end: float) -> None:
        """Add a span in which the holder worked."""
        self._end_part(start)
        first: float | None = None
        for begin, stop in self._ended:
            # The holder worked right before or after the gap, so the gap is not quiet.
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
        """Return the current quiet time in seconds, up to `now`.

        The time extends back while samples cover at least LEAST_COVERED_RATIO of it. It is 0 if the holder works now.
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
