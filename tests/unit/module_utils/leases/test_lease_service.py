# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the decisions of the lease service."""

from __future__ import annotations

import json

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.lease_service.request import parse
from ansible_collections.openfleet.gpu.plugins.module_utils.lease_service.service import RETURN_SECONDS
from ansible_collections.openfleet.gpu.plugins.module_utils.lease_service.unit import allowed_devices
from tests.unit.module_utils.leases.lease_world import BIN, DAEMON, NAMES, SYS, World, problem


def test_lease_starts_and_ends_with_its_unit(world):
    answer = world.take_lease(DAEMON)
    assert answer["lease"]["number"] == 1 and answer["environment"] == {"OPENFLEET_QUOTA": "10GiB and 20 %"}
    assert world.units[1].uid == DAEMON and world.rows() == [(1, "daemon", "active")]
    assert world.tick() == {}
    del world.units[1]
    world.tick()
    assert world.rows() == [] and world.parts == {}


def test_only_members_of_the_groups_get_a_lease(world):
    assert "no entry offers leases to sys" in problem(world.take_lease(SYS))
    assert "lease" in world.take_lease(0)
    assert [row[1] for row in world.rows()] == ["root"]


def test_third_lease_is_refused_with_the_free_resources(world):
    assert "lease" in world.take_lease(DAEMON, 30, 60, gpus=2)
    refused = world.take_lease(BIN, 20, 20)
    assert "Free is: 10240MiB and 40 % on gpu 0, 10240MiB and 40 % on gpu 1" in problem(refused)
    assert len(world.rows()) == 1


def test_expired_lease_is_stopped_and_its_escaped_processes_are_ended(world):
    world.take_lease(DAEMON, seconds=600)
    world.escaped.add(1)
    world.now += 601
    for _turn in range(2):
        world.tick()
    assert world.events == ["stop 1", "end processes of daemon on 1", "give back 1"] and world.rows() == []


def test_lease_without_a_unit_lasts_while_a_process_uses_it(world):
    """Count a container in the background as use, although it is not in the unit."""
    world.take_lease(DAEMON, seconds=600)
    world.escaped.add(1)
    del world.units[1]
    world.tick()
    assert world.rows() == [(1, "daemon", "active")] and world.events == []
    world.escaped.clear()
    world.tick()
    assert world.rows() == []


def test_stubborn_lease_keeps_its_part_until_its_unit_has_ended(world, monkeypatch):
    monkeypatch.setattr(
        "ansible_collections.openfleet.gpu.plugins.module_utils.lease_service.service._END_SECONDS", 0.1
    )
    world.take_lease(DAEMON)
    world.stubborn.add(1)
    assert world.ask(DAEMON, op="end", number=1)["state"] == "ending"
    assert world.rows() == [(1, "daemon", "ending")] and 1 in world.parts
    assert "it has expired" in problem(world.ask(DAEMON, op="extend", number=1, seconds=600))
    world.units.clear()
    world.tick()
    assert world.rows() == [] and world.parts == {}


@pytest.mark.parametrize("request_", [{"op": "end"}, {"op": "extend", "seconds": 60}, {"op": "resize"}])
def test_another_user_cannot_change_a_lease(world, request_):
    world.take_lease(DAEMON)
    if request_["op"] == "resize":
        request_ = {**request_, "shape": {"memory_bytes": 1 << 20, "sm_percent": 1}}
    for number in (1, 2, 99):
        answer = world.ask(BIN, number=number, **request_)
        assert "it belongs to daemon" in problem(answer) or "it does not exist" in problem(answer)
    assert world.rows() == [(1, "daemon", "active")] and world.events == []
    assert world.ask(0, op="end", number=1)["state"] == "ended"


