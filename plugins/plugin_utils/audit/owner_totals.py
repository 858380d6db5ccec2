# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add up the ledger and the use by team, user and workload. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import Callable, Iterable, Mapping, Sequence

from .ledger_model import NOT_ASSIGNED, RESERVED_UNUSED, Ledger, Row, sum_of
from .model import Finding
from .usage_model import Usage
from .workload_model import JOB, OwnerTotal, OwnerTotals, Use, Workload
from .workloads import Ages, Workloads

NO_TEAM, NO_USER = "(no team)", "(unknown user)"
#: Names of totals without an owner: hours of workloads that have ended or are unknown, and GPUs that are not assigned.
EARLIER, FREE_PARTS = "earlier or unknown workloads", "not assigned"
#: Verdicts on GPUs that fail or have wrong metrics, so that their use says nothing about the workload.
_UNMEASURED = ("unhealthy", "broken_metrics")
#: Minimum share of the measured time for which a workload must have held a part, so that the part's use counts as its
#: own.
_COVERED = 0.98


def totals(
    book: Ledger,
    findings: Sequence[Finding],
    workloads: Workloads,
    usage: Usage | None = None,
    recent: Mapping[str, Use] | None = None,
) -> OwnerTotals:
    """Return the totals of a divided ledger.

    `recent` has the use since each workload's start, by the finding's ID. `usage` has the use by jobs.
    """
    uses = _uses(book, findings, workloads, recent or {})
    jobs = {(one.name, one.user): one for one in usage.jobs} if usage else {}
    held: dict[Workload, float] = defaultdict(float)
    for row in book.rows:
        if row.owner:
            held[row.owner] += row.gpu_hours
    for workload in held:
        job = jobs.get((workload.name, workload.user)) if workload.kind == JOB else None
        if job is not None and job.measured_gpu_seconds and job.held_gpu_seconds:
            # In `usage`, an instance counts as a GPU. Here, it counts as a part of a GPU.
            scale = held[workload] / job.held_gpu_seconds
            used = None if job.used_gpu_seconds is None else job.used_gpu_seconds * scale
            uses[workload] = Use(job.measured_gpu_seconds * scale, used, job.memory_max_bytes)
    return OwnerTotals(
        _grouped(book, uses, lambda one: one.team or NO_TEAM, "team"),
        _grouped(book, uses, lambda one: one.owner or NO_USER, "user"),
        _grouped(book, uses, str, "workload"),
    )


def current_parts(findings: Iterable[Finding], workloads: Workloads) -> dict[str, tuple[Workload, float, Finding]]:
    """Return the parts with one workload, which started in the measured time.

    The keys are findings' IDs. The statistics of such a part include earlier workloads.
    """
    found = {}
    for finding in findings:
        if finding.holding.subject.kind == "tenant":
            continue
        ages = workloads.of(finding)
        if len(ages) == 1:
            ((workload, age),) = ages.items()
            if age is not None and not _covers(finding, age):
                found[finding.id] = (workload, age, finding)
    return found


def _covers(found: Finding, age: float) -> bool:
    stat = found.holding.compute or found.holding.busy or found.holding.memory
    return stat is not None and age >= _COVERED * stat.seconds


def _uses(
    book: Ledger, findings: Sequence[Finding], workloads: Workloads, recent: Mapping[str, Use]
) -> dict[Workload, Use]:
    """Return the use of each workload that shares its parts with no other."""
    sizes: dict[str, float] = defaultdict(float)
    for row in book.rows:
        if row.finding:
            sizes[row.finding] += row.gpus
    parts: dict[Workload, list[Use]] = defaultdict(list)
    for found in findings:
        ages = workloads.of(found) if found.id in sizes else {}
        for workload, age in ages.items():
            if found.verdict.word in _UNMEASURED:
                parts[workload].append(Use(memory_max_bytes=found.holding.memory.max if found.holding.memory else None))
            elif found.id in recent:
                parts[workload].append(_scaled(recent[found.id], sizes[found.id]))
            else:
                parts[workload].append(_use(found, ages, age, sizes[found.id]))
    return {workload: _sum(uses) for workload, uses in parts.items()}


