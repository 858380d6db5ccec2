# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan GPUs whose layout entry was removed."""

from __future__ import annotations

import dataclasses
import json

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change.prepare import PlanRequest, make_plan
from ansible_collections.openfleet.gpu.plugins.module_utils.change.unnamed import (
    Applied,
    AppliedRecord,
    Situation,
    decide,
    unnamed_gpus,
    without_service,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError, PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Holder, Host, LostGpu, Process
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.ownership import (
    KEEP,
    RELEASE,
    Ownership,
    owned_instance,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import layout_to_data, parse_layout
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import plan as mps_plan
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.service import MpsService
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import plan as vgpu_plan
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import VgpuSeen
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.service import VgpuService
from tests.unit.mig_rules import with_instances

UUID = "GPU-5c89d3fa-0000-4000-8000-00000000000%d"
GPUS = tuple(dataclasses.replace(gpu, uuid=UUID % gpu.index) for gpu in assumed_gpus(["H100-80GB"] * 4))
DRIVER = "580.105.08"
MPS = {"name": "a", "clients": 4, "active_thread_percentage": 25}


class Daemons(MpsService):
    """Plan MPS daemons with the real rules, on a host where the daemons in `seen` run."""

    def __init__(self, seen):
        super().__init__(True)
        self.seen = tuple(seen)

    def plan(self, request):
        asked = mps_plan.wanted(request.layout, request.plan, DRIVER, self.seen)
        return mps_plan.plan(asked, self.seen, request.plan, request.host, lambda *_: True)


class Tenants(VgpuService):
    """Plan tenants with the real rules, on a host with the tenants in `seen`."""

    def __init__(self, seen):
        super().__init__(True)
        self.seen = tuple(seen)

    def plan(self, request):
        asked = vgpu_plan.wanted(request.layout, request.plan, self.seen)
        return vgpu_plan.plan(asked, self.seen, request.plan, request.host, lambda *_: ())


class Machine:
    """A simulated host that takes on the result of each plan."""

    def __init__(self, gpus=GPUS):
        self.gpus, self.lost = tuple(gpus), ()
        self.daemons, self.tenants = (), ()
        self.applied = Applied()
        self.owned = frozenset()
        self.unlisted = "fail"

    def decide(self, layout, policy=KEEP, **options):
        host = Host(DRIVER, "13.580", "13.0", True, self.gpus, self.lost)
        services = (Daemons(self.daemons), Tenants(self.tenants))
        ownership = Ownership(self.unlisted, self.owned)
        situation = Situation(
            parse_layout(layout), host, ownership, {each.key: each.seen for each in services}, self.applied
        )

        def make(parsed):
            return make_plan(parsed, host, ownership, PlanRequest(), services)

        return decide(situation, policy, make, make, **options)

    def apply(self, layout, policy=KEEP):
        found = self.decide(layout, policy)
        after = {each.gpu.uuid: planned(each) for each in found.plan.gpus}
        self.gpus = tuple(after.get(gpu.uuid, gpu) for gpu in self.gpus)
        here = {gpu.uuid for gpu in self.gpus}
        absent = {each for each in self.owned if each.gpu_uuid not in here}
        self.owned = frozenset({owned_instance(gpu, i) for gpu in self.gpus for i in gpu.mig.instances} | absent)
        parts = {part.key: part for part in found.plan.parts}
        self.daemons = self._left(self.daemons, parts["mps"], daemon_gpus)
        self.tenants = self._left(self.tenants, parts["vgpu"], lambda one: one.tenant.gpus)
        self.applied = found.applied
        return found

    def _left(self, seen, part, gpus_of):
        """Return the daemons or tenants that exist after the plan was applied.

        Those without a step stay.
        """
        gone = {step.seen for step in part.steps if hasattr(step, "seen")}
        coming = list(part.planned())
        names = {str(one.daemon.name if hasattr(one, "daemon") else one.tenant.name) for one in coming}
        others = [
            one
            for one in seen
            if one not in gone and str(one.daemon.name if hasattr(one, "daemon") else one.tenant.name) not in names
        ]
        by_uuid = {gpu.uuid: gpu for gpu in self.gpus}
        return tuple(running(one, by_uuid) for one in (*others, *coming))

    def reboot(self):
        self.gpus = tuple(
            dataclasses.replace(gpu.with_instances((), False), compute_mode="default", settings={}) for gpu in self.gpus
        )
        self.daemons = tuple(dataclasses.replace(one, running=False) for one in self.daemons)

    def recorded(self):
        return layout_to_data(parse_layout(self.applied.to_data()["gpu_layout"]))


def daemon_gpus(one):
    return [place.gpu_uuid for place in one.daemon.places]


def running(one, gpus):
    if isinstance(one, VgpuSeen):
        return one
    found = mps_plan.devices(one.daemon, gpus.values())
    return dataclasses.replace(one, devices=found or (), active_thread_percentage=one.daemon.active_thread_percentage)


def planned(plan):
    """Return the GPU as it is after its plan was applied."""
    mode = plan.target.settings.get("compute_mode") or "default"
    if plan.target.division is None:
        return dataclasses.replace(plan.gpu.with_instances((), False), compute_mode=mode)
    return divided(plan.gpu, *((wanted.profile, wanted.start) for wanted in plan.planned()))


def divided(gpu, *places):
    """Return the GPU in MIG mode, with an instance at each of these places.

    A place is (profile, start).
    """
    empty = gpu.with_instances((), True)
    profiles = {profile.name: profile for profile in gpu.mig.profiles}
    sized = [
        (name, next(place for place in profiles[name].placements if place.start == start)) for name, start in places
    ]
    made = with_instances(empty, sized).mig.instances
    named = tuple(
        dataclasses.replace(
            each,
            compute_instances=tuple(
                dataclasses.replace(part, mig_uuid="MIG-%s-%d-%d" % (gpu.uuid, each.placement.start, part.id))
                for part in each.compute_instances
            ),
        )
        for each in made
    )
    return dataclasses.replace(gpu.with_instances(named, True), compute_mode=None)


def mig(gpus, *profiles):
    return {"gpus": gpus, "sharing": "mig", "mig": [{"profile": profile} for profile in profiles]}


def mps(gpus, **changes):
    return {"gpus": gpus, "sharing": "mps", "mps": dict(MPS, **changes)}


def vgpu(gpus, *tenants):
    return {"gpus": gpus, "sharing": "vgpu", "vgpu": {"tenants": list(tenants)}}


def tenant(name, **more):
    return dict({"name": name, "memory": "30GiB", "sm_percent": 40}, **more)


def names(machine):
    return {one.daemon.name: one.running for one in machine.daemons}


@pytest.fixture(name="machine")
def of_four_gpus():
    return Machine()


def actions(found):
    return {each.index: each.action for each in found.unmanaged}


def test_layout_with_all_recorded_gpus_has_no_unmanaged_ones(machine):
    found = machine.apply([mig([0, 1], "3g.40gb", "1g.10gb")])
    assert found.unmanaged == () and machine.apply([mig([0, 1], "3g.40gb", "1g.10gb")]).unmanaged == ()
    assert [entry["gpus"] for entry in machine.recorded()] == [[UUID % 0, UUID % 1]]


def test_instances_are_restored_at_their_placement(machine):
    machine.apply([mig([0, 1], "1g.10gb", "3g.40gb")])
    places = [(i.profile, i.placement) for i in machine.gpus[1].mig.instances]
    assert actions(machine.apply([mig([0], "1g.10gb")])) == {1: "keep"}
    assert not machine.apply([]).plan.changes
    machine.reboot()
    assert actions(machine.apply([])) == {0: "restore", 1: "restore"}
    assert [(i.profile, i.placement) for i in machine.gpus[1].mig.instances] == places
    assert not machine.apply([]).plan.changes


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ([mps([0, 1])], [], ["a-gpu0", "a-gpu1"]),
        ([mps([1])], [], ["a"]),
        ([mps([0, 1, 2])], [mps([0, 2])], ["a-gpu1"]),
        ([mps([0, 1, 2], daemon_per="entry")], [], ["a"]),
        (
            [{"gpus": [0, 1], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2, "mps": dict(MPS)}]}],
            [],
            ["a-gpu0-0", "a-gpu0-4", "a-gpu1-0", "a-gpu1-4"],
        ),
    ],
)
def test_daemons_keep_their_names_over_a_reboot(machine, before, after, kept):
    machine.apply(before)
    machine.apply(after)
    assert set(kept) <= set(names(machine)), names(machine)
    machine.reboot()
    assert not any(names(machine).values())
    found = machine.apply(after)
    assert all(names(machine)[name] for name in kept) and set(actions(found).values()) == {"restore"}
    assert not machine.apply(after).plan.changes


