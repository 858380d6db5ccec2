# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which workloads share a card.

They share a card only if they fit, their peaks do not coincide, their data is complete, and sharing saves enough.
"""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.thorough import draws

np = pytest.importorskip("numpy")

from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.model import Fleet, Policy, SizingError
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.search import Limits, Search, Weight
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.sharing import share
from tests.unit.plugin_utils.sizing.sizing_fleets import DAY, GIB, fleet, hours, random_fleet

QUICK = Policy(rounds=40)
few = draws(20)


def groups(sharing):
    return sorted(card.names for card in sharing.cards)


# --- Properties -----------------------------------------------------------------------------------------------------


@few
@given(st.integers(0, 10**6), st.integers(1, 8), st.sampled_from([24, 40, 80, 141]), st.floats(0.3, 2))
def test_every_workload_is_placed_once_and_no_card_is_exceeded(seed, count, card, days):
    found = random_fleet(seed, count, days)
    answer = share(found, card * GIB, QUICK)
    placed = [name for one in answer.cards for name in one.names] + [name for name, _ in answer.left_alone]
    assert sorted(placed) == list(found.names)
    row = {name: i for i, name in enumerate(found.names)}
    memory, duty = found.whole_memory(), found.whole_duty()
    saturated = []
    for one in answer.cards:
        rows = [row[name] for name in one.names]
        assert memory[rows].sum(axis=0).max() == pytest.approx(one.memory_seen_bytes)
        assert one.memory_seen_bytes <= one.memory_bytes <= card * GIB
        share_over = (duty[rows].sum(axis=0) > 100).mean()
        assert len(rows) == 1 or share_over <= QUICK.saturated_card_ratio
        assert len(rows) == 1 or one.memory_over_ratio <= QUICK.planned_over_ratio
        saturated.append(share_over)
    assert not saturated or np.mean(saturated) <= QUICK.planned_saturated_ratio + 1e-12


@few
@given(st.integers(0, 10**6), st.permutations(range(7)))
def test_the_order_of_workloads_does_not_matter(seed, order):
    found = random_fleet(seed, 7, 0.6)
    mixed = Fleet.of(
        [found.names[i] for i in order], found.times, found.duty[order], found.memory[order], found.card[order]
    )
    assert share(mixed, 80 * GIB, QUICK) == share(found, 80 * GIB, QUICK)


@few
@given(st.integers(0, 10**6))
def test_larger_margin_never_allows_more_pairs(seed):
    found = random_fleet(seed, 2, 0.6, high=40)
    wide = share(found, 60 * GIB, dataclasses.replace(QUICK, memory_margin_ratio=0.5))
    narrow = share(found, 60 * GIB, dataclasses.replace(QUICK, memory_margin_ratio=0.1))
    assert narrow.gpus <= wide.gpus


@few
@given(st.integers(0, 10**6), st.floats(0.5, 0.999), st.floats(0.5, 0.999))
def test_higher_confidence_never_allows_more_pairs(seed, one, other):
    found = random_fleet(seed, 2, 0.6, high=40)
    low, high = (share(found, 60 * GIB, dataclasses.replace(QUICK, confidence=each)) for each in sorted((one, other)))
    assert low.gpus <= high.gpus


# --- Cases ----------------------------------------------------------------------------------------------------------


def test_small_quiet_workloads_share():
    found = fleet([hours(2, (0, 24), high=5)] * 4, [np.full(2 * DAY, 5.0)] * 4, 48)
    answer = share(found, 80 * GIB)
    assert groups(answer) == [("w00", "w01", "w02", "w03")]
    assert answer.worth_it
    assert answer.reason == "saves 3 of 4 cards"


def test_only_non_coinciding_peaks_share():
    """Two workloads run by day and two by night, each with 80 % of a GPU.

    The history has two weeks.
    """
    day, night = hours(14, (8, 18)), hours(14, (20, 24), (0, 6))
    found = fleet([day, day, night, night], [np.full(14 * DAY, 10.0)] * 4)
    policy = Policy(saturated_ratio=0.02, confidence=0.95)
    assert all(
        set(names) & {"w00", "w01"} and set(names) & {"w02", "w03"} for names in groups(share(found, 80 * GIB, policy))
    )
    assert share(found, 80 * GIB, policy).gpus == 2
    assert share(found.part([0, 1]), 80 * GIB, policy).gpus == 2


def test_half_a_day_does_not_prove_that_peaks_never_coincide():
    day, night = hours(0.5, (0, 5)), hours(0.5, (6, 11))
    assert share(fleet([day, night], [np.full(DAY // 2, 10.0)] * 2), 80 * GIB).gpus == 2


def test_quiet_half_of_a_day_does_not_fill_a_card():
    """Keep workloads apart if half of the day has no samples.

    Each workload runs now and then for a short time.
    """
    quiet = [np.where(np.arange(DAY // 2) % 20 == i, 60.0, 0.0) for i in range(6)]
    known = [np.tile(row, 28) for row in quiet]
    assert share(fleet(quiet, [np.full(DAY // 2, 5.0)] * 6), 141 * GIB).gpus == 6
    assert share(fleet(known, [np.full(14 * DAY, 5.0)] * 6), 141 * GIB).gpus < 4


def test_memory_peaks_are_expected_to_coincide():
    """Assume that the memory peaks of two workloads coincide some time.

    Both workloads jump from 20 to 45 GiB at independent times, so sooner or later both need 45 GiB at once.
    """
    memory = [np.where(np.arange(2 * DAY) % 20 == i * 7, 45.0, 20.0) for i in range(2)]
    assert np.max(memory[0] + memory[1]) == 65
    assert share(fleet([5.0, 5.0], memory), 85 * GIB).gpus == 2
    assert share(fleet([5.0, 5.0], memory), 141 * GIB).gpus == 1


def test_two_maxima_always_fit_at_once():
    """There must be room for all peaks at once.

    Here, single samples of 40 GiB in a month rarely coincide.
    """
    memory = [np.full(30 * DAY, 20.0) for _ in range(3)]
    for i, row in enumerate(memory):
        row[5000 + 1000 * i] = 40
    found = fleet([5.0] * 3, memory)
    assert share(found.part([0, 1]), 83 * GIB).gpus == 2
    assert share(found.part([0, 1]), 85 * GIB).gpus == 1
    # The third workload counts with its usual memory, so the card holds 40 + 40 + 20 GiB, and 5 % must stay free.
    assert share(found, 105 * GIB).gpus == 2
    assert share(found, 107 * GIB).gpus == 1


def test_workload_without_data_is_unchanged_with_a_reason():
    found = fleet([np.full(DAY, 5.0), np.full(DAY, np.nan), np.full(DAY, 5.0)], [5.0, np.nan, 5.0])
    answer = share(found, 80 * GIB)
    assert answer.left_alone == (("w01", "too little data: no data"),)
    assert groups(answer) == [("w00", "w02")]
    assert answer.gpus == 2


def test_workload_larger_than_the_card_is_unchanged():
    found = fleet([np.full(DAY, 5.0)] * 3, [np.full(DAY, 5.0), np.full(DAY, 5.0), np.full(DAY, 38.0)])
    answer = share(found, 40 * GIB)
    assert [name for name, _ in answer.left_alone] == ["w02"]
    assert "may need 46.1 GiB, and the card has 40.0" in answer.left_alone[0][1]


def test_result_can_be_empty():
    answer = share(fleet([np.full(10, 5.0)], [5.0]), 80 * GIB)
    assert not answer.worth_it
    assert answer.cards == ()
    assert answer.gpus == 1


def test_without_savings_all_stay_exclusive():
    """Keep all workloads exclusive.

    Each workload needs more than half of any card, so sharing saves nothing.
    """
    for gib in (40, 48, 80):
        answer = share(fleet([np.full(DAY, 5.0)] * 5, [np.full(DAY, 0.45 * gib)] * 5, gib), gib * GIB)
        assert not answer.worth_it
        assert answer.reason.startswith("leave exclusive: sharing would save 0 of 5 cards")
        assert answer.gpus == 5


def test_saving_below_the_minimum_is_not_proposed():
    memory = [np.full(DAY, 60.0)] * 8 + [np.full(DAY, 5.0)] * 2
    found = fleet([np.full(DAY, 70.0)] * 8 + [np.full(DAY, 5.0)] * 2, memory)
    small = share(found, 80 * GIB, Policy(least_saving_ratio=0.0))
    assert small.worth_it
    answer = share(found, 80 * GIB, Policy(least_saving_ratio=0.9))
    assert not answer.worth_it
    assert answer.gpus == 10
    assert all(len(card.names) == 1 for card in answer.cards)


@pytest.mark.parametrize("card", [0, -1, float("nan"), float("inf")])
def test_card_without_memory_is_refused(card):
    with pytest.raises(SizingError, match="Pass the memory of the card"):
        share(fleet([np.full(DAY, 5.0)], [5.0]), card)


# --- The search -----------------------------------------------------------------------------------------------------


def fewest(sizes, capacity):
    """Return the smallest number of bins by brute force."""
    items = sorted(sizes, reverse=True)
    for count in itertools.count(1):
        bins = [0] * count

        def fits(i, bins=bins):
            if i == len(items):
                return True
            for k in range(len(bins)):
                if bins[k] + items[i] <= capacity and bins[k] not in bins[:k]:
                    bins[k] += items[i]
                    if fits(i + 1):
                        return True
                    bins[k] -= items[i]
            return False

        if fits(0):
            return count
    return None


@few
@given(st.lists(st.integers(1, 10), min_size=1, max_size=9))
def test_the_search_finds_the_fewest_cards_of_small_cases(sizes):
    search = Search(lambda group: Weight(sum(sizes[i] for i in group) <= 10), sizes, 10, Limits(0.01, 1e-4, 300, 8, 1))
    found = search.run()
    assert sorted(item for group in found for item in group) == list(range(len(sizes)))
    assert all(sum(sizes[i] for i in group) <= 10 for group in found)
    assert len(found) == fewest(sizes, 10)


def test_the_mean_of_all_cards_stays_within_its_limit():
    """Limit the mean saturation of all cards.

    A pair is saturated for 3 % of the time, and the mean may be 1 %. So a third of the cards may be pairs.
    """
    search = Search(lambda group: Weight(len(group) == 2, 0.03), [1.0] * 20, 100, Limits(0.01, 1e-4, 200, 20, 1))
    found = search.run()
    pairs = sum(len(group) == 2 for group in found)
    assert 0.03 * pairs <= 0.01 * len(found)
    assert len(found) == 15


def test_limit_of_zero_allows_free_sharing():
    weigh = lambda group: Weight(True, 0.0 if set(group) <= {0, 1} else 0.5)  # noqa: E731
    assert Search(weigh, [1.0] * 3, 100, Limits(0.0, 0.0, 50, 8, 1)).run() == [(0, 1), (2,)]


def test_search_is_deterministic():
    sizes = [3, 4, 5, 2, 6, 7, 1, 2, 3]
    weigh = lambda group: Weight(sum(sizes[i] for i in group) <= 10)  # noqa: E731
    answers = [Search(weigh, sizes, 10, Limits(0.01, 1e-4, 60, 3, 7)).run() for _ in range(2)]
    assert answers[0] == answers[1]
