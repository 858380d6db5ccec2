# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The values of an audit. All are frozen. An unknown figure is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

from ...module_utils.holders.model import KUBELET

#: Version of the JSON report. A reader of version n reads every report of version n and ignores keys that were added later.
SCHEMA_VERSION = 1

#: Kinds of subjects.
KINDS = ("gpu", "mig_instance", "tenant", "workload")

#: Verdicts that are findings, the most urgent first. A report lists them first and counts them as findings.
ASKING = (
    "unhealthy",
    "broken_metrics",
    "held_without_process",
    "idle",
    "standby",
    "saturated",
    "oversized_memory",
    "oversized_compute",
)
#: Verdicts that are not findings.
CALM = ("no_data", "free", "right")
#: All verdicts, in the order of reports.
WORDS = (*ASKING, *CALM)
#: What each verdict means, for the legends of the reports. docs/audit.md has the thresholds.
MEANINGS = {
    "unhealthy": "The driver lost the GPU, an XID error shows a hardware or memory fault, or heat or power supply slow it down.",
    "broken_metrics": "The metrics contradict each other. Repair the exporter first.",
    "held_without_process": "A container, job or open device file holds it, no process runs on it, and it is idle.",
    "idle": "A workload holds it and has shown no sign of work for longer than its usual pauses.",
    "standby": "It is idle, but its workload waits for clients, has clients connected, or works on another GPU.",
    "saturated": "Its memory is full, or its compute is at the limit for at least 5 % of the time.",
    "oversized_memory": "Half of its memory and half of its compute would have been enough.",
    "oversized_compute": "Half of its compute would have been enough. Its memory is needed.",
    "no_data": "There are too few samples for a verdict.",
    "free": "Nothing holds it.",
    "right": "Its memory and compute are in use.",
}


@dataclass(frozen=True)
class Window:
    """The time range of the audit: seconds since the epoch, by the server's clock."""

    start_seconds: float
    end_seconds: float

    @property
    def seconds(self) -> float:
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True)
class Stat:
    """Statistics of a figure over the window, in the unit of the figure.

    None for statistics that were not queried.

    `seconds` is the time of the window that has samples, `coverage_ratio` its share of the window.
    """

    seconds: float
    coverage_ratio: float
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    mean: float | None = None


@dataclass(frozen=True)
class Subject:
    """A GPU, a MIG instance, a tenant's quota, or a workload on one of these.

    `name` names the tenant or workload.

    `mig_instance` is the ID of the GPU instance in NVML and DCGM.
    """

    kind: str
    host: str
    gpu_uuid: str
    gpu_index: str = ""
    model: str = ""
    vendor: str = ""
    mig_profile: str = ""
    mig_instance: str = ""
    name: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        """Host, GPU and instance."""
        return (self.host, self.gpu_uuid, self.mig_instance)

    @property
    def rack_order(self) -> tuple[str, int, str, int, str]:
        """Sort key: host, GPU, instance.

        Labels that are numbers sort as numbers, others last.
        """
        index, instance = (
            int(text) if text.isascii() and text.isdecimal() else default
            for text, default in ((self.gpu_index, 1 << 30), (self.mig_instance, -1))
        )
        return (self.host, index, self.gpu_uuid, instance, self.name)

    def __str__(self) -> str:
        text = "%s gpu %s" % (self.host, self.gpu_index or self.gpu_uuid)
        if self.mig_profile or self.mig_instance:
            text += " %s" % (self.mig_profile or "MIG")
            text += " (instance %s)" % self.mig_instance if self.mig_instance else ""
        return text + (" %s %s" % (self.kind, self.name) if self.name else "")


@dataclass(frozen=True)
class Pod:
    """A pod of the Kubernetes API.

    `owner` is the workload that created it, for example Deployment/web, or empty.
    """

    namespace: str
    name: str
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return "pod %s/%s" % (self.namespace, self.name) + (" of %s" % self.owner if self.owner else "")

    @property
    def labels_text(self) -> str:
        """The labels in the format of kubectl: key=value, separated by commas."""
        return ",".join("%s=%s" % label for label in sorted(self.labels.items()))


@dataclass(frozen=True)
class Holder:
    """A holder of a subject.

    `kind` is one of docs/holders.md, `who` the host's name for it.

    Metrics have only the number of holders of a kind: `who` is that number then.
    `since_seconds` is the start of its process, in Unix time by the host's clock.
    `listens` says whether its unit, container or process has a listening TCP socket, `clients` is the number of connected
    clients. Both are None if the host did not check sockets.
    `pid` is None if there is no process or only metrics know the holder.
    `pod` is None outside Kubernetes, or if the API server was not asked or does not know the pod.
    """

    kind: str
    who: str = ""
    since_seconds: float | None = None
    listens: bool | None = None
    clients: int | None = None
    pid: int | None = None
    pod: Pod | None = None

    def __str__(self) -> str:
        if self.pod and self.kind == KUBELET:
            return str(self.pod)
        kind = self.kind.replace("_", " ")
        text = "%s (%s)" % (kind, self.who) if self.who.isdigit() else "%s %s" % (kind, self.who)
        return "%s, %s" % (text, self.pod) if self.pod else text


