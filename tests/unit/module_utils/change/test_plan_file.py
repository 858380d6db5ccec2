# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply a saved plan unchanged, or refuse it if something has changed.

The error names the change.
"""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.openfleet.gpu.plugins.filter.fleet_plan import fleet_plan
from ansible_collections.openfleet.gpu.plugins.filter.host_plan import host_plan
from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import load_models
from ansible_collections.openfleet.gpu.plugins.module_utils.change import plan_file, planner
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Host, Placement
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.gpu_plan import Target
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.divider import (
    MigDivision,
    WantedInstance,
)
from tests.thorough import draws
from tests.unit.mig_rules import Card, legal, with_instances

MODELS = load_models()
MIG_MODELS = [key for key, model in MODELS.items() if model.mig_capable]


def host_of(*gpus):
    return Host("580.105.08", "12.580.105.08", "13.0", True, gpus)


def target(gpu, *names, splits=()):
    wanted = [WantedInstance(name) for name in names]
    wanted += [WantedInstance(name, None, slices) for name, slices in splits]
    return Target(gpu.uuid, "gpu_layout[0]", "mig", MigDivision(tuple(wanted)))


def through_json(value):
    return json.loads(json.dumps(value))


def save(gpu, wanted, ownership=planner.ALL_OURS):
    plan = planner.plan([gpu], [wanted], ownership)
    return plan, through_json(plan_file.save(plan, host_of(gpu)))


def restore(saved, gpu, wanted, ownership=planner.ALL_OURS):
    return plan_file.restore(saved, host_of(gpu), [wanted], ownership)


@st.composite
def situations(draw):
    """Generate (GPU in a valid state, target that fits an empty GPU of its model).

    Some instances of the GPU are in use.
    """
    gpu = assumed_gpus([draw(st.sampled_from(MIG_MODELS))], MODELS)[0]
    pairs = [(p.name, placement) for p in gpu.mig.profiles for placement in p.placements]
    slices = {p.name: p.compute_slices for p in gpu.mig.profiles}

    def grow(chosen):
        kept = []
        for pair in chosen:
            if legal(gpu, [*kept, pair]):
                kept.append(pair)
        return kept

    have = grow(draw(st.lists(st.sampled_from(pairs), max_size=8)))
    names = [name for name, _ in grow(draw(st.lists(st.sampled_from(pairs), max_size=8)))]
    busy = draw(st.sets(st.sampled_from([p.start for _, p in have]))) if have else set()
    split = {name for name in names if draw(st.booleans())}
    wanted = target(
        gpu,
        *(name for name in names if name not in split),
        splits=[(name, (1,) * slices[name]) for name in names if name in split],
    )
    return with_instances(gpu, have, busy), wanted


@draws(60)
@given(situations())
def test_plan_round_trips_through_a_file(situation):
    gpu, wanted = situation
    plan, saved = save(gpu, wanted)
    back = restore(saved, gpu, wanted)
    assert [g.steps for g in back.gpus] == [g.steps for g in plan.gpus]
    assert back.counts() == plan.counts()
    assert [g.after() for g in back.gpus] == [g.after() for g in plan.gpus]
    assert back.disturbs == plan.disturbs


@draws(40)
@given(situations())
def test_applied_plan_has_no_steps_left(situation):
    gpu, wanted = situation
    plan, saved = save(gpu, wanted)
    done = Card(gpu).run(plan.gpus[0].steps).observed()
    assert not restore(saved, done, wanted).changes


@draws(60)
@given(situations())
def test_plan_lists_the_devices_that_stay(situation):
    gpu, wanted = situation
    instances = [
        dataclasses.replace(
            each,
            compute_instances=tuple(
                dataclasses.replace(part, mig_uuid="MIG-%d-%d" % (each.id, part.id)) for part in each.compute_instances
            ),
        )
        for each in gpu.mig.instances
    ]
    gpu = gpu.with_instances(tuple(instances), gpu.mig.enabled)
    saved = save(gpu, wanted)[1]["gpus"][0]
    gone = [step for step in saved["steps"] if step["step"].startswith("Destroy")]
    staying = [
        part.mig_uuid
        for each in instances
        for part in each.compute_instances
        if not any(each.id == s["gpu_instance_id"] and s.get("compute_instance_id") in (None, part.id) for s in gone)
    ]
    assert sorted(saved["kept"]) == sorted(staying)


def test_saved_placement_is_kept_if_the_planner_could_choose():
    """The restored target pins every instance, so the result is compared with the saved plan."""
    gpu = assumed_gpus(["H100-80GB"], MODELS)[0]
    _, saved = save(gpu, target(gpu, "1g.10gb", "3g.40gb"))
    back = restore(saved, gpu, target(gpu, "1g.10gb", "3g.40gb"))
    created = {(s.profile, s.placement.start) for s in back.gpus[0].steps if hasattr(s, "placement")}
    assert {(i.profile, i.start) for i in back.gpus[0].target.division.instances} == created


def test_each_moved_part_is_named():
    empty = assumed_gpus(["H100-80GB"], MODELS)[0]
    standing = [("3g.40gb", Placement(0, 4)), ("1g.10gb", Placement(4, 1))]
    gpu = with_instances(empty, standing)
    wanted = target(gpu, "3g.40gb", "2g.20gb")
    _, saved = save(gpu, wanted)
    half, seventh = gpu.mig.instances

    def mig(**fields):
        return dataclasses.replace(gpu, mig=dataclasses.replace(gpu.mig, **fields))

    other_id = dataclasses.replace(seventh, id=9)
    bare = dataclasses.replace(half, compute_instances=())
    cases = {
        "gpu 0: 1g.10gb@4 is gone": mig(instances=(half,)),
        "gpu 0: 1g.10gb@4 was recreated (instance %d then, 9 now)" % seventh.id: mig(instances=(half, other_id)),
        "gpu 0: the compute instances of 3g.40gb@0 were 3c@0 and are none": mig(instances=(bare, seventh)),
        "gpu 0: the pending MIG mode was on and is off": mig(pending=False),
        "gpu 0: 1g.10gb@6 appeared": with_instances(empty, [*standing, ("1g.10gb", Placement(6, 1))]),
    }
    for said, now in cases.items():
        assert plan_file.differences(saved, host_of(now)) == [said]
        with pytest.raises(PlanError, match="the host has changed since the plan was made"):
            restore(saved, now, wanted)


def test_kept_parts_are_no_difference():
    gpu = assumed_gpus(["H100-80GB"], MODELS)[0]
    _, saved = save(gpu, target(gpu, "3g.40gb"))
    # A new index does not make it another GPU, and a temporary setting is not part of a layout.
    moved = dataclasses.replace(gpu, index=5, persistence_mode=True)
    assert plan_file.differences(saved, host_of(moved)) == []


def test_file_keeps_the_plans_of_many_hosts():
    gpu = assumed_gpus(["H100-80GB"], MODELS)[0]
    _, saved = save(gpu, target(gpu, "3g.40gb"))
    text = json.dumps(fleet_plan({"a": {"plan_data": saved}, "b": {"plan_data": saved}}))
    assert host_plan(text, "b") == {"plan": saved, "problem": ""}
    missing = host_plan(text, "c")
    assert "plan" not in missing
    assert "c is not in it" in missing["problem"] and "The file has: a, b." in missing["problem"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not JSON"),
        ("[]", "schema None"),
        ('{"hosts": {}}', "schema None"),
        ('{"schema": 0, "hosts": {"a": {}}}', "schema 0 and this release reads 4. Save it again"),
    ],
)
def test_unreadable_file_is_refused_with_a_fix(text, problem):
    found = host_plan(text, "a")
    assert problem in found["problem"]
    assert "-e gpu_layout_plan_out=FILE" in found["problem"]
    assert "plan" not in found