def test_a_daemon_keeps_its_name_when_the_index_changes(machine):
    machine.apply([mps([0, 1])])
    machine.apply([mps([0])])
    machine.reboot()
    machine.gpus = (
        dataclasses.replace(machine.gpus[1], index=0),
        *(dataclasses.replace(gpu, index=gpu.index - 1) for gpu in machine.gpus[2:]),
    )
    machine.apply([])
    assert names(machine)["a-gpu1"]


def test_daemon_with_a_name_of_the_layout_is_not_kept(machine):
    machine.apply([mps([1])])
    found = machine.apply([mps([2])])
    assert {"gpus": [UUID % 1], "sharing": "exclusive"} in machine.recorded()
    machine.reboot()
    found = machine.apply([mps([2])])
    assert actions(found) == {1: "restore"} and names(machine) == {"a": True}
    assert machine.gpus[1].compute_mode == "exclusive_process"


def test_daemon_for_several_gpus_keeps_those_without_an_entry(machine):
    machine.apply([mps([0, 1, 2], daemon_per="entry")])
    after = [{"gpus": [0], "sharing": "shared"}]
    machine.apply(after)
    assert daemon_gpus(machine.daemons[0]) == [UUID % 1, UUID % 2]
    machine.reboot()
    machine.apply(after)
    assert names(machine) == {"a": True} and machine.gpus[0].compute_mode == "default"


