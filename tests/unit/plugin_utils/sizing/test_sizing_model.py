# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report errors in histories and policies with their location.

Samples that are missing stay missing.
"""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.model import Fleet, Policy, SizingError
from tests.unit.plugin_utils.sizing.sizing_fleets import START, fleet

NAN = float("nan")


def of(names=("a",), times=(1.0, 2.0), duty=((1.0, 2.0),), memory=((1.0, 2.0),), card=None):
    return Fleet.of(names, times, duty, memory, card)


@pytest.mark.parametrize(
    ("wrong", "where", "what"),
    [
        ({"duty": [[1.0, 101.0]]}, "duty of a at 2", "101 is impossible"),
        ({"duty": [[-1.0, 1.0]]}, "duty of a at 1", "-1 is impossible"),
        ({"memory": [[1.0, -5.0]]}, "memory of a at 2", "-5 is impossible"),
        ({"memory": [[1.0, float("inf")]]}, "memory of a at 2", "inf is impossible"),
        ({"times": (2.0, 2.0)}, "times", "do not increase"),
        ({"times": (2.0, NAN)}, "times", "do not increase"),
        ({"duty": [[1.0]]}, "duty", "shape is (1, 1), and the fleet needs (1, 2)"),
        ({"memory": [[1.0, 2.0], [1.0, 2.0]]}, "memory", "shape is (2, 2), and the fleet needs (1, 2)"),
        ({"card": 0.0}, "card", "no memory"),
    ],
)
def test_impossible_history_is_refused_with_the_place(wrong, where, what):
    with pytest.raises(SizingError) as caught:
        of(**wrong)
    assert caught.value.where == where
    assert what in caught.value.problem
    assert caught.value.cure


def test_duplicate_workload_is_refused():
    with pytest.raises(SizingError, match="workload a: the name is not unique"):
        of(("a", "a"), duty=[[1, 2]] * 2, memory=[[1, 2]] * 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [("memory_margin_ratio", 1.5), ("compute_quantile", -0.1), ("prior_days", NAN), ("candidates", 0), ("rounds", -1)],
)
def test_impossible_policy_is_refused_with_the_name(name, value):
    with pytest.raises(SizingError, match="policy.%s" % name):
        Policy(**{name: value})


def test_workloads_are_sorted_with_their_data():
    found = of(("b", "a"), duty=[[1, 2], [3, 4]], memory=[[5, 6], [7, 8]], card=[10, 20])
    assert found.names == ("a", "b")
    assert found.duty.tolist() == [[3, 4], [1, 2]]
    assert found.memory.tolist() == [[7, 8], [5, 6]]
    assert found.card.tolist() == [20, 10]


def test_missing_duty_is_zero_and_missing_memory_the_last_value():
    found = of(times=(1, 2, 3, 4), duty=[[NAN, 5, NAN, 7]], memory=[[NAN, 3, NAN, NAN]])
    assert found.whole_duty().tolist() == [[0, 5, 0, 7]]
    assert found.whole_memory().tolist() == [[0, 3, 3, 3]]


def test_part_and_time_range_are_complete():
    found = fleet([[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [10, 11, 12]], 48)
    assert found.part([1]).names == ("w01",)
    assert found.part([1]).duty.tolist() == [[4, 5, 6]]
    assert found.between(1, 3).times[0] == START + found.step
    assert found.between(1, 3).duty.tolist() == [[2, 3], [5, 6]]


def test_fleet_can_be_empty():
    assert Fleet.of((), (), (), ()).names == ()
