# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan which MPS daemons of a layout continue, get new limits, stop or start."""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change import planner
from ansible_collections.openfleet.gpu.plugins.module_utils.change.targets import targets
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Host, Placement
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import plan as mps_plan
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.model import (
    MpsClient,
    MpsDaemon,
    MpsPlace,
    MpsSeen,
)
from tests.unit.mig_rules import with_instances

GIB = 1 << 30
H100 = assumed_gpus(["H100-80GB", "H100-80GB", "H100-80GB"])
QUARTER = {"name": "a", "clients": 4, "active_thread_percentage": 25}


def mps(gpus, **changes):
    return {"gpus": gpus, "sharing": "mps", "mps": dict(QUARTER, **changes)}


def shared(gpus):
    return {"gpus": gpus, "sharing": "shared"}


def planned(layout, gpus=H100, seen=(), adjustable=True):
    """Return the wanted daemons, and the part of the plan that changes daemons."""
    layout = parse_layout(layout)
    plan = planner.plan(gpus, targets(layout, gpus))
    wanted = mps_plan.wanted(layout, plan, "580.105.08", seen)
    host = Host("580.105.08", "12.580", "13.0", True, tuple(gpus))
    return wanted, mps_plan.plan(wanted, seen, plan, host, lambda *_: adjustable)


def wants(layout, gpus=H100):
    return {each.daemon.name: each.daemon for each in planned(layout, gpus)[0]}


def refused(layout, gpus=H100):
    with pytest.raises(PlanError) as error:
        planned(layout, gpus)
    return str(error.value)


def served(gpu):
    """Return the GPU in the state that it has while a daemon runs on it."""
    return dataclasses.replace(gpu, compute_mode="exclusive_process")


def running(daemon, devices, **changes):
    """Return the daemon as observed while it runs with its own settings."""
    limits = (daemon.pinned_memory_limit_bytes,) * len(devices)
    seen = MpsSeen(daemon, tuple(devices), True, 41, (42,), (), daemon.active_thread_percentage, limits)
    return dataclasses.replace(seen, **changes)


def lines(layout, gpus=H100, seen=(), adjustable=True):
    return planned(layout, gpus, seen, adjustable)[1].lines()


CLIENT = MpsClient(77, 42, "python3 serve.py", "alice")
A = MpsDaemon("a", (MpsPlace(H100[0].uuid),), 4, 25)
SERVED = (served(H100[0]), *H100[1:])
RUNNING = running(A, [H100[0].uuid])


# ---------------------------------------------------------------------- daemons of a layout


def test_one_gpu_has_a_daemon_of_this_name():
    assert wants([mps([1], pinned_memory_limit="18GiB")]) == {
        "a": MpsDaemon("a", (MpsPlace(H100[1].uuid),), 4, 25, 18 * GIB)
    }


def test_several_gpus_have_one_daemon_each():
    assert {name: d.places for name, d in wants([mps([0, 2])]).items()} == {
        "a-gpu0": (MpsPlace(H100[0].uuid),),
        "a-gpu2": (MpsPlace(H100[2].uuid),),
    }


def test_several_gpus_can_have_one_daemon():
    assert wants([mps([0, 2], daemon_per="entry")])["a"].places == (MpsPlace(H100[0].uuid), MpsPlace(H100[2].uuid))


def test_instance_has_its_own_daemon():
    layout = [
        {
            "gpus": [0],
            "sharing": "mig",
            "mig": [
                {"profile": "1g.10gb", "placement": 6, "mps": dict(QUARTER, name="top")},
                {"profile": "1g.10gb", "count": 2, "mps": QUARTER},
                {"profile": "3g.40gb"},
            ],
        }
    ]
    found = wants(layout)
    tops = {name: [(place.profile, place.start) for place in daemon.places] for name, daemon in found.items()}
    assert tops.pop("top") == [("1g.10gb", 6)]
    assert len(tops) == 2
    for name, [(profile, start)] in tops.items():
        assert (name, profile) == (f"a-gpu0-{start}", "1g.10gb")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"clients": 49, "active_thread_percentage": 2}, "it has 49 clients, but MPS supports only 48 on this GPU"),
        ({"pinned_memory_limit": "21GiB"}, "4 clients of 21GiB each exceed its memory of "),
        ({"pinned_memory_limit": "90GiB", "oversubscribe": True}, "a limit of 90GiB exceeds its memory of "),
    ],
)
def test_impossible_limits_are_refused(changes, problem):
    assert problem in refused([mps([0], **changes)])
    assert "gpu_layout[0].mps on gpu 0" in refused([mps([0], **changes)])


