# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check and cancel idle Slurm jobs.

A job is cancelled by the ID that squeue prints for its task, such as 12_3. The job ID of an array's last task is also
the ID of the whole array, so that scancel would end all tasks. Formats: https://slurm.schedmd.com/squeue.html.
"""

from __future__ import annotations

import re
import time

from ..errors import FleetError
from ..frozen import frozen
from ..processes.command import Run, ask, run_tool

#: ID, ID with the task of an array, number of nodes, state, start as Unix time, and user. Users choose none of them.
_FORMAT = "%A %i %D %T %S %u"
_NAME = re.compile(r"[0-9]{1,12}")
_TASK = re.compile(r"[0-9]{1,12}(?:_[0-9]{1,12})?")
#: Seconds for a cancelled job to leave the running state. Its processes get KillWait (30 s) to end.
_CANCEL_SECONDS = 60.0
_POLL_SECONDS = 0.5


class JobError(FleetError):
    """A job cannot be read or cancelled."""


@frozen
class SlurmJob:
    """A job as slurmctld reports it.

    `task` is the ID for scancel. `start_seconds` is None if it is unknown.
    """

    task: str
    nodes: int
    state: str
    start_seconds: float | None
    user: str

    def spared(self, least_seconds: float, now: float) -> str:
        """Return why the job must not be cancelled, or ""."""
        if not _TASK.fullmatch(self.task):
            return "it is a part of a heterogeneous job"
        if self.nodes != 1:
            # The use of the job's GPUs on other nodes is unknown here.
            return "it runs on %d nodes" % self.nodes
        if self.state != "RUNNING":
            return "it is %s" % self.state
        if self.start_seconds is None:
            return "its start time is not known"
        hours = (now - self.start_seconds) / 3600
        if hours < least_seconds / 3600:
            return "it started %.1f h ago; protected for %.0f h" % (hours, least_seconds / 3600)
        return ""


def read_job(job: str, run: Run = run_tool) -> SlurmJob | None:
    """Return a job by its ID, or None if it has ended. Raises JobError."""
    if not _NAME.fullmatch(job):
        raise JobError("Slurm job %.20r" % job, "it is not the ID of a job", "Use the ID of Slurm.")
    command = ["squeue", "--all", "--array", "--noheader", "--jobs", job, "--format", _FORMAT]
    text, problem = _ask(run, command, {"SLURM_TIME_FORMAT": "%s"})
    if text is None:
        if "Invalid job id" in problem:
            return None
        raise JobError("Slurm job %s" % job, problem, "Check that slurmctld responds on this host (scontrol ping).")
    for words in (line.split() for line in text.splitlines()):
        # For an array's ID, squeue lists all its tasks.
        if len(words) == 6 and words[0] == job:
            start = float(words[4]) if words[4].isdigit() else None
            return SlurmJob(words[1], int(words[2]) if words[2].isdigit() else 0, words[3], start, words[5])
    return None


def cancel(job: str, reason: str, run: Run = run_tool) -> None:
    """Cancel a job, and wait until it no longer runs.

    scancel takes no reason, so the reason becomes the job's administrator comment. Raises JobError.
    """
    found = read_job(job, run)
    if found is None:
        return
    where, cure = "Slurm job %s" % found.task, "Check that root on this host is a Slurm administrator."
    if not _TASK.fullmatch(found.task):
        raise JobError(where, "it is a part of a heterogeneous job", "Cancel it with scancel.")
    for command in (
        ["scontrol", "update", "JobId=%s" % found.task, "AdminComment=%s" % reason],
        ["scancel", found.task],
    ):
        text, problem = _ask(run, command, {})
        if text is None:
            raise JobError(where, problem, cure)
    deadline = time.monotonic() + _CANCEL_SECONDS
    while True:
        now = read_job(job, run)
        if now is None or now.state not in ("RUNNING", "SUSPENDED"):
            return
        if time.monotonic() > deadline:
            raise JobError(where, "it still runs after scancel", "See squeue --jobs %s." % found.task)
        time.sleep(_POLL_SECONDS)


def _ask(run: Run, command: list[str], environment: dict[str, str]) -> tuple[str | None, str]:
    try:
        return ask(run, command, env=environment)
    except FileNotFoundError:
        return None, "%s is not installed" % command[0]