def test_waiting_requests_start_in_order_when_a_lease_ends(world):
    world.take_lease(DAEMON, 40, 100, gpus=2)
    first = world.take_lease(BIN, 40, 100, wait=True)
    second = world.take_lease(DAEMON, 40, 100, wait=True)
    assert (first["waiting"]["before"], second["waiting"]["before"]) == (0, 1)
    third = world.take_lease(BIN, 40, 100, wait=True)
    assert third["waiting"]["before"] == 2
    del world.units[1]
    started = world.tick()
    assert sorted(started) == [2, 3] and all("lease" in each for each in started.values())
    assert world.rows() == [(2, "bin", "active"), (3, "daemon", "active"), (4, "bin", "waiting")]


def test_client_that_disconnects_leaves_the_queue(world):
    world.take_lease(DAEMON, 40, 100, gpus=2)
    world.take_lease(BIN, 40, 100, wait=True)
    world.take_lease(DAEMON, 40, 100, wait=True)
    world.now += RETURN_SECONDS + 1
    del world.waiting[2]
    world.tick()
    assert [row[0] for row in world.rows()] == [1, 3]


def test_dead_client_in_the_queue_gets_no_lease(world):
    world.take_lease(DAEMON, 40, 100, gpus=2)
    number = world.take_lease(BIN, 40, 100, wait=True)["waiting"]["number"]
    world.dead.add(world.waiting[number].pid)
    del world.units[1]
    (answer,) = world.tick().values()
    assert "the requesting process has ended" in problem(answer)
    assert world.rows() == [] and world.parts == {}


def test_restart_keeps_leases_and_places_in_the_queue(world):
    world.take_lease(DAEMON, 40, 100, gpus=2)
    for uid in (BIN, DAEMON):
        world.take_lease(uid, 40, 100, wait=True)
    world.restarted()
    world.tick(recover=True)
    assert world.rows() == [(1, "daemon", "active"), (2, "bin", "waiting"), (3, "daemon", "waiting")]
    # Only the account that had a place in the queue can take it again.
    assert world.take_lease(DAEMON, 40, 100, wait=True, number=2)["waiting"]["number"] == 4
    assert world.take_lease(BIN, 40, 100, wait=True, number=2)["waiting"]["number"] == 2
    world.now += RETURN_SECONDS + 1
    world.tick()
    assert [row[0] for row in world.rows()] == [1, 2, 4]


def test_leases_without_unit_are_given_back_after_a_boot(world):
    world.take_lease(DAEMON)
    world.take_lease(BIN)
    del world.units[1]
    world.restarted()
    world.tick(recover=True)
    assert world.rows() == [(2, "bin", "active")] and set(world.parts) == {2}


def test_lease_that_lost_its_part_is_stopped(world):
    world.take_lease(DAEMON)
    world.parts.clear()
    world.tick(recover=True)
    assert world.events == ["stop 1"]
    world.tick()
    assert world.rows() == []


def test_limits_hold_for_all_requests_of_an_account(tmp_path):
    world = World(tmp_path, count=2, memory_bytes=30 << 30, sm_percent=50, hours=2)
    assert "a lease lasts at most 2 hours" in problem(world.take_lease(DAEMON, seconds=3 * 3600))
    assert "the limit is 30GiB" in problem(world.take_lease(DAEMON, 20, gpus=2))
    assert world.take_lease(DAEMON, seconds=None)["lease"]["ends"] == world.now + 2 * 3600
    assert "the limit is 30GiB" in problem(
        world.ask(DAEMON, op="resize", number=1, shape={"memory_bytes": 31 << 30, "sm_percent": 1})
    )
    assert "lease" in world.take_lease(DAEMON)
    assert "the limit is 2" in problem(world.take_lease(DAEMON, 1, 1, wait=True))
    assert "lease" in world.take_lease(BIN)


def test_one_account_cannot_fill_the_queue(tmp_path):
    world = World(tmp_path, count=64)
    world.take_lease(DAEMON, 40, 100, gpus=2)
    answers = [world.take_lease(DAEMON, 40, 100, wait=True) for _number in range(20)]
    assert sum("waiting" in each for each in answers) == 8
    assert "daemon has 8 waiting requests" in problem(answers[-1])
    assert "waiting" in world.take_lease(BIN, 40, 100, wait=True)


