# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test local search and lower bounds for groups of workloads."""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing import check, exact
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.case import Case
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.greedy import greedy
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.model import (
    WHOLE,
    FleetGpu,
    Problem,
    Standing,
    Workload,
    mig,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.pack import pack
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.relaxed import least_of_groups
from tests.benchmark.group_cases import groups
from tests.unit.plugin_utils.packing.packing_cases import fleet

A100 = "A100-40GB"
needs_or_tools = pytest.mark.skipif(bool(exact.MISSING), reason="OR-Tools is missing")


def packed(problem, solver="auto"):
    packing = pack(problem, solver)
    assert check.problems(problem, packing) == []
    return packing


@pytest.mark.parametrize("seed", [2, 3, 6])
def test_local_search_places_workloads_that_best_fit_leaves_out(seed):
    # The exact search places all workloads of these problems.
    problem = groups(seed)
    assert greedy(Case(problem))[0].unplaced
    packing = packed(problem, "heuristic")
    assert not packing.unplaced


@needs_or_tools
@pytest.mark.parametrize("seed", [2, 14, 30])
def test_heuristic_meets_the_bounds_so_that_no_search_is_needed(seed):
    packing = packed(groups(seed))
    assert (packing.by, packing.claim) == ("heuristic", "proven optimal")
    least = least_of_groups(Case(groups(seed)))
    assert packing.score.unplaced == least.left_out
    assert packing.score.gpus == packing.bound


def test_equal_problems_have_equal_local_searches():
    first, again = (pack(groups(5), "heuristic") for _time in range(2))
    assert first == again


def test_local_search_moves_no_workload_that_best_fit_keeps():
    problem = groups(2)
    before = packed(problem, "heuristic")
    today = tuple(Standing(s.host, s.index, s.shape, s.start, s.workload) for s in before.standing)
    changed = tuple(
        dataclasses.replace(w, options=(mig("2g.10gb"),)) if n % 10 == 0 else w for n, w in enumerate(problem.workloads)
    )
    later = dataclasses.replace(problem, workloads=changed, today=today)
    assert set(packed(later, "heuristic").moved) <= set(greedy(Case(later))[0].moved)


@needs_or_tools
def test_bound_of_a_near_group_that_exceeds_a_host():
    # Each host has two NUMA nodes of two GPUs. The single workload takes a GPU of one node, so only one pair fits on
    # its host.
    gpus = tuple(FleetGpu("h%d" % h, n, A100, numa_node=n // 2) for h in range(3) for n in range(4))
    workloads = (
        Workload("single", (WHOLE,), near="n"),
        Workload("pair1", (WHOLE,), 2, "numa", near="n"),
        Workload("pair2", (WHOLE,), 2, "numa", near="n"),
    )
    assert least_of_groups(Case(Problem(gpus, workloads))) == (1, 4)
    packing = packed(Problem(gpus, workloads))
    assert (packing.score.unplaced, packing.score.gpus, packing.proven) == (1, 4, True)
    assert "larger hosts" in packing.unplaced["single"]


@needs_or_tools
def test_bound_of_more_workloads_apart_than_hosts():
    workloads = tuple(Workload("w%d" % n, (WHOLE,), apart="a", weight=1 + n) for n in range(4))
    problem = Problem(fleet(*[A100] * 6, per_host=2), workloads)
    # The three hosts cannot hold all workloads, so the one with the lowest weight is left out.
    assert least_of_groups(Case(problem)) == (1, 3)
    assert list(packed(problem).unplaced) == ["w0"]
