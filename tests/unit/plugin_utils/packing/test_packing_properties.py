# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that packings are valid and complete, and make no needless changes.

For a problem so small that all packings can be tried, the packing must be optimal.
"""

from __future__ import annotations

import dataclasses
import random
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing import check, exact
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing import geometry as geometries
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.case import Case
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.columns import columns
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.geometry import geometry
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.layouts import layouts
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.model import Problem, Rules, Workload, mig, share
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.pack import pack
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.volume import least_gpus
from tests.thorough import draws
from tests.unit.plugin_utils.packing.packing_cases import MODELS, days_later, fewest, fleet, least_churn, problems

pytestmark = pytest.mark.skipif(bool(exact.MISSING), reason="OR-Tools is not installed: %s" % exact.MISSING)
slow = draws(10)


def stands(packing):
    return tuple(dataclasses.replace(standing, new=False) for standing in packing.standing)


@slow
@given(problems())
def test_result_obeys_every_rule_and_loses_no_workload(problem):
    assert check.problems(problem, pack(problem)) == []


@slow
@given(problems())
def test_heuristic_obeys_every_rule_and_is_never_better(problem):
    first, best = pack(problem, "heuristic"), pack(problem)
    assert check.problems(problem, first) == []
    assert best.score.as_tuple() <= first.score.as_tuple()


@slow
@given(st.data())
def test_replans_obey_every_rule(data):
    problem = data.draw(problems())
    later = data.draw(days_later(pack(problem), problem))
    for solver in ("auto", "heuristic"):
        assert check.problems(later, pack(later, solver)) == []


@slow
@given(problems())
def test_unchanged_problem_moves_nothing(problem):
    first = pack(problem)
    again = pack(dataclasses.replace(problem, today=stands(first)))
    assert (again.moved, again.score.destroyed) == ((), 0)
    assert not any(standing.new for standing in again.standing if standing.workload not in first.unplaced)


@slow
@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_the_lists_does_not_change_the_score(problem, rng: random.Random):
    first = pack(problem)
    gpus, workloads = list(problem.gpus), list(problem.workloads)
    rng.shuffle(gpus)
    rng.shuffle(workloads)
    second = pack(dataclasses.replace(problem, gpus=tuple(gpus), workloads=tuple(workloads)))
    if first.proven and second.proven:
        assert second.score == first.score


@slow
@given(problems())
def test_equal_problems_have_equal_results(problem):
    assert pack(problem) == pack(problem)


@slow
@given(
    st.lists(st.sampled_from(["A100-40GB", "A30-24GB"]), min_size=1, max_size=3),
    st.lists(
        st.sampled_from(["1g.5gb", "1g.5gb+me", "2g.10gb", "3g.20gb", "4g.20gb", "2g.12gb", "1g.6gb"]), max_size=5
    ),
)
def test_no_packing_leaves_out_less_or_takes_fewer_gpus(models, profiles):
    workloads = tuple(Workload("w%d" % n, (mig(profile),)) for n, profile in enumerate(profiles))
    packing = pack(Problem(fleet(*models), workloads))
    assert packing.proven
    assert (packing.score.unplaced, packing.score.gpus) == fewest(models, profiles)


@st.composite
def small_quotas(draw):
    """Generate a model, and a few quotas of one kind that it can hold one by one."""
    kind = draw(st.sampled_from(["vgpu", "mps"]))
    sizes = st.tuples(st.integers(0, 40), st.integers(0, 20))
    quotas = [share(kind, gib * 1024, 5 * steps) for gib, steps in draw(st.lists(sizes, min_size=1, max_size=6))]
    return tuple(quotas), draw(st.sampled_from(["L40S-48GB", "A100-80GB"]))


def fewest_gpus(model, quotas):
    """Return the smallest number of GPUs by trying every partition of the quotas."""
    rules = geometry(model)

    def grow(rest, gpus):
        if not rest:
            return len(gpus)
        first, others = rest[0], rest[1:]
        ways = [grow(others, [*gpus, (first,)])]
        for n, here in enumerate(gpus):
            more = tuple(sorted((*here, first)))
            if rules.holds(more):
                ways.append(grow(others, [*gpus[:n], more, *gpus[n + 1 :]]))
        return min(ways)

    return grow(list(quotas), [])


@slow
@given(small_quotas(), st.sampled_from([0, 40]))
def test_bound_of_quotas_is_never_above_the_optimum(problem, most_shapes):
    """Compare the bound with the optimum. If `most_shapes` is 0, columns are used."""
    quotas, model = problem
    workloads = tuple(Workload("w%d" % n, (quota,)) for n, quota in enumerate(quotas))
    with mock.patch.object(geometries, "MOST_SHAPES", most_shapes):
        packing = pack(Problem(fleet(*[model] * len(quotas)), workloads))
        first = pack(Problem(fleet(*[model] * len(quotas)), workloads), "heuristic")
    best = fewest_gpus(model, quotas)
    assert not packing.unplaced
    assert packing.bound <= best <= packing.score.gpus
    assert first.bound <= best <= first.score.gpus
    assert not packing.proven or packing.score.gpus == best


@slow
@given(problems())
def test_bounds_hold_with_restrictions_and_several_kinds(problem):
    """Check that the bounds do not exceed packings with a place for every workload."""
    packing = pack(problem)
    case = Case(problem)
    if not packing.unplaced:
        assert least_gpus(case) <= packing.score.gpus
        assert columns(case, {}).bound <= packing.score.gpus


@st.composite
def small_groups(draw):
    """Generate workloads with affinity, anti-affinity and fixed hosts.

    The fleet has three A100 on two hosts.
    """
    profiles = st.sampled_from(["1g.5gb+me", "2g.10gb", "3g.20gb", "4g.20gb"])
    return tuple(
        Workload(
            "w%d" % n,
            (mig(draw(profiles)),),
            near=draw(st.sampled_from([None, "n"])),
            apart=draw(st.sampled_from([None, "a"])),
            apart_on=draw(st.sampled_from(["gpu", "host"])),
            hosts=draw(st.sampled_from([None, None, frozenset({"host1"})])),
        )
        for n in range(draw(st.integers(1, 4)))
    )


@slow
@given(small_groups())
def test_no_packing_of_groups_leaves_out_less_or_takes_fewer_gpus(workloads):
    gpus = fleet(*["A100-40GB"] * 3)

    def allowed(choice):
        placed = [(workload, gpus[at]) for workload, at in zip(workloads, choice) if at >= 0]
        if any(w.hosts is not None and gpu.host not in w.hosts for w, gpu in placed):
            return False
        if len({gpu.host for w, gpu in placed if w.near}) > 1:
            return False
        # Two members of a group must not share a GPU, and with `apart_on: host` no host either.
        keys = [gpu.key for w, gpu in placed if w.apart]
        hosts = [gpu.host for w, gpu in placed if w.apart and w.apart_on == "host"]
        return len(keys) == len(set(keys)) and len(hosts) == len(set(hosts))

    packing = pack(Problem(gpus, workloads))
    best = fewest([gpu.model for gpu in gpus], [w.options[0].profile for w in workloads], allowed)
    assert packing.proven
    assert (packing.score.unplaced, packing.score.gpus) == best


@st.composite
def small_days(draw):
    """Generate current workloads and wanted workloads that fit on two A100.

    Both are mappings from workloads to profiles.
    """
    names = [p.name for p in MODELS["A100-40GB"].profiles if p.compute_slices < 5]
    old = {"w%d" % n: p for n, p in enumerate(draw(st.lists(st.sampled_from(names), min_size=1, max_size=4)))}
    wanted = {}
    for name, profile in old.items():
        fate = draw(st.sampled_from(["stays", "stays", "goes", "changes"]))
        if fate != "goes":
            wanted[name] = draw(st.sampled_from(names)) if fate == "changes" else profile
    wanted.update({"n%d" % n: p for n, p in enumerate(draw(st.lists(st.sampled_from(names), max_size=2)))})
    return old, wanted


def as_workloads(wanted):
    return tuple(Workload(name, (mig(profile),)) for name, profile in wanted.items())


@slow
@given(small_days(), st.booleans())
def test_no_replan_takes_fewer_gpus_or_moves_or_destroys_less(day, even):
    old, wanted = day
    gpus = fleet("A100-40GB", "A100-40GB")
    # The policy `spread` leaves gaps, so that a move can save a GPU.
    first = pack(Problem(gpus, as_workloads(old), (), Rules(policy="spread" if even else "binpack")))
    problem = Problem(gpus, as_workloads(wanted), stands(first))
    packing = pack(problem)
    if first.unplaced or packing.unplaced:
        return
    today = [[(s.shape.profile, s.start, s.workload) for s in stands(first) if s.key == gpu.key] for gpu in gpus]
    assert packing.proven_churn
    score = packing.score
    assert (score.gpus, score.moved, score.destroyed) == least_churn("A100-40GB", 2, today, wanted)


@slow
@given(st.data(), st.integers(0, 2), st.integers(0, 2))
def test_limits_of_changes_hold(data, moved, destroyed):
    problem = data.draw(problems(bound=False))
    later = data.draw(days_later(pack(problem), problem))
    rules = dataclasses.replace(later.rules, most_moved=moved, most_destroyed=destroyed)
    bounded = dataclasses.replace(later, rules=rules)
    for solver in ("auto", "heuristic"):
        packing = pack(bounded, solver)
        assert check.problems(bounded, packing) == []
        assert packing.score.moved <= moved
        assert packing.score.destroyed <= destroyed


@slow
@given(st.data())
def test_every_layout_is_valid_and_destroys_no_more(data):
    problem = data.draw(problems())
    later = data.draw(days_later(pack(problem), problem))
    packing = pack(later)
    for host, entries in layouts(later, packing).items():
        named = [index for entry in parse_layout(entries).entries for index in entry.selectors]
        assert len(named) == len(set(named)), host
    planner, today, then = check.Planner(), check.by_gpu(later.today), check.by_gpu(packing.standing)
    free = sum(planner.destroyed(g, today.get(g.key, ()), then.get(g.key, ()), pinned=False) for g in later.gpus)
    assert free <= packing.score.destroyed
