# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The running jobs that must end before the GRES of a Slurm node change."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.node import node_gpus
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm import devices as slurm_devices
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm.change import (
    AFFECTED,
    ALL,
    IN_PLACE,
    NOTHING,
    Current,
    Job,
    change,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm.devices import Device
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm.gres import Gres, parse, totals
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm.offer import node_gres
from tests.unit.plugin_utils.schedulers.slurm.test_slurm_offer import (
    EXCLUSIVE,
    MIG,
    SEVENTHS,
    SHARED,
    SLICED,
    gpus,
    layout,
    with_instances,
)

NEW, OLD = (24, 11, 5), (22, 5, 8)
MIXED = {"sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 2}]}
THIRDS = {"sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 3}]}


def job(number, *device_numbers, kind="gpu"):
    return Job(str(number), ((kind, len(device_numbers) or 1, device_numbers or None),))


def planned_change(host, entries, *jobs, was=None, version=NEW):
    """Return the change of the node h100-01.

    `was` is the value of `Gres=`. Without it, the node has the GRES of its current devices.
    """
    desired = node_gpus(layout(*entries), host)
    current = slurm_devices.current(host, desired)
    counts = {}
    for device in current:
        counts[device.type] = counts.get(device.type, 0) + 1
    was = was if was is not None else ",".join("gpu:%s:%d" % item for item in counts.items())
    gres, others = parse(was, "h100-01")
    return change(
        "h100-01",
        node_gres(desired),
        slurm_devices.desired(desired),
        Current(gres, others, tuple(current), jobs, version),
    )


def split_host():
    """Return four GPUs.

    GPU 0 has 3g.40gb and twice 1g.10gb, with the numbers 0, 1 and 2.
    """
    host = gpus(4)
    host[0] = with_instances(host[0], (1, "3g.40gb", 4), (9, "1g.10gb", 0), (10, "1g.10gb", 1))
    return host


# -- The line of the plan --


def test_changed_total_waits_for_all_jobs():
    found = planned_change(gpus(8), [MIG, *[EXCLUSIVE] * 7], job(4711, 3), job(4720, 7))
    assert (found.way, found.jobs) == (ALL, ("4711", "4720"))
    assert found.line == (
        "node h100-01: gres gpu:3g.40gb:2,gpu:h100:7 (was gpu:h100:8; total 8 -> 9): all GPU jobs must end first: 4711, 4720"
    )


def test_changed_total_without_jobs():
    found = planned_change(gpus(8), [MIG, *[EXCLUSIVE] * 7])
    assert (found.way, found.jobs) == (ALL, ())
    assert found.line.endswith("(was gpu:h100:8; total 8 -> 9): no GPU job is running")


@pytest.mark.parametrize(
    ("version", "how", "restart"),
    [
        (OLD, "in place, with a restart of slurmctld and slurmd", True),
        (NEW, "in place, with scontrol reconfigure", False),
        ((25, 5, 0), "in place, with scontrol reconfigure", False),
    ],
)
def test_same_total_keeps_the_jobs_of_other_gpus(version, how, restart):
    found = planned_change(split_host(), [THIRDS, *[SHARED] * 3], job(5, 3), version=version)
    assert (found.way, found.jobs, found.restart) == (IN_PLACE, (), restart)
    assert found.line == (
        "node h100-01: gres gpu:1g.10gb:3,gpu:h100:3 (was gpu:3g.40gb:1,gpu:1g.10gb:2,gpu:h100:3; total 6): " + how
    )


def test_same_total_waits_for_jobs_on_changed_gpus():
    found = planned_change(split_host(), [THIRDS, *[SHARED] * 3], job(5, 3), job(6, 1), job(7, 4, 0))
    assert (found.way, found.jobs) == (AFFECTED, ("6", "7"))
    assert found.line.endswith("total 6): jobs on changed GPUs must end first: 6, 7")


def test_unchanged_node_has_no_line():
    found = planned_change(split_host(), [MIXED, *[SHARED] * 3], job(5, 1))
    assert (found.way, found.jobs, found.line) == (NOTHING, (), "")


def test_first_setup_has_no_gres_before():
    found = planned_change(gpus(2), [SHARED, SHARED], was="(null)")
    assert found.line == "node h100-01: gres gpu:h100:2 (was none; total 0 -> 2): no GPU job is running"


def test_last_device_leaves_no_gres():
    found = planned_change(gpus(1), [{"sharing": "mig", "mig": []}])
    assert found.line.startswith("node h100-01: gres none (was gpu:h100:1; total 1 -> 0)")


def test_shards_have_types_in_the_answer_of_slurm():
    found = planned_change(gpus(2), [SLICED, SHARED], job(1, 1), was="gpu:h100:2(S:0),shard:h100:4(S:0)")
    assert (found.way, found.line) == (NOTHING, "")


def test_other_gres_of_the_node_are_kept():
    found = planned_change(gpus(2), [MIG, SHARED], was="gpu:h100:2,nic:ib:2,bandwidth:lustre:4G")
    assert found.gres == "gpu:3g.40gb:2,gpu:h100:1,nic:ib:2,bandwidth:lustre:4G"


# -- Jobs that a change would harm --


@pytest.mark.parametrize("version", [None, (21, 8, 0), (23, 2, 7), (23, 11, 4), (24, 5, 2)])
def test_untested_release_waits_for_all_jobs(version):
    found = planned_change(split_host(), [THIRDS, *[SHARED] * 3], job(5, 3), version=version)
    assert (found.way, found.jobs, found.restart) == (ALL, ("5",), True)


def test_job_with_unknown_devices_must_end():
    found = planned_change(split_host(), [THIRDS, *[SHARED] * 3], job(5))
    assert (found.way, found.jobs) == (AFFECTED, ("5",))


def test_node_with_unknown_order_waits_for_its_jobs():
    # An administrator wrote gres.conf, so the devices of the jobs are unknown.
    was = "gpu:1g.10gb:2,gpu:3g.40gb:1,gpu:h100:3"
    found = planned_change(split_host(), [THIRDS, *[SHARED] * 3], job(5, 3), was=was)
    assert (found.way, found.jobs) == (AFFECTED, ("5",))


def test_job_whose_device_gets_another_number_must_end():
    # GPU 1 loses its 3g.40gb, so the devices of GPU 0 get other numbers.
    host = gpus(2)
    host[0] = with_instances(host[0], (1, "3g.40gb", 4), (9, "1g.10gb", 0))
    host[1] = with_instances(host[1], (1, "3g.40gb", 4), (9, "1g.10gb", 0))
    one = {"sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb"}]}
    two = {"sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 2}]}
    found = planned_change(host, [one, two], job(1, 0), job(2, 2))
    assert (found.way, found.jobs) == (AFFECTED, ("2",))


def test_job_on_another_instance_of_a_changed_gpu_must_end():
    # The layout plan may recreate every instance of a GPU.
    entry = {"sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "2g.20gb"}, {"profile": "1g.10gb"}]}
    found = planned_change(split_host(), [entry, *[SHARED] * 3], job(1, 0), job(2, 1), job(3, 3))
    assert (found.way, found.jobs) == (AFFECTED, ("1", "2"))


def test_changed_shards_wait_for_all_jobs():
    found = planned_change(gpus(2), [SLICED, SHARED], job(1, 1), was="gpu:h100:2")
    assert (found.way, found.jobs) == (ALL, ("1",))
    assert "gres gpu:h100:2,shard:4 (was gpu:h100:2; total 2)" in found.line


def test_job_on_a_shard_does_not_outlive_a_restart_of_an_old_slurmctld():
    host = gpus(3)
    host[1] = dataclasses.replace(host[1], uuid="GPU-replaced")
    was = "gpu:h100:3,shard:4"
    entries = [SLICED, SHARED, SHARED]
    found = planned_change(host, entries, job(1, 0, kind="shard"), job(2, 2), was=was, version=OLD)
    assert found.way == NOTHING
    planned = change(
        "n", node_gres(node_gpus(layout(*entries), host)), slurm_devices.desired(node_gpus(layout(*entries), host)),
        Current(parse(was, "n")[0], (), tuple(slurm_devices.current(gpus(3), node_gpus(layout(*entries), gpus(3)))),
                (job(1, 0, kind="shard"), job(2, 2)), OLD),
    )  # fmt: skip
    assert (planned.way, planned.jobs) == (AFFECTED, ("1",))


# -- No job of a change that counts as safe loses a device --

TYPES = ("7g.80gb", "3g.40gb", "1g.10gb", "h100")
(ANY_GPU,) = gpus(1)
DEVICES = st.lists(st.tuples(st.sampled_from(TYPES), st.integers(0, 9)), max_size=9, unique_by=lambda pair: pair[1])
JOBS = st.lists(st.sets(st.integers(0, 8), max_size=3), max_size=4)


def numbered(pairs):
    """Return devices grouped by type, as slurmd numbers them.

    The device 9 does not exist yet.
    """
    kinds = list(dict.fromkeys(kind for kind, _number in pairs))
    ordered = sorted(pairs, key=lambda pair: kinds.index(pair[0]))
    return [Device(kind, ANY_GPU, "MIG-%s-%d" % (kind, number) if number != 9 else "") for kind, number in ordered]


def counted(devices):
    kinds = [device.type for device in devices]
    return tuple(Gres("gpu", kind, kinds.count(kind)) for kind in dict.fromkeys(kinds))


@given(DEVICES, DEVICES, JOBS, st.sampled_from([None, OLD, (23, 11, 1), NEW]), st.booleans())
def test_job_outside_the_list_keeps_its_devices(before, after, held, version, is_known):
    old, new = numbered(before), numbered(after)
    jobs = tuple(Job(str(number), (("gpu", len(ids), tuple(sorted(ids)) or None),)) for number, ids in enumerate(held))
    current = Current(counted(old), (), tuple(old if is_known else old[1:]), jobs, version)
    found = change("n", counted(new), new, current)
    continuing = [one for one in jobs if one.id not in found.jobs]
    if totals(counted(old)) != totals(counted(new)):
        assert found.way == ALL and not continuing
    for one in continuing if found.way != NOTHING else ():
        assert version in (OLD, NEW)
        for number in one.gres[0][2]:
            assert old[number].uuid and (old[number].type, old[number].uuid) == (new[number].type, new[number].uuid)
    if found.way == NOTHING:
        assert [(one.type, one.uuid) for one in old] == [(one.type, one.uuid) for one in new]
    assert (found.way == AFFECTED) <= bool(found.jobs)
    assert (found.way == IN_PLACE) <= (not found.jobs)
    assert bool(found.line) == (found.way != NOTHING)


@given(DEVICES, DEVICES, JOBS)
def test_no_job_waits_without_a_reason(before, after, held):
    """Check that a job that keeps its devices waits only if the total changes."""
    old, new = numbered(before), numbered(after)
    jobs = tuple(Job(str(number), (("gpu", len(ids), tuple(sorted(ids))),)) for number, ids in enumerate(held) if ids)
    found = change("n", counted(new), new, Current(counted(old), (), tuple(old), jobs, NEW))
    for one in jobs:
        numbers = one.gres[0][2]
        keeps = all(
            number < min(len(old), len(new))
            and old[number].uuid
            and (old[number].type, old[number].uuid) == (new[number].type, new[number].uuid)
            for number in numbers
        )
        if keeps and len(old) == len(new):
            assert one.id not in found.jobs


def test_every_layout_of_two_gpus_can_follow_every_other():
    entries = [EXCLUSIVE, MIG, MIXED, SEVENTHS, THIRDS, SLICED]
    for first in entries:
        for second in entries:
            if (SLICED in (first, second)) and any(e in (MIG, MIXED, SEVENTHS, THIRDS) for e in (first, second)):
                continue
            found = planned_change(gpus(2), [first, second], job(1, 0), job(2, 1))
            assert found.way in (NOTHING, ALL)
            assert (found.way == NOTHING) == (first == second == EXCLUSIVE)
