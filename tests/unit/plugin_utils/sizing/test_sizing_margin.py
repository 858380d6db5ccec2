# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute the margin on memory, and count the cycles of work."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.thorough import draws

np = pytest.importorskip("numpy")

from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.margin import CUTS, Margin, cycles, excesses, margin
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.model import Policy
from tests.unit.plugin_utils.sizing.sizing_fleets import DAY, STEP, fleet, hours, random_fleet

POLICY = Policy()
HOUR = 3600 // STEP
few = draws(20)


def count(row, step=STEP):
    return int(cycles(np.asarray([row], float), step, POLICY)[0])


def test_each_start_of_work_is_a_cycle():
    assert count([0, 50, 0, 50, 50, 0]) == 2
    assert count([50, 0, 0.5, 0, 50]) == 2
    assert count([0, 0, 0]) == 0


def test_each_hour_of_uninterrupted_work_is_a_cycle():
    assert count([50] * HOUR) == 1
    assert count([50] * (HOUR + 1)) == 2
    assert count([*[50] * (2 * HOUR), 0, *[50] * HOUR]) == 3
    assert count(hours(7, (0, 24))) == 7 * 24
    # With at most one sample per hour, each sample with work is a cycle.
    assert count([50] * 5, step=7200) == 5


def test_slower_work_has_as_many_cycles():
    row = [0, 50, 50, 0, 0, 50, 0, 50]
    assert count(row) == count(row, step=5 * STEP) == 3


def test_each_part_of_a_history_predicts_the_other():
    rose = np.array([[10.0] * 80 + [20.0] * 20])
    assert sorted(excesses(rose)) == [0.5] * len(CUTS) + [2.0] * len(CUTS)
    assert list(excesses(np.zeros((3, 100)))) == []
    assert list(excesses(np.empty((0, 100)))) == []


def test_margin_is_the_excess_at_the_stated_confidence():
    """Twenty of 400 comparisons have an excess of 100 %."""
    memory = [np.full(DAY, 10.0) for _ in range(40)]
    for row in memory[:4]:
        row[DAY * 9 // 10 :] = 20
    found = fleet([5.0] * 40, memory)
    assert margin(found, dataclasses.replace(POLICY, confidence=0.99)).ratio == pytest.approx(1)
    assert margin(found, dataclasses.replace(POLICY, confidence=0.96)).ratio == pytest.approx(1)
    assert margin(found, dataclasses.replace(POLICY, confidence=0.94)).ratio == POLICY.least_margin_ratio
    assert margin(found, POLICY).promise.startswith(
        "At most 1 of 100 workloads sized like this will exceed its memory."
    )


def test_small_fleet_gets_its_largest_excess_and_no_promise():
    memory = np.full(DAY, 10.0)
    memory[DAY * 9 // 10 :] = 15
    found = margin(fleet([5.0], [memory]), POLICY)
    assert found.ratio == pytest.approx(1.5 * 1.3 - 1)
    assert not found.learnt
    assert "10 comparisons of 1 workload are too few" in found.promise
    assert "without a promise" in found.promise


@pytest.mark.parametrize(("confidence", "words"), [(0.95, "At most 5 of 100 "), (0.999, "At most 1 of 1000 ")])
def test_confidence_is_put_into_words(confidence, words):
    assert Margin(0.5, confidence, 2000, 200, True).promise.startswith(words)


def test_certainty_is_never_learnt():
    assert not margin(random_fleet(1, 30, 1), dataclasses.replace(POLICY, confidence=1.0)).learnt


@few
@given(st.integers(0, 10**6), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_higher_confidence_never_lowers_the_margin(seed, one, other):
    found = random_fleet(seed, 12, 1)
    low, high = (margin(found, dataclasses.replace(POLICY, confidence=each)) for each in sorted((one, other)))
    assert low.ratio <= high.ratio


@few
@given(st.integers(0, 10**6))
def test_margin_holds_for_workloads_that_it_was_not_learnt_from(seed):
    """Learn the margin from 150 histories, and test it on 150 others of the same kind."""
    chance = np.random.default_rng(seed)
    memory = chance.gamma(9.0, 1.0, (300, DAY // 4)).cumsum(axis=1) % 40 + 5 * chance.random((300, 1))
    policy = dataclasses.replace(POLICY, confidence=0.9, least_margin_ratio=0.0)
    learnt = margin(fleet([5.0] * 150, list(memory[:150])), policy).ratio
    half = memory.shape[1] // 2
    over = memory[150:, half:].max(axis=1) > memory[150:, :half].max(axis=1) * (1 + learnt)
    # 10 % may exceed their memory. With 150 workloads, 20 % would be four standard deviations more.
    assert over.mean() <= 0.2
