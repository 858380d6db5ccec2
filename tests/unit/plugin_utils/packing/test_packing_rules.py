# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the rules of packing, refused problems, and messages."""

from __future__ import annotations

import ast
import dataclasses
import random
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import CatalogueError
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing import cells, check, exact, geometry
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.layouts import layouts
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.model import (
    WHOLE,
    FleetGpu,
    PackingError,
    Problem,
    Rules,
    Standing,
    Workload,
    mig,
    share,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.pack import pack
from tests.thorough import draws
from tests.unit.plugin_utils.packing.packing_cases import days_later, fleet, problems

A100 = "A100-40GB"
solvers = pytest.mark.parametrize(
    "solver",
    ["heuristic", pytest.param("auto", marks=pytest.mark.skipif(bool(exact.MISSING), reason="OR-Tools is missing"))],
)
needs_or_tools = pytest.mark.skipif(bool(exact.MISSING), reason="OR-Tools is missing")


def wanted(*profiles, **more):
    return tuple(Workload("w%d" % n, (mig(profile),), **more) for n, profile in enumerate(profiles))


def where(packing):
    """Return {workload: (host, index) of its GPU}."""
    found = {}
    for standing in packing.standing:
        found.setdefault(standing.workload, []).append(standing.key)
    return {name: sorted(keys) for name, keys in found.items()}


def packed(problem, solver):
    packing = pack(problem, solver)
    assert check.problems(problem, packing) == []
    return packing


# -- Fewest GPUs -------------------------------------------------------------------------------------------------------


@needs_or_tools
def test_pairs_that_a_greedy_packer_misses():
    # A packer that takes the largest workload first would put a 4g and a 2g on one GPU. But 4g+3g and 3g+2g+2g fit too.
    packing = packed(Problem(fleet(*[A100] * 4), wanted("4g.20gb", "3g.20gb", "3g.20gb", "2g.10gb", "2g.10gb")), "auto")
    assert (packing.score.gpus, packing.bound, packing.proven) == (2, 2, True)


@solvers
def test_media_extensions_exist_once_per_gpu(solver):
    packing = packed(Problem(fleet(A100, A100), wanted("1g.5gb+me", "1g.5gb+me", "1g.5gb+me")), solver)
    assert packing.score.gpus == 2
    assert list(packing.unplaced) == ["w2"] or len(packing.unplaced) == 1


@needs_or_tools
def test_cheaper_gpu_is_chosen_for_the_aim_cost():
    gpus = (FleetGpu("dear", 0, A100, cost=9), FleetGpu("cheap", 0, "A30-24GB", cost=2))
    workload = Workload("w", (mig("2g.10gb"), mig("2g.12gb")))
    assert where(packed(Problem(gpus, (workload,), rules=Rules(aim="cost")), "auto")) == {"w": [("cheap", 0)]}


@needs_or_tools
def test_two_cheap_gpus_beat_an_expensive_one():
    gpus = (
        FleetGpu("dear", 0, A100, cost=9),
        FleetGpu("cheap", 0, "A30-24GB", cost=2),
        FleetGpu("cheap", 1, "A30-24GB", cost=2),
    )
    either = (mig("3g.20gb"), mig("4g.24gb"))
    problem = Problem(gpus, (Workload("a", either), Workload("b", either)))
    assert packed(problem, "auto").score.gpus == 1
    assert packed(dataclasses.replace(problem, rules=Rules(aim="cost")), "auto").score.cost == 4


@solvers
def test_spread_loads_gpus_and_hosts_evenly(solver):
    gpus = fleet(*[A100] * 4, per_host=2)
    packing = packed(Problem(gpus, wanted(*["1g.5gb"] * 4), rules=Rules(policy="spread")), solver)
    assert packing.score.gpus == 4
    packing = packed(Problem(gpus, wanted(*["1g.5gb"] * 2), rules=Rules(policy="spread")), solver)
    assert {keys[0][0] for keys in where(packing).values()} == {"host0", "host1"}


@solvers
def test_reserved_gpus_stay_empty(solver):
    rules = Rules(reserve_gpus={A100: 1})
    packing = packed(Problem(fleet(A100, A100), wanted("7g.40gb", "7g.40gb"), rules=rules), solver)
    assert packing.score.gpus == 1
    (reason,) = packing.unplaced.values()
    assert "and 1 of the empty ones is reserved" in reason


@solvers
def test_headroom_of_quotas(solver):
    halves = tuple(Workload("w%d" % n, (share("vgpu", 1024, 50),)) for n in range(2))
    assert packed(Problem(fleet("L40S-48GB"), halves), solver).unplaced == {}
    tight = Problem(fleet("L40S-48GB"), halves, rules=Rules(headroom_sm_percent=10))
    assert len(packed(tight, solver).unplaced) == 1


@solvers
def test_kinds_of_sharing_are_not_mixed_on_a_gpu(solver):
    workloads = (
        Workload("mig", (mig("1g.5gb"),)),
        Workload("quota", (share("vgpu", 1024, 10),)),
        Workload("mps", (share("mps", 1024, 10),)),
        Workload("whole", (WHOLE,)),
    )
    assert packed(Problem(fleet(*[A100] * 4), workloads), solver).score.gpus == 4
    assert len(packed(Problem(fleet(*[A100] * 3), workloads), solver).unplaced) == 1


# -- Several GPUs, affinity --------------------------------------------------------------------------------------------


@solvers
@pytest.mark.parametrize("search", ["decides", "keeps"])
def test_several_gpus_stay_within_their_domain(solver, search):
    gpus = tuple(FleetGpu("h%d" % h, n, A100, numa_node=n // 2, link_group=n % 2) for h in range(2) for n in range(4))
    workloads = (
        Workload("one", (mig("7g.40gb"),)),
        Workload("node", (WHOLE,), gpus=2, within="numa"),
        Workload("links", (WHOLE,), gpus=2, within="link"),
        Workload("host", (WHOLE,), gpus=2),
    )
    with mock.patch.object(cells, "MOST_DECISIONS", 0 if search == "keeps" else 20_000):
        packing = packed(Problem(gpus, workloads), solver)
    assert packing.unplaced == {}


@needs_or_tools
def test_search_places_groups_that_the_heuristic_cannot():
    # The pair would fit best on the host with two GPUs. But other workloads can run only there.
    gpus = tuple(FleetGpu(host, n, A100) for host, count in (("a", 2), ("b", 3)) for n in range(count))
    workloads = (
        Workload("pair", (WHOLE,), gpus=2),
        Workload("here", (WHOLE,), hosts=frozenset({"a"})),
        Workload("here too", (WHOLE,), hosts=frozenset({"a"})),
    )
    assert packed(Problem(gpus, workloads), "auto").unplaced == {}


@solvers
def test_near_and_apart(solver):
    gpus = fleet(*[A100] * 6, per_host=2)
    workloads = (
        *(Workload("near%d" % n, (mig("4g.20gb"),), near="db") for n in range(2)),
        *(Workload("apart%d" % n, (mig("1g.5gb"),), apart="web") for n in range(3)),
        *(Workload("split%d" % n, (mig("1g.5gb"),), apart="gpu", apart_on="gpu") for n in range(2)),
    )
    packing = packed(Problem(gpus, workloads), solver)
    assert packing.unplaced == {}
    at = where(packing)
    assert at["near0"][0][0] == at["near1"][0][0]
    assert len({at["apart%d" % n][0][0] for n in range(3)}) == 3
    assert at["split0"] != at["split1"]


@solvers
def test_too_many_groups_for_the_hosts(solver):
    workloads = tuple(Workload("w%d" % n, (mig("1g.5gb"),), apart="web") for n in range(3))
    packing = packed(Problem(fleet(*[A100] * 4, per_host=2), workloads), solver)
    (reason,) = packing.unplaced.values()
    assert "apart web" in reason


# -- Churn -------------------------------------------------------------------------------------------------------------


def today(*standing):
    """Parse lines "gpu profile@start workload". A dash means that no workload runs."""
    found = []
    for text in standing:
        index, instance, name = text.split()
        profile, _at, start = instance.partition("@")
        found.append(Standing("host0", int(index), mig(profile), int(start), None if name == "-" else name))
    return tuple(found)


@solvers
def test_two_half_empty_gpus_become_one(solver):
    problem = Problem(fleet(A100, A100), wanted("3g.20gb", "3g.20gb"), today("0 3g.20gb@0 w0", "1 3g.20gb@0 w1"))
    packing = packed(problem, solver)
    assert (packing.score.gpus, packing.score.moved, packing.score.destroyed) == (1, 1, 1)


@solvers
def test_limit_of_moves_is_kept_at_the_cost_of_a_gpu(solver):
    problem = Problem(
        fleet(A100, A100),
        wanted("3g.20gb", "3g.20gb"),
        today("0 3g.20gb@0 w0", "1 3g.20gb@0 w1"),
        Rules(most_moved=0),
    )
    packing = packed(problem, solver)
    assert (packing.score.gpus, packing.moved) == (2, ())


@solvers
def test_freed_instance_is_reused(solver):
    problem = Problem(fleet(A100), wanted("3g.20gb"), today("0 3g.20gb@4 gone"))
    (standing,) = packed(problem, solver).standing
    assert (standing.start, standing.workload, standing.new) == (4, "w0", False)


@solvers
def test_only_blocking_instances_are_destroyed(solver):
    here = today("0 3g.20gb@4 w0", "0 1g.5gb@0 gone")
    workload = (Workload("w0", (mig("3g.20gb"),)),)
    packing = packed(Problem(fleet(A100), workload, here), solver)
    assert packing.score.destroyed == 0
    assert [s.workload for s in packing.standing] == [None, "w0"]
    packing = packed(Problem(fleet(A100), (*workload, Workload("w1", (mig("4g.20gb"),))), here), solver)
    assert (packing.score.destroyed, packing.moved) == (1, ())


@solvers
def test_changed_shape_does_not_count_as_a_move(solver):
    problem = Problem(fleet(A100), wanted("2g.10gb"), today("0 3g.20gb@4 w0"))
    packing = packed(problem, solver)
    assert packing.moved == ()


@needs_or_tools
def test_workload_on_a_forbidden_host_moves():
    workload = Workload("w0", (mig("3g.20gb"),), hosts=frozenset({"host1"}))
    problem = Problem(fleet(A100, A100, per_host=1), (workload,), today("0 3g.20gb@4 w0"))
    assert where(packed(problem, "auto")) == {"w0": [("host1", 0)]}


# -- Large fleets, truncated lists, missing OR-Tools --


@draws(10)
@given(st.data(), st.sampled_from(["MOST_DECISIONS", "MOST_PATTERNS"]))
def test_limits_of_the_search_keep_results_valid(data, limit):
    problem = data.draw(problems())
    with mock.patch.object(cells if limit == "MOST_DECISIONS" else geometry, limit, 2):
        first = packed(problem, "auto")
        packed(data.draw(days_later(first, problem)), "auto")


def test_without_or_tools_the_heuristic_is_used_with_a_note():
    with mock.patch.object(exact, "MISSING", "No module named 'ortools'"):
        packing = packed(Problem(fleet(A100), wanted("3g.20gb")), "auto")
    assert (packing.by, packing.proven, packing.bound) == ("heuristic", True, 1)
    assert "pip install ortools" in packing.notes[0]


def test_or_tools_is_imported_lazily():
    code = (
        "import sys; sys.modules['ortools'] = None\n"
        "from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing import exact, model, pack\n"
        "w = model.Workload('w', (model.mig('3g.20gb'),))\n"
        "print(pack.pack(model.Problem((model.FleetGpu('h', 0, 'A100-40GB'),), (w,))).by)\n"
    )
    root = Path(__file__).parents[4] / "collections"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(root)}, check=False
    )
    assert (done.stdout, done.returncode) == ("heuristic\n", 0), done.stderr


@pytest.mark.slow
@needs_or_tools
def test_result_does_not_depend_on_the_process():
    code = (
        "from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing import model, pack\n"
        "gpus = tuple(model.FleetGpu('h%d' % (n // 2), n % 2, 'A100-40GB') for n in range(8))\n"
        "one, two = model.mig('3g.20gb'), model.mig('2g.10gb')\n"
        "near = [model.Workload('n%d' % n, (one, two), near='x') for n in range(3)]\n"
        "rest = [model.Workload('w%d' % n, (two, one, model.share('vgpu', 99, 9))) for n in range(9)]\n"
        "pair = [model.Workload('pair', (model.WHOLE, one), gpus=2)]\n"
        "print(pack.pack(model.Problem(gpus, (*near, *rest, *pair))))\n"
    )
    path = str(Path(__file__).parents[4] / "collections")
    answers = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": path, "PYTHONHASHSEED": seed},
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    ]
    assert "cp-sat" in answers[0]
    assert len(set(answers)) == 1


