# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse the results of the module slurm_jobs. Pure.

All values are checked, because a host may send anything. Account names are only shown, because users choose them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Sequence

from ...module_utils.errors import FleetError
from ...module_utils.holders.slurm import hostnames
from ..counted import counted
from ..host_values import HostValueError, Reader, text
from ..plain import plain

#: Maximum number of a cluster's jobs, and of characters in a name.
MOST_JOBS, _NAME = 100000, 100
#: A larger clock difference is reported in a note.
_SKEW_SECONDS = 120
_ROW = {
    "id!": "text", "array_id!": "text", "user!": "text", "account!": "text", "state!": "text", "start!": "text", "end!": "text",
    "suspended": "text", "tres!": "text", "nodes!": "text", "runs": "flag",
}  # fmt: skip
_RESULT = {
    "source!": "text",
    "problem": "text",
    "since_seconds!": "number",
    "records!": "count",
    "clock_seconds": "number",
    "jobs!": [_ROW, MOST_JOBS],
}
_NUMBER = re.compile(r"[0-9]{1,12}")
_ARRAY_ID = re.compile(r"[0-9]{1,12}(?:[_+][0-9]{1,12})?")
_TYPE = re.compile(r"gres/gpu:([A-Za-z0-9_.+-]{1,64})")
_SHARED = ("gres/shard", "gres/mps")
_SUSPENDED = re.compile(r"(?:([0-9]{1,5})-)?([0-9]{1,2}):([0-9]{2}):([0-9]{2})")
#: Values in sacct's output for the end of a running job, and for the start of a job that never started.
_NO_TIME = ("Unknown", "None", "")


@dataclass(frozen=True)
class Job:
    """One run of a job. A requeued job has several runs with the same ID.

    `id` is the ID in the host's list of holders. `name` is the ID that users see, such as `12_3` for an array's task.
    Times are Unix times by the cluster's clock. `end_seconds` is None if the job still runs. `gres` has types and
    numbers of GPUs or MIG instances. A type is empty if Slurm does not count GPUs by type. `shared` is true for a job
    that only has shards or MPS percentages. `nodes` is empty if the nodes are unknown.
    """

    id: str
    name: str
    user: str
    account: str
    state: str
    start_seconds: float
    end_seconds: float | None
    gres: tuple[tuple[str, int], ...]
    nodes: tuple[str, ...]
    suspended_seconds: float = 0.0
    shared: bool = False

    @property
    def count(self) -> int:
        """Return the number of GPUs or MIG instances on all nodes."""
        return sum(number for _type, number in self.gres)

    def seconds_in(self, start_seconds: float, end_seconds: float) -> float:
        """Return for how many seconds of a time range the job held its GPUs.

        A suspended job still holds them.
        """
        end = end_seconds if self.end_seconds is None else min(self.end_seconds, end_seconds)
        return max(0.0, end - max(self.start_seconds, start_seconds))


@dataclass(frozen=True)
class Jobs:
    """The jobs of all clusters.

    `sources` names the commands that provided them. `since_seconds` is the start of the time range that they cover.
    """

    jobs: tuple[Job, ...]
    sources: tuple[str, ...]
    since_seconds: float
    notes: tuple[str, ...] = ()


class SlurmError(FleetError):
    """The option `slurm` has an unknown key or an invalid value."""


