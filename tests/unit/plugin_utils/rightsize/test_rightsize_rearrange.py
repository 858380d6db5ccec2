# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Right-size fleets with limited changes, and with workloads that take turns."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.audit.rightsize_hosts import GIB, gpu, state
from tests.thorough import draws

np = pytest.importorskip("numpy")

from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing import check
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.model import WHOLE, mig, share
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.model import Decision, RightsizeError
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.observed import hosts_today
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.overlay import merged, planned
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.rearrange import Limits, rearrange
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.teams import teams
from ansible_collections.openfleet.gpu.plugins.plugin_utils.sizing.model import Fleet, Policy
from tests.audit.rightsize_fleets import H100, today

# --- Changes ---


def small(gpus, profile="1g.10gb"):
    """Return the decision for each workload to get one small instance."""
    return {one.name: Decision("mig", mig(profile), "small") for each in gpus for one in each.occupants}


def fleet(host, count, free=0):
    rows = [gpu(host, n, H100, "w%d-%s.service" % (n, host)) for n in range(count)]
    return state(*rows, *(gpu(host, n, H100) for n in range(count, count + free)))


def test_single_workload_keeps_its_gpu():
    found = today({"a": fleet("a", 1)})
    assert rearrange(found, small(found), Limits(seconds=60)).answers == ()


def test_workloads_share_one_gpu_of_their_host():
    found = today({"a": fleet("a", 3), "b": fleet("b", 2)})
    done = rearrange(found, small(found), Limits(seconds=60))
    assert {answer.problem.gpus[0].host: answer.saved for answer in done.answers} == {"a": 2, "b": 1}
    for name, standing in done.standing().items():
        assert standing[0].host == name[-1]


def test_with_reach_fleet_they_share_one_gpu_of_the_fleet():
    found = today({"a": fleet("a", 3), "b": fleet("b", 2)})
    (answer,) = rearrange(found, small(found), Limits(reach="fleet", seconds=60)).answers
    assert answer.saved == 4 and len({each[0].key for each in rearrange_standing(answer)}) == 1


def rearrange_standing(answer):
    return [(each,) for each in answer.packing.standing if each.workload]


def test_new_content_goes_to_free_gpus():
    found = today({"a": fleet("a", 2, free=1)})
    (answer,) = rearrange(found, small(found), Limits(seconds=60)).answers
    assert {each.key for each in answer.packing.standing} == {("a", 2)} and answer.saved == 1
    assert not check.problems(answer.problem, answer.packing)


def test_excluded_gpu_gets_no_workload():
    found = list(today({"a": fleet("a", 2, free=1)}))
    found[2] = dataclasses.replace(found[2], left="the fan")
    (answer,) = rearrange(found, small(found), Limits(seconds=60)).answers
    assert {each.key for each in answer.packing.standing} <= {("a", 0), ("a", 1)}


@pytest.mark.parametrize("bound", [0, 1, 2, 3, 4, 5])
def test_moves_are_limited_and_the_rest_is_reported(bound):
    found = today({"a": fleet("a", 3), "b": fleet("b", 2)})
    done = rearrange(found, small(found), Limits(most_moved=bound, seconds=60))
    moved = sum(len(answer.moved) for answer in done.answers)
    assert moved <= bound
    # On each host, two moves free one GPU, and three moves free two GPUs.
    assert sum(answer.saved for answer in done.answers) == {0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 5: 3}[bound]
    assert bool(done.notes) == (len(done.answers) < 2)


def test_existing_instances_are_used_first():
    rows = [gpu("a", n, H100, "w%d.service" % n) for n in range(2)]
    there = gpu("a", 2, H100, instances=[(1, "1g.10gb", 0, None), (2, "1g.10gb", 1, None)])
    found = today({"a": state(*rows, there)})
    done = rearrange(found, small(found), Limits(seconds=60))
    assert {each[0].key for each in done.standing().values()} == {("a", 2)}
    assert done.entries("a") == ([], frozenset()) and done.hosts() == {"a"}


def test_protected_instances_stay():
    rows = [gpu("a", n, H100, instances=[(1, "3g.40gb", 4, "w%d.service" % n)]) for n in range(2)]
    found = today({"a": state(*rows)})
    free = rearrange(found, small(found, "1g.10gb"), Limits(seconds=60))
    assert sum(answer.saved for answer in free.answers) == 1
    none = rearrange(found, small(found, "1g.10gb"), Limits(most_destroyed=0, seconds=60))
    assert sum(answer.destroyed for answer in none.answers) == 0


