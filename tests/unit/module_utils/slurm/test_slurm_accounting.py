# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read jobs as the module slurm_jobs does.

The output was recorded with Slurm 22.05 and 24.11. It has a job array, and jobs that were finished, requeued,
suspended, running, pending and cancelled.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.slurm.accounting import read_jobs

DATA = Path(__file__).parents[2] / "data" / "slurm"
MARK = "<q7>"
DAY = 86400.0
END = 1795890800.0
DOWN = "sacct: error: Problem talking to the database: Connection refused"


class Tools:
    """Replace Slurm's tools: print recorded output with the separator of the query."""

    def __init__(self, sacct="", squeue="", active="", fail=None):
        self.sacct, self.squeue, self.active, self.fail = sacct, squeue, active, fail or {}
        self.commands = []

    def __call__(self, command, env=None, timeout_seconds=None, **_options):
        self.commands.append((command, env, timeout_seconds))
        failure = self.fail.get(command[0])
        if callable(failure):
            failure = failure(command)
        if isinstance(failure, Exception):
            raise failure
        if failure:
            return subprocess.CompletedProcess(command, 1, "", failure)
        if command[0] == "sacct":
            (mark,) = re.findall("--delimiter=(.*)", "\n".join(command))
            return subprocess.CompletedProcess(command, 0, self.sacct.replace(MARK, mark), "")
        if "--Format" in command:
            mark = re.search("JobID:24([^,]*),", command[-1]).group(1)
            return subprocess.CompletedProcess(command, 0, self.squeue.replace(MARK, mark), "")
        return subprocess.CompletedProcess(command, 0, self.active, "")


