# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test leases of pods, which the kubelet's plugin takes and gives back."""

from __future__ import annotations

import dataclasses
import json

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.cli.lease import _lines
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.lease_service import pods
from ansible_collections.openfleet.gpu.plugins.module_utils.lease_service.request import parse
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.model import LeaseError
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.record import BookingRecord
from ansible_collections.openfleet.gpu.plugins.module_utils.metrics.leases import families
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import peer
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import VgpuSeat, VgpuTenant
from tests.unit.module_utils.leases.lease_world import DAEMON, GIB, SYS, problem


def test_claim_has_its_lease_until_it_is_given_back(world):
    first = world.prepare("uid-1", "GPU-0")
    assert first == {"number": 1, "cdi": ["openfleet.io/vgpu=lease-1"]}
    # After its restart, the kubelet repeats the request. The plugin may restart too.
    assert world.prepare("uid-1", "GPU-0") == first
    world.restarted()
    world.tick(recover=True)
    assert world.prepare("uid-1", "GPU-0") == first and len(world.parts) == 1
    assert world.rows() == [(1, "pod:research/job-gpu-x2x4q", "active")]
    assert world.ask(SYS, op="list")["leases"][0]["ends"] is None
    assert world.ask_as_plugin(op="claims") == {"claims": ["uid-1"]}
    assert world.ask_as_plugin(op="unprepare", claim="uid-1") == {"ended": 1}
    assert world.ask_as_plugin(op="unprepare", claim="uid-1") == {"ended": None}
    assert world.parts == {} and world.rows() == []


def test_lease_of_a_pod_is_listed_and_counted_without_an_end(world):
    world.prepare("uid-1", "GPU-0")
    world.take_lease(DAEMON)
    bookings = BookingRecord(world.directory).read().bookings
    found = {family.name: family.samples for family in families(bookings, (), {})}
    memory = {sample.labels["account"]: sample.value for sample in found["openfleet_lease_memory_bytes"]}
    assert memory == {"pod:research/job-gpu-x2x4q": 10 * GIB, "daemon": 10 * GIB}
    assert [sample.labels["lease"] for sample in found["openfleet_lease_end_timestamp_seconds"]] == ["2"]
    lines = list(_lines(world.ask(SYS, op="list")))
    assert [line.endswith("its pod ends") for line in lines] == [False, True, False]


def test_lease_of_a_pod_neither_expires_nor_needs_a_unit(world):
    world.prepare("uid-1", "GPU-0")
    world.now += 2 * 8760 * 3600
    assert world.tick() == {} and world.tick(recover=True) == {}
    assert 1 in world.parts and world.events == []


def test_claim_keeps_its_lease_while_a_process_uses_it(world):
    world.prepare("uid-1", "GPU-0")
    world.escaped.add(1)
    assert "pid 7 uses it" in problem(world.ask_as_plugin(op="unprepare", claim="uid-1"))
    assert world.ask_as_plugin(op="claims") == {"claims": ["uid-1"]}
    world.escaped.clear()
    assert world.ask_as_plugin(op="unprepare", claim="uid-1") == {"ended": 1}


def test_priority_class_decides_which_lease_is_online(world):
    world.pod_leases = dataclasses.replace(world.pod_leases, online=("inference", "web"))
    for number, name in enumerate(("inference", "batch", "", "web")):
        assert world.prepare("uid-%d" % number, "GPU-%d" % (number % 2), sm=10, priority_class=name)["number"]
    found = [each.request.online for each in BookingRecord(world.directory).read().bookings]
    assert found == [True, False, False, True]
    assert world.ask_as_plugin(op="pool")["by_priority_class"]
    world.pod_leases = dataclasses.replace(world.pod_leases, online=None)
    assert not world.ask_as_plugin(op="pool")["by_priority_class"]


def test_claim_on_two_gpus_is_one_lease(world):
    assert world.prepare("uid-1", "GPU-1", "GPU-0")["number"] == 1
    assert [place.gpu_uuid for place in world.parts[1][1]] == ["GPU-1", "GPU-0"]
    refused = world.prepare("uid-1", "GPU-0")
    assert "it has lease 1 already, with 10GiB and 20 %" in problem(refused)


def test_gpu_without_leases_by_kubernetes_is_refused(world):
    refused = world.prepare("uid-1", "GPU-7")
    assert "gpu GPU-7 has no leases by kubernetes" in problem(refused)
    world.changing = True
    assert "a layout change runs" in problem(world.prepare("uid-1", "GPU-0"))
    assert world.parts == {} and world.rows() == []


def test_lease_that_the_host_refuses_leaves_nothing_behind(world, monkeypatch):
    def refuse(_booking):
        raise LeaseError("gpu_layout[1]", "the place is not free", "Wait.")

    monkeypatch.setattr(world, "take", refuse)
    assert problem(world.prepare("uid-1", "GPU-0")) == "the place is not free"
    assert world.rows() == []
    monkeypatch.undo()
    # A later lease must not get the number of the refused lease.
    assert world.prepare("uid-1", "GPU-0")["number"] == 2