@dataclass(frozen=True)
class Quiet:
    """The current quiet time of a subject: `seconds` without a sign of work, up to the end of the window.

    `whole_window` is true if the server has no sign of work at all. `longest_seconds` is the longest earlier quiet time of its
    holder. `held_seconds` is the time since the subject was last free. `signals` names the measured signs of work.
    `kernel_hours_ratio` is the share of the hours of the grace in which any kernel ran, even if too briefly for a sign of work.
    """

    seconds: float
    whole_window: bool = False
    longest_seconds: float = 0.0
    held_seconds: float = 0.0
    signals: tuple[str, ...] = ()
    kernel_hours_ratio: float = 0.0


@dataclass(frozen=True)
class Measured:
    """The measurements of one subject.

    `xid` maps XID numbers in the window to their classes, `throttled` maps reasons to their share of the time.
    """

    subject: Subject
    held_seconds: float | None = None
    memory_total_bytes: float | None = None
    processes_now: float | None = None
    quiet: Quiet | None = None
    #: `quiet` without the CPU time of its processes. None if that is the same or unknown.
    device_quiet: Quiet | None = None
    #: Time in the window in which other metrics showed work and the busy ratio did not.
    unreported_work_seconds: float = 0.0
    #: Time in the window in which the busy ratio showed kernels all the time and no other metric showed work.
    unexplained_busy_seconds: float = 0.0
    xid: Mapping[str, str] = field(default_factory=dict)
    throttled: Mapping[str, float] = field(default_factory=dict)
    denials: float | None = None
    lost: bool = False
    #: Time between its last sample and the end of the window.
    silent_seconds: float = 0.0
    price_per_hour: float | None = None
    sharing: str = ""


@dataclass(frozen=True)
class Holding(Measured):
    """Metrics and host state of one subject.

    Memory is in bytes. Busy (a kernel ran), compute (SMs in use), bandwidth and tensor are ratios from 0 to 1.
    `holders` is None if unknown, and empty if there are none. `missing` lists unknown facts as sentences.
    """

    holders: tuple[Holder, ...] | None = None
    memory: Stat | None = None
    busy: Stat | None = None
    compute: Stat | None = None
    bandwidth: Stat | None = None
    tensor: Stat | None = None
    processes: Stat | None = None
    #: Age of the newest process of a holder at the end of the window. None without an answer of the host.
    newest_holder_seconds: float | None = None
    #: Other GPUs that a process of its holders uses. GPUs on which it is idle are left out.
    works_on: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The verdict on a subject, with its reason.

    `use` is none, useful, busy (kernels run, but tensor cores and memory bandwidth do little) or unknown.
    `waste_per_month` is the wasted part of the price, in the currency of the price table. None without a price.
    `idle_after_seconds` is the quiet time after which this holder is idle. None if it is not quiet.
    """

    word: str
    reason: str
    use: str = "unknown"
    waste_per_month: float | None = None
    idle_after_seconds: float | None = None


@dataclass(frozen=True)
class Finding:
    """A holding with its verdict.

    `id` is the same in all audits as long as the verdict stays the same.
    """

    id: str
    verdict: Verdict
    holding: Holding
    #: Compared with the previous audit: new, still, gone (no longer found), or unseen (metrics or the host's answer are missing,
    #: so it could not be checked).
    state: str = "new"
    first_found_seconds: float | None = None


@dataclass(frozen=True)
class Day:
    """Averages of the fleet over one day: number of GPUs, ratios of time held and busy, memory in use. None if unknown."""

    start_seconds: float
    gpus: float | None = None
    held_ratio: float | None = None
    busy_ratio: float | None = None
    memory_ratio: float | None = None


@dataclass(frozen=True)
class Sources:
    """The sources of an audit.

    `missing` lists unavailable data and its consequences as sentences.
    """

    prometheus: str = ""
    hosts_asked: tuple[str, ...] = ()
    hosts_answered: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Audit:
    """A finished audit. `settings` are its thresholds and prices as plain data."""

    made_at_seconds: float
    window: Window
    sources: Sources
    findings: tuple[Finding, ...]
    gone: tuple[Finding, ...] = ()
    unseen: tuple[Finding, ...] = ()
    history: tuple[Day, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    currency: str = ""
    schema_version: int = SCHEMA_VERSION

    def count(self, word: str) -> int:
        """Return the number of subjects with a verdict."""
        return sum(1 for found in self.findings if found.verdict.word == word)

    @property
    def waste_per_month(self) -> float | None:
        """Sum over whole GPUs and instances, so that nothing counts twice.

        None without prices.
        """
        known = [
            found.verdict.waste_per_month
            for found in self.findings
            if found.verdict.waste_per_month is not None and found.holding.subject.kind in ("gpu", "mig_instance")
        ]
        return sum(known) if known else None
