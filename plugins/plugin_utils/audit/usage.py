# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Join jobs with the use of their devices, and calculate the totals. Pure.

An interval of a device counts for a job if the job lasted for the whole interval, or if no other job can have held the
device in it. Other intervals count as not measured, because they may contain another job's use.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Callable, Iterable, Mapping, Sequence

from ...module_utils.catalogue import Model
from .job_devices import Device, Finder
from .job_series import DeviceUse
from .jobs import Job, Jobs
from .usage_advice import advice
from .usage_model import JobUse, Total, Usage

#: Maximum number of jobs, and of users and accounts, in a report.
_MOST_JOBS, _MOST_TOTALS = 1000, 500
_NO_NAME = "(none)"
_HOUR = 3600.0


@dataclass(frozen=True)
class _Placed:
    """A job with its devices."""

    job: Job
    devices: frozenset[Device]
    evidence: str
    unknown: str
    hosts: frozenset[str]


class Joined:
    """Jobs of the fleet with their devices."""

    def __init__(self, jobs: Jobs, end_seconds: float, finder: Finder) -> None:
        self._jobs, self._end, self._finder = jobs, end_seconds, finder
        # Jobs that only hold shares of GPUs, whose use is not measured here.
        self._shared = [job for job in jobs.jobs if job.shared]
        whole = [job for job in jobs.jobs if not job.shared]
        self._other = [job for job in whole if job.nodes and not finder.hosts(job)]
        others = set(map(id, self._other))
        self._placed = [self._place(job) for job in whole if id(job) not in others]

    @property
    def devices(self) -> frozenset[Device]:
        """Return all devices whose use is needed."""
        return frozenset(device for placed in self._placed for device in placed.devices)

    def ended(self, start_seconds: float) -> dict[Device, list[tuple[Job, float]]]:
        """Return each device's ended jobs, with their seconds since `start_seconds`."""
        found: dict[Device, list[tuple[Job, float]]] = defaultdict(list)
        for placed in self._placed:
            for device in placed.devices if placed.job.end_seconds is not None else ():
                found[device].append((placed.job, placed.job.seconds_in(start_seconds, self._end)))
        return found

    def usage(
        self,
        start_seconds: float,
        use: DeviceUse,
        device_name: Callable[[Device], str] = str,
        models: Mapping[str, Model] | None = None,
    ) -> Usage:
        """Return the use by jobs, users and accounts since `start_seconds`.

        `models` has the GPU model of each whole GPU's device name.
        """
        start = max(start_seconds, self._jobs.since_seconds)
        rivals = self._rivals()
        rows = [self._of_job(placed, start, use, rivals, device_name) for placed in self._placed]
        jobs = [placed.job for placed in self._placed]
        ordered = sorted(rows, key=lambda row: (-row.held_gpu_seconds, row.name))
        return Usage(
            self._jobs.sources,
            start,
            self._end,
            len(rows),
            tuple(ordered[:_MOST_JOBS]),
            _totals(zip(jobs, rows), lambda job: job.user, (start, self._end)),
            _totals(zip(jobs, rows), lambda job: job.account, (start, self._end)),
            len(self._shared),
            len(self._other),
            # Averages of longer intervals hide peaks.
            advice(rows, models or {}) if use.step_seconds <= _HOUR else (),
        )

    def _place(self, job: Job) -> _Placed:
        return _Placed(job, *self._finder.devices(job), frozenset(self._finder.hosts(job)))

    def _rivals(self) -> dict[Device | str, _Spans]:
        """Return the times of all jobs by device.

        The times of a job with unknown devices are listed under its hosts.
        """
        times: dict[Device | str, list[tuple[float, float]]] = defaultdict(list)
        for placed in self._placed:
            for place in placed.devices or placed.hosts:
                times[place].append(self._span(placed.job))
        for job in self._shared:
            for host in self._finder.hosts(job):
                times[host].append(self._span(job))
        return {place: _Spans(spans) for place, spans in times.items()}

    def _span(self, job: Job) -> tuple[float, float]:
        return job.start_seconds, self._end if job.end_seconds is None else job.end_seconds

    def _of_job(
        self,
        placed: _Placed,
        start: float,
        use: DeviceUse,
        rivals: dict[Device | str, _Spans],
        device_name: Callable[[Device], str],
    ) -> JobUse:
        job = placed.job
        first, last = max(job.start_seconds, start), min(self._span(job)[1], self._end)
        measured, used, peaks, fullest = 0.0, 0.0, [], []
        for device in placed.devices:
            none = _Spans([])
            own, of_host = rivals.get(device, none), rivals.get(device[0], none)
            memory = use.memory.get(device, {})
            compute = use.compute.get(device, {})
            for number in _intervals(self._end - last, self._end - first, use.step_seconds):
                at = self._end - number * use.step_seconds
                began = at - use.step_seconds
                covers = first <= began and at <= last
                # The count for the device includes this job.
                if not covers and (own.count(began, at) > 1 or of_host.count(began, at)):
                    continue
                held = min(at, last) - max(began, first)
                if number in compute:
                    measured += held
                    # The device was free for the rest of the interval, so its whole use belongs to the job.
                    used += min(compute[number] * use.step_seconds, held)
                    peaks.append(compute[number])
                if number in memory:
                    fullest.append(memory[number])
        unknown = placed.unknown or ("" if measured else "the metrics have no samples for this job alone")
        return JobUse(
            job.name,
            job.user,
            job.account,
            job.state,
            ",".join("%s:%d" % (kind or "gpu", count) for kind, count in job.gres),
            job.nodes,
            job.start_seconds,
            job.end_seconds,
            job.count * max(0.0, last - first),
            measured,
            used if measured else None,
            used / measured if measured else None,
            max(fullest, default=None),
            max(peaks, default=None),
            tuple(sorted(map(device_name, placed.devices))),
            placed.evidence,
            unknown,
        )


