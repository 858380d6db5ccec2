# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that plans are valid, reach their target and destroy the fewest instances.

The tests find the smallest possible number by brute force.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import load_models
from ansible_collections.openfleet.gpu.plugins.module_utils.change import planner
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Mig, Placement, Process
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.gpu_plan import Target
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig import steps as mig_steps
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.divider import (
    MigDivision,
    WantedInstance,
)
from tests.thorough import draws
from tests.unit.mig_rules import Card, least_destroyed, legal, with_instances

MODELS = load_models()
MIG_MODELS = [key for key, model in MODELS.items() if model.mig_capable]


def gpu_of(key):
    return assumed_gpus([key], MODELS)[0]


def mig(gpu, *names, where="gpu_layout[0]"):
    wanted = [WantedInstance(n, int(s) if s else None) for n, _, s in (name.partition("@") for name in names)]
    return Target(gpu.uuid, where, "mig", MigDivision(tuple(wanted)))


def whole(gpu, sharing="shared"):
    mode = {"shared": "default", "exclusive": "exclusive_process"}[sharing]
    return Target(gpu.uuid, "gpu_layout[0]", sharing, None, {"compute_mode": mode})


@st.composite
def situations(draw):
    """Generate a GPU and profiles.

    The GPU is in a valid state. The profiles fit on an empty GPU of its model.
    """
    gpu = gpu_of(draw(st.sampled_from(MIG_MODELS)))
    pairs = [(p.name, placement) for p in gpu.mig.profiles for placement in p.placements]

    def grow(chosen):
        kept = []
        for pair in chosen:
            if legal(gpu, [*kept, pair]):
                kept.append(pair)
        return kept

    have = grow(draw(st.lists(st.sampled_from(pairs), max_size=10)))
    want = grow(draw(st.lists(st.sampled_from(pairs), max_size=10)))
    busy = draw(st.sets(st.sampled_from([p.start for _, p in have]))) if have else set()
    return with_instances(gpu, have, busy), [name for name, _ in want]


@draws(100)
@given(situations())
def test_plan_is_valid_and_reaches_the_target(situation):
    gpu, names = situation
    target = mig(gpu, *names)
    plan = planner.plan_gpu(gpu, target)
    after = Card(gpu).run(plan.steps).observed()
    assert sorted(i.profile for i in after.mig.instances) == sorted(names)
    assert all(len(i.compute_instances) == 1 for i in after.mig.instances)
    assert not planner.plan_gpu(after, target).steps


@draws(100)
@given(situations())
def test_no_arrangement_destroys_less(situation):
    gpu, names = situation
    plan = planner.plan_gpu(gpu, mig(gpu, *names))
    destroyed = [s for s in plan.steps if isinstance(s, mig_steps.DestroyGpuInstance)]
    assert (len(plan.disturbs), len(destroyed)) == least_destroyed(gpu, names)


@draws(50)
@given(situations(), situations())
def test_rollback_restores_the_original_state(situation, other):
    gpu, names = situation
    back = planner.target_of(gpu)
    after = Card(gpu).run(planner.plan_gpu(gpu, mig(gpu, *names)).steps).observed()
    again = Card(after).run(planner.plan_gpu(after, back).steps).observed()
    assert [(i.profile, i.placement) for i in again.mig.instances] == [
        (i.profile, i.placement) for i in gpu.mig.instances
    ]


@pytest.mark.parametrize("key", MIG_MODELS)
def test_every_profile_alone_and_at_its_maximum(key):
    gpu = gpu_of(key)
    for profile in gpu.mig.profiles:
        plan = planner.plan_gpu(gpu, mig(gpu, *[profile.name] * profile.max_instances))
        after = Card(gpu).run(plan.steps).observed()
        assert len(after.mig.instances) == profile.max_instances


def test_plan_lines_are_readable():
    gpu = with_instances(gpu_of("H100-80GB"), [("3g.40gb", Placement(0, 4)), ("1g.10gb", Placement(4, 1))], busy={0})
    plan = planner.plan_gpu(gpu, mig(gpu, "3g.40gb", "2g.20gb@4"))
    assert str(plan) == "gpu 0: keep 3g.40gb@0 (1 process), destroy 1g.10gb@4, create 2g.20gb@4"
    assert plan.before() == "MIG on: 3g.40gb@0, 1g.10gb@4"
    assert plan.after() == "MIG on: 3g.40gb@0, 2g.20gb@4"
    assert plan.disturbs == ()


def test_running_processes_are_named_before_they_end():
    gpu = with_instances(gpu_of("H100-80GB"), [("3g.40gb", Placement(0, 4))], busy={0})
    plan = planner.plan(([gpu]), [mig(gpu, "7g.80gb")])
    held = "gpu 0 (%s): 3g.40gb@0 (1 process) is in use by pid 1000 (python3)" % gpu.uuid[:12]
    assert [str(d) for d in plan.disturbs] == [held]


