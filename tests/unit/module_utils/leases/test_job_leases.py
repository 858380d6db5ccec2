# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test leases of Slurm jobs, which the Prolog takes and the Epilog gives back."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.cli.lease import _lines
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.lease_service import jobs
from ansible_collections.openfleet.gpu.plugins.module_utils.lease_service.request import parse
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.names import user_of
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.record import BookingRecord
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.units import count
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import peer
from tests.unit.module_utils.leases.lease_world import BIN, SYS, problem


def used(world):
    """Return the SM percentage of each GPU that leases use."""
    found = {}
    for shape, (place,) in world.parts.values():
        found[place.gpu_uuid] = found.get(place.gpu_uuid, 0) + shape.sm_percent
    return found


def test_job_has_its_lease_until_its_epilog(world):
    first = world.begin("7", 3)
    assert first == {"number": 1, "environment": {"OPENFLEET_QUOTA": "12GiB and 30 %"}}
    # Slurm may run the Prolog again, and the service may restart.
    world.restarted()
    world.tick(recover=True)
    assert world.begin("7", 3) == first and len(world.parts) == 1
    assert world.rows() == [(1, "job:alice/7", "active")]
    assert list(_lines(world.ask(SYS, op="list")))[1].endswith("its job ends")
    assert world.ask(0, op="jobs") == {"jobs": ["7"]}
    assert world.end("7") == {"ended": 1, "state": "ended"}
    assert world.end("7") == {"ended": None}
    assert world.parts == {} and world.rows() == []


def test_partition_decides_which_lease_is_online(world):
    world.job_leases = dataclasses.replace(world.job_leases, online=("inference",))
    for job, partition in (("1", "inference"), ("2", "batch"), ("3", "")):
        assert "number" in world.begin(job, 1, partition=partition)
    assert [each.request.online for each in BookingRecord(world.directory).read().bookings] == [True, False, False]


def test_jobs_fill_one_gpu_before_the_next(world):
    for job, units in (("1", 4), ("2", 5), ("3", 1), ("4", 2)):
        world.begin(job, units)
    assert sorted(used(world).values()) == [20, 100]


def test_request_that_never_fits_differs_from_one_that_fits_later(world):
    never = world.begin("1", 6)
    assert "6 units are more than the limit of gpu_layout[2], which is 5" in problem(never) and "later" not in never
    for job in "2345":
        assert "number" in world.begin(job, 5)
    later = world.begin("6", 1)
    assert "no GPU has 4GiB and 10 % free now" in problem(later) and later["later"]
    world.changing = True
    assert world.begin("7", 1)["later"]
    world.changing = False
    world.job_leases = world.pod_leases
    assert "no entry of this host has leases by slurm" in problem(world.begin("8", 1))
    assert len(world.parts) == 4


def test_admitted_jobs_always_fit_over_random_hours(world):
    """Start and end random jobs that together have at most the units that Slurm gets."""
    draw = random.Random(45)
    limit = count([10, 10], 5)
    running = {}
    for job in range(120):
        units = draw.randint(1, 5)
        while sum(running.values()) + units > limit:
            ended = draw.choice(sorted(running))
            del running[ended]
            assert world.end(ended)["state"] == "ended"
        running[str(job)] = units
        assert "number" in world.begin(str(job), units), (job, units, used(world))
    assert sum(used(world).values()) == 10 * sum(running.values())


def test_no_job_survives_a_reboot(world):
    world.begin("7", 3)
    world.prepare("uid-1", "GPU-0")
    world.boot = "boot-2"
    world.restarted()
    world.tick(recover=True)
    assert world.rows() == [(2, "pod:research/job-gpu-x2x4q", "active")]
    assert world.begin("7", 2)["number"] == 3


def test_process_that_outlives_its_job_is_ended(world, monkeypatch):
    world.begin("7", 3)
    world.escaped.add(1)
    with monkeypatch.context() as patched:
        # From here on, the service cannot end the process.
        patched.setattr(world.service, "_end_holders", None)
        assert world.end("7") == {"ended": 1, "state": "ending"}
        again = world.begin("7", 3)
        assert "its former lease is still in use" in problem(again) and again["later"]
    world.tick()
    assert world.rows() == [] and "end processes of job:alice/7 on 1" in world.events
    assert user_of("job:alice/7") == "alice" and user_of("bob") == "bob"


def test_plugin_of_the_kubelet_does_not_see_leases_of_jobs(world):
    world.begin("7", 3)
    assert world.ask_as_plugin(op="claims") == {"claims": []}


def test_only_root_manages_leases_of_jobs(world):
    world.begin("7", 3)
    for request in (
        {"op": "jobs"},
        {"op": "job_begin", "job": "8", "user": "x", "units": 1, "partition": "batch"},
        {"op": "job_end", "job": "7"},
    ):
        assert "only root may send it" in problem(world.ask(BIN, **request))
    assert "it belongs to job:alice/7" in problem(world.ask(0, op="end", number=1))
    assert list(world.parts) == [1]


GOOD = {"op": "job_begin", "job": "7", "user": "alice", "units": 3, "partition": "batch"}


@pytest.mark.parametrize(
    "change",
    [
        {"job": "7; true"},
        {"partition": "a,b"},
        {"job": ""},
        {"job": 7},
        {"user": "a/b"},
        {"user": "a b"},
        {"units": 0},
        {"units": 101},
        {"units": True},
        {"units": None},
        {"more": 1},
    ],
    ids=str,
)
def test_invalid_requests_of_the_prolog_are_refused(change):
    assert parse(json.dumps(GOOD).encode()).units == 3
    with pytest.raises(FleetError):
        parse(json.dumps({**GOOD, **change}).encode())


CGROUPS = {
    "0::/system.slice/slurmd.service\n": True,
    "0::/docker/%s\n" % ("a" * 64): False,
    "0::/kubepods.slice/kubepods-pod01234567_89ab_cdef_0123_456789abcdef.slice/cri-containerd-%s.scope\n"
    % ("a" * 64): False,
}


@pytest.mark.parametrize(("cgroup", "accepted"), CGROUPS.items(), ids=lambda value: str(value)[:30])
def test_prolog_is_root_outside_of_containers(tmp_path, monkeypatch, cgroup, accepted):
    monkeypatch.setattr(peer, "PROC", str(tmp_path))
    for pid, uid in ((7, 0), (8, 1000), ("self", 0)):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "cgroup").write_text(cgroup if pid != "self" else "0::/init.scope\n")
        (folder / "status").write_text("Name:\tsh\nUid:\t%s\n" % "\t".join([str(uid)] * 4))
    assert jobs.is_prolog(7, 0) is accepted
    assert not jobs.is_prolog(8, 0) and not jobs.is_prolog(8, 1000) and not jobs.is_prolog(9, 0)