@needs_or_tools
def test_thousands_are_counted_by_pattern():
    # A GPU holds a 4g and a 3g, or three 2g, so the fleet needs 300 + 100 GPUs.
    workloads = wanted(*(["4g.20gb", "3g.20gb", "2g.10gb"] * 300))
    packing = packed(Problem(fleet(*[A100] * 900, per_host=8), workloads), "auto")
    assert (packing.score.gpus, packing.proven) == (400, True)


# -- Refusals and messages --


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gpus": fleet(A100) * 2}, ["host0 gpu 0 (A100-40GB)", "listed twice"]),
        ({"gpus": fleet("A100")}, ["model A100", "not in the catalogue"]),
        ({"workloads": wanted("1g.5gb") * 2}, ["workload w0", "listed twice"]),
        ({"workloads": (Workload("w", ()),)}, ["workload w", "no options"]),
        ({"workloads": (Workload("w", (WHOLE,), gpus=0),)}, ["workload w", "0 GPUs"]),
        ({"workloads": (Workload("w", (WHOLE,), within="nvlink"),)}, ["workload w", "'nvlink'", "Did you mean link?"]),
        ({"workloads": (Workload("w", (share("vgpu", 1, 101),)),)}, ["workload w", "101 %"]),
        ({"workloads": (Workload("w", (share("mps", 1, 1),), gpus=2),)}, ["workload w", "its own MPS daemon"]),
        ({"workloads": (Workload("w", (mig(""),)),)}, ["workload w", "without a profile"]),
        ({"rules": Rules(policy="binpak")}, ["rules", "Did you mean binpack?"]),
        ({"rules": Rules(most_moved=-1)}, ["rules", "most_moved"]),
        ({"rules": Rules(reserve_gpus={A100: 2})}, ["rules", "the fleet has 1"]),
        ({"rules": Rules(headroom_memory_percent=100)}, ["rules", "headroom_memory_percent"]),
        ({"today": today("1 3g.20gb@0 w0")}, ["host0 gpu 1", "3g.20gb@0 (w0)", "no such GPU"]),
        ({"today": today("0 3g.20gb@0 w0", "0 2g.10gb@2 -")}, ["host0 gpu 0", "overlap", "2g.10gb@2 (free)"]),
        ({"today": today("0 3g.20gb@2 w0")}, ["host0 gpu 0", "impossible starts"]),
        ({"today": today("0 4g.20gb@0 w0", "0 4g.20gb@0 w1")}, ["host0 gpu 0", "more on it than fits"]),
        ({"today": today("0 1g.5gb@0 w0", "0 1g.5gb@1 w0")}, ["host0 gpu 0", "lists w0 twice"]),
    ],
)
def test_contradictory_problem_is_refused(change, says):
    problem = dataclasses.replace(Problem(fleet(A100), wanted("1g.5gb")), **change)
    with pytest.raises((PackingError, CatalogueError)) as caught:
        pack(problem)
    assert all(word in str(caught.value) for word in says), str(caught.value)
    assert caught.value.cure