def test_mode_change_disturbs_all_processes_of_the_gpu():
    gpu = dataclasses.replace(gpu_of("H100-80GB"), processes=(Process(7, "compute"),))
    assert len(planner.plan_gpu(gpu, mig(gpu, "7g.80gb")).disturbs) == 1
    assert planner.plan_gpu(gpu, whole(gpu)).disturbs == ()


def test_new_instances_leave_room_for_the_largest():
    gpu = with_instances(gpu_of("H100-80GB"), [])
    (create, _compute) = planner.plan_gpu(gpu, mig(gpu, "1g.10gb")).steps
    assert create.placement.start in (4, 5, 6), "placements 0 to 3 would make 4g.40gb impossible"


def test_mig_off_removes_instances_first_and_sets_the_compute_mode():
    gpu = with_instances(gpu_of("A100-80GB"), [("7g.80gb", Placement(0, 8))])
    plan = planner.plan_gpu(gpu, whole(gpu, "exclusive"))
    assert str(plan) == "gpu 0: destroy 7g.80gb@0, disable MIG mode, set compute mode exclusive_process"
    after = Card(gpu).run(plan.steps).observed()
    assert not planner.plan_gpu(after, whole(after, "exclusive")).steps


def test_mig_on_resets_an_exclusive_gpu_to_the_default_mode():
    gpu = dataclasses.replace(gpu_of("H100-80GB"), compute_mode="exclusive_process")
    assert str(planner.plan_gpu(gpu, mig(gpu))) == "gpu 0: set compute mode default, enable MIG mode"


def test_pending_mode_change_is_reverted():
    gpu = gpu_of("A100-80GB")
    pending = dataclasses.replace(gpu, mig=dataclasses.replace(gpu.mig, pending=True))
    assert str(planner.plan_gpu(pending, whole(gpu))) == "gpu 0: disable MIG mode"


def test_splits_keep_usable_compute_instances():
    gpu = with_instances(gpu_of("H100-80GB"), [("3g.40gb", Placement(0, 4))])
    split = Target(gpu.uuid, "gpu_layout[0]", "mig", MigDivision((WantedInstance("3g.40gb", None, (2, 1)),)))
    plan = planner.plan_gpu(gpu, split)
    assert str(plan) == (
        "gpu 0: keep 3g.40gb@0, destroy 3c of 3g.40gb (instance 0), create 2c in 3g.40gb@0, create 1c in 3g.40gb@0"
    )
    assert plan.after() == "MIG on: 3g.40gb@0 [2c, 1c]"
    after = Card(gpu).run(plan.steps).observed()
    assert not planner.plan_gpu(after, split).steps
    three = Target(gpu.uuid, "gpu_layout[0]", "mig", MigDivision((WantedInstance("3g.40gb", None, (1, 1, 1)),)))
    steps = planner.plan_gpu(after, three).steps
    assert [type(s).__name__ for s in steps] == [
        "DestroyComputeInstance",
        "CreateComputeInstance",
        "CreateComputeInstance",
    ]
    Card(after).run(steps)


@pytest.mark.parametrize(
    ("key", "wanted", "problem", "cure"),
    [
        ("L40S-48GB", ["1g.10gb"], "this GPU has no MIG", "Choose another sharing"),
        (
            "H100-80GB",
            ["1g.5gb"],
            "there is no profile 1g.5gb",
            "Did you mean 1g.10gb? This GPU has: 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb.",
        ),
        ("H100-80GB", ["3g.40gb"] * 3, "they need 9 compute slices, and the GPU has 7", "2x 3g.40gb"),
        ("H100-80GB", ["1g.10gb+me"] * 2, "media engines (ofas)", "1x 1g.10gb+me"),
        ("H100-80GB", ["3g.40gb", "3g.40gb", "1g.10gb"], "their placements overlap", "2x 3g.40gb"),
        ("H100-80GB", ["3g.40gb@1"], "cannot start at placement 1", "It can start at: 0, 4."),
        (
            "H100-80GB",
            ["3g.40gb@0", "4g.40gb"],
            "do not fit with these placements",
            "Without `placement` they would fit",
        ),
        ("RTXPRO6000-96GB", ["1g.24gb+me.all", "1g.24gb"], "media engines", "The largest part that fits is"),
    ],
)
def test_impossible_layout_is_refused_with_place_and_fix(key, wanted, problem, cure):
    gpu = gpu_of(key)
    with pytest.raises(PlanError) as caught:
        planner.plan_gpu(gpu, mig(gpu, *wanted, where="gpu_layout[3]"))
    assert "gpu_layout[3] on gpu 0" in caught.value.where
    assert problem in caught.value.problem
    assert cure in caught.value.cure


