# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a host grants leases and takes them back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.lease_service.leftover import end_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.model import Booking, Place, Request, Shape
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.record import BookingRecord, Recorded
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.transaction import locked
from tests.integration.lease_fleet import GIB, LeaseFleet, Refused, mig, vgpu
from tests.integration.patience import wait_until

SMALL, MIDDLE, LARGE = Shape(profile="1g.10gb"), Shape(profile="2g.20gb"), Shape(profile="3g.40gb")


@pytest.fixture
def fleet(host, monkeypatch):
    host.create([{"model": "H100-80GB", "count": 2}])
    return LeaseFleet(host, monkeypatch)


def test_lease_gets_an_instance_and_its_uuid(fleet):
    fleet.apply([mig([0], "3g.40gb")])
    grant = fleet.take(1, SMALL)
    (uuid,) = grant["mig_uuids"]
    assert uuid.startswith("MIG-") and dict(grant["environment"])["CUDA_VISIBLE_DEVICES"] == uuid
    assert grant["cdi"] == ["nvidia.com/gpu=%s" % uuid]
    assert [profile for profile, _start in fleet.instances()[0]] == ["1g.10gb", "3g.40gb"]
    assert list(fleet.records().values()) == ["lease 1 of root"]
    assert fleet.grant(1) == grant


def test_taking_again_returns_the_same_grant(fleet):
    fleet.apply([mig([0], "3g.40gb")])
    grant = fleet.take(1, SMALL)
    assert fleet.take(1, SMALL)["mig_uuids"] == grant["mig_uuids"]


def test_instance_of_an_ended_lease_is_used_again(fleet):
    fleet.apply([mig([0], "3g.40gb")])
    first = fleet.take(1, SMALL)
    fleet.give_back(1)
    assert list(fleet.records().values()) == [None]
    assert fleet.take(2, SMALL)["mig_uuids"] == first["mig_uuids"]


def test_idle_instances_give_way_to_a_larger_lease(fleet):
    fleet.apply([mig([0])])
    for number in range(1, 8):
        fleet.take(number, SMALL)
    for number in range(1, 8):
        fleet.give_back(number)
    fleet.take(8, Shape(profile="7g.80gb"))
    assert fleet.instances()[0] == [("7g.80gb", 0)]
    assert fleet.records() == {("7g.80gb", 0): "lease 8 of root"}


def test_layout_has_no_drift_beside_leases(fleet):
    fleet.apply([mig([0], "3g.40gb")])
    fleet.take(1, SMALL)
    assert not fleet.apply([mig([0], "3g.40gb")])["changed"]


def test_quota_follows_a_lease(fleet):
    assert not fleet.apply([vgpu([0])]).get("failed")
    grant = fleet.take(1, Shape(8 * GIB, 20))
    assert grant["tenant"] == "lease-1" and dict(grant["environment"])["OPENFLEET_VGPU"] == "lease-1"
    assert (fleet.root / "etc/openfleet-gpu/vgpu/lease-1/quota").read_text().count("memory %d sm 20" % (8 * GIB)) == 1
    fleet.resize(1, Shape(16 * GIB, 30))
    assert (fleet.root / "etc/openfleet-gpu/vgpu/lease-1/quota").read_text().count("memory %d sm 30" % (16 * GIB)) == 1
    fleet.give_back(1)
    assert fleet.tenants() == []


def test_quota_beyond_the_room_is_refused_and_stays(fleet):
    fleet.apply([vgpu([0])])
    fleet.take(1, Shape(8 * GIB, 20))
    fleet.take(2, Shape(8 * GIB, 60))
    with pytest.raises(Refused, match="no room"):
        fleet.resize(1, Shape(8 * GIB, 50))
    assert "sm 20" in (fleet.root / "etc/openfleet-gpu/vgpu/lease-1/quota").read_text()


def test_lease_waits_for_a_running_change(fleet):
    fleet.apply([mig([0], "3g.40gb")])
    with locked(fleet.directory, 0), pytest.raises(Refused, match="another run is changing the layout") as refused:
        fleet.take(1, SMALL)
    assert refused.value.kind == "RetryLaterError"
    assert fleet.records() == {}


