# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the role with jobs, failures and options.

The role waits for jobs, restores everything after failures, and passes its options to the module.
"""

from __future__ import annotations

import json

import pytest
from drained_host import RECORD, RUNNING

ALL = set(RUNNING)
OFF = {"gpu_drain_slurm": True, "gpu_drain_services": ["lab-a", "lab-slow", "lab-b"]}
#: Matches systemctl while it stops the second unit. Its parent is the module. (The pattern does not match itself.)
STOPPING = "pgrep -f 'systemctl.*[s]top.*lab-slow'"


def test_drain_waits_for_a_job_and_node_accepts_jobs_again(host, run):
    off = {
        "gpu_drain_slurm": True,
        "gpu_drain_slurm_reason": "new layout",
        "gpu_drain_services": ["lab-a"],
    }
    job = host.submit(600)
    dry = run("drain", "--check", "--diff", **off)
    assert dry.changed() == 1
    assert f"Slurm job {job} (train) of user nobody" in dry.told
    assert "+Slurm node gpu-a: MIXED+DRAIN +lab-a.service: inactive" in dry.told
    assert host.node() == "mixed: none"
    assert host.active() == ALL
    drain = run("drain", **off)
    drain.wait_for("FAILED - RETRYING")
    # While the job runs, no other job starts, and no service is stopped.
    queued = host.queue(1)
    assert f"Slurm job {job} (train) of user nobody, running" in drain.told
    assert host.node() == "draining: new layout"
    assert host.active() == ALL
    # The drain continues only after the job has ended.
    host.ask(f"scancel {job}")
    assert drain.changed() == 2
    assert host.job_state(job) == "CANCELLED"
    assert host.job_state(queued) == "PENDING"
    assert host.node() == "drained: new layout"
    assert host.active() == ALL - {"lab-a.service"}
    again = run("drain", **off)
    assert again.changed() == 0
    dry = run("resume", "--check", "--diff")
    assert dry.changed() == 1
    assert "-lab-a.service: inactive" in dry.told and "+lab-a.service: active" in dry.told
    assert host.active() == ALL - {"lab-a.service"}
    assert run("resume").changed() == 1
    assert host.active() == ALL
    host.wait_until(f"scontrol show job {queued} | grep -q JobState=COMPLETED")
    # Slurm may still wait for a last message of the job (state completing), which does not matter here.
    assert host.node().endswith(": none")
    nothing = run("resume")
    assert nothing.changed() == 0
    # The role runs three tasks: the include, the check of the arguments, and one module.
    assert again.executions() == nothing.executions() == 2
    assert host.active() == ALL


@pytest.mark.thorough
def test_timeout_restores_everything_and_names_jobs(host, run):
    # Set no time limit explicitly. Otherwise the backfill scheduler gives the job a limit of one year.
    first = host.submit(600, options="--gres=gpu:1 --time=UNLIMITED")
    second = host.submit(600, "a|b c", options="--time=30-00:00:00")
    said = run("drain", gpu_drain_slurm=True, gpu_drain_services=["lab-a"], gpu_drain_timeout=2).failed()
    end = said[said.index("after 2 s the GPUs are still in use by") :]
    assert f"Slurm job {first} (train) of user nobody, running, without a time limit" in end
    assert f"Slurm job {second} (a|b c) of user nobody, running, 29-23:" in end
    assert "The drain was rolled back." in end
    assert host.node() == "mixed: none" or host.node() == "allocated: none"
    assert host.active() == ALL
    # The jobs run as before the failed drain.
    assert host.job_state(first) == host.job_state(second) == "RUNNING"
    assert not host.resume()["changed"]


@pytest.mark.thorough
def test_refusal_of_the_module_fails_the_role_with_its_fix(host, run):
    said = run("drain", gpu_drain_slurm=True, gpu_drain_slurm_node="gpu-b", gpu_drain_services=["lab-a"]).failed()
    assert "Slurm node gpu-b: Slurm has no node of this name. Set gpu_drain_slurm_node to Slurm's name" in said
    assert f"{host.name}: " in said
    assert host.is_whole()


def test_failed_change_restores_everything(host, run):
    commands = {
        "gpu_drain_commands_before": ["echo before >> /run/lab-log", ["touch", "/run/lab a file"]],
        "gpu_drain_commands_after": ["systemctl is-active lab-a >> /run/lab-log", "echo after >> /run/lab-log"],
    }
    assert "fatal:" in run("around", change="false", **commands, **OFF).failed()
    assert host.ask("cat /run/lab-log").split() == ["before", "active", "after"]
    assert host.host.file("/run/lab a file").exists
    assert host.is_whole()


@pytest.mark.thorough
def test_no_clients_run_during_the_change(host, run):
    look = "sh -c 'systemctl is-active lab-a lab-b > /run/lab-seen; sinfo -h -o %T >> /run/lab-seen'"
    assert run("around", change=look, **OFF).changed() == 3
    assert host.ask("cat /run/lab-seen").split() == ["inactive", "inactive", "drained"]
    assert host.is_whole()


def test_same_run_restores_after_a_killed_execution(host, run):
    host.ask("touch /run/lab-hold")
    drain = run("drain", **OFF)
    stopping = host.wait_until(STOPPING).split()[0]
    record = json.loads(host.ask(f"cat {RECORD}"))
    assert record["units"] == ["lab-a.service", "lab-slow.service"]
    host.ask(f"kill -KILL $(ps -o ppid= -p {stopping}) {stopping}; killed=$?; rm /run/lab-hold; exit $killed")
    # The rescue block of the playbook resumes the clients.
    drain.failed()
    assert host.is_whole()


def test_resume_restores_after_a_lost_controller(host, run):
    job = host.submit(600)
    drain = run("drain", **OFF)
    drain.wait_for("FAILED - RETRYING")
    drain.kill()
    assert host.node() == "draining: openfleet.gpu: clients taken off the GPUs"
    assert host.resume()["changed"]
    assert host.node() == "mixed: none"
    assert host.job_state(job) == "RUNNING"