@pytest.mark.parametrize(
    ("profile", "slices", "starts"),
    [
        ("7g.80gb", (3, 2, 2), {(3, 4), (2, 0), (2, 2)}),
        ("4g.40gb", (2, 1, 1), {(2, 2), (1, 0), (1, 1)}),
        ("2g.20gb", (), set()),
    ],
)
def test_a_split_of_a_new_instance_is_placed(profile, slices, starts):
    gpu = gpu_of("H100-80GB")
    target = Target(gpu.uuid, "gpu_layout[0]", "mig", MigDivision((WantedInstance(profile, None, slices),)))
    plan = planner.plan_gpu(gpu, target)
    made = {(s.compute_slices, s.start) for s in plan.steps if isinstance(s, mig_steps.CreateComputeInstance)}
    assert {size for size, _ in made} == {size for size, _ in starts}
    after = Card(gpu).run(plan.steps).observed()
    assert not planner.plan_gpu(after, target).steps
    assert made == starts or profile == "4g.40gb"


@pytest.mark.parametrize(("profile", "slices"), [("4g.40gb", (3, 1)), ("3g.40gb", (2, 2)), ("2g.20gb", (4,))])
def test_impossible_split_is_refused(profile, slices):
    gpu = gpu_of("H100-80GB")
    target = Target(gpu.uuid, "gpu_layout[0]", "mig", MigDivision((WantedInstance(profile, None, slices),)))
    with pytest.raises(PlanError, match="cannot be split") as caught:
        planner.plan_gpu(gpu, target)
    assert "for compute instances of 1c, 2c" in caught.value.cure


def test_unlistable_processes_count_as_holders():
    gpu = with_instances(gpu_of("H100-80GB"), [("3g.40gb", Placement(0, 4))])
    unknown = (Process(0, "unknown", "NVML does not list the processes of this GPU"),)
    instance = dataclasses.replace(gpu.mig.instances[0], processes=unknown)
    gpu = dataclasses.replace(gpu, mig=dataclasses.replace(gpu.mig, instances=(instance,)))
    assert len(planner.plan_gpu(gpu, mig(gpu, "7g.80gb")).disturbs) == 1


def test_bare_gpu_instance_is_part_of_the_rollback():
    gpu = with_instances(gpu_of("H100-80GB"), [("2g.20gb", Placement(0, 2))])
    bare = dataclasses.replace(gpu.mig.instances[0], compute_instances=())
    gpu = dataclasses.replace(gpu, mig=dataclasses.replace(gpu.mig, instances=(bare,)))
    back = planner.target_of(gpu)
    assert not planner.plan_gpu(gpu, back).steps
    after = Card(gpu).run(planner.plan_gpu(gpu, mig(gpu, "7g.80gb")).steps).observed()
    again = Card(after).run(planner.plan_gpu(after, back).steps).observed()
    assert again.mig.instances[0].compute_instances == ()


def test_driver_without_profiles_has_a_fix():
    gpu = gpu_of("H100-80GB")
    silent = dataclasses.replace(gpu, mig=dataclasses.replace(gpu.mig, profiles=()))
    with pytest.raises(PlanError, match="550"):
        planner.plan_gpu(silent, mig(gpu, "7g.80gb"))


def test_counts_and_order():
    first, second = assumed_gpus(["H100-80GB", "H100-80GB"], MODELS)
    plan = planner.plan([first, second], [mig(second, "7g.80gb"), mig(first, "3g.40gb", "3g.40gb")])
    assert [p.gpu.index for p in plan.gpus] == [0, 1]
    assert plan.counts() == {"create": 3, "destroy": 0, "keep": 0, "gpus_changed": 2}


@pytest.mark.parametrize(
    ("name", "display"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", True),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", True),
        ("NVIDIA RTX PRO 5000 Blackwell", True),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", False),
        ("NVIDIA RTX PRO 4000 Blackwell", False),
        ("NVIDIA L40S", False),
    ],
)
def test_a_workstation_board_without_mig_needs_the_display_mode_compute(name, display):
    gpu = gpu_of("RTXPRO6000-96GB")
    gpu = dataclasses.replace(gpu, name=name, mig=Mig(capable=False))
    with pytest.raises(PlanError) as caught:
        planner.plan_gpu(gpu, mig(gpu, "1g.24gb"))
    assert ("--gpumode=compute" in caught.value.cure) == display
    assert ("display mode compute" in caught.value.problem) == display
    assert ("has no MIG" in caught.value.problem) != display
