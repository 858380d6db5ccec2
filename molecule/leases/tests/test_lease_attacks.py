# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Attack leases as users.

The users try to use other users' leases, to keep their own leases after the end, to exceed limits, to fill the queue
and to leave the slice.
"""

from __future__ import annotations

import pytest
from lease_desk import MIG, QUOTA


def test_user_outside_the_groups_gets_nothing(desk):
    for size in (MIG, QUOTA, f"{MIG} --wait"):
        refused = desk.lease("mallory", size, "true")
        assert refused.rc == 125 and "no entry offers leases to mallory" in refused.stderr
    # The groups of the account count, not those that a process claims to have.
    claim = desk.host.run(f"setpriv --reuid mallory --regid mallory --groups ml gpu-layout lease {MIG} -- true")
    assert claim.rc == 125 and "no entry offers leases to mallory" in claim.stderr


@pytest.mark.parametrize("words", ["end {}", "extend {} 8h", "resize {} --memory 1GiB --sm 1"])
def test_lease_of_another_user_cannot_be_changed(desk, words):
    started = desk.taken("alice", QUOTA)
    before = desk.rows()
    refused = desk.run("bob", "gpu-layout lease " + words.format(started.number))
    assert refused.rc == 1 and "it belongs to alice" in refused.stderr
    assert desk.rows() == before


MANAGER = "org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"


@pytest.mark.parametrize(
    "command",
    [
        "systemctl stop {unit}",
        "systemctl set-property --runtime {unit} DevicePolicy=auto",
        "systemctl edit --runtime --stdin {unit}",
        "systemctl freeze {unit}",
        f"busctl call {MANAGER} AttachProcessesToUnit ssau openfleet-gpu-lease-0.scope '' 1 $$",
        f"busctl call {MANAGER} AttachProcessesToUnit ssau {{unit}} '' 1 $$",
        f"busctl call {MANAGER} StartTransientUnit 'ssa(sv)a(sa(sv))' openfleet-gpu-lease-99.scope fail 1 PIDs au 1 $$ 0",
        "echo $$ >/sys/fs/cgroup/systemd{cgroup}/cgroup.procs",
        "echo $$ >/sys/fs/cgroup/systemd/cgroup.procs",
        "mkdir /sys/fs/cgroup/systemd{cgroup}/mine",
        "rm /run/systemd/transient/{unit}",
        "rm /var/lib/openfleet-gpu/leases.json",
    ],
)
def test_user_can_neither_change_the_unit_nor_leave_it(desk, command):
    started = desk.taken("alice", MIG)
    unit, cgroup = (
        f"openfleet-gpu-lease-{started.number}.scope",
        desk.show(started.number, "ControlGroup")["ControlGroup"],
    )
    where = desk.ask(f"cat /proc/{started.pid}/cgroup")
    refused = desk.run("alice", command.format(unit=unit, cgroup=cgroup).replace("$$", str(started.pid)))
    assert refused.rc != 0
    assert desk.ask(f"cat /proc/{started.pid}/cgroup") == where
    assert desk.show(started.number, "DevicePolicy", "ActiveState") == {
        "DevicePolicy": "closed",
        "ActiveState": "active",
    }
    assert desk.numbers() == [started.number]


def test_parallel_requests_do_not_exceed_a_limit(desk):
    started = [desk.start("alice", MIG) for _number in range(9)]
    desk.wait_for(
        lambda: all(each.answer("lease") or desk.host.run(f"test -s {each.file}.status").rc == 0 for each in started),
        "an answer for each request",
    )
    assert len(desk.numbers()) == 4
    assert len([each for each in started if each.answer("lease")]) == 4


def test_one_user_cannot_fill_the_queue(desk):
    for user in ("alice", "bob"):
        desk.taken(user, "--memory 40GiB --sm 90")
    waiting = [desk.start("alice", "--memory 1GiB --sm 1 --gpus 2 --wait") for _number in range(3)]
    # A limit counts leases and waiting requests together. The lease of alice already reaches her limit.
    assert all(each.status() == 125 for each in waiting)
    assert desk.numbers("waiting") == []


#: A program that moves a process into another scope, as systemd does at the request of a user's own manager.
MOVE = f"busctl call {MANAGER} StartTransientUnit 'ssa(sv)a(sa(sv))' escaped.scope fail 1 PIDs au 1 {{pid}} 0"


def test_process_that_left_the_unit_does_not_outlive_its_lease(desk):
    started = desk.taken(
        "alice", f"{MIG} --for 1m", "sh -c 'exec gpusim run --gpu $CUDA_VISIBLE_DEVICES -- sleep 3600'"
    )
    holder = started.pid
    desk.wait_for(lambda: "sleep" in desk.ask(f"cat /proc/{holder}/comm"), "the program")
    desk.ask(MOVE.format(pid=holder))
    desk.wait_for(
        lambda: desk.host.run(f"test -e /run/systemd/transient/openfleet-gpu-lease-{started.number}.scope").rc,
        "its end",
    )
    # The process still uses the instance, so the lease still counts.
    assert [row["account"] for row in desk.rows()] == ["alice"] and desk.parts() != "[]"
    desk.wait_for(lambda: not desk.rows(), "the end of the lease")
    assert desk.host.run(f"kill -0 {holder}").rc != 0 and desk.parts() == "[]"


def test_program_that_ignores_sigterm_does_not_outlive_its_lease(desk):
    started = desk.taken("alice", MIG, 'sh -c "trap : TERM; while :; do sleep 1; done"')
    assert "ends: its programs got SIGTERM" in desk.run("alice", f"gpu-layout lease end {started.number}").stdout
    assert "it has expired" in desk.run("alice", f"gpu-layout lease extend {started.number} 8h").stderr
    desk.wait_for(lambda: not desk.rows(), "the end of the lease")
    assert started.status() == 137
