# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian's Slurm: its node out of service, its jobs waited for, and back."""

from __future__ import annotations

from drained_host import NODE, RECORD, RUNNING

ALL = set(RUNNING)
REASON = "openfleet.gpu: clients taken off the GPUs"


def test_a_running_job_is_waited_for_and_the_node_takes_jobs_again(host, run):
    job = host.submit(600)
    drain = run("drain", gpu_drain_slurm=True, gpu_drain_services=["lab-a"])
    drain.wait_for("FAILED - RETRYING")
    # As long as the job runs no other starts, and no service is stopped.
    queued = host.queue(1)
    assert f"Slurm job {job} (train) of user nobody, running" in drain.told
    assert host.node() == f"draining: {REASON}"
    assert host.active() == ALL
    # The wait is over once the job is, and not before.
    host.ask(f"scancel {job}")
    assert drain.changed() == 2
    assert host.job_state(job) == "CANCELLED"
    assert host.job_state(queued) == "PENDING"
    assert host.node() == f"drained: {REASON}"
    assert host.active() == ALL - {"lab-a.service"}
    assert run("resume").changed() == 1
    assert host.active() == ALL
    host.wait_until(f"scontrol show job {queued} | grep -q JobState=COMPLETED")
    assert host.node() == "idle: none"


def test_when_the_time_is_over_all_is_back_and_the_jobs_are_named(host, run):
    # Where a job asks for no limit, the backfill scheduler gives it a year; only the main one leaves it without.
    first = host.submit(600, options="--gres=gpu:1 --time=UNLIMITED")
    second = host.submit(600, "a|b c", options="--time=30-00:00:00")
    said = run("drain", gpu_drain_slurm=True, gpu_drain_services=["lab-a"], gpu_drain_timeout=2).failed()
    end = said[said.index("after 2 s the GPUs are still in use by") :]
    assert f"Slurm job {first} (train) of user nobody, running, without a time limit" in end
    assert f"Slurm job {second} (a|b c) of user nobody, running, 29-23:" in end
    assert "All that was taken off is back." in end
    assert host.node() == "mixed: none" or host.node() == "allocated: none"
    assert host.active() == ALL
    # They are jobs as before.
    assert host.job_state(first) == host.job_state(second) == "RUNNING"
    assert run("resume").changed() == 0


def test_a_suspended_job_is_waited_for_too(host, run):
    job = host.submit(600)
    host.ask(f"scontrol suspend {job}")
    said = run("drain", gpu_drain_slurm=True, gpu_drain_timeout=1).failed()
    assert f"Slurm job {job} (train) of user nobody, suspended" in said


def test_a_node_that_somebody_else_drained_stays_drained_with_its_reason(host, run):
    host.ask(f"scontrol update NodeName={NODE} State=DRAIN Reason='bad fan'")
    drain = run("drain", "-v", gpu_drain_slurm=True, gpu_drain_services=["lab-a"])
    assert drain.changed() == 1
    kept = "IDLE+DRAIN, by root with the reason: bad fan"
    assert f"Slurm node gpu-a is out of service already and stays so: {kept}" in drain.told
    assert host.node() == "drained: bad fan"
    resume = run("resume", "-v")
    assert resume.changed() == 1
    assert f"Slurm node gpu-a stays out of service: {kept}" in resume.told
    assert host.node() == "drained: bad fan"
    assert host.active() == ALL


def test_jobs_of_a_node_that_somebody_else_drains_are_waited_for(host, run):
    job = host.submit(600)
    host.ask(f"scontrol update NodeName={NODE} State=DRAIN Reason='bad fan'")
    assert f"Slurm job {job}" in run("drain", gpu_drain_slurm=True, gpu_drain_timeout=1).failed()
    assert host.node() == "draining: bad fan"


def test_a_reason_that_was_changed_during_the_drain_is_not_overwritten(host, run):
    run("drain", gpu_drain_slurm=True).changed()
    host.ask(f"scontrol update NodeName={NODE} State=DRAIN Reason='and now the fan'")
    assert run("drain", gpu_drain_slurm=True).changed() == 0
    resume = run("resume", "-v")
    assert resume.changed() == 0
    assert "stays out of service: IDLE+DRAIN, by root with the reason: and now the fan" in resume.told
    assert host.node() == "drained: and now the fan"


def test_a_node_that_somebody_resumed_meanwhile_is_left(host, run):
    run("drain", gpu_drain_slurm=True).changed()
    host.ask(f"scontrol update NodeName={NODE} State=RESUME")
    assert run("resume").changed() == 0
    assert not host.host.file(RECORD).exists


def test_a_node_that_is_down_is_an_error_with_its_reason(host, run):
    host.ask(f"scontrol update NodeName={NODE} State=DOWN Reason='no power'")
    said = run("drain", gpu_drain_slurm=True, gpu_drain_services=["lab-a"]).failed()
    assert (
        "Slurm node gpu-a: it is DOWN, by root with the reason: no power, so that what runs on it is not known" in said
    )
    assert "or leave gpu_drain_slurm false for this host" in said
    assert host.node() == "down: no power"
    assert host.active() == ALL


def test_a_node_that_slurm_does_not_have_is_an_error_with_its_cure(host, run):
    said = run("drain", gpu_drain_slurm=True, gpu_drain_slurm_node="gpu-b").failed()
    assert "Slurm node gpu-b: Slurm has no node of this name. Say in gpu_drain_slurm_node what Slurm calls" in said


def test_a_reason_that_slurm_would_change_is_refused(host, run):
    said = run("drain", gpu_drain_slurm=True, gpu_drain_slurm_reason='the "fan"').failed()
    assert "gpu_drain_slurm_reason:" in said
    assert host.node() == "idle: none"


def test_a_controller_that_does_not_answer_is_named_and_what_went_is_back(host, run):
    host.ask("systemctl stop slurmctld")
    said = run("drain", gpu_drain_slurm=True, gpu_drain_services=["lab-a"]).failed()
    assert "scontrol ping" in said
    assert host.active() == ALL


def test_a_controller_that_is_gone_at_the_end_leaves_the_node_recorded(host, run):
    run("drain", gpu_drain_slurm=True, gpu_drain_services=["lab-a"]).changed()
    host.ask("systemctl stop slurmctld")
    said = run("resume").failed()
    assert "(by hand: scontrol update NodeName=gpu-a State=RESUME)" in said
    # What does not hang on it is back.
    assert host.active() == ALL
    host.ask("systemctl start slurmctld")
    host.wait_until(f"sinfo --noheader --nodes {NODE} --format %T | grep -q '^drained$'")
    assert run("resume").changed() == 1
    assert host.node() == "idle: none"


def test_slurmd_itself_may_be_among_the_services(host, run):
    services = {"gpu_drain_slurm": True, "gpu_drain_services": ["slurmd"]}
    run("drain", **services).changed()
    assert host.ask("systemctl is-active slurmd || true") == "inactive"
    assert run("drain", **services).changed() == 0
    run("resume").changed()
    assert host.node() == "idle: none"


def test_a_dry_run_says_what_would_go_and_who_would_be_awaited(host, run):
    job = host.submit(600)
    dry = run("drain", "--check", "--diff", gpu_drain_slurm=True, gpu_drain_services=["lab-a"])
    assert dry.changed() == 1
    assert f"Slurm job {job} (train) of user nobody" in dry.told
    assert "+Slurm node gpu-a: MIXED+DRAIN +lab-a.service: inactive" in dry.told
    assert host.node() == "mixed: none"
    assert host.active() == ALL