@solvers
@pytest.mark.parametrize(
    ("workload", "says"),
    [
        (Workload("w", (mig("3g.40gb"),)), "no GPU of the fleet (A100-40GB) can hold 3g.40gb"),
        (Workload("w", (WHOLE,), hosts=frozenset({"else"})), "none of its allowed hosts (else)"),
        (Workload("w", (WHOLE,), gpus=3), "3 GPUs within one host, which has at most 2"),
        (Workload("w", (WHOLE,), gpus=2, within="numa"), "2 GPUs within one NUMA node, which has at most 1"),
    ],
)
def test_why_a_workload_is_left_out(solver, workload, says):
    gpus = tuple(FleetGpu("h", n, A100, numa_node=n) for n in range(2))
    assert says in packed(Problem(gpus, (workload,)), solver).unplaced["w"]


@solvers
def test_reason_names_empty_gpus_that_do_not_help(solver):
    """Explain why single empty GPUs of three hosts cannot hold a pair."""
    gpus = tuple(FleetGpu("h%d" % (n // 2), n % 2, A100) for n in range(6))
    ones = tuple(Workload("one%d" % n, (WHOLE,), hosts=frozenset({"h%d" % n}), weight=2) for n in range(3))
    places = tuple(Standing("h%d" % n, 0, WHOLE, None, "one%d" % n) for n in range(3))
    packing = packed(Problem(gpus, (*ones, Workload("pair", (WHOLE,), gpus=2, weight=1)), places), solver)
    (reason,) = packing.unplaced.values()
    assert "3 of the 6 GPUs that can hold a whole GPU are empty, but no host has 2 of them" in reason


@solvers
def test_reason_names_reserved_gpus(solver):
    gpus = fleet(A100, A100, A100)
    workloads = tuple(Workload("w%d" % n, (WHOLE,)) for n in range(3))
    packing = packed(Problem(gpus, workloads, rules=Rules(reserve_gpus={A100: 1})), solver)
    (reason,) = packing.unplaced.values()
    assert "no room for a whole GPU is left on the 3 GPUs that can hold it, and 1 of the empty ones is" in reason


def quotas(count, seed=1):
    """Return a problem with room for all of `count` different quotas."""
    rng = random.Random(seed)
    sizes = rng.sample([(mib, percent) for mib in range(2000, 60000, 256) for percent in range(5, 81, 5)], count)
    workloads = tuple(Workload("w%d" % n, (share("vgpu", *size),)) for n, size in enumerate(sizes))
    return Problem(tuple(FleetGpu("h", n, "H100-80GB") for n in range(count)), workloads)


@pytest.mark.parametrize(
    "count", [60, pytest.param(420, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.thorough)]
)
@needs_or_tools
def test_many_different_quotas_have_a_bound(count):
    """Print a bound, although there are too many patterns to list all of them."""
    packing = packed(quotas(count), "auto")
    assert not packing.unplaced
    assert count // 4 < packing.bound <= packing.score.gpus <= packing.bound * 1.1
    assert packing.claim.startswith(("proven optimal", "within "))


@needs_or_tools
@pytest.mark.parametrize("count", [45, 60])
def test_columns_are_not_worse_than_the_heuristic(count):
    problem = quotas(count, seed=count)
    assert packed(problem, "auto").score.gpus <= packed(problem, "heuristic").score.gpus


def test_heuristic_has_a_bound_without_the_search():
    packing = pack(quotas(30), "heuristic")
    assert 0 < packing.bound <= packing.score.gpus
    assert (packing.claim == "proven optimal") == (packing.bound == packing.score.gpus)


def test_wrong_result_is_detected():
    problem = Problem(fleet(A100, A100), wanted("3g.20gb", "3g.20gb"))
    right = pack(problem, "heuristic")
    first, second = right.standing
    wrong = {
        "neither placed nor left out": (first,),
        "the planner refuses it": (first, dataclasses.replace(second, start=first.start)),
        "instead of 1 GPUs": (first, second, dataclasses.replace(second, index=1)),
        "not one of its options": (first, dataclasses.replace(second, shape=mig("2g.10gb"))),
        "the current layout has no": (first, dataclasses.replace(second, new=False)),
        "at once": (first, dataclasses.replace(second, shape=WHOLE, start=None)),
        "GPUs are in use": (first, dataclasses.replace(second, index=1)),
        "no such workload": (first, dataclasses.replace(second, workload="x")),
    }
    for says, standing in wrong.items():
        found = check.problems(problem, dataclasses.replace(right, standing=standing))
        assert any(says in text for text in found), (says, found)


def test_layouts_have_the_documented_form():
    gpus = (*fleet(A100, A100, A100, per_host=8), *(FleetGpu("l40s", n, "L40S-48GB") for n in range(4)))
    workloads = (
        *wanted("7g.40gb"),
        Workload("a", (share("vgpu", 8192, 70),)),
        Workload("pair", (share("vgpu", 4096, 60),), gpus=2),
        Workload("b", (share("mps", 1024, 30),)),
        Workload("c", (share("mps", 2048, 20),)),
    )
    stale = today("2 1g.5gb@0 -", "2 1g.5gb@1 gone")
    problem = Problem(gpus, workloads, stale)
    packing = packed(problem, "heuristic")
    found = layouts(problem, packing)
    everything = [entry for entries in found.values() for entry in entries]
    kinds = sorted(entry["sharing"] for entry in everything)
    assert {"mig", "mps", "vgpu"} <= set(kinds)
    (daemon,) = [entry["mps"] for entry in everything if entry["sharing"] == "mps"]
    assert (daemon["clients"], daemon["active_thread_percentage"]) == (2, 30)
    assert daemon["pinned_memory_limit"] == "2048MiB"
    (spanned,) = [e for e in everything if any(t.get("gpus") for t in e.get("vgpu", {}).get("tenants", ()))]
    assert len(spanned["gpus"]) == 2


def test_mps_clients_count_as_the_largest():
    rules = geometry.geometry("L40S-48GB")
    large, small = share("mps", 30 * 1024, 60), share("mps", 4096, 20)
    assert rules.fits((large,)) and not rules.fits((large, small))
    assert rules.fits((share("vgpu", 30 * 1024, 60), share("vgpu", 4096, 20)))
    assert rules.fits((small,) * 5) and not rules.fits((small,) * 6)


def test_freed_gpu_becomes_exclusive():
    problem = Problem(fleet(A100, A100), (), today("1 1g.5gb@0 gone"))
    assert layouts(problem, pack(problem)) == {"host0": [{"gpus": [1], "sharing": "exclusive"}]}


@needs_or_tools
def test_example_of_the_documentation():
    text = (Path(__file__).parents[4] / "docs" / "packing.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    names: dict = {}
    exec(compile(code, "docs/packing.md", "exec"), names)
    assert "packing.score          # %s" % names["packing"].score in code
    assert names["packing"].proven
    said = code[code.index("# {") :].replace("#", "")
    assert ast.literal_eval(said.strip()) == names["layouts"](names["problem"], names["packing"])


def test_heuristic_fills_gpus_with_matching_profiles():
    """Fill all slices with 4g and 3g, and with 3g and two 2g.

    Best fit would pair the two 3g.
    """
    workloads = wanted(*["4g.20gb"] * 6, *["3g.20gb"] * 12, *["2g.10gb"] * 12)
    packing = packed(Problem(fleet(*[A100] * 16, per_host=8), workloads), "heuristic")
    assert (packing.unplaced, packing.score.gpus, packing.claim) == ({}, 12, "proven optimal")


def test_heuristic_leaves_out_the_fewest_workloads():
    """Prefer many small workloads on a GPU to one large workload."""
    workloads = wanted(*["7g.40gb"] * 4, *["1g.5gb"] * 14, *["3g.20gb"] * 2)
    packing = packed(Problem(fleet(*[A100] * 4, per_host=4), workloads), "heuristic")
    assert packing.score.unplaced == 3


def test_heuristic_combines_many_different_quotas():
    """Combine so many different quotas that their patterns cannot be listed."""
    sizes = [(20_000 + 256 * n, 30 + n % 20) for n in range(50)]
    total = geometry.geometry("H100-80GB").memory_mib
    pairs = [*sizes, *((total - memory, 100 - sms) for memory, sms in sizes)]
    workloads = tuple(Workload("w%03d" % n, (share("vgpu", *size),)) for n, size in enumerate(pairs))
    gpus = tuple(FleetGpu("h", n, "H100-80GB") for n in range(100))
    packing = packed(Problem(gpus, workloads), "heuristic")
    assert not packing.unplaced and packing.score.gpus <= packing.bound * 1.05
