# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds memory and does nothing: found, and nobody else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

np = pytest.importorskip("numpy")

from sizing_fleets import DAY, STEP, fleet, hours, random_fleet

from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.idle import course, find_idle, first_flags
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.model import Policy

POLICY = Policy()
HOUR = 3600 // STEP


def lasts(*spans, days=1.0):
    """Duty of 50 % but for the spans (first hour, last hour) of nothing."""
    duty = np.full(round(days * DAY), 50.0)
    for start, end in spans:
        duty[round(start * HOUR) : round(end * HOUR)] = 0
    return duty


def flag_hour(duty, memory=8.0, others=()):
    flag = first_flags(fleet([duty, *others], [memory] + [8.0] * len(others)))[0]
    return None if flag < 0 else flag / HOUR


@pytest.mark.parametrize("noise", [0.0, 0.99])
def test_memory_held_and_nothing_done_from_the_start_is_found(noise):
    duty = noise * np.random.default_rng(1).random(DAY)
    assert 2 < flag_hour(duty) < 8
    assert find_idle(fleet([duty], [8.0]))[0].idle


def test_work_is_not_idle():
    assert flag_hour(np.full(DAY, 1.0)) is None
    assert not find_idle(fleet([np.full(DAY, 1.0)], [8.0]))[0].idle


def test_nothing_held_is_not_idle():
    assert flag_hour(np.zeros(DAY), 0.0) is None


def test_no_data_is_not_idle():
    answer = find_idle(fleet([np.full(DAY, np.nan), np.full(DAY, 5.0)], [8.0, 8.0]))[0]
    assert (answer.idle, answer.quiet_seconds, answer.reason) == (False, None, "no data")


def test_what_went_on_unseen_does_not_count_as_quiet():
    """Fifteen hours of nothing with an hour without samples in the middle are twice seven hours, each too short."""
    duty = lasts((3, 18))
    assert flag_hour(duty) is not None
    duty[10 * HOUR : 11 * HOUR] = np.nan
    half = fleet([duty], [8.0])
    quiet = course(half).quiet[0]
    assert quiet[11 * HOUR] == 0
    assert quiet[18 * HOUR - 1] == pytest.approx((7 * HOUR - 1) * STEP)


def test_a_sample_that_is_missing_ends_nothing():
    duty = lasts((3, 18))
    duty[10 * HOUR] = np.nan
    assert course(fleet([duty], [8.0])).quiet[0, 18 * HOUR - 1] == pytest.approx((15 * HOUR - 1) * STEP)


def test_the_same_quiet_time_is_idle_once_a_day_is_known_and_not_before():
    early = course(fleet([lasts((1, 5), days=3)], [8.0])).idle[0]
    late = course(fleet([lasts((49, 53), days=3)], [8.0])).idle[0]
    assert not early.any()
    assert late[51 * HOUR : 53 * HOUR].all()
    assert late.sum() == 2 * HOUR


def test_quiet_nights_make_a_quiet_night_usual():
    """Seven hours of every night: idle only in a first night that a history begins with, and where it has no end."""
    nights = hours(6, (7, 24), high=50)
    idle = course(fleet([nights], [8.0])).idle[0]
    assert not idle[DAY:].any()
    forever = course(fleet([np.concatenate([nights, np.zeros(DAY)])], [8.0])).idle[0]
    assert DAY + forever[DAY:].argmax() == pytest.approx((6 * 24 + 14) * HOUR, abs=1)


def test_the_fleets_nights_count_for_a_workload_that_has_seen_none():
    """The same eleven hours: idle where it stands alone, usual where all others have such nights."""
    duty = lasts((40, 51), days=3)
    others = [hours(3, (7, 24), high=50) for _ in range(5)]
    assert flag_hour(duty) is not None
    assert flag_hour(duty, others=others) is None


def test_one_odd_workload_does_not_hide_all_others():
    odd = lasts((1, 47), days=3)
    others = [lasts((k, k + 0.5), days=3) for k in range(1, 20)]
    assert flag_hour(np.zeros(3 * DAY), others=[odd, *others]) < 8


def test_the_reason_tells_the_hours():
    answer = find_idle(fleet([np.zeros(DAY)], [8.0]))[0]
    assert answer.quiet_seconds == (DAY - 1) * STEP
    assert answer.threshold_seconds == POLICY.idle_known_seconds
    assert answer.reason == "holds memory and did nothing for 23.9 hours; 2.0 would be usual at most"


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 10**6), st.integers(1, DAY // 2))
def test_what_comes_later_changes_nothing_before(seed, end):
    found = random_fleet(seed, 3, 0.5)
    whole, part = course(found), course(found.between(0, end))
    # The step, a median, is the same for all parts of two samples and more.
    if end > 1:
        assert np.array_equal(whole.quiet[:, :end], part.quiet)
        assert np.array_equal(whole.threshold[:, :end], part.threshold)


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 10**6))
def test_nobody_is_idle_before_the_shortest_time(seed):
    found = random_fleet(seed, 3, 0.5)
    went = course(found)
    assert went.threshold.min() >= POLICY.idle_known_seconds
    assert not went.idle[:, : int(POLICY.idle_known_seconds // STEP)].any()
