# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the jobs of a Slurm cluster that held GPUs.

sacct asks slurmdbd. Without slurmdbd, squeue reports only the current jobs. Users choose account names. Without a
database, these may contain line breaks, so a random text for each query separates the fields. Formats:
https://slurm.schedmd.com/sacct.html and https://slurm.schedmd.com/squeue.html.
"""

from __future__ import annotations

import binascii
import os
import re
import time
from typing import Any, Iterator, Sequence

from ..processes.command import Run, ask, run_tool

#: Keys of a job, and the matching fields of sacct.
FIELDS = {
    "id": "JobIDRaw",
    "array_id": "JobID",
    "user": "User",
    "account": "Account",
    "state": "State",
    "start": "Start",
    "end": "End",
    "suspended": "Suspended",
    "tres": "AllocTRES",
    "nodes": "NodeList",
}
#: Fields of squeue with their widths, to which squeue shortens values.
_CURRENT = {
    "id": "JobID:24",
    "array_id": "JobArrayID:40",
    "user": "UserName:64",
    "account": "Account:64",
    "state": "State:20",
    "start": "StartTime:24",
    "nodes": "NodeList:1000",
    "tres": "tres-alloc:1000",
}
#: States of jobs that hold their resources.
_STATES = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT"
#: Resources for GPUs or parts of GPUs.
_GPU_TRES = re.compile(r"(?:^|,)gres/(?:gpu|shard|mps)[:=]")
#: Report times as Unix times, whatever the cluster's time zone is.
_ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s", "TZ": "UTC"}
#: Length in seconds of a query's newest interval. Each older interval is twice as long.
_FIRST_SECONDS = 86400
#: Maximum time for squeue.
_SQUEUE_SECONDS = 20
_UNKNOWN_END = "Unknown"


def read_jobs(
    start_seconds: float, end_seconds: float, timeout_seconds: float, most_jobs: int, run: Run = run_tool
) -> dict[str, Any]:
    """Return the jobs with GPUs between two Unix times as data.

    The newest jobs are read first. If slurmdbd is slow, or with more than `most_jobs` jobs, older jobs are left out,
    and `since_seconds` and `problem` say so. Raises no error if Slurm does not answer.
    """
    reader = _Reader(run, time.monotonic() + timeout_seconds)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    since, records, problem = end_seconds, 0, ""
    for first, last in _intervals(start_seconds, end_seconds):
        count, rows, problem = reader.accounted(first, last)
        if problem:
            break
        records += count
        # A job is in every interval in which it ran.
        found.update({(row["id"], row["start"]): row for row in rows})
        since = first
        if len(found) > most_jobs:
            problem = "there are more than %d jobs with GPUs" % most_jobs
            break
    jobs = sorted(found.values(), key=lambda row: row["start"], reverse=True)[:most_jobs]
    if len(found) > most_jobs:
        # The list of older jobs is incomplete.
        since = float(jobs[-1]["start"]) if jobs and jobs[-1]["start"].isdigit() else end_seconds
    source = "sacct" if since < end_seconds else ""
    if not source:
        jobs, current_problem = reader.current()
        source = "" if current_problem else "squeue"
        problem = "; ".join(filter(None, (problem, current_problem)))
        jobs, records = jobs[:most_jobs], len(jobs)
    elif any(row["end"] == _UNKNOWN_END for row in jobs):
        reader.mark_lost(jobs)
    return {
        "source": source,
        "since_seconds": since,
        "records": records,
        "problem": problem,
        "jobs": jobs,
    }


def _intervals(start: float, end: float) -> Iterator[tuple[float, float]]:
    length = float(_FIRST_SECONDS)
    while end > start:
        first = max(start, end - length)
        yield first, end
        end, length = first, 2 * length


class _Reader:
    """Slurm's tools, with a common deadline (time.monotonic())."""

    def __init__(self, run: Run, deadline: float) -> None:
        self._run, self._deadline = run, deadline

    def accounted(self, first: float, last: float) -> tuple[int, list[dict[str, Any]], str]:
        """Return an interval's (number of records, jobs with GPUs, problem) from sacct."""
        mark = _mark()
        # -X leaves out job steps. Without --duplicates, sacct shows only a requeued job's last run.
        command = ["sacct", "--allusers", "-X", "--duplicates", "--parsable", "--noheader", "--noconvert"]
        command += ["--delimiter=%s" % mark, "--format=%s" % ",".join(FIELDS.values())]
        text, problem = self._ask([*command, "--starttime=uts%d" % first, "--endtime=uts%d" % last])
        if text is None:
            return 0, [], problem.replace(mark, "|")
        rows = list(_records(text, mark, tuple(FIELDS)))
        return len(rows), [row for row in rows if _GPU_TRES.search(row["tres"])], ""

    def current(self) -> tuple[list[dict[str, Any]], str]:
        """Return (current jobs with GPUs, problem) from squeue."""
        mark = _mark()
        fields = ",".join(field + mark for field in _CURRENT.values())
        command = ["squeue", "--all", "--array", "--noheader", "--states", _STATES, "--Format", fields]
        text, problem = self._ask(command, _SQUEUE_SECONDS)
        if text is None:
            return [], problem.replace(mark, "")
        rows = [dict(row, end=_UNKNOWN_END, suspended="", runs=True) for row in _records(text, mark, tuple(_CURRENT))]
        return [row for row in rows if _GPU_TRES.search(row["tres"])], ""

    def mark_lost(self, jobs: Sequence[dict[str, Any]]) -> None:
        """Add `runs` to jobs without an end: whether slurmctld knows the job.

        slurmdbd misses a job's end if slurmctld lost its state (sacctmgr show runawayjobs).
        """
        text, _problem = self._ask(["squeue", "--all", "--array", "--noheader", "--format", "%A"], _SQUEUE_SECONDS)
        if text is None:
            return
        known = set(text.split())
        for row in jobs:
            if row["end"] == _UNKNOWN_END:
                row["runs"] = row["id"] in known

    def _ask(self, command: list[str], most_seconds: float | None = None) -> tuple[str | None, str]:
        left = self._deadline - time.monotonic()
        if most_seconds is not None:
            # A hanging slurmdbd must not prevent the query of slurmctld.
            left = most_seconds
        if left <= 0:
            return None, "%s was not asked about older jobs, because the time limit was reached" % command[0]
        try:
            return ask(self._run, command, env=_ENVIRONMENT, timeout_seconds=left)
        except FileNotFoundError:
            return None, "%s is not installed" % command[0]


def _mark() -> str:
    return "<%s>" % binascii.hexlify(os.urandom(12)).decode()


def _records(text: str, mark: str, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of an output in which the mark ends each field.

    Ignores text after the last complete record.
    """
    fields = text.split(mark)
    for at in range(0, len(fields) - len(keys), len(keys)):
        yield dict(zip(keys, (field.strip() for field in fields[at : at + len(keys)])))
