# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dataclasses of an audit. All are frozen. An unknown value is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

from ...module_utils.holders.model import KUBELET
from .lease_model import Leases
from .ledger_model import NOT_ASSIGNED, RESERVED_UNUSED, Ledger
from .usage_model import Usage
from .workload_model import OwnerTotals

#: Version of the JSON report. Keys may be added within a version. Readers must ignore unknown keys.
SCHEMA_VERSION = 1

#: Kinds of subjects.
KINDS = ("gpu", "mig_instance", "tenant", "workload")

#: Verdicts that count as findings, the most urgent first. Reports list them before all others.
ASKING = (
    "unhealthy",
    "broken_metrics",
    "held_without_process",
    "idle",
    "standby",
    "stalled",
    "saturated",
    "oversized_memory",
    "oversized_compute",
)
#: Verdicts that are not findings.
CALM = ("no_data", "free", "right")
#: All verdicts, in the order of reports.
WORDS = (*ASKING, *CALM)
#: The verdicts' explanations in the legends of reports. docs/audit.md lists the thresholds.
MEANINGS = {
    "unhealthy": "The driver lost the GPU, an XID error shows a hardware or memory fault, or heat or power supply slow it down.",
    "broken_metrics": "The metrics contradict each other. Repair the exporter first.",
    "held_without_process": "A container, job or open device file holds it, no process runs on it, and it is idle.",
    "idle": "A workload holds it and has shown no sign of work for longer than its usual pauses.",
    "standby": "It is idle, but its workload waits for clients, has clients connected, or works on another GPU.",
    "stalled": "A kernel runs all the time, but computes and moves nothing: its workload looks hung.",
    "saturated": "Its memory is full, or its compute is at the limit for at least 5 % of the time.",
    "oversized_memory": "Half of its memory and half of its compute would have been enough.",
    "oversized_compute": "Half of its compute would have been enough. Its memory is needed.",
    "no_data": "There are too few samples for a verdict, or its metrics cannot show whether it works.",
    "free": "Nothing holds it.",
    "right": "Its memory and compute are in use.",
}


@dataclass(frozen=True)
class Window:
    """The time range of the audit, in Unix time by the Prometheus server's clock."""

    start_seconds: float
    end_seconds: float

    @property
    def seconds(self) -> float:
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True)
class Stat:
    """Statistics of a metric over the window, in the metric's unit.

    A statistic that was not queried is None. `seconds` is the total time with samples. `coverage_ratio` is `seconds`
    divided by the length of the window.
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

    `name` is the tenant's or workload's name, and empty for GPUs and MIG instances. `mig_instance` is the GPU instance
    ID that NVML and DCGM report.
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
        """Host name, GPU UUID and GPU instance ID."""
        return (self.host, self.gpu_uuid, self.mig_instance)

    @property
    def rack_order(self) -> tuple[str, int, str, int, str]:
        """Sort key: host, GPU index, GPU instance ID.

        Numeric labels are compared as numbers. A GPU without a numeric index sorts after the others on its host.
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
    """A pod from the Kubernetes API.

    `owner` is the workload that created the pod, for example `Deployment/web`. It is empty if the pod has no owner.
    """

    namespace: str
    name: str
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return "pod %s/%s" % (self.namespace, self.name) + (" of %s" % self.owner if self.owner else "")

    @property
    def labels_text(self) -> str:
        """Return the labels as kubectl prints them: `key=value`, separated by commas."""
        return ",".join("%s=%s" % label for label in sorted(self.labels.items()))


@dataclass(frozen=True)
class Holder:
    """A process, container, unit or job that holds a subject.

    `kind` is one of the kinds in docs/holders.md. `who` is the holder's name on the host. If the host did not answer,
    `who` is the number of holders of this kind, because metrics have no names. `since_seconds` is when the holder's
    process started: a Unix time by the host's clock. `listens` is true if the unit, container or process has a
    listening TCP socket. `clients` is the number of connected clients. Both are None if the host did not check sockets.
    `pid` is None if the holder has no process, or is known from metrics only. `pod` is None outside Kubernetes, or if
    the Kubernetes API was not queried or does not know the pod. `user`, `unit` (or container) and `job` (ID of a Slurm
    job or UID of a pod) are empty if they are unknown.
    """

    kind: str
    who: str = ""
    since_seconds: float | None = None
    listens: bool | None = None
    clients: int | None = None
    pid: int | None = None
    pod: Pod | None = None
    user: str = ""
    unit: str = ""
    job: str = ""

    def __str__(self) -> str:
        if self.pod and self.kind == KUBELET:
            return str(self.pod)
        kind = self.kind.replace("_", " ")
        if self.who.isdigit():
            text = "%s (%s)" % (kind, self.who)
        else:
            # Some names already start with their kind: "Slurm job 417".
            text = self.who if self.who.lower().startswith(kind + " ") else "%s %s" % (kind, self.who)
        return "%s, %s" % (text, self.pod) if self.pod else text


@dataclass(frozen=True)
class Quiet:
    """The time that a subject has been quiet, up to the end of the window.

    `seconds` is the time without a sign of work. `whole_window` is true if Prometheus has no sign of work at all.
    `longest_seconds` is the current holder's longest earlier quiet time. `held_seconds` is the time since the subject
    was last free. `signals` lists the measured signs of work. `kernel_hours_ratio` is the share of hours of the last
    week in which kernels ran, but too briefly for a sign of work. `cpu_cores` is the average number of cores that the
    processes used in the grace period, or None. `rest_watts` is the power of the whole GPU in its lowest hour of the
    week.
    """

    seconds: float
    whole_window: bool = False
    longest_seconds: float = 0.0
    held_seconds: float = 0.0
    signals: tuple[str, ...] = ()
    kernel_hours_ratio: float = 0.0
    cpu_cores: float | None = None
    rest_watts: float | None = None


