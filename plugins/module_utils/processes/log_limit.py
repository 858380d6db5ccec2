# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limit the journal lines that users cause in a service that runs as root."""

from __future__ import annotations

import time
from typing import Callable, Dict

#: How many lines a source may cause at once, and seconds until it may cause one more.
BURST, SECONDS_A_LINE = 5, 30.0
#: Maximum number of sources with their own limit. All further sources share one limit.
_MOST_SOURCES = 4096
_OTHERS = "other sources"

Log = Callable[[str], None]


class _Bucket:
    """A source's remaining lines, and its omitted lines."""

    def __init__(self, now: float) -> None:
        self.lines, self.at, self.left_out = float(BURST), now, 0

    def refill(self, now: float) -> None:
        self.lines, self.at = min(float(BURST), self.lines + (now - self.at) / SECONDS_A_LINE), now


class LimitedLog:
    """A log with a limit for each source.

    A source is a tenant or a user, not each of their sockets or processes.
    """

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._buckets: Dict[str, _Bucket] = {}

    def write(self, source: str, text: str) -> None:
        """Write a line. If the source has reached its limit, count the line as omitted."""
        now = self._clock()
        if source not in self._buckets and len(self._buckets) >= _MOST_SOURCES:
            source = _OTHERS
        bucket = self._buckets.setdefault(source, _Bucket(now))
        bucket.refill(now)
        if bucket.lines < 1:
            bucket.left_out += 1
            return
        self._tell_left_out(source, bucket)
        bucket.lines -= 1
        self._log(text)

    def summarize(self) -> None:
        """Write how many lines were omitted, for each source that may cause a line again.

        Call this method regularly.
        """
        now = self._clock()
        for source, bucket in list(self._buckets.items()):
            bucket.refill(now)
            if bucket.lines >= 1:
                self._tell_left_out(source, bucket)
            if bucket.lines >= BURST:
                del self._buckets[source]

    def _tell_left_out(self, source: str, bucket: _Bucket) -> None:
        if bucket.left_out:
            self._log("%s: %d more lines were left out" % (source, bucket.left_out))
            bucket.left_out = 0
            bucket.lines -= 1