def test_lease_waits_for_a_change_that_waits_for_leases(fleet):
    """Request a lease while a change waits for the end of other leases."""
    fleet.apply([mig([0], "1g.10gb")])
    fleet.take(1, LARGE)
    mark = Path(fleet.directory, "waiting.json")
    done = []
    change = threading.Thread(
        daemon=True,
        target=lambda: done.append(fleet.apply([mig([0], "1g.10gb", "4g.40gb")], on_busy="wait", busy_timeout=60)),
    )
    change.start()
    wait_until(mark.exists, "the change waits")
    with wait_for_lock(fleet):
        booking = fleet.fork(lambda: fleet.find_waiting(2, SMALL))
        assert booking == "RetryLaterError: this host: a layout change waits until its GPUs are free. Try again later."
        fleet.give_back(1)
    change.join(300)
    assert done and not done[0].get("failed"), done
    assert not mark.exists()
    assert [profile for profile, _start in fleet.instances()[0]] == ["1g.10gb", "4g.40gb"]
    fleet.take(2, SMALL)


@contextlib.contextmanager
def wait_for_lock(fleet):
    """Let calls in this block wait for the layout's lock."""
    made = fleet.lease_host
    fleet.lease_host = lambda: made(lock_timeout_seconds=120)
    yield
    fleet.lease_host = made


def test_mark_of_a_killed_change_does_not_count(fleet):
    fleet.apply([mig([0], "3g.40gb")])
    Path(fleet.directory, "waiting.json").write_text(json.dumps({"schema": 1, "pid": 1, "start": 0}))
    assert fleet.take(1, SMALL)["mig_uuids"]


@pytest.mark.parametrize("kind", ["instance", "quota"])
def test_forced_change_stops_the_unit_of_a_lease(fleet, kind):
    log = fleet.host.folder / "systemctl.log"
    tool = fleet.host.bin / "systemctl"
    tool.write_text('#!/bin/sh\necho "$@" >> %s\n' % log)
    tool.chmod(0o755)
    if kind == "instance":
        fleet.apply([mig([0], "1g.10gb")])
        fleet.take(7, LARGE)
        wanted = [mig([0], "1g.10gb", "4g.40gb")]
    else:
        fleet.apply([vgpu([0])])
        fleet.take(7, Shape(8 * GIB, 60))
        wanted = [vgpu([0], {"name": "large", "memory": "70GiB", "sm_percent": 90})]
    assert "lease 7 of root" in fleet.apply(wanted)["msg"]
    assert not log.exists()
    done = fleet.apply(wanted, on_busy="force")
    assert done["ended"] == ["lease 7 of root"], done
    assert "stop -- openfleet-gpu-lease-7.scope" in log.read_text()
    assert fleet.recover(7) == [(7, "lost")]
    fleet.give_back(7)
    assert fleet.recover() == [] and fleet.records() == {} and "lease-7" not in fleet.tenants()


@pytest.mark.parametrize("ended", [True, False])
def test_reboot_for_a_change_ends_only_idle_instances(fleet, ended):
    fleet.apply([mig([0], "1g.10gb")])
    fleet.take(1, LARGE)
    if ended:
        fleet.give_back(1)
    wanted = [mig([0], "1g.10gb"), {"gpus": [1], "sharing": "mig", "mig": [{"profile": "1g.10gb"}]}]
    done = fleet.host.module("layout", layout=wanted, leave_pending=True)
    if ended:
        assert done["reboot_required"], done
        with pytest.raises(Refused, match="waits for a reboot"):
            fleet.take(2, SMALL)
    else:
        assert "lease 1 of root" in done["msg"], done


def test_leases_end_with_the_host(fleet):
    fleet.apply([mig([0], "1g.10gb"), vgpu([1])])
    fleet.take(1, LARGE)
    fleet.take(2, Shape(8 * GIB, 20))
    fleet.control.reboot()
    fleet.apply([mig([0], "1g.10gb"), vgpu([1])])
    assert fleet.recover() == [(1, "given back"), (2, "given back")]
    assert fleet.records() == {} and fleet.tenants() == []
    assert fleet.take(3, LARGE)["mig_uuids"]


