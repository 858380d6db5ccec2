# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the idle rule: quiet times, usage rhythms, missing signals and holidays."""

from __future__ import annotations

import datetime

import pytest
import zoneinfo
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.openfleet.gpu.plugins.plugin_utils.idle.holidays import HolidayError, spans
from ansible_collections.openfleet.gpu.plugins.plugin_utils.idle.rhythm import Rhythm
from ansible_collections.openfleet.gpu.plugins.plugin_utils.idle.rule import Policy, stop_seconds, threshold_seconds
from ansible_collections.openfleet.gpu.plugins.plugin_utils.idle.signals import GROUPS, SIGNALS, missing_groups

HOUR = 3600.0
DAY = 24 * HOUR


def hours(*, works=(), gaps=(), began=0.0, excluded=()):
    """Return a rhythm. Spans of work and of missing samples are in hours."""
    rhythm = Rhythm(began * HOUR, [(start * HOUR, end * HOUR) for start, end in excluded])
    told = [(*span, rhythm.works) for span in works] + [(*span, rhythm.gap) for span in gaps]
    for start, end, tell in sorted(told, key=lambda row: row[:2]):
        tell(start * HOUR, end * HOUR)
    return rhythm


@pytest.mark.parametrize(
    ("told", "now", "quiet", "longest"),
    [
        ({}, 10, 10, 0),
        ({"works": [(0, 10)]}, 10, 0, 0),
        ({"works": [(0, 4)]}, 10, 6, 0),
        # The quiet time at the start of the history counts too. It is at least as long as its part in the history.
        ({"works": [(4, 5)]}, 10, 5, 4),
        ({"works": [(0, 1), (9, 10), (12, 13)]}, 20, 7, 8),
        # These spans of work overlap or are repeated.
        ({"works": [(0, 5), (3, 6), (3, 6)]}, 10, 4, 0),
        # If a gap is longer than a tenth of the current quiet time, the quiet time counts from the end of the gap.
        ({"works": [(0, 1)], "gaps": [(5, 8)]}, 12, 4, 0),
        ({"works": [(0, 1)], "gaps": [(50, 53)]}, 101, 100, 0),
        ({"works": [(0, 1)], "gaps": [(5, 8)]}, 31, 30, 0),
        ({"works": [(0, 1)], "gaps": [(5, 8)]}, 30, 22, 0),
        # If the newest sample is missing, the current state is unknown.
        ({"works": [(0, 1)], "gaps": [(5, 10)]}, 10, 0, 0),
        # Two quiet times with only a gap between them are one quiet time. A gap next to work does not lengthen a quiet
        # time.
        ({"works": [(0, 1), (20, 21)], "gaps": [(5, 15)]}, 22, 1, 19),
        ({"works": [(0, 5), (15, 16)], "gaps": [(5, 15)]}, 22, 6, 0),
        ({"works": [(0, 5), (18, 19)], "gaps": [(5, 15)]}, 22, 3, 3),
        ({"works": [(0, 1), (15, 16)], "gaps": [(5, 15)]}, 22, 6, 4),
        ({"works": [(0, 1), (30, 31)], "gaps": [(5, 10), (15, 20)]}, 31, 0, 29),
        # Holidays do not count in the current quiet time and in earlier ones.
        ({"works": [(0, 1)], "excluded": [(5, 8)]}, 12, 8, 0),
        ({"works": [(0, 1), (11, 12)], "excluded": [(5, 8), (9, 30)]}, 40, 10, 5),
    ],
)
def test_quiet_times(told, now, quiet, longest):
    rhythm = hours(**told)
    assert (rhythm.quiet_seconds(now * HOUR) / HOUR, rhythm.longest_seconds / HOUR) == (quiet, longest)


spans_of_hours = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 40)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=12
)


@given(works=spans_of_hours, gaps=spans_of_hours)
def test_quiet_time_starts_after_the_last_work(works, gaps):
    rhythm = hours(works=works, gaps=gaps)
    last = max([0, *(end for _start, end in works)])
    assert 0 <= rhythm.quiet_seconds(300 * HOUR) <= (300 - last) * HOUR
    assert 0 <= rhythm.longest_seconds <= 240 * HOUR