def test_memory_can_be_oversubscribed_on_request():
    assert wants([mps([0], pinned_memory_limit="60GiB", oversubscribe=True)])


def test_instance_has_less_memory():
    part = {"profile": "1g.10gb", "mps": dict(QUARTER, pinned_memory_limit="3GiB")}
    assert "4 clients of 3GiB each" in refused([{"gpus": [0], "sharing": "mig", "mig": [part]}])


def part_names(*parts, gpus=(0,)):
    found = wants([{"gpus": list(gpus), "sharing": "mig", "mig": list(parts)}])
    return {name: (d.places[0].profile, d.places[0].start) for name, d in found.items()}


def test_a_daemon_leaves_a_pinned_instance_to_its_own_part():
    pinned = {"profile": "1g.10gb", "placement": 0}
    (start,) = {
        start for _name, (_profile, start) in part_names(pinned, {"profile": "1g.10gb", "mps": QUARTER}).items()
    }
    assert start != 0


@pytest.mark.parametrize("order", [1, -1])
def test_a_daemon_leaves_a_split_instance_to_its_own_part(order):
    split = {"profile": "3g.40gb", "compute_instances": ["1c.3g.40gb", "2c.3g.40gb"]}
    parts = [split, {"profile": "3g.40gb", "mps": QUARTER}][::order]
    plan = planner.plan(H100, targets(parse_layout([{"gpus": [0], "sharing": "mig", "mig": parts}]), H100))
    whole = next(i.start for i in plan.gpus[0].planned() if i.compute_slices == (3,))
    assert part_names(*parts) == {"a": ("3g.40gb", whole)}


def test_names_are_those_of_the_layout_whatever_the_host_has():
    assert set(wants([{"gpus": "all", "sharing": "mps", "mps": QUARTER}], H100[:1])) == {"a-gpu0"}
    assert set(wants([mps([{"model": "H100*"}])], H100[:1])) == {"a-gpu0"}
    assert set(part_names({"profile": "3g.40gb", "mps": QUARTER}, gpus=[0, 1])) == {"a-gpu0-4", "a-gpu1-4"}


def test_a_split_instance_is_several_devices():
    part = {"profile": "3g.40gb", "compute_instances": ["1c.3g.40gb", "2c.3g.40gb"], "mps": QUARTER}
    assert "a daemon serves only one" in refused([{"gpus": [0], "sharing": "mig", "mig": [part]}])


def test_duplicate_daemon_name_is_refused():
    assert "would have the same name" in refused([mps([0, 1]), mps([2], name="a-gpu0")])


def test_clients_of_old_gpus_cannot_be_limited():
    old = dataclasses.replace(H100[0], compute_capability="6.1")
    assert "before Volta" in refused([mps([0])], [old])


# ---------------------------------------------------------------------- changes of running daemons


def test_missing_daemon_starts():
    assert lines([mps([0])]) == ["mps a: start (4 clients of 25 %) on gpu 0"]


def test_matching_daemon_is_kept():
    wanted, plan = planned([mps([0])], SERVED, [RUNNING])
    assert plan.steps == ()
    assert plan.kept == (RUNNING,)
    assert wanted[0].daemon == A


@pytest.mark.parametrize(
    "drift",
    [
        {"active_thread_percentage": 100.0},
        {"pinned_memory_limits_bytes": (GIB,)},
        {"outdated": ("/etc/cdi/openfleet-mps-a.json",)},
    ],
)
def test_changed_settings_are_applied_at_runtime(drift):
    plan = planned([mps([0])], SERVED, [dataclasses.replace(RUNNING, clients=(CLIENT,), **drift)])[1]
    assert [step.daemon for step in plan.adjusts] == [A]
    assert (plan.stops, plan.starts, plan.disturbs) == ((), (), ())


