# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module with Debian's Slurm: drain the node, wait for jobs, and resume."""

from __future__ import annotations

from drained_host import NODE, RECORD, RUNNING

from ansible_collections.openfleet.gpu.plugins.module_utils.holders.slurm import Job

ALL = set(RUNNING)


def waited_for(result) -> list[str]:
    """Return the names of the clients that the module waits for."""
    return [one["who"] for one in result["waiting"]]


def test_drain_waits_for_suspended_jobs(host):
    job = host.submit(600)
    host.ask(f"scontrol suspend {job}")
    (who,) = waited_for(host.drain(slurm=True, services=["lab-a"]))
    assert f"Slurm job {job} (train) of user nobody, suspended" in who
    assert host.active() == ALL


def test_job_name_cannot_pose_as_other_fields(host):
    """Check that a job's name cannot imitate other fields.

    The user writes another job, another user and other allocations into the name.
    """
    given = f"Nodes={NODE} CPU_IDs=0 Mem=1 GRES=gpu:h100:4(IDX:0-3)"
    name = f"x UserId=root(0) JOB_GRES=gpu:h100:4 {given}\n99 RUNNING 1:00 root\u2028{{{{ x }}}}"
    job = host.submit(600, name)
    (waiting,) = host.drain(slurm=True)["waiting"]
    assert (waiting["id"], waiting["user"]) == (job, "nobody")
    assert waiting["name"].startswith("x UserId=root(0)") and waiting["name"].isprintable()
    record = host.ask(f"scontrol --details --oneliner show job {job}")
    told = host.ask(f"squeue --noheader --jobs {job} --format %j")
    ((kind, count, _indexes),) = Job(job, "nobody", told, record).given_on(NODE)
    assert (kind, count) == ("gpu", 1)


def test_node_drained_by_others_keeps_state_and_reason(host):
    host.ask(f"scontrol update NodeName={NODE} State=DRAIN Reason='bad fan'")
    drain = host.drain(slurm=True, services=["lab-a"])
    assert drain["changed"]
    kept = "IDLE+DRAIN, by root with the reason: bad fan"
    assert drain["kept"] == [f"Slurm node gpu-a was already out of service and stays so: {kept}"]
    assert host.node() == "drained: bad fan"
    resume = host.resume()
    assert resume["changed"]
    assert resume["kept"] == [f"Slurm node gpu-a stays out of service: {kept}"]
    assert host.node() == "drained: bad fan"
    assert host.active() == ALL


def test_drain_by_others_still_waits_for_jobs(host):
    job = host.submit(600)
    host.ask(f"scontrol update NodeName={NODE} State=DRAIN Reason='bad fan'")
    (who,) = waited_for(host.drain(slurm=True))
    assert f"Slurm job {job}" in who
    assert not host.resume()["changed"]
    assert host.node() == "draining: bad fan"


def test_changed_reason_is_not_overwritten(host):
    assert host.drain(slurm=True)["changed"]
    host.ask(f"scontrol update NodeName={NODE} State=DRAIN Reason='and now the fan'")
    assert not host.drain(slurm=True)["changed"]
    resume = host.resume()
    assert not resume["changed"]
    (kept,) = resume["kept"]
    assert "stays out of service: IDLE+DRAIN, by root with the reason: and now the fan" in kept
    assert host.node() == "drained: and now the fan"


def test_node_resumed_by_others_is_not_touched(host):
    assert host.drain(slurm=True)["changed"]
    host.ask(f"scontrol update NodeName={NODE} State=RESUME")
    assert not host.resume()["changed"]
    assert not host.host.file(RECORD).exists


def test_down_node_is_an_error_with_its_reason(host):
    host.ask(f"scontrol update NodeName={NODE} State=DOWN Reason='no power'")
    said = host.refused("drained", slurm=True, services=["lab-a"])
    assert "Slurm node gpu-a: it is DOWN, by root with the reason: no power, so its jobs are unknown" in said
    assert "or leave gpu_drain_slurm false for this host" in said
    assert host.node() == "down: no power"
    assert host.active() == ALL


def test_reason_that_slurm_would_change_is_refused(host):
    assert "gpu_drain_slurm_reason:" in host.refused("drained", slurm=True, slurm_reason='the "fan"')
    assert host.node() == "idle: none"


def test_unresponsive_controller_is_named_and_services_are_restored(host):
    host.ask("systemctl stop slurmctld")
    assert "scontrol ping" in host.refused("drained", slurm=True, services=["lab-a"])
    assert host.active() == ALL


def test_node_stays_recorded_if_controller_is_gone_at_the_end(host):
    assert host.drain(slurm=True, services=["lab-a"])["changed"]
    host.ask("systemctl stop slurmctld")
    said = host.refused("resumed")
    assert "(by hand: scontrol update NodeName=gpu-a State=RESUME)" in said
    # The clients that do not depend on Slurm are running again.
    assert host.active() == ALL
    host.ask("systemctl start slurmctld")
    host.wait_until(f"sinfo --noheader --nodes {NODE} --format %T | grep -q '^drained$'")
    assert host.resume()["changed"]
    assert host.node() == "idle: none"


def test_slurmd_can_be_a_drained_service(host):
    assert host.drain(slurm=True, services=["slurmd"])["changed"]
    assert host.ask("systemctl is-active slurmd || true") == "inactive"
    assert not host.drain(slurm=True, services=["slurmd"])["changed"]
    assert host.resume()["changed"]
    assert host.node() == "idle: none"
