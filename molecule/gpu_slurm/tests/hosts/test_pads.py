# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test pads: GRES without a device that keep the node's total constant.

With pads, running jobs survive a change of the number of MIG instances. No job gets a pad.
"""

from __future__ import annotations

import shlex
import time

import pytest
from slurm_host import NODE, PLANNED_STEPS, SEVEN, THREE, follow, layout, run

# The first new job must run within this time in seconds.
FIRST_JOB = 60


def number_of(environment: dict[str, str]) -> int:
    return int(environment["CUDA_VISIBLE_DEVICES"])


def change(host, wanted: list[dict]) -> tuple[float, list[str]]:
    """Apply a layout and its GRES, without ending jobs.

    Returns the seconds until a new job runs, and the UUIDs of the devices by number.
    """
    planned = host.mapping(wanted)
    assert (planned["change"]["way"], planned["change"]["jobs"]) == ("in place", []), planned["plan"]
    started = time.monotonic()
    host.apply(wanted)
    found = host.mapping(wanted)
    host.configure(found)
    host.in_service()
    host.submit("gpu:1g.10gb:1")
    assert found["gres"] == host.node()["Gres"].partition("(")[0] == planned["gres"]
    assert "INVAL" not in host.node()["State"]
    return time.monotonic() - started, found["devices"]


@pytest.mark.thorough
def test_a_job_from_before_the_rule_prevents_pads(host):
    host.reset(layout(SEVEN))
    host.ask("sbatch --parsable --chdir=/ --output=/dev/null --gres=gpu:1 --wrap 'sleep 600'")
    assert host.module("slurm_info")["pad_problem"] == "no job_submit plugin refuses requests for GPUs without a type"
    host.require_types()
    try:
        assert host.module("slurm_info")["pad_problem"].endswith("requests GPUs without a type")
        planned = host.mapping(layout(THREE))
        assert planned["change"]["way"] == "all jobs" and "Pads could keep the total" in planned["plan"][1]
    finally:
        host.require_types(False)


def test_jobs_survive_seven_three_and_seven_slices(typed):
    host = typed
    devices = host.reset(layout(SEVEN))["devices"]
    on_gpu, environment = host.submit("gpu:h100:1")
    slices = [host.running(*each) for each in [host.queue("gpu:1g.10gb:1") for _slice in range(7)]]
    planned = host.mapping(layout(THREE))
    # Four of the seven instances are destroyed, and only their jobs must end.
    waiting = planned["change"]["jobs"]
    assert (planned["change"]["way"], len(waiting)) == ("affected jobs", 4), planned["plan"]
    surviving = [
        (on_gpu, number_of(environment)),
        *((job, number_of(each)) for job, each in slices if job not in waiting),
    ]
    assert len(surviving) == 4
    host.ask(f"scancel {' '.join(waiting)}")
    host.wait_until(f"[ $(squeue --noheader | wc -l) = {len(surviving)} ]")
    host.ask(f"scancel {surviving.pop()[0]}")
    host.wait_until(f"[ $(squeue --noheader | wc -l) = {len(surviving)} ]")
    for wanted in (THREE, SEVEN):
        seconds, now = change(host, layout(wanted))
        assert seconds < FIRST_JOB
        for job, number in surviving:
            assert host.state(job) == "JobState=RUNNING Restarts=0"
            assert now[number] == devices[number]


def test_requests_that_could_get_a_pad_are_refused(typed):
    host = typed
    host.reset(layout(THREE))
    assert host.module("slurm_info")["pad_problem"] == ""
    held = host.ask("sbatch --parsable --hold --chdir=/ --output=/dev/null --gres=gpu:h100:1 --wrap true").strip()
    for request in (
        "--gres=gpu:1",
        "--gres=gpu",
        "--gpus=2",
        "--gres=gpu:1K",
        "--gres=gpu:pad2:1",
        "--gres=gpu:h100:1,gpu:pad:1",
    ):
        assert host.host.run(f"sbatch --chdir=/ {request} --wrap true").rc, request
    assert host.host.run(f"scontrol update job={held} gres=gpu:1").rc
    assert host.host.run("srun --gres=gpu:1 true").rc
    host.ask("srun --gres=gpu:h100 true")


@pytest.mark.thorough
def test_a_rule_that_fails_is_noticed(typed):
    """Notice a rule that fails, because slurmctld then accepts all requests."""
    host = typed
    host.reset(layout(SEVEN))
    host.ask("cp /etc/slurm/job_submit.lua /tmp/; sed -i s/refused/misspelled/ /etc/slurm/job_submit.lua")
    try:
        host.require_types()
        assert "does not refuse --gres=gpu:1" in host.module("slurm_info")["pad_problem"]
    finally:
        host.ask("cp /tmp/job_submit.lua /etc/slurm/")
        host.require_types()


@pytest.mark.thorough
def test_role_changes_seven_three_and_seven_slices_beside_a_job(typed):
    """Check that a job survives a change by the role if its instance stays."""
    host = typed
    host.reset(layout(SEVEN, SEVEN))
    devices = host.mapping(layout(SEVEN, SEVEN))["devices"]
    job, environment = host.submit("gpu:1g.10gb:1")
    states = f"$(date +%s.%N) $(scontrol -o show node {NODE} | grep -o ' State=[^ ]*')"
    watch = f'while sleep 0.2; do echo "{states}"; done > /tmp/states'
    host.ask(f"printf %s {shlex.quote(watch)} > /tmp/watch; systemd-run --quiet --unit=watch-node sh /tmp/watch")
    try:
        # The job has an instance of GPU 0, and the instances of GPU 1 change.
        for wanted in (layout(SEVEN, THREE), layout(SEVEN, SEVEN)):
            host.ask("truncate --size 0 /tmp/states")
            run(follow(wanted, steps=PLANNED_STEPS))
            new, _environment = host.submit("gpu:1g.10gb:1")
            rows = [line.replace("\0", "").split() for line in host.ask("cat /tmp/states").splitlines()]
            drained = [float(row[0]) for row in rows if len(row) == 2 and "DRAIN" in row[1]]
            print(f"the node was drained for {drained[-1] - drained[0]:.1f} s")
            assert drained[-1] - drained[0] < FIRST_JOB
            assert not any("INVAL" in row[-1] for row in rows if row)
            host.ask(f"scancel {new}")
            host.wait_until(f'[ -z "$(squeue --noheader --jobs {new} 2>/dev/null)" ]')
            assert host.state(job) == "JobState=RUNNING Restarts=0"
            found = host.mapping(wanted)
            assert found["devices"][number_of(environment)] == devices[number_of(environment)]
            assert found["change"]["way"] == "nothing"
    finally:
        host.ask("systemctl stop watch-node")