def test_required_change_is_made_without_savings():
    found = today({"a": fleet("a", 1)}, said={"a": [{"profile": "3g.40gb"}]})
    (answer,) = rearrange(found, small(found, "3g.40gb"), Limits(seconds=60)).answers
    assert answer.saved == 0 and answer.packing.standing[0].shape == mig("3g.40gb")


def test_layouts_refused_by_the_planner_are_not_proposed():
    found = today({"a": fleet("a", 2)})

    def refuse(arrangement, hosts):
        assert hosts == {"a"}
        raise RightsizeError("gpu_layout[0]", "no", "Never mind.")

    done = rearrange(found, small(found), Limits(seconds=60), refuse)
    assert done.answers == () and "a: H100-80GB is unchanged: gpu_layout[0]: no." in done.notes[0]


# --- Workloads that take turns ---


def courses(hours):
    """Return two weeks of workloads that are busy for eight hours a day.

    `hours` has the hour at which each workload starts.
    """
    times = np.arange(0, 14 * 86400, 600)
    of_day = times / 3600 % 24
    duty = [np.where((of_day - start) % 24 < 8, 90.0, 0.0) for start in hours.values()]
    return Fleet.of(list(hours), times, duty, np.full((len(hours), len(times)), 10.0 * GIB), 80.0 * GIB)


def turns(hours, reach="host"):
    found = today({"a": fleet("a", len(hours))})
    names = [one.name for each in found for one in each.occupants]
    decisions = {name: Decision("time_slicing", share("time_slicing", 12288, 100), "") for name in names}
    made = teams(courses(dict(zip(names, hours))), found, decisions, reach, Policy(confidence=0.97))
    return found, decisions, made


def test_workloads_share_a_card_only_if_their_hours_differ():
    found, decisions, made = turns([0, 12, 0])
    (team,) = made.members
    assert "w1-a" in team and len(team) == 2 and set(made.stays) == {"w0-a", "w2-a"} - set(team)
    assert "takes turns with" in made.reasons["w1-a"]
    kept = {name: decisions[name] for name in team}
    done = rearrange(found, kept, Limits(seconds=60), teams=made.members)
    (answer,) = done.answers
    entries, changed = done.entries("a")
    assert answer.saved == 1 and set(answer.moved) == set(team)
    assert [(entry["sharing"], entry["time_slicing"]["replicas"]) for entry in entries] == [("time_slicing", 2)]
    assert len(changed) == 1


def test_no_team_without_savings():
    _found, _decisions, made = turns([0, 0])
    assert made.members == () and all("leave exclusive" in why for why in made.stays.values())


def test_team_beyond_the_limit_of_moves_is_not_made():
    found, decisions, made = turns([0, 12])
    done = rearrange(found, decisions, Limits(most_moved=1, seconds=60), teams=made.members)
    assert done.answers == () and "within the limits" in done.notes[0]


KINDS = st.sampled_from([None, "1g.10gb", "2g.20gb", "3g.40gb", "whole", "vgpu", "mps", "time_slicing"])


@draws(12)
@given(st.lists(KINDS, min_size=1, max_size=5), st.integers(0, 2), st.sampled_from([None, 0, 2]))
def test_any_proposal_keeps_all_workloads_and_is_valid(kinds, free, bound):
    states = {"a": fleet("a", len(kinds), free)}
    found = today(states)
    decisions = {}
    for kind, each in zip(kinds, found):
        if kind is not None:
            shape = WHOLE if kind == "whole" else mig(kind) if kind[0].isdigit() else share(kind, 8192, 20)
            decisions[each.occupants[0].name] = Decision("mig", shape, "")
    done = rearrange(found, decisions, Limits(most_moved=bound, seconds=2))
    for answer in done.answers:
        assert not check.problems(answer.problem, answer.packing)
        assert bound is None or len(answer.moved) <= bound
        assert {each.workload for each in answer.packing.standing} >= {
            one.name for each in found for one in each.occupants
        }
        assert answer.saved > 0
    host = hosts_today(states, {"a": [{"gpus": "all", "sharing": "shared"}]})["a"]
    gpus = host.host.gpus
    entries, changed = done.entries("a")
    layout = merged(host, entries, changed)
    plan, _lines = planned(layout, gpus, "580.65.06")
    # The plan must show each GPU exactly once, with its new content.
    assert sorted(each.gpu.index for each in plan.gpus) == list(range(len(gpus)))
    then = {each.key[1]: [] for each in found}
    for standing in done.standing().values():
        then[standing[0].index] += [standing[0].shape.profile] if standing[0].shape.kind == "mig" else []
    for each in plan.gpus:
        assert sorted(one.profile for one in each.planned()) == sorted(then[each.gpu.index])
