# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a layout change names only the pods whose devices it removes."""

from __future__ import annotations

import random

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change import planner
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.mark import mark
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Holder, Host
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.disturbance import Disturbance
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.gpu_plan import Target
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig import steps as mig_steps
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.divider import (
    MigDivision,
    WantedInstance,
)
from tests.unit.mig_rules import legal, with_instances

TRANSITIONS = 1000
MODELS = ("H100-80GB", "A100-40GB", "A30-24GB")


def holder(gpu, instance, pod):
    return Holder(gpu.uuid, instance, "kubelet", "container c of pod %s" % pod, unit_or_container="c", job=pod)


def affected_pods(disturbs):
    """Return the pods that lose a device in a plan."""
    return sorted({uid for disturbance in disturbs for uid in disturbance.pods})


def grow(chance, gpu, pairs):
    kept = []
    for pair in chance.sample(pairs, chance.randint(0, len(pairs))):
        if legal(gpu, [*kept, pair]):
            kept.append(pair)
    return kept


def transition(number):
    """Return the GPUs, holders and targets of a random change.

    Pods use some of the GPUs and instances, and only some GPUs have targets.
    """
    chance = random.Random(number)
    gpus, holders, targets = [], [], []
    for gpu in assumed_gpus([chance.choice(MODELS) for _gpu in range(chance.randint(1, 3))]):
        pairs = [(p.name, placement) for p in gpu.mig.profiles for placement in p.placements]
        want = [name for name, _placement in grow(chance, gpu, pairs)]
        if chance.random() < 0.7:
            gpu = with_instances(gpu, grow(chance, gpu, pairs))
            holders += [
                holder(gpu, each.id, "pod-%d-%d" % (gpu.index, each.id))
                for each in gpu.mig.instances
                if chance.random() < 0.5
            ]
        elif chance.random() < 0.5:
            holders.append(holder(gpu, None, "pod-%d" % gpu.index))
        gpus.append(gpu)
        kind = chance.choice(("mig", "mig", "mig", "shared", "none"))
        if kind == "mig":
            wanted = tuple(WantedInstance(name) for name in want)
            targets.append(Target(gpu.uuid, "gpu_layout[0]", "mig", MigDivision(wanted)))
        elif kind == "shared":
            targets.append(Target(gpu.uuid, "gpu_layout[0]", "shared", None, {"compute_mode": "default"}))
    host = mark(Host("n1", "570.0", "12", "12.8", tuple(gpus)), holders)
    return host.gpus, holders, targets


def ended(plan):
    """Return the devices that a plan's steps remove, computed only from the steps.

    (GPU, None) is a whole GPU, (GPU, instance) is an instance.
    """
    found = set()
    for each in plan.gpus:
        for step in each.steps:
            if isinstance(step, mig_steps.SetMigMode):
                found.add((each.gpu.uuid, None))
            elif isinstance(step, mig_steps.DestroyGpuInstance):
                found.add((each.gpu.uuid, step.gpu_instance_id))
    return found


def test_pods_on_kept_devices_are_not_named_in_1000_transitions():
    named_in_all = spared_in_all = 0
    for number in range(TRANSITIONS):
        gpus, holders, targets = transition(number)
        plan = planner.plan(gpus, targets)
        ends = ended(plan)
        hit = {one.job for one in holders if {(one.gpu_uuid, None), (one.gpu_uuid, one.gpu_instance_id)} & ends}
        named = set(affected_pods(plan.disturbs))
        assert named == hit, number
        named_in_all += len(named)
        spared_in_all += len(holders) - len(named)
    # Many pods must lose a device in random changes, and many must not. Otherwise the test shows nothing.
    assert min(named_in_all, spared_in_all) > TRANSITIONS / 4


UID = "3f2a3f2a-1111-2222-3333-3f2a3f2a3f2a"


def test_pods_with_an_allocated_or_open_device_count():
    (gpu,) = assumed_gpus(["H100-80GB"])
    job = Holder(gpu.uuid, None, "slurm", "Slurm job 17", job="17")
    process = Holder(gpu.uuid, None, "process", "pid 7", pid=7, job=None)
    watcher = Holder(gpu.uuid, None, "device_handle", "pid 8", pid=8, job=UID, watches=True)
    perhaps = Holder(gpu.uuid, None, "unknown", "undeterminable", job=UID.replace("3f", "4e"))
    given = (holder(gpu, None, "b"), holder(gpu, None, "a"), holder(gpu, None, "b"))
    held = Disturbance("gpu 0", (job, process, watcher, perhaps, *given))
    assert affected_pods([held, Disturbance("gpu 1", (job,))]) == [UID, "a", "b"]
    assert held.to_data()["pods"] == [UID, "a", "b"]
    assert "pods" not in Disturbance("gpu 1", (job,)).to_data()


@pytest.mark.parametrize("number", range(3))
def test_a_plan_without_steps_names_no_pod(number):
    gpus, _holders, _targets = transition(number)
    assert affected_pods(planner.plan(gpus, []).disturbs) == []
