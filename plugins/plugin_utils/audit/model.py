# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an audit speaks of. All frozen; a figure that is not known is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

from ...module_utils.holders.model import KUBELET

#: Of the JSON that reports are written as. A reader of version n reads what has n, whatever keys came since.
SCHEMA_VERSION = 1

#: What a subject is.
KINDS = ("gpu", "mig_instance", "tenant", "workload")

#: Verdicts that ask for something, the gravest first: the first table of a report.
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
#: All verdicts, in the order of reports.
WORDS = (*ASKING, "no_data", "free", "right")


@dataclass(frozen=True)
class Window:
    """The time that is looked at: seconds since the epoch, by the server's clock."""

    start_seconds: float
    end_seconds: float

    @property
    def seconds(self) -> float:
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True)
class Stat:
    """How a figure was spread over the window, in the unit of the figure. What was not asked for is None.

    `seconds` is for how much of the window there were samples, `coverage_ratio` the same as a share of it.
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
    """A GPU, a MIG instance, a tenant's quota or a workload on one of these. `name` is the tenant's or the workload's.

    `mig_instance` is the GPU instance's id, as NVML and DCGM number them.
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
        """Where it is: GPU and instance of a host."""
        return (self.host, self.gpu_uuid, self.mig_instance)

    @property
    def rack_order(self) -> tuple[str, int, str, int, str]:
        """What sorts subjects by host, GPU and instance: by number where the label is one, as hosts say it."""
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
    """A pod as the API server has it. `owner` is the workload that made it, as Deployment/web; empty for none."""

    namespace: str
    name: str
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return "pod %s/%s" % (self.namespace, self.name) + (" of %s" % self.owner if self.owner else "")

    @property
    def labels_text(self) -> str:
        """The labels as kubectl prints them: key=value, with commas."""
        return ",".join("%s=%s" % label for label in sorted(self.labels.items()))


@dataclass(frozen=True)
class Holder:
    """A holder of a subject. `kind` as in docs/holders.md; `who` names it as the host does.

    A server knows only how many there are of a kind; `who` is their number then. `since_seconds` is when its process began, as a
    Unix time by the host's clock. `listens` says whether its unit, container or
    process has a TCP socket that waits for clients, and `clients` how many are connected; None where the host did not look.
    `pid` is its process; None where it has none or only the server knows. `pod` is None where it is in no pod, or the API server
    was not asked or does not know it.
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
    """For how long, up to the end of the window, a subject has shown no sign of work: `seconds`.

    `whole_window` says that it never showed one for as far as the server remembers. `longest_seconds` is the longest quiet time
    of its holder that ended, `held_seconds` the time since its last known release, and `signals` the signs of work that
    are measured, by name. `kernel_hours_ratio` is the share of the hours of the grace in which any kernel ran, however briefly:
    less than a sign of work, yet not nothing.
    """

    seconds: float
    whole_window: bool = False
    longest_seconds: float = 0.0
    held_seconds: float = 0.0
    signals: tuple[str, ...] = ()
    kernel_hours_ratio: float = 0.0


@dataclass(frozen=True)
class Measured:
    """What is measured of one subject.

    `xid` has the classes of the window's errors by number, `throttled` the share of time of each reason.
    """

    subject: Subject
    held_seconds: float | None = None
    memory_total_bytes: float | None = None
    processes_now: float | None = None
    quiet: Quiet | None = None
    #: The same without regard to the CPU time of its processes; None where it is the same, or not known.
    device_quiet: Quiet | None = None
    #: Time in the window in which other metrics showed work that the busy ratio did not report.
    unreported_work_seconds: float = 0.0
    #: Time in the window in which the busy ratio showed kernels all the time, and no other metric any work.
    unexplained_busy_seconds: float = 0.0
    xid: Mapping[str, str] = field(default_factory=dict)
    throttled: Mapping[str, float] = field(default_factory=dict)
    denials: float | None = None
    lost: bool = False
    #: Since its last sample, at the end of the window.
    silent_seconds: float = 0.0
    price_per_hour: float | None = None
    sharing: str = ""


@dataclass(frozen=True)
class Holding(Measured):
    """All that is known of one subject.

    Memory in bytes; busy (a kernel ran), compute (SMs in use), bandwidth and tensor as ratios from 0 to 1. `holders` is None
    where they are unknown, which differs from an empty tuple, none. `missing` says in words what could not be known.
    """

    holders: tuple[Holder, ...] | None = None
    memory: Stat | None = None
    busy: Stat | None = None
    compute: Stat | None = None
    bandwidth: Stat | None = None
    tensor: Stat | None = None
    processes: Stat | None = None
    #: For how long the newest process of a holder has run, at the end of the window; None where no host told.
    newest_holder_seconds: float | None = None
    #: Other GPUs that a process of its holders has, and is not known to be idle on.
    works_on: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """One word with its reason.

    `use` is none, useful, busy (kernels run, but neither tensor cores nor bandwidth do much) or unknown.

    `waste_per_month` is the wasted part of the price, in the price table's currency; None without a price. `idle_after_seconds`
    is from how long a quiet time on this holder is idle; None where nothing is quiet.
    """

    word: str
    reason: str
    use: str = "unknown"
    waste_per_month: float | None = None
    idle_after_seconds: float | None = None


@dataclass(frozen=True)
class Finding:
    """A holding and what is said of it. `id` stays the same from audit to audit while the word does."""

    id: str
    verdict: Verdict
    holding: Holding
    #: Against the audit before: new, still; gone where that audit alone has it; unseen where it could not be looked at again, for
    #: want of history or of the host's answer.
    state: str = "new"
    first_found_seconds: float | None = None


@dataclass(frozen=True)
class Day:
    """The fleet on one day: GPUs on the average, and how much of the time they were held and busy. None is not known."""

    start_seconds: float
    gpus: float | None = None
    held_ratio: float | None = None
    busy_ratio: float | None = None
    memory_ratio: float | None = None


@dataclass(frozen=True)
class Sources:
    """What the audit read. `missing` says in words what could not be read and what therefore is not known."""

    prometheus: str = ""
    hosts_asked: tuple[str, ...] = ()
    hosts_answered: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Audit:
    """The whole. `settings` are the thresholds and prices that the verdicts were made with, as plain data."""

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
        return sum(1 for found in self.findings if found.verdict.word == word)

    @property
    def waste_per_month(self) -> float | None:
        """Summed over findings of whole GPUs and instances, so that nothing counts twice; None where nothing has a price."""
        known = [
            found.verdict.waste_per_month
            for found in self.findings
            if found.verdict.waste_per_month is not None and found.holding.subject.kind in ("gpu", "mig_instance")
        ]
        return sum(known) if known else None