def _use(found: Finding, ages: Ages, age: float | None, size: float) -> Use:
    holding = found.holding
    if holding.subject.kind == "tenant":
        # Tenants' compute is not measured.
        return Use(memory_max_bytes=holding.memory.max if holding.memory else None)
    compute = holding.compute or holding.busy
    if len(ages) != 1 or age is None or not _covers(found, age):
        return Use()
    memory = holding.memory.max if holding.memory else None
    if compute is None or compute.mean is None:
        return Use(memory_max_bytes=memory)
    hours = compute.seconds / 3600 * size
    return Use(hours, hours * compute.mean, memory)


def _scaled(use: Use, size: float) -> Use:
    used = None if use.used_gpu_hours is None else use.used_gpu_hours * size
    return replace(use, measured_gpu_hours=use.measured_gpu_hours * size, used_gpu_hours=used)


def _sum(uses: Sequence[Use]) -> Use:
    used = [one.used_gpu_hours for one in uses if one.used_gpu_hours is not None]
    return Use(
        math.fsum(one.measured_gpu_hours for one in uses if one.used_gpu_hours is not None),
        math.fsum(used) if used else None,
        max((one.memory_max_bytes for one in uses if one.memory_max_bytes is not None), default=None),
    )


def _grouped(
    book: Ledger, uses: Mapping[Workload, Use], name_of: Callable[[Workload], str], kind: str
) -> tuple[OwnerTotal, ...]:
    """Return the totals by name.

    The totals are sorted by cost of reserved and unused GPUs, then by the number of these GPUs, then by unused GPU hours,
    highest first. Totals without an owner are last.
    """
    rows: dict[str, list[Row]] = defaultdict(list)
    members: dict[str, set[Workload]] = defaultdict(set)
    for row in book.rows:
        if row.owner is not None:
            name = name_of(row.owner)
            members[name].add(row.owner)
        else:
            name = FREE_PARTS if row.word in NOT_ASSIGNED else EARLIER
        rows[name].append(row)
    made = [
        _total(name, kind, rows[name], members[name], _sum([uses.get(one, Use()) for one in members[name]]))
        for name in members
    ]
    made.sort(key=_rank_order)
    ranked = [replace(one, rank=number) for number, one in enumerate(made, start=1)]
    rest = [_total(name, "", rows[name], set(), Use()) for name in (EARLIER, FREE_PARTS) if name in rows]
    return (*ranked, *rest)


def _rank_order(one: OwnerTotal) -> tuple[float, float, float, float, float, str]:
    """Return the sort key of a rank, starting with the current cost per month."""
    cost = -(one.unused_per_month or 0.0)
    return (cost, -one.unused_gpus, -one.unused_gpu_hours, -one.held_gpu_hours, -one.gpus, one.name)


def _total(name: str, kind: str, rows: Sequence[Row], members: set[Workload], use: Use) -> OwnerTotal:
    everything, unused = sum_of(rows), sum_of(row for row in rows if row.word in RESERVED_UNUSED)
    measured = use.measured_gpu_hours if use.used_gpu_hours is not None else 0.0
    return OwnerTotal(
        name,
        kind,
        None,
        team=common(one.team for one in members),
        contact=common(one.contact for one in members),
        user=common(one.owner for one in members),
        gpus=everything.gpus,
        held_gpu_hours=everything.gpu_hours,
        unused_gpus=unused.gpus,
        unused_gpu_hours=unused.gpu_hours,
        unused_per_month=unused.cost_per_month,
        measured_gpu_hours=round(measured, 2),
        used_gpu_hours=None if use.used_gpu_hours is None else round(use.used_gpu_hours, 2),
        efficiency_ratio=use.used_gpu_hours / measured if use.used_gpu_hours is not None and measured else None,
        memory_max_bytes=use.memory_max_bytes,
    )


def common(texts: Iterable[str]) -> str:
    """Return the text that all members share, or ""."""
    found = set(texts)
    return found.pop() if len(found) == 1 else ""