def test_unaffected_tenants_are_kept(machine):
    machine.apply([vgpu([0, 1], tenant("x", gpu=0), tenant("y", gpu=1), tenant("z", gpu=1))])
    machine.apply([{"gpus": [0], "sharing": "exclusive"}])
    assert sorted(one.tenant.name for one in machine.tenants) == ["y", "z"]
    entry = next(entry for entry in machine.recorded() if entry["sharing"] == "vgpu")
    assert entry["gpus"] == [UUID % 1] and [each["name"] for each in entry["vgpu"]["tenants"]] == ["y", "z"]
    machine.apply([vgpu([2], tenant("y"))])
    entry = next(entry for entry in machine.recorded() if UUID % 1 in entry["gpus"])
    assert [each["name"] for each in entry["vgpu"]["tenants"]] == ["z"]


def test_tenant_that_loses_a_gpu_is_not_kept(machine):
    machine.apply([vgpu([0, 1], tenant("x", gpus=2), tenant("y", gpu=1))])
    machine.apply([{"gpus": [0], "sharing": "shared"}])
    entry = next(entry for entry in machine.recorded() if UUID % 1 in entry["gpus"])
    assert [each["name"] for each in entry["vgpu"]["tenants"]] == ["y"]


def test_gpu_changed_by_another_tool_is_not_touched(machine):
    machine.apply([mig([0], "3g.40gb", "3g.40gb"), {"gpus": [1], "sharing": "exclusive"}])
    machine.gpus = (
        divided(machine.gpus[0], ("7g.80gb", 0)),
        dataclasses.replace(machine.gpus[1], compute_mode="prohibited"),
        *machine.gpus[2:],
    )
    found = machine.decide([{"gpus": [2], "sharing": "exclusive"}])
    assert actions(found) == {0: "leave", 1: "leave"}
    assert {each.gpu.index for each in found.plan.gpus} == {2}
    assert "has mig (7g.80gb@0) instead of mig (3g.40gb@0, 3g.40gb@4), left as it is" in found.unmanaged[0].text


