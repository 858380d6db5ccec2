# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the subcommand slurm-job, the Prolog and Epilog of Slurm jobs.

It takes a job's lease before the job starts, and gives it back afterwards. A job whose lease is refused is requeued,
but the Prolog still succeeds, because Slurm drains a node whose Prolog fails. For each job, the TaskProlog reads a file
that has either the lease's environment or the reason why there is no lease.

https://slurm.schedmd.com/prolog_epilog.html
"""

# pylint: disable=ansible-bad-function
from __future__ import annotations

import contextlib
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, Mapping

from .. import durable
from ..errors import FleetError
from ..holders.slurm import NODE_NAME, QUOTA, NoAnswerError, exact_id, job_gres, resources_of
from ..leases.model import LeaseError, RetryLaterError
from ..printable import printable
from ..processes.command import Run, ask, run_tool
from . import lease

#: Folder with one file per job. A boot empties the folder and ends all jobs.
JOBS = Path("/run/openfleet-gpu-jobs")
#: First word of a job's file if the job has no lease.
REFUSED = "refused"
_CONTEXT = "SLURM_SCRIPT_CONTEXT"


def slurm_job(options: Namespace) -> int:
    """Take or give back a job's lease, depending on SLURM_SCRIPT_CONTEXT."""
    return run(os.environ, options.socket)


def run(environment: Mapping[str, str], socket: str, tool: Run = run_tool, folder: Path = JOBS) -> int:
    """Take or give back a job's lease. Returns the exit status.

    Raises FleetError if Slurm did not start this process.
    """
    context, job = environment.get(_CONTEXT, ""), environment.get("SLURM_JOB_ID", "")
    node, user = environment.get("SLURMD_NODENAME", ""), environment.get("SLURM_JOB_USER", "")
    if not job.isdigit() or not NODE_NAME.match(node) or context not in ("prolog_slurmd", "epilog_slurmd"):
        raise FleetError("slurm-job", "Slurm did not start this program", "Set Prolog= and Epilog= in slurm.conf.")
    file = folder / job
    if context == "epilog_slurmd":
        _end(job, socket, file)
        return 0
    try:
        units = _units(tool, job, user, node)
        if not units:
            return 0
        request = {"op": "job_begin", "job": job, "user": user, "units": units, "partition": _partition(environment)}
        answer = _begin(request, node, socket, tool)
    except FleetError as error:
        _write(file, "%s %s\n" % (REFUSED, printable(str(error))))
        _requeue(tool, job, error)
        return 0
    lines = ["%s=%s\n" % (name, value) for name, value in sorted(answer["environment"].items())]
    _write(file, "".join([*lines, "OPENFLEET_LEASE=%s\n" % answer["number"]]))
    return 0


def _partition(environment: Mapping[str, str]) -> str:
    """Return the partition of the job. slurmd sets it, and not the user."""
    return environment.get("SLURM_JOB_PARTITION", "")


def _units(tool: Run, job: str, user: str, node: str) -> int:
    """Return how many units of leases a job has on this node.

    Raises LeaseError if the job cannot have its lease.
    """
    where = "job %s" % job
    try:
        found: Any = resources_of(tool, job, user, node)
    except (NoAnswerError, FileNotFoundError) as error:
        cure = "Check that slurmctld responds on this host (scontrol ping)."
        raise RetryLaterError(where, "its resources are not known: %s" % error, cure) from None
    if found is None:
        raise LeaseError(
            where, "its name or a comment looks like a part of Slurm's record", "Submit it with another name."
        )
    names = {each[0] for each in found}
    if QUOTA in names and names != {QUOTA}:
        raise LeaseError(where, "it requests gres/%s and other GPUs" % QUOTA, "Request one of them.")
    return sum(int(each[1]) for each in found if each[0] == QUOTA)


def _begin(request: Mapping[str, Any], node: str, socket: str, tool: Run) -> Mapping[str, Any]:
    """Take the lease.

    If there is no room, first give back the leases of jobs that no longer exist on this node.
    """
    try:
        return lease.ask(socket, request, repeats=True)
    except RetryLaterError as error:
        try:
            living = {job for job, _user, _given in job_gres(tool, node)}
        except (NoAnswerError, FileNotFoundError):
            raise error from None
        gone = [job for job in lease.ask(socket, {"op": "jobs"})["jobs"] if job not in living]
        if not gone:
            raise error from None
        for job in gone:
            lease.ask(socket, {"op": "job_end", "job": job}, repeats=True)
        return lease.ask(socket, request, repeats=True)


def _end(job: str, socket: str, file: Path) -> None:
    """Give back a job's lease.

    The service ends processes that still use the quota.
    """
    if not file.exists():
        return
    try:
        lease.ask(socket, {"op": "job_end", "job": job}, repeats=True)
    except FleetError as error:
        # The Prolog of a later job will give this lease back.
        print("openfleet-gpu: %s" % error, file=sys.stderr)
    durable.remove(file)


def _requeue(tool: Run, job: str, error: FleetError) -> None:
    """Requeue a job, or cancel it if it cannot be requeued.

    If its request can never succeed, the job is also held.
    """
    print("openfleet-gpu: %s" % error, file=sys.stderr)
    with contextlib.suppress(FileNotFoundError):
        with contextlib.suppress(NoAnswerError):
            job = exact_id(tool, job)
        ask(tool, ["scontrol", "update", "JobId=%s" % job, "AdminComment=openfleet-gpu: %s" % printable(str(error))])
        action = "requeue" if isinstance(error, RetryLaterError) else "requeuehold"
        done, _problem = ask(tool, ["scontrol", action, job])
        if done is None:
            ask(tool, ["scancel", job])


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(mode=0o755, exist_ok=True)
    durable.write_text(file, text, 0o644)