def recorded(name):
    return (DATA / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_jobs_with_gpus_are_read_from_sacct(version):
    tools = Tools(sacct=recorded("sacct-%s.txt" % version), active="13\n19\n18\n22\n")
    found = read_jobs(END - 14 * DAY, END, 60, 100, tools)
    assert (found["source"], found["problem"], found["since_seconds"]) == ("sacct", "", END - 14 * DAY)
    jobs = {row["array_id"]: row for row in found["jobs"]}
    # The result leaves out jobs without GPUs (15) and jobs that never started (22).
    assert sorted(jobs) == sorted(["11", "12_1", "12_2", "12_3", "13", "14", "18", "19", "20", "21"])
    assert (jobs["12_3"]["id"], jobs["12_3"]["tres"]) == ("12", "billing=1,cpu=1,gres/gpu:1g.10gb=1,gres/gpu=1,node=1")
    assert (jobs["13"]["user"], jobs["13"]["account"], jobs["13"]["end"], jobs["13"]["runs"]) == (
        "alice", "team-b", "Unknown", True,
    )  # fmt: skip
    assert (jobs["18"]["state"], jobs["19"]["state"], jobs["11"]["nodes"]) == ("REQUEUED", "SUSPENDED", "gpu-a")
    assert jobs["11"]["start"].isdigit()


def test_time_range_is_read_from_its_end_in_growing_intervals():
    tools = Tools()
    read_jobs(END - 365 * DAY, END, 60, 100, tools)
    ranges = [re.findall(r"time=uts(\d+)", " ".join(command)) for command, _env, _limit in tools.commands]
    assert len(ranges) < 12
    assert ranges[0] == [str(int(END - DAY)), str(int(END))]
    assert ranges[-1][0] == str(int(END - 365 * DAY))
    assert [one[0] for one in ranges[:-1]] == [one[1] for one in ranges[1:]]
    assert all(env == {"SLURM_TIME_FORMAT": "%s", "TZ": "UTC"} for _command, env, _limit in tools.commands)


def test_job_of_several_intervals_is_returned_once():
    tools = Tools(sacct=recorded("sacct-24.11.txt"))
    found = read_jobs(END - 30 * DAY, END, 60, 100, tools)
    assert len({(row["id"], row["start"]) for row in found["jobs"]}) == len(found["jobs"]) == 10


def test_account_with_line_breaks_and_separators_stays_one_field():
    account = "x|y\n9999|9999|root|root|RUNNING|1|Unknown||gres/gpu=8|gpu-a|\n<q8>"
    record = MARK.join(["7", "7", "eve", account, "RUNNING", "5", "Unknown", "", "gres/gpu=1", "n1", "\n"])
    found = read_jobs(END - DAY, END, 60, 100, Tools(sacct=record + record.replace("7", "8", 1), active="7 8"))
    assert [(row["id"], row["account"]) for row in found["jobs"]] == [("7", account), ("8", account)]


def test_separator_differs_in_each_query():
    tools = Tools()
    read_jobs(END - 7 * DAY, END, 60, 100, tools)
    marks = [re.findall("--delimiter=(.*)", "\n".join(command))[0] for command, _env, _limit in tools.commands]
    assert len(set(marks)) == len(marks) > 1


def test_incomplete_output_is_ignored():
    record = MARK.join(["7", "7", "eve", "a", "RUNNING", "5", "9", "", "gres/gpu=1", "n1", "\n"])
    found = read_jobs(END - DAY, END, 60, 100, Tools(sacct=record + record[:20]))
    assert [row["id"] for row in found["jobs"]] == ["7"]


def test_slow_database_shortens_the_time_range():
    """Keep the newer jobs if the query for older ones times out."""
    record = MARK.join(["7", "7", "eve", "a", "COMPLETED", "5", "9", "", "gres/gpu=1", "n1", "\n"])

    def hang(command):
        return None if "--endtime=uts%d" % END in command else subprocess.TimeoutExpired(command, 50)

    found = read_jobs(END - 14 * DAY, END, 60, 100, Tools(sacct=record, fail={"sacct": hang}))
    assert (found["source"], found["since_seconds"], len(found["jobs"])) == ("sacct", END - DAY, 1)
    assert "timed out after 50 s" in found["problem"]


def test_all_queries_of_sacct_share_one_time_limit():
    tools = Tools()
    read_jobs(END - 14 * DAY, END, 60, 100, tools)
    limits = [limit for _command, _env, limit in tools.commands]
    assert max(limits) <= 60 and limits == sorted(limits, reverse=True)
    found = read_jobs(END - 14 * DAY, END, 0, 100, Tools())
    assert found["source"] == "squeue" and "time limit" in found["problem"]


@pytest.mark.parametrize("version", ["22.05", "24.11"])
@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (DOWN, "Connection refused"),
        ("Slurm accounting storage is disabled", "disabled"),
        (FileNotFoundError(), "sacct is not installed"),
        (subprocess.TimeoutExpired("sacct", 60), "timed out after 60 s"),
    ],
)
def test_current_jobs_are_read_from_squeue_without_accounting(version, failure, words):
    tools = Tools(squeue=recorded("squeue-%s.txt" % version), fail={"sacct": failure})
    found = read_jobs(END - DAY, END, 60, 100, tools)
    assert found["source"] == "squeue" and words in found["problem"]
    assert [(row["id"], row["user"], row["state"], row["end"]) for row in found["jobs"]] == [
        ("13", "alice", "RUNNING", "Unknown"), ("19", "root", "SUSPENDED", "Unknown"),
    ]  # fmt: skip
    assert "gres/gpu:h100=2" in found["jobs"][0]["tres"]


def test_module_succeeds_if_slurm_does_not_answer():
    found = read_jobs(END - DAY, END, 60, 100, Tools(fail={"sacct": DOWN, "squeue": "slurm_load_jobs error"}))
    assert (found["source"], found["jobs"]) == ("", [])
    assert "Connection refused" in found["problem"] and "slurm_load_jobs error" in found["problem"]


def test_newest_jobs_are_kept_if_there_are_too_many():
    records = [
        MARK.join([str(at), str(at), "u", "a", "COMPLETED", str(at), str(at + 1), "", "gres/gpu=1", "n", "\n"])
        for at in range(100, 200)
    ]
    found = read_jobs(END - DAY, END, 60, 10, Tools(sacct="".join(records)))
    assert [row["id"] for row in found["jobs"]] == [str(at) for at in range(199, 189, -1)]
    assert (found["since_seconds"], found["problem"]) == (190.0, "there are more than 10 jobs with GPUs")


def test_running_job_that_slurmctld_does_not_know_is_marked():
    found = read_jobs(END - DAY, END, 60, 100, Tools(sacct=recorded("sacct-24.11.txt"), active="13\n"))
    runs = {row["id"]: row.get("runs") for row in found["jobs"]}
    assert (runs["13"], runs["19"], runs["11"]) == (True, False, None)
    found = read_jobs(END - DAY, END, 60, 100, Tools(sacct=recorded("sacct-24.11.txt"), fail={"squeue": "down"}))
    assert all("runs" not in row for row in found["jobs"])