def busy(gpu):
    process = Process(4711, "compute", "train")
    holder = Holder(gpu.uuid, None, "process", "pid 4711 (train)", 4711)
    return dataclasses.replace(gpu, processes=(process,), held_by=(holder,))


def test_busy_gpu_is_not_restored_and_blocks_no_other(machine):
    machine.apply([mig([0], "3g.40gb"), mig([1], "3g.40gb")])
    machine.reboot()
    machine.gpus = (machine.gpus[0], busy(machine.gpus[1]), *machine.gpus[2:])
    found = machine.decide([mig([0], "3g.40gb")])
    assert actions(found) == {1: "leave"} and not found.plan.disturbs
    assert [each.gpu.index for each in found.plan.gpus if each.steps] == [0]
    assert "gpu 1" in found.warnings[0] and "is in use" in found.warnings[0]
    # The GPU stays in the record of applied GPUs, so the next boot tries again.
    assert UUID % 1 in json.dumps(found.applied.to_data())


def test_busy_released_gpu_blocks_like_any_change(machine):
    machine.apply([mig([0], "3g.40gb")])
    instance = machine.gpus[0].mig.instances[0]
    holder = Holder(machine.gpus[0].uuid, instance.id, "process", "pid 4711 (train)", 4711)
    machine.gpus = (
        machine.gpus[0].with_instances((dataclasses.replace(instance, held_by=(holder,)),), True),
        *machine.gpus[1:],
    )
    assert machine.decide([], RELEASE).plan.disturbs and not machine.decide([], KEEP).plan.disturbs


def test_unrestorable_state_is_a_warning(machine):
    machine.apply([mig([1], "3g.40gb")])
    machine.reboot()
    whole = dataclasses.replace(machine.gpus[1], mig=dataclasses.replace(machine.gpus[1].mig, profiles=()))
    machine.gpus = (machine.gpus[0], whole, *machine.gpus[2:])
    found = machine.decide([{"gpus": [0], "sharing": "exclusive"}])
    assert actions(found) == {1: "leave"} and "does not report the MIG profiles" in found.warnings[0]
    assert found.plan.changes


def test_without_permission_to_restore_only_the_layout_is_planned(machine):
    machine.apply([mig([0, 1], "3g.40gb")])
    machine.reboot()
    found = machine.decide([mig([0], "3g.40gb")], restore=False)
    assert actions(found) == {1: "leave"} and [each.gpu.index for each in found.plan.gpus] == [0]
    assert machine.decide([mig([0], "3g.40gb")]).restores


def test_release_removes_everything_and_the_record(machine):
    machine.apply([mig([0], "3g.40gb"), mps([1]), {"gpus": [2], "sharing": "exclusive"}, vgpu([3], tenant("x"))])
    found = machine.decide([], RELEASE)
    assert set(actions(found).values()) == {"release"} and found.plan.counts()["destroy"] == 1
    machine.apply([], RELEASE)
    assert all(not gpu.mig.enabled and gpu.compute_mode == "default" for gpu in machine.gpus)
    assert (machine.daemons, machine.tenants, machine.recorded()) == ((), (), [])
    again = machine.apply([], RELEASE)
    assert again.unmanaged == () and not again.plan.gpus