@dataclass(frozen=True)
class Measured:
    """The measurements of one subject.

    `xid` maps the XID numbers that occurred in the window to their classes. `throttled` maps throttle reasons to the share of
    time in which they applied.
    """

    subject: Subject
    held_seconds: float | None = None
    memory_total_bytes: float | None = None
    processes_now: float | None = None
    quiet: Quiet | None = None
    #: Like `quiet`, but without the processes' CPU time. None if the result is the same or unknown.
    device_quiet: Quiet | None = None
    #: Whether kernels ran for at most 1 % of the time in 97 % of the last week.
    hardly_works: bool = False
    #: Why the remaining kernels of that week are no work of the holder, as text.
    explained_kernels: str = ""
    #: Seconds in the window in which other metrics showed work, but the busy ratio did not.
    unreported_work_seconds: float = 0.0
    #: Seconds in the window in which the busy ratio showed constant load, but no other metric showed work.
    unexplained_busy_seconds: float = 0.0
    #: Seconds up to the end of the window in which a kernel ran all the time, but nothing was computed or moved.
    stalled_seconds: float = 0.0
    #: For a device with a stalled kernel: seconds since its tensor cores worked. None if they did not work in the last
    #: 100 days.
    computed_seconds_ago: float | None = None
    xid: Mapping[str, str] = field(default_factory=dict)
    throttled: Mapping[str, float] = field(default_factory=dict)
    denials: float | None = None
    lost: bool = False
    #: Seconds from the subject's last sample to the end of the window.
    silent_seconds: float = 0.0
    price_per_hour: float | None = None
    sharing: str = ""


@dataclass(frozen=True)
class Holding(Measured):
    """Metrics and host state of one subject.

    Memory is in bytes. Busy (a kernel ran), compute (SMs in use), bandwidth and tensor are ratios from 0 to 1.
    `holders` is None if unknown, and empty if nothing holds the subject. `missing` lists unknown facts as sentences.
    """

    holders: tuple[Holder, ...] | None = None
    memory: Stat | None = None
    busy: Stat | None = None
    compute: Stat | None = None
    bandwidth: Stat | None = None
    tensor: Stat | None = None
    processes: Stat | None = None
    #: Age of the newest holder process in seconds, at the end of the window. None if the host did not answer.
    newest_holder_seconds: float | None = None
    #: Size of a GPU or an instance as a ratio of the GPU. None for tenants, and for unknown sizes.
    gpu_ratio: float | None = None
    #: Other GPUs on which one of the holders' processes works.
    works_on: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The verdict on a subject, with its reason.

    `use` is "none", "useful", "busy" or "unknown". "busy" means that kernels run, but hardly use tensor cores and
    bandwidth. `waste_per_month` is the wasted part of the price, in the price table's currency, or None if the price is
    unknown. `waste_ratio` is this part as a ratio. `idle_after_seconds` is the quiet time after which the holder counts
    as idle, or None if the subject is not quiet.
    """

    word: str
    reason: str
    use: str = "unknown"
    waste_per_month: float | None = None
    idle_after_seconds: float | None = None
    waste_ratio: float = 0.0


@dataclass(frozen=True)
class Finding:
    """A holding with its verdict.

    `id` identifies the subject and the verdict. It is the same in later audits with the same verdict on the subject.
    """

    id: str
    verdict: Verdict
    holding: Holding
    #: Result of the comparison with the previous audit: "new", "still", "gone" (no longer found) or "unseen" (not
    #: checked, because metrics or the host's answer are missing).
    state: str = "new"
    first_found_seconds: float | None = None


@dataclass(frozen=True)
class Day:
    """Fleet-wide averages of one day.

    These are the number of GPUs, the shares of time in which GPUs were held and busy, and the share of used memory. An
    unknown average is None.
    """

    start_seconds: float
    gpus: float | None = None
    held_ratio: float | None = None
    busy_ratio: float | None = None
    memory_ratio: float | None = None


@dataclass(frozen=True)
class Sources:
    """The data sources of an audit.

    `missing` has sentences about unavailable data and its consequences.
    """

    prometheus: str = ""
    hosts_asked: tuple[str, ...] = ()
    hosts_answered: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Colocation:
    """GPU hours of online and offline tenants in the window, on GPUs with both.

    `gpus` is the number of these GPUs.
    """

    gpus: int
    online_gpu_hours: float
    offline_gpu_hours: float


@dataclass(frozen=True)
class Audit:
    """A finished audit.

    `settings` has the thresholds and prices as dictionaries and lists. `usage` is None if the audit did not read Slurm
    jobs.
    """

    made_at_seconds: float
    window: Window
    sources: Sources
    findings: tuple[Finding, ...]
    gone: tuple[Finding, ...] = ()
    unseen: tuple[Finding, ...] = ()
    history: tuple[Day, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    currency: str = ""
    usage: Usage | None = None
    ledger: Ledger = field(default_factory=Ledger)
    #: None if no entry offers leases.
    leases: Leases | None = None
    #: None if no GPU had online and offline tenants.
    colocation: Colocation | None = None
    owners: OwnerTotals = field(default_factory=OwnerTotals)
    schema_version: int = SCHEMA_VERSION

    def count(self, word: str) -> int:
        """Return the number of subjects that have this verdict."""
        return sum(1 for found in self.findings if found.verdict.word == word)

    @property
    def waste_per_month(self) -> float | None:
        """Return the cost per month of GPUs without use, or None.

        These GPUs are either reserved and unused, or not assigned. None means that no price is known.
        """
        return self.ledger.sum_of((*RESERVED_UNUSED, *NOT_ASSIGNED)).cost_per_month
