# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run programs with leases on a host with systemd."""

from __future__ import annotations

import pytest
from lease_desk import MIG, QUOTA

from tests.lab.lab_fixtures import reboot


def test_program_runs_as_the_caller_and_gives_everything_back(desk):
    words = 'sh -c "id -un; pwd; ulimit -n; echo $MINE; cat; exit 7"'
    done = desk.run("alice", f"ulimit -n 300; export MINE=here; echo typed | gpu-layout lease {MIG} -- {words}")
    assert done.stdout.split() == ["alice", "/home/alice", "300", "here", "typed"] and done.rc == 7
    assert "has 1g.10gb on 1 GPU until" in done.stderr
    desk.wait_for(lambda: not desk.rows(), "the end of the lease")
    assert desk.parts() == "[]"


def test_missing_program_takes_no_lease(desk):
    assert desk.lease("alice", MIG, "no-such-program").rc == 127
    assert desk.lease("alice", MIG, "/etc/passwd").rc == 127
    assert desk.rows() == []


@pytest.mark.parametrize("signal", ["TERM", "KILL", "HUP"])
def test_lease_ends_with_its_program(desk, signal):
    started = desk.taken("alice", MIG)
    started.kill(signal)
    assert started.status() == {"TERM": 143, "KILL": 137, "HUP": 129}[signal]
    desk.wait_for(lambda: not desk.rows(), "the end of the lease")
    assert desk.parts() == "[]"


# Types Ctrl-C for a program. Without a reset of the signals, the program would ignore the signals that the tests'
# caller ignores, for example with nohup.
TYPES_CTRL_C = """
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("env", ["env", "--default-signal=HUP,INT,QUIT", "runuser", "-u", "alice", "--", *sys.argv[1:]])
seen = b""
while b"ready" not in seen:
    seen += os.read(terminal, 1024)
os.write(terminal, b"\\x03")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_ctrl_c_reaches_the_program(desk):
    program = 'sh -c "trap \\"exit 42\\" INT; test -t 0 && echo ready; while :; do sleep 1; done"'
    done = desk.ask(f"python3 -c '{TYPES_CTRL_C}' gpu-layout lease {MIG} -- {program}")
    assert done.split()[-1] == "42"


def test_unit_has_only_the_devices_of_the_lease(desk):
    number = desk.taken("alice", MIG).number
    shown = desk.show(number, "DevicePolicy", "DeviceAllow", "Slice", "ActiveState", "Transient")
    assert (shown["DevicePolicy"], shown["ActiveState"], shown["Transient"]) == ("closed", "active", "yes")
    assert shown["Slice"] == f"openfleet-gpu-leases-{desk.ask('id -u alice')}.slice"
    allowed = shown["DeviceAllow"].splitlines()
    assert "/dev/nvidiactl rw" in allowed and "char-pts rw" in allowed
    assert not [each for each in allowed if each.startswith("char-nvidia")]


def test_quota_is_resized_while_the_program_runs(desk):
    started = desk.taken("alice", QUOTA)
    assert desk.parts() == f'["lease-{started.number}"]'
    done = desk.run("alice", f"gpu-layout lease resize {started.number} --memory 20GiB --sm 40")
    assert done.stdout.startswith(f"Lease {started.number} has 20GiB and 40 % on 1 GPU until "), done.stderr
    assert " 20480   40%" in desk.ask(f"vgpu-run --list | grep lease-{started.number}")
    assert (
        "and the limit is 40GiB"
        in desk.run("alice", f"gpu-layout lease resize {started.number} --memory 41GiB --sm 1").stderr
    )
    assert " 20480   40%" in desk.ask(f"vgpu-run --list | grep lease-{started.number}")


def test_lease_has_several_gpus(desk):
    done = desk.lease("alice", f"{MIG} --gpus 2", "sh -c 'echo $CUDA_VISIBLE_DEVICES; echo $OPENFLEET_LEASE_CDI'")
    devices, cdi = done.stdout.splitlines()
    assert len(set(devices.split(","))) == 2 and all(each.startswith("MIG-") for each in devices.split(","))
    assert cdi.split() == [f"nvidia.com/gpu={each}" for each in devices.split(",")]


def test_everyone_sees_who_has_what_until_when(desk):
    number = desk.taken("alice", f"{QUOTA} --for 2h").number
    (line,) = desk.run("mallory", "gpu-layout lease list").stdout.splitlines()[1:]
    assert line.split()[:2] == [str(number), "alice"] and "18GiB and 30 % on 1 GPU" in line and line.endswith("UTC")
    done = desk.run("alice", f"gpu-layout lease extend {number} 7h")
    assert done.rc == 0, done.stderr
    assert "lasts at most 8 hours" in desk.run("alice", f"gpu-layout lease extend {number} 9h").stderr
    assert desk.run("alice", f"gpu-layout lease end {number}").stdout == f"Lease {number} has ended.\n"


def test_queue_serves_in_order_and_without_clients_that_left(desk):
    first = desk.taken("alice", f"{MIG} --gpus 2 --for 1h")
    for _number in range(3):
        desk.taken("alice", MIG)
    waiting = [desk.start("alice", f"{MIG} --wait") for _number in range(2)]
    assert "the limit is 4" in desk.lease("alice", MIG, "true").stderr
    # Every request of an account counts, even if it waits.
    assert all(each.status() == 125 for each in waiting)
    large = "--profile 2g.20gb --gpus 2 --for 1h --wait"
    holders = [desk.taken("bob", "--profile 2g.20gb --gpus 2 --for 1h") for _number in range(2)]
    left, kept = desk.start("bob", large), desk.start("bob", large)
    desk.wait_for(lambda: len(desk.numbers("waiting")) == 2, "two waiting requests")
    left.kill("KILL")
    desk.wait_for(lambda: len(desk.numbers("waiting")) == 1, "one waiting request")
    for each in (first, *holders):
        desk.run(each.user, f"gpu-layout lease end {each.number}")
    desk.wait_for(lambda: kept.answer("lease"), "the waiting request")


def test_restart_of_the_service_keeps_leases_and_waiting_requests(desk):
    running = desk.taken("alice", "--memory 40GiB --sm 90")
    other = desk.taken("bob", "--memory 40GiB --sm 90")
    waiting = desk.start("root", "--memory 40GiB --sm 90 --wait")
    desk.wait_for(lambda: desk.numbers("waiting"), "a waiting request")
    desk.ask("systemctl restart gpu-layout-lease.service")
    assert desk.numbers() == [running.number, other.number]
    place = waiting.number
    desk.ask("systemctl kill --signal=KILL gpu-layout-lease.service")
    running.kill("TERM")
    desk.wait_for(lambda: waiting.answer("lease"), "the waiting request")
    assert waiting.answer("lease")["number"] == place and running.status() == 143


def test_layout_leaves_leases_alone(desk):
    desk.taken("alice", MIG), desk.taken("bob", QUOTA)
    plan = desk.host.run("gpu-layout plan --exit-code")
    assert plan.rc == 0, plan.stdout + plan.stderr
    assert len(desk.numbers()) == 2


def test_leases_are_given_back_after_a_boot(desk):
    desk.taken("alice", MIG), desk.taken("bob", QUOTA)
    assert desk.parts() != "[]"
    reboot(desk.host)
    desk.wait_for(lambda: not desk.rows() and desk.parts() == "[]", "the end of the leases")
    assert desk.lease("alice", MIG, "true").rc == 0