def test_reload_of_the_driver_ends_instances_and_keeps_quotas(fleet):
    """Remove all instances while the units of leases keep running."""
    fleet.apply([mig([0], "1g.10gb"), vgpu([1])])
    fleet.take(1, LARGE)
    quota = fleet.take(2, Shape(8 * GIB, 20))
    fleet.control.reboot()
    fleet.apply([mig([0], "1g.10gb"), vgpu([1])])
    assert fleet.recover(1, 2) == [(1, "lost")]
    assert fleet.grant(2) == quota
    fleet.give_back(1)
    assert fleet.records() == {} and fleet.tenants() == ["lease-2"]
    assert fleet.take(3, LARGE)["mig_uuids"]


def test_process_in_an_ended_lease_keeps_its_part(fleet):
    fleet.apply([mig([0], "1g.10gb")])
    fleet.take(1, LARGE)
    identity = fleet.instance_id(0, 0)
    fleet.control.attach(os.getpid(), 0, identity, 0, "compute", 1 << 20)
    with pytest.raises(Refused, match="still in use by .*pid %d" % os.getpid()) as refused:
        fleet.give_back(1)
    assert refused.value.kind == "RetryLaterError"
    assert fleet.recover() == [(1, "in use")]
    assert fleet.records() == {("3g.40gb", 0): "lease 1 of root"}
    fleet.control.detach(os.getpid())
    assert fleet.recover() == [(1, "given back")]


def test_process_that_keeps_an_expired_lease_is_ended(fleet):
    fleet.apply([mig([0], "1g.10gb")])
    fleet.take(1, LARGE)
    fleet.take(2, MIDDLE)
    mine, other = (subprocess.Popen(["sleep", "600"]) for _number in range(2))
    try:
        fleet.control.attach(mine.pid, 0, fleet.instance_id(0, 0), 0, "compute", 1 << 20)
        fleet.control.attach(other.pid, 0, fleet.instance_id(0, 4), 0, "compute", 1 << 20)
        fleet.fork(lambda: end_holders(fleet.directory, fleet.lease_host().grant(1), "root"))
        assert mine.wait(60) == -signal.SIGTERM
        # The other lease's process keeps running.
        assert other.poll() is None
        fleet.control.detach(mine.pid)
        fleet.give_back(1)
    finally:
        for process in (mine, other):
            process.kill()
            process.wait(60)


def test_nothing_that_is_in_use_is_removed_for_a_lease(fleet):
    fleet.apply([mig([0], "1g.10gb")])
    fleet.take(1, LARGE)
    fleet.give_back(1)
    fleet.control.attach(os.getpid(), 0, fleet.instance_id(0, 0), 0, "compute", 1 << 20)
    with pytest.raises(Refused, match="pid %d" % os.getpid()):
        fleet.take(2, LARGE)
    # The first of these leases fits beside the busy instance. The second one does not.
    fleet.take(3, MIDDLE)
    with pytest.raises(Refused, match="pid %d" % os.getpid()) as refused:
        fleet.take(4, MIDDLE)
    assert refused.value.kind == "RetryLaterError"
    assert fleet.records() == {("3g.40gb", 0): None, ("2g.20gb", 4): "lease 3 of root"}
    fleet.control.detach(os.getpid())


def test_lease_of_several_gpus(fleet):
    fleet.apply([mig([0, 1], "1g.10gb")])
    grant = fleet.take(1, LARGE, gpus=2)
    assert len(grant["mig_uuids"]) == 2 and len(set(grant["gpu_uuids"])) == 2


def test_gpu_without_its_layout_offers_nothing(fleet):
    fleet.apply([mig([0, 1], "1g.10gb")])
    fleet.control.lose(1)
    assert fleet.fork(lambda: [len(offer.cards) for offer in fleet.lease_host().offers()]) == [1]


def test_export_leaves_leases_out(fleet):
    fleet.apply([mig([0], "2g.20gb"), vgpu([1])])
    fleet.take(1, SMALL)
    fleet.take(2, SMALL)
    fleet.give_back(2)
    (entry,) = [each for each in fleet.host.module("layout_export")["gpu_layout"] if each["sharing"] == "mig"]
    assert entry["mig"] == [{"profile": "2g.20gb"}]


