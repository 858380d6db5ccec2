# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the workloads that a change of the driver would end."""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.driver.in_use import in_both, left_by_drain
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Holder
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.disturbance import Disturbance
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.leased import LEASE, Leased
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.ownership import Ownership
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.whole_host import ended_workloads
from tests.unit.module_utils.holders.holder_hosts import gpu, host, instance

POD = "0b7a5c1e-1111-4222-8333-444455556666"


def holder(kind="device_handle", **more):
    return Holder("GPU-0", None, kind, more.pop("who", kind), **more)


SHELL = holder(pid=4711, unit_or_container=None)
SERVICE = holder(pid=12, unit_or_container="inference.service")
JOB = holder("slurm", job="17")
PROCESS_OF_JOB = holder(pid=13, unit_or_container="slurmstepd.scope", job="17")
WITHOUT_CGROUP = holder(pid=15, unit_or_container="slurmd.service")
PROCESS_OF_POD = holder(pid=14, unit_or_container="container 0123", job=POD)
ALLOCATION = holder("kubelet", job=POD)
UNKNOWN = holder("unknown")
ALL = (SHELL, SERVICE, JOB, PROCESS_OF_JOB, WITHOUT_CGROUP, PROCESS_OF_POD, ALLOCATION, UNKNOWN, holder(LEASE))


@pytest.mark.parametrize(
    ("drained_by", "ended"),
    [
        ({}, ()),
        ({"services": ["inference"]}, (SERVICE,)),
        ({"services": ["inference.service"], "slurm": False}, (SERVICE,)),
        ({"slurm": True}, (JOB, PROCESS_OF_JOB, WITHOUT_CGROUP)),
        ({"kubernetes": True}, (PROCESS_OF_POD, ALLOCATION)),
        ({"commands": True}, ALL),
    ],
)
def test_a_drain_ends_only_what_its_parts_stop(drained_by, ended):
    left = left_by_drain([Disturbance("gpu 0", ALL), Disturbance("gpu 1", (SERVICE,))], drained_by)
    remaining = tuple(each for each in ALL if each not in ended)
    assert [each.who for each in left if each.what == "gpu 0"] == ([remaining] if remaining else [])
    assert any(each.what == "gpu 1" for each in left) == (SERVICE not in ended)


def test_only_workloads_of_both_readings_block():
    ended, started, stays = holder(pid=20, who="pid 20"), holder(pid=21, who="pid 21"), holder(pid=22, who="pid 22")
    first = [Disturbance("gpu 0", (ended, stays)), Disturbance("gpu 1", (ended,))]
    second = [Disturbance("gpu 0", (stays, started)), Disturbance("gpu 1", (started,)), Disturbance("gpu 2", (stays,))]
    assert in_both(first, second) == [Disturbance("gpu 0", (stays,))]
    assert in_both(first, []) == []


def test_watchers_are_no_workloads_but_leases_are():
    idle, watched, leased = gpu(0), gpu(1), gpu(2, instance(3, 4))
    watched = dataclasses.replace(watched, held_by=(holder(watches=True),))
    busy = dataclasses.replace(gpu(3), held_by=(holder(watches=True), SHELL))
    record = Leased(leased.uuid, leased.mig.instances[0].profile, 4, ("MIG-3",), lease="lease 7 of alice")
    found = ended_workloads(
        host(idle, watched, leased, busy), Ownership("keep", leased=frozenset([record])), "whose host would reboot"
    )
    assert [(each.what.split(" (")[0], [str(who) for who in each.who]) for each in found] == [
        ("gpu 2", ["lease 7 of alice"]),
        ("gpu 3", [str(SHELL)]),
    ]
    assert found[0].what.endswith("), whose host would reboot,")
