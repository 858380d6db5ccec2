# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module slurm_jobs reads jobs of a real Slurm, with slurmdbd and without it."""

from __future__ import annotations

import shlex
import time

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.jobs import jobs_of
from tests.lab.host_modules import run_module

WAIT_SECONDS = 120
#: A job name that looks like records of squeue and sacct.
HOSTILE = "x|y\n9999|9999|root|root|RUNNING|1|Unknown||gres/gpu=8|gpu-a|\n"


def wait_until(host, condition):
    host.check_output(f"timeout {WAIT_SECONDS} bash -c {shlex.quote(f'until {condition}; do sleep 0.2; done')}")


def submit(host, *options, user="root", command="true"):
    given = " ".join(map(shlex.quote, options))
    batch = f"cd /tmp; sbatch --parsable --output=/dev/null {given} --wrap {shlex.quote(command)}"
    return host.check_output(batch if user == "root" else f"su {user} -s /bin/sh -c {shlex.quote(batch)}")


def read(host, **options):
    """Return (result of the module, jobs by the ID that users know)."""
    now = time.time()
    result = run_module("one", "slurm_jobs", start_seconds=now - 86400, end_seconds=now, **options)
    assert not result.get("failed"), result
    return result, jobs_of({"login": result}, now - 86400, now)


@pytest.fixture(scope="module")
def ran(host):
    """Run jobs of each kind, and return their IDs."""
    done = submit(host, "--gres=gpu:h100:1", "--job-name", HOSTILE)
    array = submit(host, "--gres=gpu:1", "--array=1-2")
    without = submit(host)
    wait_until(host, "! squeue --noheader | grep -q .")
    requeued = submit(host, "--gres=gpu:h100:1", "--requeue", command="sleep 600")
    wait_until(host, f"squeue --noheader --states R --jobs {requeued} | grep -q .")
    # slurmctld sends records to slurmdbd with a delay.
    wait_until(host, f"sacct -X -n -j {requeued} -o State | grep -q RUNNING")
    host.check_output(f"scontrol requeue {requeued}")
    running = submit(host, "--gres=gpu:h100:2", "--account", "team-b", user="alice", command="sleep 600")
    wait_until(host, f"squeue --noheader --states R --jobs {running} | grep -q .")
    wait_until(host, f"sacct -X -n -D -j {requeued} -o State | grep -q REQUEUED")
    wait_until(host, f"sacct -X -n -a -j {running} -o State | grep -q RUNNING")
    yield {"done": done, "array": array, "without": without, "requeued": requeued, "running": running}
    host.check_output("scancel %s %s" % (requeued, running))


def test_jobs_of_all_users_are_known_from_slurmdbd(host, ran):
    result, jobs = read(host)
    assert (result["source"], result["problem"], jobs.notes) == ("sacct", "", ())
    found = {job.name: job for job in jobs.jobs}
    # A job may have ended within the second in which it started. Such a job does not count as a holder of a GPU.
    assert set(found) <= {ran["done"], ran["requeued"], ran["running"], f"{ran['array']}_1", f"{ran['array']}_2"}
    running = found[ran["running"]]
    assert (running.user, running.account, running.state, running.gres, running.nodes) == (
        "alice", "team-b", "RUNNING", (("h100", 2),), ("gpu-a",),
    )  # fmt: skip
    assert abs(running.start_seconds - time.time()) < 3600
    rows = {row["array_id"]: row for row in result["jobs"]}
    assert rows[ran["requeued"]]["state"] == "REQUEUED" and rows[ran["requeued"]]["end"].isdigit()
    assert {ran["done"], f"{ran['array']}_1", f"{ran['array']}_2"} <= set(rows) and ran["without"] not in rows


@pytest.mark.parametrize(
    ("stop", "start", "words"),
    [
        ("systemctl stop slurmdbd", "systemctl start slurmdbd", "Connection refused"),
        ("kill -STOP $(pidof slurmdbd)", "kill -CONT $(pidof slurmdbd)", "timed out after 5 s"),
    ],
)
def test_current_jobs_are_known_without_slurmdbd(host, ran, stop, start, words):
    """Check that a database that is down or hangs does not block the module."""
    host.check_output(stop)
    try:
        began = time.monotonic()
        result, jobs = read(host, timeout_seconds=5)
        assert time.monotonic() - began < 60
    finally:
        host.check_output(start)
    assert result["source"] == "squeue" and words in result["problem"]
    assert [(job.id, job.user, job.account, job.count) for job in jobs.jobs] == [(ran["running"], "alice", "team-b", 2)]
    wait_until(host, "sacct -X -n >/dev/null 2>&1")


def test_job_that_slurmctld_lost_is_reported(host, ran):
    """Check a job whose end slurmdbd misses."""
    database = "mysql slurm_acct_db --execute"
    host.check_output(
        f'{database} "create temporary table copy select * from lab_job_table where id_job = {ran["running"]}; '
        f'update copy set id_job = 999999, job_db_inx = 999999; insert into lab_job_table select * from copy"'
    )
    try:
        _result, jobs = read(host)
    finally:
        host.check_output(f'{database} "delete from lab_job_table where id_job = 999999"')
    assert "999999" not in {job.id for job in jobs.jobs}
    assert any("sacctmgr show runawayjobs" in note for note in jobs.notes)