def test_limits_that_need_a_restart_disturb_clients():
    seen = [dataclasses.replace(RUNNING, clients=(CLIENT,))]
    plan = planned([mps([0], active_thread_percentage=20)], SERVED, seen, adjustable=False)[1]
    assert plan.lines() == ["mps a: stop on gpu 0, start (4 clients of 20 %) on gpu 0"]
    assert [str(d) for d in plan.disturbs] == [
        "mps a on gpu 0 (its daemon would stop) is in use by pid 77 (python3 serve.py, user alice), its client"
    ]
    assert plan.disturbs[0].who[0].pid == 77


def test_unconfirmed_client_is_named_but_not_ended():
    told = dataclasses.replace(CLIENT, attested=False)
    seen = dataclasses.replace(RUNNING, clients=(told,))
    (disturbance,) = planned([shared([0])], SERVED, [seen])[1].disturbs
    (who,) = disturbance.who
    assert who.pid is None
    assert str(who) == (
        "pid 77 (python3 serve.py, user alice), its client only according to the server 42, so it is not ended"
    )
    # An unconfirmed client may not belong to the daemon, so it counts as a separate holder.
    assert mps_plan.serves([seen])[H100[0].uuid] == {41, 42}
    assert mps_plan.serves([dataclasses.replace(RUNNING, clients=(CLIENT,))])[H100[0].uuid] == {41, 42, 77}


def test_without_clients_nothing_is_disturbed():
    plan = planned([shared([0])], SERVED, [RUNNING])[1]
    assert plan.lines() == ["mps a: stop on gpu 0"]
    assert plan.stops[0].forget
    assert plan.disturbs == ()


def test_unresponsive_daemon_may_have_clients():
    plan = planned(
        [shared([0])],
        SERVED,
        [dataclasses.replace(RUNNING, problem="no answer within 10 s", active_thread_percentage=None)],
    )[1]
    assert "no answer within 10 s" in str(plan.disturbs[0])
    assert plan.disturbs[0].who[0].kind == "unknown"


def test_daemon_of_a_replaced_program_restarts_and_its_clients_count():
    seen = [dataclasses.replace(RUNNING, problem="its program was replaced", clients=(CLIENT,))]
    plan = planned([mps([0])], SERVED, seen)[1]
    assert plan.lines() == ["mps a: stop on gpu 0, start (4 clients of 25 %) on gpu 0"]
    assert [holder.pid for holder in plan.disturbs[0].who] == [77]


def test_a_dead_daemon_is_started_again():
    plan = planned([mps([0])], SERVED, [dataclasses.replace(RUNNING, running=False, pid=None, problem="failed")])[1]
    assert plan.lines() == ["mps a: start (4 clients of 25 %) on gpu 0"]
    assert plan.disturbs == ()


def test_daemon_on_a_gpu_without_an_entry_is_kept():
    assert lines([shared([1])], SERVED, [RUNNING]) == []


def test_moving_daemon_stops_first():
    plan = planned([mps([1])], SERVED, [RUNNING])[1]
    assert plan.lines() == ["mps a: stop on gpu 0, start (4 clients of 25 %) on gpu 1"]
    assert not plan.stops[0].forget


def test_a_gpu_that_gets_mig_loses_its_daemon_first():
    layout = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "mps": QUARTER}]}]
    plan = planned(layout, SERVED, [dataclasses.replace(RUNNING, clients=(CLIENT,))])[1]
    assert [step.name for step in plan.stops] == ["a"]
    assert plan.starts[0].daemon.places[0].profile == "3g.40gb"
    assert plan.disturbs


def named(gpu):
    """Return the GPU, with UUIDs for its MIG devices."""
    instances = [
        dataclasses.replace(
            i, compute_instances=tuple(dataclasses.replace(c, mig_uuid=f"MIG-{i.id}") for c in i.compute_instances)
        )
        for i in gpu.mig.instances
    ]
    return dataclasses.replace(gpu, mig=dataclasses.replace(gpu.mig, instances=tuple(instances)))


TENS = named(with_instances(H100[0], [("1g.10gb", Placement(start, 1)) for start in range(3)]))
SECOND = MpsDaemon("a", (MpsPlace(H100[0].uuid, "1g.10gb", 1),), 4, 25)


def device(gpu, start):
    return next(i for i in gpu.mig.instances if i.placement.start == start).compute_instances[0].mig_uuid


