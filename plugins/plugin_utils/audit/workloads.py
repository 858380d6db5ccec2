# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the workloads that hold each GPU, instance and quota. Pure.

Hosts report units, containers, jobs and pods from kernel data (docs/holders.md), and never from processes' own claims.
"""

from __future__ import annotations

import re
from typing import Iterable, Mapping, Sequence

from ...module_utils.holders.model import DEVICE_HANDLE, KUBELET, MPS
from ...module_utils.leases.names import is_lease_unit, tenant_name
from .jobs import Job
from .lease_model import Lease
from .model import Finding, Holder
from .owners import Owner, with_team
from .workload_model import CONTAINER, JOB, LEASE, POD, PROCESS, TENANT, UNIT, UNKNOWN_HOLDER, Workload

_LEASE = re.compile(r"lease-([0-9]{1,15})")
_POD = re.compile(r" of pod ([a-z0-9-]{1,63})/([a-z0-9.-]{1,253}) \(")
_JOB = re.compile(r"[0-9]{1,12}")
#: Units of users' sessions, whose numbers mean nothing.
_SESSION = re.compile(r"session-|user@")
#: Ages in seconds of a part's workloads. An unknown age is None.
Ages = dict[Workload, "float | None"]


class Workloads:
    """The fleet's workloads.

    `jobs` are the jobs in Slurm's accounting, `leases` the current leases, and `entries` the entries of `gpu_owners`.
    Ages are at `end_seconds`.
    """

    def __init__(
        self,
        findings: Iterable[Finding],
        entries: Sequence[Owner] = (),
        jobs: Iterable[Job] = (),
        end_seconds: float = 0.0,
        leases: Iterable[Lease] = (),
    ) -> None:
        self._entries, self._end = entries, end_seconds
        self._running = {job.id: job for job in jobs if job.end_seconds is None}
        self._known: dict[str, Ages] = {}
        # The lease service gets the account from the kernel.
        self._lease_users = {(one.host, one.number): one.account for one in leases}
        for found in findings:
            for holder in found.holding.holders or ():
                if holder.user and is_lease_unit(holder.unit):
                    self._lease_users[(found.holding.subject.host, _lease_number(holder.unit))] = holder.user

    def of(self, found: Finding) -> Ages:
        """Return the current workloads, with their ages, of a finding's part."""
        if found.id not in self._known:
            self._known[found.id] = self._of(found)
        return self._known[found.id]

    def _of(self, found: Finding) -> Ages:
        subject = found.holding.subject
        if subject.kind == "tenant":
            memory = found.holding.memory
            return {self._tenant(subject.host, subject.name): memory.seconds if memory else None}
        holders = _using(found.holding.holders or ())
        pods = _pod_names(holders)
        ages: Ages = {}
        for holder in holders:
            named = pods.get(holder.job) or _named(subject.host, holder, self._running)
            workload, age = with_team(named, self._entries), self._age(holder)
            if age is None:
                age = found.holding.held_seconds
            known = ages.get(workload)
            ages[workload] = age if known is None else known if age is None else max(known, age)
        return ages

    def of_job(self, job: Job) -> Workload:
        """Return the workload of a job."""
        return with_team(Workload(JOB, job.name, user=job.user, account=job.account), self._entries)

    def _tenant(self, host: str, name: str) -> Workload:
        lease = _LEASE.fullmatch(name)
        namespace, slash, pod = name.partition("/")
        if lease and tenant_name(int(lease.group(1))) == name:
            made = Workload(LEASE, lease.group(1), host, self._lease_users.get((host, lease.group(1)), ""))
        elif slash:
            made = Workload(POD, pod, namespace=namespace)
        else:
            made = Workload(TENANT, name, host)
        return with_team(made, self._entries)

    def _age(self, holder: Holder) -> float | None:
        job = self._running.get(holder.job)
        start = job.start_seconds if job else holder.since_seconds
        return None if start is None else max(0.0, self._end - start)


def _using(holders: Sequence[Holder]) -> Sequence[Holder]:
    """Return the holders without bare handles and MPS daemons, or all if none remain."""
    known = [one for one in holders if one.kind != DEVICE_HANDLE]
    clients = [one for one in known if one.kind != MPS or one.user]
    return clients or known or holders


def _pod_names(holders: Sequence[Holder]) -> dict[str, Workload]:
    """Return the pods that only the kubelet reports, by UID."""
    matches = ((holder.job, _POD.search(holder.who)) for holder in holders if holder.kind == KUBELET and not holder.pod)
    return {uid: Workload(POD, match.group(2), namespace=match.group(1)) for uid, match in matches if match}


def _lease_number(unit: str) -> str:
    return unit.partition("lease-")[2].partition(".")[0]


def _named(host: str, holder: Holder, jobs: Mapping[str, Job]) -> Workload:
    if holder.pod is not None:
        return Workload(POD, holder.pod.owner or holder.pod.name, namespace=holder.pod.namespace)
    if _JOB.fullmatch(holder.job):
        job = jobs.get(holder.job)
        if job is not None:
            return Workload(JOB, job.name, user=job.user, account=job.account)
        return Workload(JOB, holder.job, user=holder.user)
    if is_lease_unit(holder.unit):
        return Workload(LEASE, _lease_number(holder.unit), host, holder.user)
    if " container " in " %s" % holder.unit:
        return Workload(CONTAINER, holder.unit.rpartition(" ")[2], host, holder.user)
    if holder.unit and not (holder.user and _SESSION.match(holder.unit)):
        return Workload(UNIT, holder.unit, host, holder.user)
    if holder.user:
        return Workload(PROCESS, "processes of %s" % holder.user, host, holder.user)
    return Workload(UNKNOWN_HOLDER, "unknown holder", host)