class _Spans:
    """Time spans, with a fast way to count those that overlap a range."""

    def __init__(self, spans: Sequence[tuple[float, float]]) -> None:
        self._starts = sorted(start for start, _end in spans)
        self._ends = sorted(end for _start, end in spans)

    def count(self, start: float, end: float) -> int:
        """Return the number of spans that overlap a range."""
        return bisect.bisect_left(self._starts, end) - bisect.bisect_right(self._ends, start)


def _intervals(newest: float, oldest: float, step: float) -> range:
    """Return the numbers of the intervals that overlap a range.

    `newest` and `oldest` are the ends of the range, in seconds before the end of the window.
    """
    return range(max(0, math.floor(newest / step)), math.ceil(oldest / step))


def _totals(
    rows: Iterable[tuple[Job, JobUse]], name_of: Callable[[Job], str], times: tuple[float, float]
) -> tuple[Total, ...]:
    by_name: dict[str, list[tuple[Job, JobUse]]] = defaultdict(list)
    for job, row in rows:
        by_name[name_of(job) or _NO_NAME].append((job, row))
    totals = [_total(name, those, times) for name, those in by_name.items()]
    return tuple(sorted(totals, key=lambda total: (-total.held_gpu_seconds, total.name))[:_MOST_TOTALS])


def _total(name: str, rows: Sequence[tuple[Job, JobUse]], times: tuple[float, float]) -> Total:
    measured = math.fsum(row.measured_gpu_seconds for _job, row in rows)
    used = math.fsum(row.used_gpu_seconds or 0.0 for _job, row in rows) if measured else None
    by_type: dict[str, float] = defaultdict(float)
    for job, _row in rows:
        for kind, count in job.gres:
            by_type[kind or "gpu"] += count * job.seconds_in(*times)
    return Total(
        name,
        len(rows),
        math.fsum(row.held_gpu_seconds for _job, row in rows),
        measured,
        used,
        None if used is None else used / measured,
        max((row.memory_max_bytes for _job, row in rows if row.memory_max_bytes is not None), default=None),
        dict(sorted(by_type.items())),
    )