def ten(count, *others, **part):
    return [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": count, **part}, *others]}]


def test_daemon_keeps_its_instance_among_equal_ones():
    seen = [running(SECOND, [device(TENS, 1)], clients=(CLIENT,))]
    layout = ten(1, {"profile": "1g.10gb", "count": 2}, mps=QUARTER)
    assert lines(layout, [TENS], seen) == []


def test_daemon_with_a_longer_name_keeps_its_instance():
    longer = dataclasses.replace(SECOND, name="ab", places=(MpsPlace(H100[0].uuid, "1g.10gb", 0),))
    seen = [running(longer, [device(TENS, 0)], clients=(CLIENT,))]
    parts = [{"profile": "1g.10gb", "mps": QUARTER}, {"profile": "1g.10gb", "mps": dict(QUARTER, name="ab")}]
    layout = [{"gpus": [0], "sharing": "mig", "mig": [*parts, {"profile": "1g.10gb"}]}]
    assert lines(layout, [TENS], seen) == ["mps a: start (4 clients of 25 %) on 1g.10gb@1 of gpu 0"]


def test_daemon_of_a_recreated_instance_restarts():
    seen = [running(SECOND, ["MIG-of-an-instance-that-is-gone"])]
    layout = ten(1, {"profile": "1g.10gb", "count": 2}, mps=QUARTER)
    assert lines(layout, [TENS], seen) == [
        "mps a: stop on 1g.10gb@1 of gpu 0, start (4 clients of 25 %) on 1g.10gb@1 of gpu 0"
    ]


def test_devices_are_the_existing_ones():
    assert mps_plan.devices(SECOND, [TENS]) == (device(TENS, 1),)
    assert mps_plan.devices(SECOND, H100) is None
    assert mps_plan.devices(A, H100) == (H100[0].uuid,)
    assert mps_plan.devices(A, [TENS]) is None


def test_the_processes_of_daemons_are_known_by_gpu():
    pair = MpsDaemon("b", (MpsPlace(H100[1].uuid), MpsPlace(H100[2].uuid)), 2, 50)
    seen = [dataclasses.replace(RUNNING, clients=(CLIENT,)), running(pair, ["x", "y"], pid=51, server_pids=())]
    assert mps_plan.serves(seen) == {
        H100[0].uuid: frozenset({41, 42, 77}),
        H100[1].uuid: frozenset({51}),
        H100[2].uuid: frozenset({51}),
    }
    assert mps_plan.serves(seen, clients=False)[H100[0].uuid] == frozenset({41, 42})


def test_steps_as_data_do_not_depend_on_processes():
    stopped = dataclasses.replace(RUNNING, running=False, active_thread_percentage=None)
    first, again = (planned([shared([0])], SERVED, [seen])[1] for seen in (RUNNING, stopped))
    assert first.lines() != again.lines()
    assert first.to_data() == again.to_data() == [{"step": "StopMps", "name": "a", "forget": True}]


# ---------------------------------------------------------------------- for tenants


def tenants(*names, **more):
    quotas = [{"name": name, "memory": "8GiB", "sm_percent": 20} for name in names]
    return {"gpus": [0, 1], "sharing": "vgpu", "vgpu": dict(more, tenants=quotas)}


def test_tenants_of_mps_have_a_daemon_for_each_gpu():
    wanted, plan = planned([tenants("a", "b", provider="mps")])
    assert [each.daemon for each in wanted] == [
        MpsDaemon("vgpu-%s" % gpu.uuid, (MpsPlace(gpu.uuid),), 2, 100) for gpu in H100[:2]
    ]
    assert {each.compute_mode for each in wanted} == {"default"}
    assert plan.lines() == ["mps vgpu-%s: start (2 clients of 100 %%) on gpu %d" % (g.uuid, g.index) for g in H100[:2]]
    # A new tenant becomes a client of the daemon that runs already.
    seen = [running(each.daemon, [each.daemon.places[0].gpu_uuid]) for each in wanted]
    more = planned([tenants("a", "b", "c", provider="mps")], seen=seen)[1]
    assert [type(step).__name__ for step in more.steps] == ["AdjustMps", "AdjustMps"]


def test_other_tenants_have_no_daemon():
    assert wants([tenants("a")]) == {}


def test_more_tenants_than_mps_has_clients_are_refused():
    names = ["t%d" % n for n in range(49)]
    layout = tenants(*names, provider="mps", oversubscribe={"sm": 10.0, "memory": 10.0})
    assert "it has 49 clients, but MPS supports only 48 on this GPU" in refused([layout])
