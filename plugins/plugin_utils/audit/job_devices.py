# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the GPUs and MIG instances that each job held. Pure.

Slurm's accounting has no device numbers. A job's devices are known only in these cases:

- The host reports the devices for the running job.
- The GPU exporter labelled the devices with the job's ID (docs/dcgm_exporter.md).
- The job held all devices of its nodes, or all devices of the types that it asked for.

In each case, Slurm must have allocated the same number of devices. Otherwise, the devices are unknown.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Iterable, Mapping, Sequence

from .holdings import HostState
from .jobs import Job
from .model import Subject
from .usage_model import EXPORTER, HOLDERS, WHOLE

#: A device: (host, GPU UUID, GPU instance ID).
Device = tuple[str, str, str]
#: Each job's devices, by the job's ID.
ByJob = Mapping[str, frozenset[Device]]


def hosts_by_node(hosts: Iterable[str], names: Mapping[str, str]) -> dict[str, str]:
    """Return the inventory's host for each node name.

    `names` has Slurm's node names from the inventory. Any other node has the name of its host, with or without its
    domain. Leaves out a name that fits several hosts.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for host in hosts:
        given = names.get(host)
        for name in {given} if given else {host, host.partition(".")[0]}:
            found[name].add(host)
    return {name: next(iter(those)) for name, those in found.items() if len(those) == 1}


def held_now(hosts: Mapping[str, HostState]) -> dict[str, frozenset[Device]]:
    """Return the devices of running jobs, as hosts report them."""
    found: dict[str, set[Device]] = defaultdict(set)
    for host, state in hosts.items():
        for gpu in state.gpus:
            instances: Sequence[Mapping[str, Any]] = (gpu.get("mig") or {}).get("instances") or ()
            for row, instance in [(one, str(one["id"])) for one in instances] or [(gpu, "")]:
                for holder in row.get("holders") or ():
                    job = str(holder.get("job") or "")
                    if job.isdecimal() and holder.get("kind") != "unknown":
                        found[job].add((host, str(gpu["uuid"]), instance))
    return {job: frozenset(devices) for job, devices in found.items()}


class Finder:
    """Finds the devices of jobs.

    `subjects` has the GPUs without instances, and the MIG instances. `current` has the devices of running jobs,
    `labelled` those with the exporter's job label.
    """

    def __init__(
        self, subjects: Iterable[Subject], by_node: Mapping[str, str], current: ByJob, labelled: ByJob
    ) -> None:
        self._by_node, self._current, self._labelled = by_node, current, labelled
        self._subjects: dict[str, list[Subject]] = defaultdict(list)
        for subject in subjects:
            self._subjects[subject.host].append(subject)

    def hosts(self, job: Job) -> set[str]:
        """Return the known hosts of the job."""
        return {self._by_node[node] for node in job.nodes if node in self._by_node}

    def devices(self, job: Job) -> tuple[frozenset[Device], str, str]:
        """Return (devices, evidence, reason).

        If the devices are unknown, the evidence is empty and the reason says why. Otherwise, the reason is empty.
        """
        if not job.nodes:
            return frozenset(), "", "its nodes are unknown"
        hosts = self.hosts(job)
        elsewhere = sorted(set(job.nodes) - set(self._by_node))
        if elsewhere:
            return frozenset(), "", "the audit does not know its node %s" % elsewhere[0]
        sources = [(self._labelled, EXPORTER)]
        if job.end_seconds is None:
            sources.insert(0, (self._current, HOLDERS))
        for known, evidence in sources:
            devices = known.get(job.id, frozenset())
            if len(devices) == job.count and {device[0] for device in devices} <= hosts:
                return devices, evidence, ""
        whole = self._whole(job, hosts)
        if whole is not None:
            return whole, WHOLE, ""
        return frozenset(), "", "Slurm's accounting has no device numbers"

    def _whole(self, job: Job, hosts: set[str]) -> frozenset[Device] | None:
        """Return all devices of the job's nodes, or all devices of its types.

        Returns None if their number differs from the allocated one.
        """
        subjects = [subject for host in hosts for subject in self._subjects[host]]
        devices: set[Device] = set()
        if len(subjects) == job.count:
            devices = {subject.place for subject in subjects}
        else:
            for kind, count in job.gres:
                fitting = {subject.place for subject in subjects if kind and _is_of_type(subject, kind)}
                if len(fitting) != count or devices & fitting:
                    return None
                devices |= fitting
        return frozenset(devices)


def _is_of_type(subject: Subject, kind: str) -> bool:
    """Return whether a subject has a GRES type.

    An instance's type is its profile, with a dot for the plus sign. A GPU's type is a part of its name, as with
    AutoDetect=nvml (https://slurm.schedmd.com/gres.html).
    """
    if subject.mig_instance:
        return bool(subject.mig_profile) and subject.mig_profile.replace("+", ".") == kind.replace("+", ".")
    return kind.lower() in subject.model.lower().replace(" ", "_")
