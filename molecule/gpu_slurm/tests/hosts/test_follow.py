# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that Slurm's GRES follow the layout.

The tests cover changes while jobs run, refused changes and interruptions.
"""

from __future__ import annotations

import shlex

import pytest
from slurm_host import INVENTORY, MIXED, NODE, RUN_SECONDS, SEVEN, SHOWN, THREE, follow, layout, run

from tests.lab.role_plays import Ask, kill_role

FILES = "/etc/slurm/openfleet_nodes.conf /etc/slurm/openfleet_gres.conf"
# A command that prints the state which must stay the same if the role refuses a change.
STATE = f"cat {FILES} /etc/slurm/slurm.conf | sha256sum; {SHOWN}; nvidia-smi -L 2>/dev/null | sha256sum"


def unchanged(wanted, **variables):
    """Return a run that must fail and change nothing."""
    first = f"{variables.pop('first', 'true')}; ({STATE}) > /tmp/state-before"
    then = f"({STATE}) | diff /tmp/state-before - >&2; {variables.pop('then', 'true')}"
    return follow(wanted, first=first, then=then, fails=True, **variables)


def test_slurm_follows_the_layout_beside_a_running_job(host):
    host.reset(layout(MIXED))
    job, _environment = host.submit("gpu:h100:1")
    alive = f"scontrol show job {job} | grep -q 'JobState=RUNNING' && scontrol show job {job} | grep -q Restarts=0; "
    lines = "/etc/slurm/openfleet_gres.conf"
    in_place, quiet, refused, bad, away = run(
        follow(layout(THREE), then=alive + SHOWN),
        follow(layout(THREE), first=f"({STATE}) > /tmp/state-before", then=f"({STATE}) | diff /tmp/state-before - >&2"),
        # The number of GPUs in the GRES changes, so slurmctld would end the job.
        unchanged(layout(SEVEN), then=alive),
        unchanged(
            layout(MIXED),
            first=f"echo 'NodeName=gpu-z Name=gpu Colour=red' >> {lines}",
            then=f"sed -i /gpu-z/d {lines}; {alive}",
        ),
        unchanged(layout(MIXED), gpu_slurm_controllers=["one", "away"], then=alive),
    )
    assert in_place.changed and "Gres=gpu:1g.10gb:3,gpu:h100:3" in in_place.seen and "State=MIXED " in in_place.seen
    assert not quiet.changed
    assert f"all GPU jobs must end first: {job}" in refused.failed and "gpu_layout_on_busy: drain" in refused.failed
    assert f"node {NODE}: slurmd refuses the new files" in bad.failed
    assert "Colour" in bad.failed and "openfleet_gres.conf line 7" in bad.failed
    assert "away: " in away.failed and "gpu_slurm_controllers" in away.failed
    found = host.mapping(layout(THREE))
    assert found["change"]["way"] == "nothing"
    assert host.state(job) == "JobState=RUNNING Restarts=0"


def test_changed_total_waits_for_the_jobs_and_no_other_drain_ends(host):
    host.reset(layout(MIXED))
    job, _environment = host.submit("gpu:h100:1")
    # Cancel the job when the node is drained, and record the job's state until then.
    ends = (
        f"until scontrol -o show node {NODE} | grep -q '+DRAIN'; do sleep 0.2; done; "
        f"scontrol show job {job} | grep -oE '(JobState|Restarts)=[A-Z0-9]+' | xargs > /tmp/job-at-drain; "
        f"cp {FILES} /tmp; scancel {job}"
    )
    # slurmctld keeps the drain's reason while jobs run.
    late = follow(layout(SEVEN), fails=True, gpu_layout_on_busy="drain", gpu_drain_poll=1, gpu_drain_timeout=2)
    timed_out, waits, drained = run(
        late,
        follow(
            layout(SEVEN),
            first=f'nohup bash -c "{ends}" >/dev/null 2>&1 &',
            then=f"cat /tmp/job-at-drain; grep -h -o 'Gres=.*' /tmp/openfleet_nodes.conf; {SHOWN}",
            gpu_layout_on_busy="drain",
            gpu_drain_poll=1,
        ),
        follow(layout(MIXED), first=f"scontrol update NodeName={NODE} State=DRAIN Reason=fan"),
    )
    assert f"after 2 s jobs still run that must end first: {job}." in timed_out.failed
    assert "The drain was rolled back." in timed_out.failed
    assert "Gres=gpu:3g.40gb:1,gpu:1g.10gb:2,gpu:h100:3" in timed_out.seen and "State=MIXED " in timed_out.seen
    at_drain, before, after = waits.seen.splitlines()
    assert at_drain == "JobState=RUNNING Restarts=0"
    assert before == "Gres=gpu:3g.40gb:1,gpu:1g.10gb:2,gpu:h100:3"
    assert "Gres=gpu:1g.10gb:7,gpu:h100:3" in after and "State=IDLE " in after
    assert "Gres=gpu:3g.40gb:1,gpu:1g.10gb:2,gpu:h100:3" in drained.seen
    assert "State=IDLE+DRAIN" in drained.seen and "Reason=fan" in drained.seen
    host.ask(f"scontrol update NodeName={NODE} State=RESUME")


def test_files_that_slurmctld_refuses_are_restored(host):
    host.reset(layout(MIXED))
    # A replacement for slurmctld that refuses files which slurmd accepts. With Slurm 24.11, slurmctld reads the files
    # on `scontrol reconfigure`.
    refused_files = "grep -q 1g.10gb:7 /etc/slurm/openfleet_nodes.conf"
    refuses = (
        "mkdir -p /run/systemd/system/slurmctld.service.d; "
        f"printf '[Service]\\nExecStartPre=/bin/sh -c \"! {refused_files}\"\\n' "
        "> /run/systemd/system/slurmctld.service.d/refuse.conf; systemctl daemon-reload; "
        f'printf \'#!/bin/sh\\n[ "$1" = reconfigure ] && {refused_files} && exit 1\\nexec /usr/bin/scontrol "$@"\\n\' '
        "> /usr/local/bin/scontrol; chmod 755 /usr/local/bin/scontrol"
    )
    accepts = "rm -r /run/systemd/system/slurmctld.service.d /usr/local/bin/scontrol; systemctl daemon-reload"
    refused, again = run(
        follow(
            layout(SEVEN),
            first=f"cp {FILES} /tmp; {refuses}",
            # The role leaves out the old devices' lines, because slurmd would end if it read them.
            then=f"{accepts}; diff /etc/slurm/openfleet_nodes.conf /tmp >&2; "
            "grep -c 3g.40gb /etc/slurm/openfleet_gres.conf || true; "
            f"systemctl is-active slurmd; {SHOWN}",
            fails=True,
            gpu_slurm_timeout=10,
        ),
        follow(layout(SEVEN), gpu_layout_on_busy="drain"),
    )
    assert "The old files are restored, and slurmctld uses them." in refused.failed
    # The devices of the old GRES do not exist, so no job may start.
    assert refused.seen.splitlines()[:2] == ["0", "active"]
    assert "DRAIN" in refused.seen
    assert "Gres=gpu:1g.10gb:7,gpu:h100:3" in again.seen and "State=IDLE " in again.seen
    host.ask("! ls /var/lib/openfleet-gpu/drain.json 2>&1")


# The test kills the run when one of these conditions is true: the node is drained, the layout has changed, the files
# are written, Slurm uses them.
MOMENTS = (
    "scontrol -o show node {node} | grep -q '+DRAIN'",
    "nvidia-smi -L | grep -c 'MIG 1g' | grep -qx 3",
    "grep -q {gres} /etc/slurm/openfleet_nodes.conf",
    "scontrol -o show node {node} | grep -q Gres={gres}",
)


@pytest.mark.thorough
@pytest.mark.parametrize("moment", MOMENTS, ids=["drained", "layout", "files", "daemons"])
def test_killed_runs_are_completed(host, moment):
    """Check that the next run completes a killed run, and that no job ends."""
    host.reset(layout(MIXED))
    job, _environment = host.submit("gpu:h100:1")
    condition = moment.format(node=NODE, gres="gpu:1g.10gb:3")
    kill_role(INVENTORY, "gpu_slurm", "one", follow(layout(THREE)), lambda: host.wait_until(condition, RUN_SECONDS))
    (completed,) = run(follow(layout(THREE)))
    assert "Gres=gpu:1g.10gb:3,gpu:h100:3" in completed.seen and "State=MIXED " in completed.seen
    assert host.state(job) == "JobState=RUNNING Restarts=0"
    assert host.mapping(layout(THREE))["change"]["way"] == "nothing"
    host.ask("! ls /var/lib/openfleet-gpu/drain.json 2>&1")


@pytest.mark.thorough
def test_node_that_slurm_refuses_is_mended(host):
    """Restore a missing line of gres.conf.

    Slurm refuses a node with fewer GRES than configured.
    """
    host.reset(layout(MIXED))
    breaks = (
        "sed -i '/nvidia3$/d' /etc/slurm/openfleet_gres.conf; systemctl restart slurmctld slurmd; "
        f"until scontrol -o show node {NODE} | grep -q ' State=[^ ]*INVAL'; do sleep 0.2; done; {SHOWN}"
    )
    # The first run records the devices of the node.
    broken, mended = run(follow(layout(MIXED), then=breaks), follow(layout(MIXED)))
    assert "DRAIN" in broken.seen and mended.changed
    assert "Gres=gpu:3g.40gb:1,gpu:1g.10gb:2,gpu:h100:3" in mended.seen and "State=IDLE " in mended.seen
    host.submit("gpu:h100:3")


# Programs in /usr/local/bin in place of Slurm's. The first cancels the job when the node is drained, and waits for its end.
# The second cancels the job when the role prints the jobs that it waits for.
AT_DRAIN = """/usr/bin/scontrol "$@" || exit
case $* in *State=DRAIN*)
    /usr/bin/scontrol show job $(cat /tmp/job) | grep -oE '(JobState|Restarts)=[A-Z0-9]+' | xargs > /tmp/job-at-drain
    grep -o ' Gres=.*' /etc/slurm/openfleet_nodes.conf >> /tmp/job-at-drain
    scancel $(cat /tmp/job)
    while [ -n "$(squeue --noheader)" ]; do sleep 0.2; done ;;