@pytest.mark.parametrize("uid", [0, DAEMON])
def test_only_the_plugin_manages_leases_of_pods(world, uid):
    world.prepare("uid-1", "GPU-0")
    shape = {"memory_bytes": GIB, "sm_percent": 1}
    for request in (
        {"op": "pool"},
        {"op": "claims"},
        {"op": "prepare", "claim": "uid-2", "name": "a/b", "shape": shape, "uuids": ["GPU-0"], "priority_class": ""},
        {"op": "unprepare", "claim": "uid-1"},
    ):
        assert "only openfleet-gpu-dra.service may send it" in problem(world.ask(uid, **request))
    belongs = "it belongs to pod:research/job-gpu-x2x4q"
    assert belongs in problem(world.ask(uid, op="end", number=1))
    assert belongs in problem(world.ask(uid, op="extend", number=1, seconds=600))
    assert belongs in problem(world.ask(uid, op="resize", number=1, shape=shape))
    assert list(world.parts) == [1] and world.events == []


def test_pool_has_room_limits_and_fixed_tenants(world):
    on_both = (VgpuSeat("GPU-0", 0), VgpuSeat("GPU-1", 0))
    elsewhere = VgpuTenant("other", GIB, 10, (VgpuSeat("GPU-9", 0),))
    world.fixed = (VgpuTenant("serving", 8 * GIB, 30, on_both), elsewhere)
    pool = world.ask_as_plugin(op="pool")
    limits = {"most_memory_bytes": 30 * GIB, "most_sm_percent": 50}
    room = {"memory_bytes": 40 * GIB, "sm_percent": 100, "seats": 8}
    assert pool["gpus"] == [{"uuid": "GPU-%d" % number, **room, **limits} for number in range(2)]
    devices = ["openfleet.io/vgpu=serving", "nvidia.com/gpu=GPU-0", "nvidia.com/gpu=GPU-1"]
    [tenant] = pool["tenants"]
    assert (tenant["name"], tenant["uuids"], tenant["cdi"]) == ("serving", ["GPU-0", "GPU-1"], devices)


GOOD = {
    "op": "prepare",
    "claim": "0b1c",
    "name": "a/b",
    "shape": {"memory_bytes": GIB, "sm_percent": 1},
    "uuids": ["GPU-0"],
    "priority_class": "",
}


@pytest.mark.parametrize(
    "change",
    [
        {"claim": "../x"},
        {"priority_class": "Web"},
        {"claim": ""},
        {"claim": 7},
        {"name": "a"},
        {"name": "a/b c"},
        {"name": "root"},
        {"uuids": []},
        {"uuids": ["GPU-0", "GPU-0"]},
        {"uuids": ["GPU-0\n"]},
        {"uuids": "GPU-0"},
        {"uuids": [["GPU-0"]]},
        {"shape": {"memory_bytes": GIB + 1, "sm_percent": 1}},
        {"more": 1},
    ],
    ids=str,
)
def test_invalid_requests_of_the_plugin_are_refused(change):
    assert parse(json.dumps(GOOD).encode()).uuids == ("GPU-0",)
    with pytest.raises(FleetError):
        parse(json.dumps({**GOOD, **change}).encode())


CGROUPS = {
    "0::/system.slice/openfleet-gpu-dra.service\n": True,
    "0::/system.slice/openfleet-gpu-dra.service/payload\n": True,
    "0::/system.slice/kubelet.service\n": False,
    "0::/user.slice/user-0.slice/session-1.scope\n": False,
    "0::/user.slice/user-0.slice/user@0.service/app.slice/openfleet-gpu-dra.service\n": False,
    "0::/kubepods.slice/kubepods-pod01234567_89ab_cdef_0123_456789abcdef.slice/cri-containerd-%s.scope\n"
    % ("a" * 64): False,
    "0::/system.slice/containerd.service/openfleet-gpu-dra.service\n": False,
}


@pytest.mark.parametrize(("cgroup", "accepted"), CGROUPS.items(), ids=lambda value: str(value)[-40:])
def test_plugin_is_identified_by_its_unit(tmp_path, monkeypatch, cgroup, accepted):
    monkeypatch.setattr(peer, "PROC", str(tmp_path))
    for pid, uid in ((7, 0), (8, 1000), ("self", 0)):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "cgroup").write_text(cgroup if pid != "self" else "0::/init.scope\n")
        (folder / "status").write_text("Name:\tpython3\nUid:\t%s\n" % "\t".join([str(uid)] * 4))
    assert pods.is_plugin(7, 0) is accepted
    # Pid 8 belongs to another user in the unit, and pid 9 has ended.
    assert not pods.is_plugin(8, 0) and not pods.is_plugin(8, 1000) and not pods.is_plugin(9, 0)