@pytest.mark.parametrize("gpus", [[0], [0, 1]])
def test_plan_refuses_a_profile_that_a_gpu_lacks(fleet, gpus):
    refused = fleet.apply([mig(gpus, "2g.20gb", profiles=["1g.10gb", "1g.5gb"])])
    assert refused["failed"] and "gpu_layout[0].leases.profiles on gpu 0" in refused["msg"], refused
    assert "there is no profile 1g.5gb" in refused["msg"] and "Did you mean" in refused["msg"]
    assert fleet.instances() == [[], []]


def test_metrics_count_leases_by_account(fleet):
    fleet.apply([mig([0], "2g.20gb"), vgpu([1], {"name": "fixed", "memory": "20GiB", "sm_percent": 30})])
    bookings = fleet.fork(lambda: [fleet.find(1, SMALL, "alice"), fleet.find(2, Shape(8 * GIB, 20), "alice")])
    assert [len(booking["places"]) for booking in bookings] == [1, 1]
    uuids = [booking["places"][0]["gpu_uuid"] for booking in bookings]
    started = [
        Booking(Request(1, "alice", SMALL, 60.0), "gpu_layout[0]", (Place(uuids[0], 0),), 0.0, True),
        Booking(Request(2, "alice", Shape(8 * GIB, 20), 60.0), "gpu_layout[1]", (Place(uuids[1], 0),), 0.0, True),
        Booking(Request(3, "bob", LARGE, 60.0), "gpu_layout[0]", (Place(uuids[0], 0),), 9e9),
    ]
    BookingRecord(fleet.directory).write(Recorded(tuple(started), 4))
    fleet.take(4, SMALL)
    fleet.give_back(4)
    samples = fleet.fork(fleet.lease_samples)
    assert samples["openfleet_lease_running"] == [[{"account": "alice"}, 2], [{"account": "bob"}, 0]]
    assert samples["openfleet_lease_waiting"] == [[{"account": "alice"}, 0], [{"account": "bob"}, 1]]
    ((_alice, memory), (_bob, none)) = samples["openfleet_lease_memory_bytes"]
    assert 17 * GIB < memory < 19 * GIB and none == 0
    assert [(labels["mig_profile"], count) for labels, count in samples["openfleet_lease_idle_instances"]] == [
        ("1g.10gb", 1)
    ]
    ends = samples["openfleet_lease_end_timestamp_seconds"]
    assert [(labels["lease"], labels["entry"], labels["gpu_uuid"], end) for labels, end in ends] == [
        ("1", "gpu_layout[0]", uuids[0], 60.0),
        ("2", "gpu_layout[1]", uuids[1], 60.0),
    ]
    # GPU 0 has the fixed 2g.20gb, and the fixed tenant of GPU 1 has 20 GiB. An idle instance belongs to the pool.
    pool = {labels["gpu_uuid"]: size for labels, size in samples["openfleet_lease_pool_memory_bytes"]}
    assert 58 * GIB < pool[uuids[0]] < 62 * GIB and 58 * GIB < pool[uuids[1]] < 62 * GIB
    # The larger share counts: a seventh of the compute for 1g.10gb, 20 % of the SMs, half of the memory for 3g.40gb.
    gpus = samples["openfleet_lease_gpus"]
    assert [(labels["account"], labels["entry"]) for labels, _value in gpus] == [
        ("alice", "gpu_layout[0]"),
        ("alice", "gpu_layout[1]"),
    ]
    assert [value for _labels, value in gpus] == pytest.approx([1 / 7, 0.2])
    ((labels, half),) = samples["openfleet_lease_waiting_gpus"]
    assert (labels["account"], labels["entry"]) == ("bob", "gpu_layout[0]") and half == pytest.approx(0.5, abs=0.01)
    shares = {(labels["gpu_uuid"], labels["entry"]): value for labels, value in samples["openfleet_lease_pool_gpus"]}
    assert shares == {
        (uuids[0], "gpu_layout[0]"): pytest.approx(5 / 7),
        (uuids[1], "gpu_layout[1]"): pytest.approx(0.7),
    }