@given(works=spans_of_hours)
def test_gap_never_makes_a_gpu_idle_earlier(works):
    whole, holed = hours(works=works), hours(works=works, gaps=[(245, 299)])
    assert holed.quiet_seconds(300 * HOUR) <= whole.quiet_seconds(300 * HOUR)
    assert holed.longest_seconds == whole.longest_seconds


def threshold(longest_days=0.0, history_days=28.0, missing=0):
    return (
        threshold_seconds(
            Policy(), longest_seconds=longest_days * DAY, history_seconds=history_days * DAY, missing_signals=missing
        )
        / DAY
    )


def test_quiet_time_is_idle_after_grace_and_twice_the_longest_pause():
    assert threshold() == 2
    assert threshold(longest_days=0.3) == 2
    assert threshold(longest_days=2.6) == 5.2


def test_nightly_pauses_allow_a_weekend():
    """The history has no weekend yet: 62 hours from Friday 18:00 to Monday 08:00."""
    assert threshold(longest_days=7.9 / 24) * 24 == 48
    assert threshold(longest_days=8 / 24) * 24 == threshold(longest_days=12 / 24) * 24 == 64
    # There is an extension for a weekend and one for missing signals. The longer one applies.
    assert threshold(longest_days=0.5, missing=2) == 3


def test_week_is_normal_with_less_than_two_weeks_of_history():
    assert threshold(history_days=13.9) * 24 == 184
    assert threshold(longest_days=2.6, history_days=13.9) * 24 == 184
    assert threshold(longest_days=6.7, history_days=13.9) == 15


def test_holder_that_pauses_for_days_may_work_every_second_week():
    assert threshold(longest_days=3.9) == 7.8
    assert threshold(longest_days=4) == threshold(longest_days=7.5) == 15
    assert threshold(longest_days=8) == 16


def test_holder_that_never_paused_is_not_stopped_in_its_first_pause():
    assert stop_seconds(Policy(), longest_seconds=7.9 * HOUR) == 184 * HOUR
    assert stop_seconds(Policy(), longest_seconds=8 * HOUR) == 0
    # A job that runs at the end of a quarter has not worked yet.
    assert stop_seconds(Policy(), longest_seconds=0.0, never_worked=True) == 100 * 24 * HOUR


def test_each_missing_group_of_signals_extends_the_grace():
    assert [threshold(missing=count) for count in range(3)] == [2, 2.5, 3]
    # Missing signals lengthen only the grace time.
    assert threshold(longest_days=6.7, missing=4) == 15


def test_one_signal_of_a_group_is_enough():
    assert missing_groups(()) == GROUPS
    assert missing_groups([signal.name for signal in SIGNALS]) == ()
    assert missing_groups(["kernels", "tensor cores", "power"]) == (
        "transfers",
        "video engines",
        "CPU time",
        "client connections",
    )


def test_holiday_lasts_from_midnight_to_midnight_in_its_time_zone():
    ((start, end),) = spans(["2026-10-25"], "Europe/Berlin")
    assert datetime.datetime.fromtimestamp(start, zoneinfo.ZoneInfo("Europe/Berlin")).isoformat() == (
        "2026-10-25T00:00:00+02:00"
    )
    # On this day, clocks are set back by an hour.
    assert end - start == 25 * HOUR
    ((start, end),) = spans(["2026-12-24"])
    assert start % DAY == 0 and end - start == DAY


def test_overlapping_holidays_are_merged():
    days = ["2026-12-31/2027-01-03", "2026-12-24 / 2026-12-26", "2027-01-01", datetime.date(2026, 12, 27)]
    assert [(end - start) / DAY for start, end in spans(days)] == [4, 4]


@pytest.mark.parametrize(
    "entry", ["", "24.12.2026", "2026-02-30", "2026-12-24/2026-12-23", "9999-12-31", ["2026-12-24"]]
)
def test_invalid_day_is_refused(entry):
    with pytest.raises(HolidayError, match=r"holidays\[1\]"):
        spans(["2026-12-24", entry])


def test_invalid_time_zone_is_refused():
    for zone in ("Berlin", "../../etc/passwd", ""):
        with pytest.raises(HolidayError, match="time_zone"):
            spans([], zone)
