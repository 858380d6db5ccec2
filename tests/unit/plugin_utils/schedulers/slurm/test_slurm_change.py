# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the running jobs that must end before the GRES of a Slurm node change."""

from __future__ import annotations

import itertools

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
    Desired,
    Job,
    change,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm.devices import Device
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm.gres import Gres, parse, totals
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm.offer import room, shared_gres
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.slurm.order import ordered, types
from tests.unit.plugin_utils.schedulers.slurm.test_slurm_offer import (
    BY_SLURM,
    EXCLUSIVE,
    LEASED,
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


NO_RULE = "no job_submit plugin refuses requests for GPUs without a type"


def record_of(host):
    """Return the devices of a host by number, as on a node that has no jobs."""
    return tuple((device.type, device.uuid) for device in slurm_devices.desired(node_gpus(layout(), host)))


def planned_change(host, entries, *jobs, was=None, record=None, version=NEW, kept=(), problem=NO_RULE):
    """Return the change of the node h100-01.

    `was` is the node's current `Gres=`. If it is None, the node has the GRES of its current devices.
    """
    desired = node_gpus(layout(*entries), host)
    record = record_of(host) if record is None else record
    kinds = [kind for kind, _uuid in record]
    was = was if was is not None else ",".join("gpu:%s:%d" % (kind, kinds.count(kind)) for kind in dict.fromkeys(kinds))
    gres, others = parse(was, "h100-01")
    return change(
        "h100-01",
        Desired(slurm_devices.desired(desired, kept), shared_gres(desired), room(desired)),
        Current(gres, others, record, jobs, version, problem),
    )


def split_host():
    """Return four GPUs.

    GPU 0 has one 3g.40gb and two 1g.10gb. Their device numbers are 0, 1 and 2.
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
    found = planned_change(gpus(2), [SHARED, SHARED], was="(null)", record=())
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
    # An administrator wrote gres.conf, so it is unknown which devices belong to the jobs.
    was = "gpu:1g.10gb:2,gpu:3g.40gb:1,gpu:h100:3"
    found = planned_change(split_host(), [THIRDS, *[SHARED] * 3], job(5, 3), was=was, record=())
    assert (found.way, found.jobs) == (AFFECTED, ("5",))


def test_numbers_of_running_jobs_stay():
    # GPU 1 loses its 3g.40gb. If the node had no jobs, devices of GPU 0 would therefore get other numbers.
    host = gpus(2)
    host[0] = with_instances(host[0], (1, "3g.40gb", 4), (9, "1g.10gb", 0))
    host[1] = with_instances(host[1], (1, "3g.40gb", 4), (9, "1g.10gb", 0))
    one = {"sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb"}]}
    two = {"sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 2}]}
    found = planned_change(host, [one, two], job(1, 0), job(2, 2))
    assert (found.way, found.jobs) == (IN_PLACE, ())
    assert [found.order[number].uuid for number in (0, 2)] == ["MIG-0-1-0", "MIG-0-9-0"]


def test_job_whose_device_must_get_another_number_must_end():
    # Devices of one type have consecutive numbers, so the two 1g.10gb need the numbers 1 and 2.
    host = gpus(2)
    host[0] = with_instances(host[0], (1, "3g.40gb", 4))
    host[1] = with_instances(host[1], (1, "3g.40gb", 4), (9, "1g.10gb", 0))
    one = {"sharing": "mig", "mig": [{"profile": "1g.10gb"}]}
    two = {"sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb"}]}
    found = planned_change(host, [one, two], job(1, 1), job(2, 2))
    assert (found.way, found.jobs) == (AFFECTED, ("1",))


FEWER = {"sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "2g.20gb"}, {"profile": "1g.10gb"}]}


def test_job_on_a_changed_gpu_must_end_unless_its_instance_is_kept():
    jobs = job(1, 0), job(2, 1), job(3, 2), job(4, 3)
    found = planned_change(split_host(), [FEWER, *[SHARED] * 3], *jobs)
    assert (found.way, found.jobs) == (AFFECTED, ("1", "2", "3"))
    found = planned_change(split_host(), [FEWER, *[SHARED] * 3], *jobs, kept=["MIG-0-1-0", "MIG-0-10-0"])
    assert (found.way, found.jobs) == (AFFECTED, ("2",))
    assert [device.uuid for device in found.order] == [
        "MIG-0-1-0",
        "",
        "MIG-0-10-0",
        *("GPU-%08x" % n for n in (1, 2, 3)),
    ]


# -- Pads keep the total --

SEVEN_SLICES = {"sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]}
BIG = {"sharing": "mig", "mig": [{"profile": "7g.80gb"}]}


def seven_host():
    host = gpus(4)
    host[0] = with_instances(host[0], *((7 + n, "1g.10gb", n) for n in range(7)))
    return host


def test_pads_keep_the_total_and_the_numbers_of_running_jobs():
    found = planned_change(seven_host(), [THIRDS, *[SHARED] * 3], job(5, 7), job(6, 9), problem="")
    assert (found.way, found.jobs, found.gres) == (IN_PLACE, (), "gpu:1g.10gb:3,gpu:pad:4,gpu:h100:3")
    assert found.line == (
        "node h100-01: gres gpu:1g.10gb:3,gpu:pad:4,gpu:h100:3 (was gpu:1g.10gb:7,gpu:h100:3; total 10): "
        "in place, with scontrol reconfigure"
    )


def test_pads_are_last_on_a_node_without_jobs():
    found = planned_change(seven_host(), [THIRDS, *[SHARED] * 3], problem="")
    assert (found.way, found.gres) == (IN_PLACE, "gpu:1g.10gb:3,gpu:h100:3,gpu:pad:4")


def test_pads_give_way_to_devices():
    host = gpus(4)
    host[0] = with_instances(host[0], (7, "1g.10gb", 0), (8, "1g.10gb", 1), (9, "1g.10gb", 2))
    plain = record_of(host)
    record = (*plain[:3], *[("pad", "")] * 4, *plain[3:])
    was = "gpu:1g.10gb:3,gpu:pad:4,gpu:h100:3"
    found = planned_change(host, [SEVEN_SLICES, *[SHARED] * 3], job(5, 7), was=was, record=record, problem="")
    assert (found.way, found.gres) == (IN_PLACE, "gpu:1g.10gb:7,gpu:h100:3")
    found = planned_change(host, [THIRDS, *[SHARED] * 3], job(5, 7), was=was, record=record, problem="")
    assert (found.way, found.gres, found.note) == (NOTHING, was, "")


def test_a_second_group_of_pads_has_another_type():
    host = gpus(3)
    host[0] = with_instances(host[0], *((7 + n, "1g.10gb", n) for n in range(7)))
    host[2] = with_instances(host[2], (1, "3g.40gb", 4), (2, "3g.40gb", 0))
    two = {"sharing": "mig", "mig": [{"profile": "2g.20gb", "count": 3}]}
    found = planned_change(host, [two, SHARED, BIG], job(5, 7), problem="")
    assert (found.way, found.gres) == (IN_PLACE, "gpu:2g.20gb:3,gpu:7g.80gb:1,gpu:pad:3,gpu:h100:1,gpu:pad2:2")


def test_without_the_rule_the_plan_says_why_all_jobs_must_end():
    found = planned_change(seven_host(), [THIRDS, *[SHARED] * 3], job(5, 7))
    assert (found.way, found.jobs, found.gres) == (ALL, ("5",), "gpu:1g.10gb:3,gpu:h100:3")
    assert found.note == "Pads could keep the total of gres/gpu, but %s." % NO_RULE


def test_no_pad_is_added_without_the_rule():
    host = gpus(4)
    host[0] = with_instances(host[0], (7, "1g.10gb", 0), (8, "1g.10gb", 1), (9, "1g.10gb", 2))
    plain = record_of(host)
    record, was = (*plain, *[("pad", "")] * 4), "gpu:1g.10gb:3,gpu:h100:3,gpu:pad:4"
    found = planned_change(host, [BIG, *[SHARED] * 3], job(5, 3), was=was, record=record)
    assert (found.way, found.gres) == (ALL, "gpu:7g.80gb:1,gpu:h100:3")
    four = {"sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 4}]}
    found = planned_change(host, [four, *[SHARED] * 3], job(5, 3), was=was, record=record)
    # The GPU of the job has number 3. Before it, there are too few numbers for four 1g.10gb.
    assert (found.way, found.jobs, found.gres) == (IN_PLACE, (), "gpu:pad:1,gpu:h100:3,gpu:1g.10gb:4,gpu:pad2:2")
    assert found.note == "Jobs can get a pad: %s." % NO_RULE
    unchanged = planned_change(host, [THIRDS, *[SHARED] * 3], job(5, 3), was=was, record=record)
    assert (unchanged.way, unchanged.gres, unchanged.note) == (NOTHING, was, found.note)


def test_a_new_total_has_room_for_later_changes():
    found = planned_change(gpus(4), [THIRDS, *[SHARED] * 3], job(5, 3), was="gpu:h100:4", problem="")
    assert (found.way, found.gres) == (ALL, "gpu:1g.10gb:3,gpu:h100:3,gpu:pad:4")
    found = planned_change(gpus(4), [THIRDS, *[SHARED] * 3], job(5, 3), was="gpu:h100:4")
    assert (found.way, found.gres) == (ALL, "gpu:1g.10gb:3,gpu:h100:3")


@pytest.mark.parametrize("version", [None, (23, 2, 7), (23, 11, 4), (24, 5, 2)])
def test_no_pad_is_added_in_an_untested_release(version):
    found = planned_change(seven_host(), [THIRDS, *[SHARED] * 3], job(5, 7), version=version, problem="")
    assert (found.way, found.gres) == (ALL, "gpu:1g.10gb:3,gpu:h100:3")
    assert found.note.endswith("they were not tested with this release of Slurm.")


def test_changed_shards_wait_for_all_jobs():
    found = planned_change(gpus(2), [SLICED, SHARED], job(1, 1), was="gpu:h100:2")
    assert (found.way, found.jobs) == (ALL, ("1",))
    assert "gres gpu:h100:2,shard:4 (was gpu:h100:2; total 2)" in found.line


def test_job_with_a_quota_continues_if_the_units_stay_the_same():
    host = split_host()[:2]
    was = "gpu:3g.40gb:1,gpu:1g.10gb:2,quota:9"
    record = record_of(host)[:3]
    quota = job(8, kind="quota")
    found = planned_change(host, [THIRDS, LEASED], job(7, 0), quota, was=was, record=record)
    assert (found.way, found.jobs) == ("affected jobs", ("7",))
    fewer = dict(LEASED, leases=dict(BY_SLURM, unit={"memory": "16GiB", "sm_percent": 10}))
    found = planned_change(host, [MIXED, fewer], quota, was=was, record=record)
    assert (found.way, found.jobs) == ("all jobs", ("8",)) and found.gres.endswith("quota:4")


def test_job_on_a_shard_does_not_outlive_a_restart_of_an_old_slurmctld():
    host, entries = gpus(3), [SLICED, SHARED, SHARED]
    jobs = job(1, 0, kind="shard"), job(2, 2)
    assert planned_change(host, entries, *jobs, was="gpu:h100:3,shard:4", version=OLD).way == NOTHING
    record = [*record_of(host)]
    record[1] = ("h100", "GPU-replaced")
    found = planned_change(host, entries, *jobs, was="gpu:h100:3,shard:4", record=tuple(record), version=OLD)
    assert (found.way, found.jobs) == (AFFECTED, ("1",))


# -- No job of a change that counts as safe loses a device --

TYPES = ("7g.80gb", "3g.40gb", "1g.10gb", "h100")
(ANY_GPU,) = gpus(1)
DEVICES = st.lists(st.tuples(st.sampled_from(TYPES), st.integers(0, 9)), max_size=9, unique_by=lambda pair: pair[1])
JOBS = st.lists(st.sets(st.integers(0, 8), max_size=3), max_size=4)


def numbered(pairs):
    """Return devices grouped by type, in the order in which slurmd numbers them.

    A device with the number 9 in its name does not exist yet.
    """
    kinds = list(dict.fromkeys(kind for kind, _number in pairs))
    ordered = sorted(pairs, key=lambda pair: kinds.index(pair[0]))
    return [Device(kind, ANY_GPU, "MIG-%s-%d" % (kind, number) if number != 9 else "") for kind, number in ordered]


def counted(devices):
    kinds = [device.type for device in devices]
    return tuple(Gres("gpu", kind, kinds.count(kind)) for kind in dict.fromkeys(kinds))


def as_record(devices):
    return tuple((device.type, device.uuid) for device in devices)


@given(
    DEVICES,
    DEVICES,
    JOBS,
    st.sampled_from([None, OLD, (23, 11, 1), NEW]),
    st.booleans(),
    st.sampled_from(["", NO_RULE]),
)
def test_job_outside_the_list_keeps_its_devices(before, after, held, version, is_known, problem):
    old, new = numbered(before), numbered(after)
    jobs = tuple(Job(str(number), (("gpu", len(ids), tuple(sorted(ids)) or None),)) for number, ids in enumerate(held))
    current = Current(counted(old), (), as_record(old) if is_known else (), jobs, version, problem)
    found = change("n", Desired(new), current)
    continuing = [one for one in jobs if one.id not in found.jobs]
    text, kinds = parse(found.gres, "n")[0], types(found.order)
    assert [(each.type, each.count) for each in text] == [(kind, kinds.count(kind)) for kind in dict.fromkeys(kinds)]
    # slurmd numbers devices by type, so the devices of each type must be together.
    assert sorted(kinds, key=list(dict.fromkeys(kinds)).index) == kinds
    assert sorted(as_record(filter(None, found.order))) == sorted(as_record(new))
    if totals(text) != totals(counted(old)):
        assert found.way == ALL and not continuing
    for one in continuing if found.way != NOTHING else ():
        assert version in (OLD, NEW)
        for number in one.gres[0][2]:
            assert old[number].uuid and as_record([old[number]]) == as_record([found.order[number]])
    if found.way == NOTHING:
        assert as_record(old) == as_record(found.order)
    if problem or version not in (OLD, NEW):
        assert None not in found.order
    assert (found.way == AFFECTED) <= bool(found.jobs)
    assert (found.way == IN_PLACE) <= (not found.jobs)
    assert bool(found.line) == (found.way != NOTHING)


def every_order(devices, total):
    """Yield all orders in which the devices of each type have consecutive numbers."""
    blocks = [[device for device in devices if device.type == kind] for kind in dict.fromkeys(d.type for d in devices)]
    for chosen in itertools.permutations(blocks):
        spare = total - len(devices)
        for gaps in itertools.product(range(spare + 1), repeat=len(chosen)):
            if sum(gaps) <= spare:
                order = [one for gap, block in zip(gaps, chosen) for one in [None] * gap + [block[0].type] * len(block)]
                yield order + [None] * (total - len(order))


@given(DEVICES, st.integers(0, 3), st.data())
def test_an_order_is_found_whenever_one_exists(pairs, spare, data):
    devices = numbered([pair for pair in pairs if pair[1] != 9])
    total = len(devices) + spare
    held = data.draw(st.lists(st.sampled_from(devices), max_size=3, unique=True)) if devices else []
    places = data.draw(st.lists(st.integers(0, max(total - 1, 0)), min_size=len(held), max_size=len(held), unique=True))
    fixed = dict(zip(places, held))
    exists = any(
        all(order[number] == device.type for number, device in fixed.items()) for order in every_order(devices, total)
    )
    found = ordered(devices, total, fixed)
    assert (found is not None) == (exists or not devices)
    if found is not None:
        assert all(found[number] == device for number, device in fixed.items())


@given(DEVICES, DEVICES, JOBS)
def test_no_job_waits_without_a_reason(before, after, held):
    """Check that a job waits only if no order of the devices keeps its numbers."""
    old, new = numbered(before), numbered(after)
    jobs = tuple(Job(str(number), (("gpu", len(ids), tuple(sorted(ids))),)) for number, ids in enumerate(held) if ids)
    found = change("n", Desired(new), Current(counted(old), (), as_record(old), jobs, NEW, ""))
    keeps = {
        one.id
        for one in jobs
        if all(n < len(old) and as_record([old[n]])[0] in as_record(new) and old[n].uuid for n in one.gres[0][2])
    }
    fixed = {
        n: next(device for device in new if device.uuid == old[n].uuid and device.type == old[n].type)
        for one in jobs if one.id in keeps for n in one.gres[0][2]
    }  # fmt: skip
    if len(new) <= len(old) and ordered(new, len(old), fixed) is not None:
        assert not keeps & set(found.jobs)


def test_every_layout_of_two_gpus_can_follow_every_other():
    entries = [EXCLUSIVE, MIG, MIXED, SEVENTHS, THIRDS, SLICED]
    for first in entries:
        for second in entries:
            if (SLICED in (first, second)) and any(e in (MIG, MIXED, SEVENTHS, THIRDS) for e in (first, second)):
                continue
            found = planned_change(gpus(2), [first, second], job(1, 0), job(2, 1))
            assert found.way in (NOTHING, ALL)
            assert (found.way == NOTHING) == (first == second == EXCLUSIVE)
