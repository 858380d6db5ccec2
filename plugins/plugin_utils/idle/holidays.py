# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the inventory's holidays, which do not count as quiet."""

from __future__ import annotations

import datetime
import re
from typing import Sequence

import zoneinfo

from ...module_utils.errors import FleetError
from .rhythm import Span

_ENTRY = re.compile(r"(\d{4}-\d{2}-\d{2})(?:\s*/\s*(\d{4}-\d{2}-\d{2}))?")


class HolidayError(FleetError):
    """An entry is not a day or a range of days."""


def spans(entries: Sequence[object], time_zone: str = "UTC") -> tuple[Span, ...]:
    """Return the spans of holidays in seconds since the epoch.

    An entry is a day (``2026-12-25``) or a range with its first and last day (``2026-12-24/2027-01-01``). Days begin
    and end at midnight in the IANA `time_zone`. The spans are sorted and do not overlap. Raises HolidayError.
    """
    try:
        zone = zoneinfo.ZoneInfo(time_zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise HolidayError("time_zone", "%r is not a time zone" % time_zone, "Write it like Europe/Berlin.") from None
    found = sorted(_span("holidays[%d]" % number, str(entry), zone) for number, entry in enumerate(entries))
    merged: list[Span] = []
    for start, end in found:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def _span(where: str, entry: str, zone: zoneinfo.ZoneInfo) -> Span:
    matched = _ENTRY.fullmatch(entry.strip())
    try:
        if not matched:
            raise ValueError
        first = datetime.date.fromisoformat(matched[1])
        last = datetime.date.fromisoformat(matched[2] or matched[1])
        if last < first:
            raise ValueError
        after = last + datetime.timedelta(days=1)
    except (ValueError, OverflowError):
        raise HolidayError(
            where, "%r is not a day" % entry, "Write a day like 2026-12-25, or a range like 2026-12-24/2027-01-01."
        ) from None
    start, end = (datetime.datetime.combine(day, datetime.time(), zone).timestamp() for day in (first, after))
    return start, end
