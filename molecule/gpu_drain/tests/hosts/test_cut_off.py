# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drains that do not come to their end: killed, left alone, restarted; and the change in between that fails."""

from __future__ import annotations

import json

from drained_host import RECORD, RUNNING

ALL = set(RUNNING)
OFF = {"gpu_drain_slurm": True, "gpu_drain_services": ["lab-a", "lab-slow", "lab-b"]}
#: systemctl in the middle of stopping the second unit; its parent is the module. (The pattern does not match itself.)
STOPPING = "pgrep -f 'systemctl.*[s]top.*lab-slow'"


def whole(host) -> bool:
    host.node_comes_to("idle: none")
    return host.active() == ALL and not host.host.file(RECORD).exists


def test_a_change_that_fails_in_between_leaves_everything_back(host, run):
    assert "fatal:" in run("around", change="false", **OFF).failed()
    assert whole(host)


def test_the_change_itself_has_no_clients(host, run):
    look = "sh -c 'systemctl is-active lab-a lab-b > /run/lab-seen; sinfo -h -o %T >> /run/lab-seen'"
    assert run("around", change=look, **OFF).changed() == 3
    assert host.ask("cat /run/lab-seen").split() == ["inactive", "inactive", "drained"]
    assert whole(host)


def test_what_a_killed_execution_took_is_brought_back_by_the_next_resume(host, run):
    host.ask("touch /run/lab-hold")
    drain = run("drain", **OFF)
    stopping = host.wait_until(STOPPING).split()[0]
    record = json.loads(host.ask(f"cat {RECORD}"))
    assert record["units"] == ["lab-a.service", "lab-slow.service"]
    host.ask(f"kill -KILL $(ps -o ppid= -p {stopping}) {stopping}; killed=$?; rm /run/lab-hold; exit $killed")
    drain.failed()
    # The rescue of that very run is the next resume.
    assert whole(host)


def test_what_a_lost_controller_left_is_brought_back_by_another_run(host, run):
    job = host.submit(600)
    drain = run("drain", **OFF)
    drain.wait_for("FAILED - RETRYING")
    drain.kill()
    assert host.node() == "draining: openfleet.gpu: clients taken off the GPUs"
    assert run("resume").changed() == 1
    assert host.node() == "mixed: none"
    assert host.job_state(job) == "RUNNING"


def test_another_drain_goes_on_where_one_was_cut_off(host, run):
    job = host.submit(600)
    drain = run("drain", **OFF)
    drain.wait_for("FAILED - RETRYING")
    drain.kill()
    host.ask(f"scancel {job}")
    run("drain", **OFF).changed()
    assert host.active() == ALL - {"lab-a.service", "lab-slow.service", "lab-b.service", "lab-exporter.service"}
    run("resume").changed()
    assert whole(host)


def test_after_a_restart_of_the_host_the_rest_is_brought_back(host, run):
    run("drain", gpu_drain_commands_after=["touch /run/lab-after"], **OFF).changed()
    host.ask("systemctl disable --quiet lab-b")
    host.reboot()
    try:
        host.wait_until("scontrol ping >/dev/null && scontrol show slurmd >/dev/null")
        # What is enabled came with the restart; what is not, and the node, did not.
        assert host.active() == ALL - {"lab-b.service"} or host.active() == ALL
        assert host.node().startswith("drained") or host.node().startswith("down")
        assert run("resume").changed() == 1
        assert whole(host)
        assert host.host.file("/run/lab-after").exists
    finally:
        host.ask("systemctl enable --quiet lab-b")


def test_a_drain_after_a_restart_takes_what_came_up_again(host, run):
    run("drain", **OFF).changed()
    host.reboot()
    host.wait_until("scontrol ping >/dev/null && scontrol show slurmd >/dev/null")
    assert run("drain", **OFF).changed() == 1
    assert host.active() == ALL - {"lab-a.service", "lab-slow.service", "lab-b.service", "lab-exporter.service"}
    run("resume").changed()
    assert whole(host)


def test_own_commands_run_before_and_after_also_after_a_failure(host, run):
    commands = {
        "gpu_drain_commands_before": ["echo before >> /run/lab-log", ["touch", "/run/lab a file"]],
        "gpu_drain_commands_after": ["systemctl is-active lab-a >> /run/lab-log", "echo after >> /run/lab-log"],
    }
    assert "fatal:" in run("around", change="false", **commands, **OFF).failed()
    assert host.ask("cat /run/lab-log").split() == ["before", "active", "after"]
    assert host.host.file("/run/lab a file").exists
    assert whole(host)


def test_a_command_that_fails_stops_the_drain_before_anything_goes(host, run):
    commands = {
        "gpu_drain_commands_before": ["echo no >&2; exit 3"],
        "gpu_drain_commands_after": ["touch /run/lab-after"],
    }
    said = run("drain", **commands, **OFF).failed()
    assert "it ended with status 3: no" in said
    assert host.host.file("/run/lab-after").exists
    assert whole(host)
