# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pack tenants onto GPUs, and compare the result with brute force."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import fit as vgpu_fit
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.fit import (
    Bin,
    Demand,
    first_misfit,
    left,
    pack,
)
from tests.thorough import draws

GIB = 2**30


def fits(bins, demands, packed):
    """Return whether a packing follows all rules.

    This check does not use code of the search.
    """
    for demand in demands:
        gpus = packed[demand.name]
        if len(gpus) != demand.count or len(set(gpus)) != len(gpus) or (demand.pin and gpus != (demand.pin,)):
            return False
    for each in bins:
        there = [demand for demand in demands if each.uuid in packed[demand.name]]
        if sum(d.memory_bytes for d in there) > each.memory_bytes or len(there) > each.seats:
            return False
        if sum(d.sm_percent for d in there) > each.sm_percent:
            return False
    return True


def moves(demands, packed):
    return sum(1 for demand in demands for gpu in demand.now if gpu not in packed[demand.name])


def fewest_moves(bins, demands):
    """Return the smallest number of moves by brute force, or None if no packing fits."""
    sets = [list(itertools.combinations([b.uuid for b in bins], d.count)) for d in demands]
    every = (dict(zip([d.name for d in demands], chosen)) for chosen in itertools.product(*sets))
    return min((moves(demands, packed) for packed in every if fits(bins, demands, packed)), default=None)


@st.composite
def problems(draw):
    uuids = ["g%d" % n for n in range(draw(st.integers(1, 3)))]
    bins = [
        Bin(u, draw(st.integers(1, 10)), draw(st.sampled_from([50.0, 100.0])), draw(st.integers(1, 4))) for u in uuids
    ]
    demands = []
    for number in range(draw(st.integers(0, 5))):
        pin = draw(st.sampled_from([None, None, *uuids]))
        count = 1 if pin else draw(st.integers(1, len(uuids)))
        # The tenant may now be on GPUs that no longer belong to the entry.
        now = frozenset(draw(st.lists(st.sampled_from([*uuids, "gone"]), max_size=2)))
        demands.append(Demand("t%d" % number, draw(st.integers(1, 6)), draw(st.integers(1, 60)), count, pin, now))
    return bins, demands


@draws(100)
@given(problems())
def test_search_matches_brute_force(problem):
    bins, demands = problem
    best, packed = fewest_moves(bins, demands), pack(bins, demands)
    assert (packed is None) == (best is None)
    if packed is not None:
        assert fits(bins, demands, packed)
        assert moves(demands, packed) == best
        assert pack(bins, demands) == packed
    else:
        misfit, free = first_misfit(bins, demands)
        before = demands[: demands.index(misfit)]
        assert fewest_moves(bins, before) is not None
        assert fewest_moves(bins, [*before, misfit]) is None
        assert sum(b.memory_bytes for b in bins) - sum(b.memory_bytes for b in free) == sum(
            d.memory_bytes * d.count for d in before
        )


def test_gpus_are_filled_in_order():
    bins = [Bin("a", 80 * GIB, 100.0, 64), Bin("b", 80 * GIB, 100.0, 64)]
    demands = [Demand("t%d" % n, 8 * GIB, 30) for n in range(4)]
    assert pack(bins, demands) == {"t0": ("a",), "t1": ("a",), "t2": ("a",), "t3": ("b",)}
    assert left(bins, demands, pack(bins, demands))[1] == Bin("b", 72 * GIB, 70.0, 63)


@pytest.mark.slow
def test_full_host_is_packed_and_one_more_tenant_refused():
    """The host is so large that the search must count equal states only once."""
    bins = [Bin("g%d" % n, 80 * GIB, 100.0, 64) for n in range(8)]
    demands = [Demand("t%02d" % n, 10 * GIB, 12) for n in range(64)]
    assert fits(bins, demands, pack(bins, demands))
    more = [*demands, Demand("more", GIB, 5)]
    assert pack(bins, more) is None
    misfit, free = first_misfit(bins, more)
    assert misfit.name == "more"
    assert {each.memory_bytes for each in free} == {0}


def test_tenant_is_moved_only_if_necessary():
    bins = [Bin("a", 10, 100.0, 64), Bin("b", 10, 100.0, 64)]
    demands = [
        Demand("small", 4, 10, now=frozenset("a")),
        Demand("other", 4, 10, now=frozenset("b")),
        Demand("large", 8, 10),
    ]
    packed = pack(bins, demands)
    assert moves(demands, packed) == 1
    assert packed["small"] == packed["other"]


def test_dead_ends_count_for_the_limit(monkeypatch):
    """Count dead ends of the search towards its limit.

    There are 12,870 ways to choose eight of sixteen GPUs, and most of them lead to equal states.
    """
    monkeypatch.setattr(vgpu_fit, "_MOST_STEPS", 20_000)
    bins = [Bin("g%02d" % n, 4, 100.0, 64) for n in range(16)]
    demands = [Demand("t%d" % n, 1, 1, 8) for n in range(9)]
    with pytest.raises(vgpu_fit.TooHardError):
        pack(bins, demands)


def test_too_long_search_stops_with_its_best_result_or_an_error(monkeypatch):
    bins = [Bin("g%d" % n, 100, 100.0, 64) for n in range(4)]
    demands = [Demand("t%d" % n, 26 + n, 1, now=frozenset(["g0"])) for n in range(9)]
    good = pack(bins, demands)
    monkeypatch.setattr(vgpu_fit, "_MOST_STEPS", len(demands))
    # Within the limit, tenants can be packed directly, but no search for the best packing is possible.
    assert fits(bins, demands, pack(bins, demands))
    assert moves(demands, good) <= moves(demands, pack(bins, demands))
    monkeypatch.setattr(vgpu_fit, "_MOST_STEPS", 1)
    with pytest.raises(vgpu_fit.TooHardError):
        pack(bins, demands)
