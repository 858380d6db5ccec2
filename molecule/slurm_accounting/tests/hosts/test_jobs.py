# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module slurm_jobs reads jobs of a real Slurm, with slurmdbd and without it."""

from __future__ import annotations

import shlex
import time

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import report_html
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.holdings import HostState
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.jobs import jobs_of
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.make import Order, make
from tests.lab.host_modules import run_module

WAIT_SECONDS = 120
DATABASE = "mysql slurm_acct_db --execute"
# Job ID of the first copy of a record.
FIRST_COPY = 100000
MODEL = "NVIDIA H100 80GB HBM3"
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


YEAR_SECONDS = 365 * 86400
RECORDS = 1000


@pytest.fixture
def year(host, ran):
    """Copy the record of an ended job 1,000 times, over the last year."""
    first = int(time.time()) - YEAR_SECONDS + 86400
    step = (YEAR_SECONDS - 2 * 86400) // RECORDS
    host.check_output(
        f'{DATABASE} "create temporary table copies with recursive numbers(number) as '
        f"(select 0 union all select number + 1 from numbers where number < {RECORDS - 1}) "
        f"select jobs.*, number from lab_job_table jobs, numbers where id_job = {ran['done']}; "
        f"update copies set id_job = {FIRST_COPY} + number, job_db_inx = {FIRST_COPY} + number, "
        f"time_submit = {first} + number * {step}, time_eligible = time_submit, time_start = time_submit, "
        f"time_end = time_start + 18000, id_user = number % 40; "
        f'alter table copies drop column number; insert into lab_job_table select * from copies"'
    )
    yield
    host.check_output(f'{DATABASE} "delete from lab_job_table where id_job >= {FIRST_COPY}"')


def test_a_year_of_records_is_in_the_report(host, ran, year, tmp_path):
    now = time.time()
    result = run_module("one", "slurm_jobs", start_seconds=now - YEAR_SECONDS, end_seconds=now)
    assert (result["source"], result["problem"]) == ("sacct", ""), result
    copies = [row for row in result["jobs"] if row["id"].isdigit() and int(row["id"]) >= FIRST_COPY]
    assert len(copies) == RECORDS
    gpus = [
        {
            "uuid": f"GPU-{n}",
            "index": n,
            "name": "NVIDIA H100 80GB HBM3",
            "holders": [],
            "processes": [],
            "mig": {"instances": []},
        }
        for n in range(4)
    ]
    asked = {"hosts": {"gpu-a": HostState(gpus)}, "hosts_asked": ["gpu-a"], "nodes": {"gpu-a": "gpu-a"}}
    audit = make(Order(YEAR_SECONDS, jobs={"login": result}, **asked), now)
    assert audit.usage.job_count >= RECORDS
    # Each copy held one GPU for five hours.
    held = sum(job.held_gpu_seconds for job in audit.usage.jobs if job.name.isdigit() and int(job.name) >= FIRST_COPY)
    assert held == RECORDS * 18000
    assert f"{audit.usage.job_count} jobs with GPUs" in report_html.to_text(audit)


def test_job_that_slurmctld_lost_is_reported(host, ran):
    """Check a job whose end slurmdbd misses."""
    host.check_output(
        f'{DATABASE} "create temporary table copy select * from lab_job_table where id_job = {ran["running"]}; '
        f'update copy set id_job = 999999, job_db_inx = 999999; insert into lab_job_table select * from copy"'
    )
    try:
        _result, jobs = read(host)
    finally:
        host.check_output(f'{DATABASE} "delete from lab_job_table where id_job = 999999"')
    assert "999999" not in {job.id for job in jobs.jobs}
    assert any("sacctmgr show runawayjobs" in note for note in jobs.notes)