def slurm_of(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (results of slurm_jobs, node names), both by host.

    `given` is the option `slurm`. The results are not checked yet. Raises SlurmError.
    """
    for key in given:
        if key not in ("jobs", "nodes"):
            raise SlurmError("slurm", "unknown key %r" % plain(key), "Known keys: jobs, nodes.")
    nodes = plain(given.get("nodes") or {})
    for host, name in nodes.items():
        if not isinstance(name, str):
            raise SlurmError("slurm.nodes of %s" % host, "%r is not text" % (name,), "Write text.")
    return {plain(host): result for host, result in (given.get("jobs") or {}).items()}, nodes


def jobs_of(results: Mapping[str, Any], start_seconds: float, end_seconds: float) -> Jobs:
    """Return the jobs in the results of slurm_jobs by host.

    `notes` gets sentences about missing and unusable data. A job that several hosts report counts once.
    """
    jobs: dict[tuple[str, float, str], Job] = {}
    sources, notes, since = [], [], start_seconds
    for host in sorted(results):
        try:
            found = _checked(host, results[host])
        except FleetError as error:
            notes.append("The jobs of Slurm are unknown. %s" % error)
            continue
        parsed, invalid, lost = _parsed(found["jobs"])
        notes += _notes(host, found, start_seconds, end_seconds, invalid, lost)
        if found["source"]:
            sources.append("%s on %s" % (found["source"], host))
        if found["source"] == "sacct":
            since = min(max(since, found["since_seconds"]), end_seconds)
        for job in parsed:
            if job.seconds_in(start_seconds, end_seconds) > 0:
                jobs.setdefault((job.id, job.start_seconds, job.user), job)
    ordered = sorted(jobs.values(), key=lambda job: (job.start_seconds, job.id))
    return Jobs(tuple(ordered), tuple(sources), since, tuple(notes))


def _checked(host: str, result: Any) -> dict[str, Any]:
    if not isinstance(result, Mapping) or "jobs" not in result:
        reason = text(result["msg"], 300) if isinstance(result, Mapping) and result.get("msg") else "no result"
        raise FleetError(host, "it did not answer: %s" % reason.rstrip("."), "Check that sacct works on this host.")
    found: dict[str, Any] = Reader(host, MOST_JOBS).read("slurm_jobs", result, _RESULT)
    if found["source"] not in ("sacct", "squeue", ""):
        raise HostValueError(host, "slurm_jobs.source", found["source"], "sacct, squeue or empty")
    return found


def _notes(host: str, found: Mapping[str, Any], start: float, end: float, invalid: int, lost: int) -> Sequence[str]:
    notes = []
    problem = (found.get("problem") or "").rstrip(".")
    if not found["source"]:
        notes.append("%s: the jobs of Slurm are unknown: %s." % (host, problem or "no reason given"))
    elif found["source"] == "squeue":
        notes.append("%s: only current jobs are known, because sacct did not answer: %s." % (host, problem))
    elif problem:
        hours = max(0.0, end - max(start, found["since_seconds"])) / 3600
        notes.append("%s: the accounting covers only the last %.0f h: %s." % (host, hours, problem))
    elif found["records"] and not found["jobs"]:
        notes.append(
            "%s: none of %s has GPUs. If jobs use GPUs, add gres/gpu to AccountingStorageTRES in slurm.conf."
            % (host, counted(found["records"], "job"))
        )
    clock = found.get("clock_seconds")
    if clock is not None and abs(clock - end) > _SKEW_SECONDS:
        notes.append(
            "%s: its clock differs by %.0f s, so use near the start and end of jobs is wrong." % (host, clock - end)
        )
    if invalid:
        notes.append("%s: %s of Slurm cannot be read." % (host, counted(invalid, "record")))
    if lost:
        notes.append(
            "%s: %s without an end unknown to slurmctld, so not counted (sacctmgr show runawayjobs)."
            % (host, counted(lost, "job"))
        )
    return notes


def _parsed(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Job], int, int]:
    """Return (jobs, number of invalid rows, number of lost jobs).

    A lost job has no end and is unknown to slurmctld.
    """
    jobs, invalid, lost = [], 0, 0
    for row in rows:
        try:
            job = _job(row)
        except ValueError:
            invalid += 1
            continue
        if job is None:
            continue
        if job.end_seconds is None and row.get("runs") is False:
            lost += 1
        elif job.count or job.shared:
            jobs.append(job)
    return jobs, invalid, lost


def _job(row: Mapping[str, Any]) -> Job | None:
    """Convert a row to a job, or return None if the job never started.

    Raises ValueError if the row is not a job.
    """
    if not _NUMBER.fullmatch(row["id"]):
        raise ValueError(row["id"])
    if row["start"] in _NO_TIME:
        return None
    start, end = _time(row["start"]), None if row["end"] in _NO_TIME else _time(row["end"])
    if end is not None and end < start:
        raise ValueError(row["end"])
    gres, shared = _gres(row["tres"])
    name = row["array_id"] if _ARRAY_ID.fullmatch(row["array_id"]) else row["id"]
    return Job(
        row["id"],
        name,
        text(row["user"], _NAME),
        text(row["account"], _NAME),
        text(row["state"].partition(" ")[0], _NAME),
        start,
        end,
        gres,
        _nodes(row["nodes"]),
        _suspended(row.get("suspended") or ""),
        shared and not gres,
    )


def _nodes(listed: str) -> tuple[str, ...]:
    """Return the names of the nodes.

    Returns an empty tuple if the list was shortened, or without an assigned node.
    """
    return () if " " in listed or listed.endswith("...") else tuple(sorted(hostnames(listed)))


def _time(value: str) -> float:
    if not _NUMBER.fullmatch(value):
        raise ValueError(value)
    return float(value)


def _gres(tres: str) -> tuple[tuple[tuple[str, int], ...], bool]:
    """Return (types and numbers of GPUs, whether there are shares of GPUs)."""
    total, typed, shared = 0, {}, False
    for part in tres.split(","):
        name, _sign, count = part.partition("=")
        number = int(count) if re.fullmatch(r"[0-9]{1,6}", count) else 0
        match = _TYPE.fullmatch(name)
        if name == "gres/gpu":
            total = number
        elif match and number:
            typed[match.group(1)] = number
        shared = shared or name.startswith(_SHARED)
    rest = total - sum(typed.values())
    return (*sorted(typed.items()), *((("", rest),) if rest > 0 else ())), shared


def _suspended(value: str) -> float:
    match = _SUSPENDED.fullmatch(value)
    if match is None:
        return 0.0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