esac
"""
WHILE_WAITING = """/usr/bin/squeue "$@" || exit
case $* in *"Slurm job"*)
    scontrol show job $(cat /tmp/job) | grep -oE '(JobState|Restarts)=[A-Z0-9]+' | xargs > /tmp/job-at-drain
    grep -o ' Gres=.*' /etc/slurm/openfleet_nodes.conf >> /tmp/job-at-drain
    scancel $(cat /tmp/job) ;;
esac
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("program", "text"), [("scontrol", AT_DRAIN), ("squeue", WHILE_WAITING)])
def test_job_that_started_during_the_change_is_awaited(host, program, text):
    """Wait for a job that started on a node that was resumed after the layout changed."""
    host.reset(layout(MIXED))
    # The instance 3g.40gb does not exist any more, but slurmctld still offers it.
    starts = (
        f"scontrol update NodeName={NODE} State=RESUME; "
        "sbatch --parsable --chdir=/ --output=/dev/null --gres=gpu:3g.40gb:1 --wrap 'sleep 600' > /tmp/job; "
        "until scontrol show job $(cat /tmp/job) | grep -q JobState=RUNNING; do sleep 0.2; done; "
        f"printf %s {shlex.quote(f'#!/bin/sh{chr(10)}{text}')} > /usr/local/bin/{program}; "
        f"chmod 755 /usr/local/bin/{program}"
    )
    changed = follow(layout(THREE), gpu_drain_poll=1)
    try:
        _before, after = run(
            Ask(changed.variables, steps=changed.steps[:2], then=starts),
            Ask(changed.variables, steps=changed.steps[2:], then=f"cat /tmp/job-at-drain; {SHOWN}"),
        )
    finally:
        host.ask(f"rm -f /usr/local/bin/{program}")
    at_drain, before, now = after.seen.splitlines()
    assert (at_drain, before) == ("JobState=RUNNING Restarts=0", " Gres=gpu:3g.40gb:1,gpu:1g.10gb:2,gpu:h100:3")
    assert "Gres=gpu:1g.10gb:3,gpu:h100:3" in now and "State=IDLE " in now


def test_removal_leaves_the_line_of_the_node(host):
    host.reset(layout(MIXED))
    removed, quiet, present = run(
        Ask(entry="remove", then=f"cat {FILES}; {SHOWN}"),
        Ask(entry="remove"),
        follow(layout(MIXED)),
    )
    assert "NodeName=gpu-a" in removed.seen and "Name=gpu " not in removed.seen
    assert "Gres=(null)" in removed.seen and "State=IDLE " in removed.seen
    assert removed.changed and not quiet.changed
    assert "Gres=gpu:3g.40gb:1,gpu:1g.10gb:2,gpu:h100:3" in present.seen and "State=IDLE " in present.seen