def test_quota_is_resized_and_extended(world):
    world.take_lease(DAEMON)
    changed = world.ask(DAEMON, op="resize", number=1, shape={"memory_bytes": 20 << 30, "sm_percent": 40})
    assert changed["changed"]["size"] == "20GiB and 40 %" and world.parts[1][0].sm_percent == 40
    world.now += 1800
    changed = world.ask(DAEMON, op="extend", number=1, seconds=7200)
    assert changed["changed"]["ends"] == world.now + 7200
    assert "only a quota" in problem(world.ask(DAEMON, op="resize", number=1, shape={"profile": "1g.10gb"}))


def test_request_waits_for_the_end_of_a_layout_change(world):
    world.take_lease(DAEMON, 40, 100, gpus=2)
    number = world.take_lease(BIN, wait=True)["waiting"]["number"]
    del world.units[1]
    world.changing = True
    assert world.tick() == {} and world.rows() == [(number, "bin", "waiting")]
    assert "a layout change runs" in problem(world.take_lease(BIN))
    world.changing = False
    world.now += 16
    assert list(world.tick()) == [number]


GOOD = {"op": "take", "shape": {"profile": "1g.10gb"}, "gpus": 1, "seconds": None, "wait": False, "number": None}


@pytest.mark.parametrize(
    "data",
    [
        *("", "[]", "null", "{", '"take"', "[" * 4000, json.dumps({"op": ["take"]}), json.dumps({"op": "apply"})),
        *(json.dumps({**GOOD, **wrong}) for wrong in (
            {"uid": 0}, {"pid": 1}, {"gpus": 0}, {"gpus": True}, {"gpus": "1"}, {"gpus": 10**9}, {"seconds": 59},
            {"seconds": -1}, {"seconds": 600.5}, {"seconds": 10**12}, {"number": 0}, {"number": "1"}, {"shape": {}},
            {"shape": {"profile": "x"}}, {"shape": {"profile": "1g.10gb\n"}}, {"shape": {"profile": 1}},
            {"shape": {"memory_bytes": 1, "sm_percent": 1}}, {"shape": {"memory_bytes": 1 << 30, "sm_percent": 0}},
            {"shape": {"memory_bytes": 1 << 30, "sm_percent": 101}}, {"shape": {"memory_bytes": 1 << 60, "sm_percent": 1}},
            {"shape": {"memory_bytes": 1 << 30}}, {"shape": ["1g.10gb"]},
        )),
        *(json.dumps(wrong) for wrong in (
            {"op": "end"}, {"op": "end", "number": None}, {"op": "end", "number": -1}, {"op": "extend", "number": 1},
            {"op": "extend", "number": 1, "seconds": None}, {"op": "list", "number": 1},
        )),
    ],
)  # fmt: skip
def test_invalid_request_is_refused(data):
    with pytest.raises(FleetError):
        parse(data.encode())


def test_parsed_request():
    asked = parse(json.dumps({**GOOD, "wait": True, "gpus": 2}).encode())
    assert (asked.shape.profile, asked.gpus, asked.seconds, asked.wait) == ("1g.10gb", 2, None, True)


def test_programs_of_a_lease_have_no_other_gpu():
    kernel = "Character devices:\n  1 mem\n136 pts\n195 nvidia\n195 nvidia-frontend\n231 infiniband_verbs\n" \
        "234 nvidia-caps\n235 nvidia-uvm\n\nBlock devices:\n259 blkext\n"  # fmt: skip
    assert allowed_devices(["/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap3"], kernel) == [
        ("/dev/nvidiactl", "rw"),
        ("/dev/nvidia-caps/nvidia-cap3", "rw"),
        ("char-mem", "rw"),
        ("char-pts", "rw"),
        ("char-infiniband_verbs", "rw"),
    ]


def test_account_names_are_those_of_the_host(world):
    assert [world.take_lease(uid)["lease"]["account"] for uid in (DAEMON, BIN)] == [NAMES[DAEMON], NAMES[BIN]]
