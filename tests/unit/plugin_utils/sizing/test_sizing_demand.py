# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute a workload's need and its confidence, also from gaps in the history."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.thorough import draws

np = pytest.importorskip("numpy")

from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.chance import (
    BIN_BYTES,
    busiest_hour,
    duty_chances,
    memory_chances,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.demand import demands
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.evidence import gather, shared_margin
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.model import Fleet, Policy
from tests.unit.plugin_utils.sizing.sizing_fleets import DAY, GIB, fleet, hours, random_fleet

POLICY = Policy()
few = draws(20)


def only(found):
    assert len(found) == 1
    return found[0]


def row(values, length=DAY):
    """Return `length` samples.

    If `values` has fewer values, its last value is repeated.
    """
    values = list(values)
    return np.array([*values, *[values[-1]] * (length - len(values))], float)


# --- How much is known ----------------------------------------------------------------------------------------------


def test_history_without_samples_is_no_data():
    demand = only(demands(fleet([row([np.nan])], [row([np.nan])])))
    assert demand.evidence.missing == "no data"
    assert demand.memory_bytes is None
    assert demand.compute_percent is None
    assert demand.evidence.confidence == 0


@pytest.mark.parametrize(
    ("samples", "missing"),
    [(35, "35 samples, fewer than 100"), (99, "99 samples, fewer than 100"), (100, "")],
)
def test_short_history_is_reported(samples, missing):
    demand = only(demands(fleet([row([10], samples)], [row([5], samples)])))
    assert demand.evidence.missing == missing
    assert (demand.memory_bytes is None) == bool(missing)


def test_many_samples_of_a_short_time_are_too_little():
    found = Fleet.of(["a"], np.arange(600) * 15.0, np.full((1, 600), 5.0), np.full((1, 600), GIB))
    assert only(demands(found)).evidence.missing == "2.5 h of samples, less than 3.0 h"


def test_history_of_mostly_gaps_is_too_little():
    duty = np.where(np.arange(DAY) % 5 < 2, 10.0, np.nan)
    duty[0] = 10.0
    assert "40 % of its time" in only(demands(fleet([duty], [5.0]))).evidence.missing


def test_late_start_is_no_gap():
    duty = row([np.nan] * (DAY // 2) + [10])
    assert only(gather(fleet([duty], [5.0]), POLICY)).covered_ratio == 1


def test_sample_without_memory_is_no_evidence():
    known = only(gather(fleet([row([10])], [row([np.nan] * 200 + [5])]), POLICY))
    assert known.samples == DAY - 200


def test_confidence_grows_with_days_and_falls_with_gaps():
    one = only(gather(fleet([row([10])], [5.0]), POLICY))
    ten = only(gather(fleet([row([10], 10 * DAY)], [5.0]), POLICY))
    holes = only(gather(fleet([np.where(np.arange(10 * DAY) % 4 > 0, 10.0, np.nan)], [5.0]), POLICY))
    assert one.confidence == pytest.approx(0.5)
    assert ten.confidence == pytest.approx(10 / 11)
    assert one.confidence < holes.confidence < ten.confidence


def test_observed_hours_of_the_day_count_once():
    assert only(gather(fleet([row([10], DAY // 2)], [5.0]), POLICY)).day_ratio == 0.5
    assert only(gather(fleet([row([10], DAY * 3 // 2)], [5.0]), POLICY)).day_ratio == 1
    assert only(gather(fleet([hours(4, (0, 24))], [5.0]), POLICY)).day_ratio == 1


# --- Memory ---------------------------------------------------------------------------------------------------------


def test_single_sample_of_memory_counts():
    """Count a single sample of memory.

    A percentile would not include one sample of 2880.
    """
    memory = np.full(10 * DAY, 10.0)
    memory[1234] = 30
    demand = only(demands(fleet([5.0], [memory])))
    assert demand.memory_seen_bytes == 30 * GIB
    assert demand.memory_bytes > 30 * GIB


def test_reported_margin_is_the_added_one():
    demand = only(demands(fleet([5.0], [np.full(3 * DAY, 20.0)])))
    assert demand.memory_margin_ratio == pytest.approx(POLICY.memory_margin_ratio)
    assert demand.memory_bytes == pytest.approx(20 * GIB * (1 + POLICY.memory_margin_ratio))
    assert "at most 20.0 GiB in 3.0 days, plus 30 %" in demand.reason


def test_workload_that_hardly_worked_keeps_its_memory():
    """Keep the memory of a workload that worked only a few times in many days."""
    rarely = np.zeros(14 * DAY)
    rarely[::1000] = 50
    demand = only(demands(fleet([rarely], [np.full(14 * DAY, 10.0)], 48)))
    assert demand.memory_bytes == 48 * GIB
    assert demand.reason == "too little work seen: 5 cycles of work, fewer than 20"
    assert only(demands(fleet([rarely], [np.full(14 * DAY, 10.0)]))).memory_bytes == np.inf


def test_need_is_limited_to_the_current_card():
    assert only(demands(fleet([5.0], [np.full(DAY, 45.0)], 48))).memory_bytes == 48 * GIB


def test_wrong_card_size_does_not_reduce_observed_memory():
    assert only(demands(fleet([5.0], [np.full(DAY, 45.0)], 40))).memory_bytes == 45 * GIB


def test_rising_level_is_assumed_to_rise_again():
    rose = only(demands(fleet([5.0], [row([12.0] * (DAY // 2) + [20.0])])))
    fell = only(demands(fleet([5.0], [row([20.0] * (DAY // 2) + [12.0])])))
    assert rose.memory_margin_ratio == fell.memory_margin_ratio
    assert fell.memory_bytes == pytest.approx(20 * GIB * (1 + fell.memory_margin_ratio))
    assert rose.memory_bytes - fell.memory_bytes == pytest.approx(8 * GIB)


@given(st.floats(0, 1000), st.floats(0, 1000))
def test_more_days_never_raise_the_margin(one, other):
    assert (shared_margin(one, POLICY) - shared_margin(other, POLICY)) * (one - other) <= 0


@few
@given(st.integers(0, 10**6), st.sampled_from([2, 5]))
def test_needs_do_not_depend_on_the_speed_of_the_workloads(seed, times):
    """Check that needs stay the same if a history runs slower.

    The work must start often enough.
    """
    once = random_fleet(seed, 12, 1)
    slow = Fleet.of(once.names, once.times[0] + 300.0 * times * np.arange(DAY), once.duty, once.memory)
    working = [one for one in demands(once) if not one.unseen]
    assert working
    slower = {one.name: one for one in demands(slow)}
    for one in working:
        assert (one.memory_bytes, one.compute_percent) == (
            slower[one.name].memory_bytes,
            slower[one.name].compute_percent,
        )


def test_short_history_uses_the_fleets_distribution():
    memory = [np.full(DAY, 10.0) for _ in range(4)]
    for steady in memory[:3]:
        steady[100:130] = 20
    quiet = fleet([5.0] * 4, memory)
    alone = fleet([5.0], memory[3:])
    over = int(15 * GIB // BIN_BYTES)
    chance = memory_chances(quiet, gather(quiet, POLICY), POLICY)
    assert chance[3, over:].sum() > 0.01
    assert memory_chances(alone, gather(alone, POLICY), POLICY)[:, over:].sum() == 0


def test_fleets_distribution_fades_with_own_days():
    def above(days):
        memory = [np.full(days * DAY, 10.0) for _ in range(2)]
        memory[0][: days * DAY // 10] = 20
        both = fleet([5.0] * 2, memory)
        return memory_chances(both, gather(both, POLICY), POLICY)[1, int(15 * GIB // BIN_BYTES) :].sum()

    assert above(10) < above(2) / 3
    assert above(10) > 0


@few
@given(st.integers(0, 10**6), st.floats(0.5, 3))
def test_probabilities_sum_to_one(seed, days):
    found = random_fleet(seed, 4, days)
    known = gather(found, POLICY)
    for table in (memory_chances(found, known, POLICY), duty_chances(found, known, POLICY)):
        assert np.all(table >= 0)
        assert np.allclose(table.sum(axis=1), 1)


# --- Compute --------------------------------------------------------------------------------------------------------


def test_compute_is_the_quantile_with_headroom():
    duty = np.where(np.arange(10 * DAY) % 10 == 0, 60.0, 20.0)
    assert only(demands(fleet([duty], [5.0]))).compute_percent == pytest.approx(60 * 1.15)


def test_compute_is_never_more_than_a_whole_gpu():
    assert only(demands(fleet([np.full(DAY, 99.0)], [5.0]))).compute_percent == 100


def working_share(found):
    known = gather(found, POLICY)
    return 1 - duty_chances(found, known, POLICY)[:, 0]


def test_unseen_hours_are_planned_as_busy():
    """Plan unseen hours as busy.

    There are samples for half of a day, with little work. The busy hours may be in the other half.
    """
    assert working_share(fleet([hours(0.5, (3, 4))], [5.0]))[0] > 0.08
    quiet = np.where(np.arange(DAY // 2) % 10 == 0, 30.0, 0.0)
    assert working_share(fleet([quiet], [5.0]))[0] > 0.7


def test_complete_day_needs_no_guess():
    quiet = np.where(np.arange(DAY) % 10 == 0, 30.0, 0.0)
    assert working_share(fleet([quiet], [5.0]))[0] == pytest.approx(0.1, abs=0.01)


def test_history_with_busy_hours_is_used_unchanged():
    busy = hours(0.5, (2, 5), high=50)
    assert working_share(fleet([busy], [5.0]))[0] == pytest.approx(0.25, abs=0.01)


def test_unobserved_load_level_is_the_fleets():
    worked = np.where(np.arange(DAY // 2) % 3 == 0, 70.0, 0.0)
    both = fleet([worked, 0.0], [5.0, 5.0])
    chance = duty_chances(both, gather(both, POLICY), POLICY)[1]
    assert chance[60:81].sum() == pytest.approx(1 - chance[0])


def test_busiest_hour_is_found_anywhere():
    working = np.zeros((1, 100), bool)
    working[0, 70:76] = True
    assert busiest_hour(working, 12)[0] == 0.5
    assert busiest_hour(working, 6)[0] == 1
    assert busiest_hour(working, 1000)[0] == pytest.approx(0.06)


def test_the_order_of_workloads_does_not_matter():
    found = random_fleet(5, 6, 1)
    mixed = [3, 1, 5, 0, 2, 4]
    again = Fleet.of(
        [found.names[i] for i in mixed], found.times, found.duty[mixed], found.memory[mixed], found.card[mixed]
    )
    assert demands(again) == demands(found)
