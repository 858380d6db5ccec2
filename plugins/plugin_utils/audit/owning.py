# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the owners of all GPU hours.

The server is queried for the use of workloads that started within the window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Mapping, Sequence

from ..counted import counted
from .asking import Asking
from .job_devices import Device
from .job_series import DeviceUse, use_of
from .jobs import Job
from .lease_model import Lease
from .ledger_model import Ledger
from .model import Finding, Window
from .owned import Past, divided
from .owner_totals import current_parts, totals
from .owners import Owner
from .prometheus import PrometheusError
from .usage_model import Usage
from .workload_model import OwnerTotals, Use
from .workloads import Workloads

#: Maximum number of devices whose use is queried again for recent workloads.
_MOST_DEVICES = 2000


@dataclass(frozen=True)
class KnownJobs:
    """Slurm's jobs.

    `ended` has each device's ended jobs with their seconds. `notes` has sentences about missing data.
    """

    jobs: tuple[Job, ...] = ()
    ended: Mapping[Device, Sequence[tuple[Job, float]]] = field(default_factory=dict)
    usage: Usage | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Known:
    """The input for finding owners. `has_history` is false without a server."""

    window: Window
    has_history: bool
    owners: Sequence[Owner] = ()
    jobs: KnownJobs = field(default_factory=KnownJobs)
    leases: Sequence[Lease] = ()


def owned(
    book: Ledger, found: Sequence[Finding], known: Known, asking: Asking | None
) -> tuple[Ledger, OwnerTotals, list[str]]:
    """Return (ledger with workloads, totals of owners, sentences about missing data)."""
    end = known.window.end_seconds
    workloads = Workloads(found, known.owners, known.jobs.jobs, end, known.leases)
    past = {
        device: [Past(workloads.of_job(job), seconds) for job, seconds in ended]
        for device, ended in known.jobs.ended.items()
    }
    seconds = known.window.seconds if known.has_history else 0.0
    divided_book = divided(book, found, workloads, seconds, past)
    recent, notes = _recent(found, workloads, asking, round(seconds)) if asking else ({}, [])
    return divided_book, totals(divided_book, found, workloads, known.jobs.usage, recent), notes


def _recent(
    found: Sequence[Finding], workloads: Workloads, asking: Asking, span_seconds: int
) -> tuple[dict[str, Use], list[str]]:
    """Return workloads' use since their start, by the finding's ID."""
    parts = sorted(current_parts(found, workloads).items(), key=lambda one: (-one[1][1], one[0]))
    notes = []
    if len(parts) > _MOST_DEVICES:
        more = counted(len(parts) - _MOST_DEVICES, "more part of a GPU", "more parts of GPUs")
        notes.append("The efficiency of workloads on %s is unknown: they started in the window." % more)
    ages = {finding.holding.subject.place: age for _name, (_workload, age, finding) in parts[:_MOST_DEVICES]}
    if not ages:
        return {}, notes
    try:
        use = use_of(asking, span_seconds, list(ages))
    except PrometheusError as error:
        return {}, ["The efficiency of workloads that started in the window is unknown. %s" % error]
    recent = {}
    for name, (_workload, age, finding) in parts[:_MOST_DEVICES]:
        since = _since(use, finding.holding.subject.place, age)
        if since is not None:
            recent[name] = since
    return recent, [*notes, *asking.notes]


def _since(use: DeviceUse, place: Device, age_seconds: float) -> Use | None:
    """Return a device's use since a start.

    Returns None if no interval is complete.
    """
    last = math.floor(age_seconds / use.step_seconds)
    compute = [value for number, value in use.compute.get(place, {}).items() if number < last]
    memory = [value for number, value in use.memory.get(place, {}).items() if number < last]
    if not compute and not memory:
        return None
    hours = use.step_seconds / 3600
    return Use(hours * len(compute), hours * math.fsum(compute) if compute else None, max(memory, default=None))