@pytest.mark.parametrize("policy", ["fail", "keep", "remove"])
def test_release_keeps_foreign_instances_to_their_policy(machine, policy):
    machine.apply([mig([0], "3g.40gb")])
    both = divided(machine.gpus[0], ("1g.10gb", 0), ("3g.40gb", 4))
    machine.gpus = (both, *machine.gpus[1:])
    machine.owned = frozenset(owned_instance(both, i) for i in both.mig.instances if i.profile == "3g.40gb")
    machine.unlisted = policy
    if policy == "fail":
        with pytest.raises(PlanError, match="did not create"):
            machine.decide([], RELEASE)
        return
    (plan,) = machine.decide([], RELEASE).plan.gpus
    assert (plan.target.division is not None) is (policy == "keep")
    assert [i.profile for i in plan.left] == (["1g.10gb"] if policy == "keep" else [])


def test_record_of_a_missing_gpu_stays_until_released(machine):
    machine.apply([mig([0, 1], "3g.40gb")])
    machine.gpus = machine.gpus[:1]
    kept = machine.decide([])
    assert actions(kept) == {0: "keep"} and UUID % 1 in json.dumps(kept.applied.to_data())
    assert UUID % 1 not in json.dumps(machine.decide([], RELEASE).applied.to_data())


@pytest.mark.parametrize("uuid", [None, UUID % 1])
def test_lost_gpu_is_released_when_it_works(machine, uuid):
    machine.apply([mig([0, 1], "3g.40gb")])
    whole, machine.gpus = machine.gpus, machine.gpus[:1]
    machine.lost = (LostGpu(1, "GPU is lost", uuid),)
    machine.apply([], RELEASE)
    assert [entry["gpus"] for entry in machine.recorded()] == [[UUID % 1]]
    machine.gpus, machine.lost = (machine.gpus[0], whole[1]), ()
    assert actions(machine.apply([], RELEASE)) == {1: "release"} and machine.recorded() == []


def test_a_state_directory_of_an_earlier_release_is_completed(machine):
    machine.apply([mig([0], "3g.40gb"), mps([1]), vgpu([2], tenant("x"))])
    machine.applied = Applied()
    assert actions(machine.decide([])) == {0: "keep", 1: "keep", 2: "keep"}
    machine.owned = frozenset()
    assert actions(machine.decide([])) == {1: "keep", 2: "keep"}


def test_record_without_a_service_restores_nothing(machine):
    machine.apply([mps([0]), vgpu([1], tenant("x"))])
    data = without_service(without_service(machine.applied, "mps"), "vgpu").to_data()["gpu_layout"]
    assert data == [{"gpus": [UUID % 0], "sharing": "exclusive"}, {"gpus": [UUID % 1], "sharing": "shared"}]


def test_reports_name_gpus_that_no_selector_matches(machine):
    machine.apply([mig([0], "3g.40gb", "3g.40gb"), mps([1])])
    host = Host(DRIVER, "13.580", "13.0", True, machine.gpus)
    seen = {"mps": machine.daemons}
    named = unnamed_gpus(parse_layout([mig([0], "3g.40gb")]), host, machine.applied, seen)
    assert [(each.index, each.current, each.services) for each in named] == [(1, "mps (a)", ("mps",))]
    assert unnamed_gpus(parse_layout([{"gpus": "all", "sharing": "shared"}]), host, machine.applied, seen) == ()


def test_record_is_read_completely_or_refused(machine, tmp_path):
    record = AppliedRecord(str(tmp_path))
    assert record.read() == Applied() and record.read().entries is None
    record.write({"schema": 1, "gpu_layout": []})
    assert not record.path.exists()
    found = machine.apply([mig([0], "3g.40gb")])
    record.write(found.applied.to_data())
    assert record.read().to_data() == found.applied.to_data()
    record.path.write_text('{"schema": 1, "gpu_layout": [{"gpus": [0]}]}')
    with pytest.raises(ApplyError, match="damaged"):
        record.read()
