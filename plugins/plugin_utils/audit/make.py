# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make an audit, from the queries to the comparison with the previous audit."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Sequence

from ...module_utils.errors import FleetError
from ..counted import counted
from ..idle.rhythm import Span
from .asking import Asking
from .colocation import colocation
from .compare import Former, findings, gone
from .fitting import models_by_name
from .history import History
from .holdings import HostState, Price, holdings
from .job_devices import Finder, held_now, hosts_by_node
from .job_series import DeviceUse, labelled, use_of
from .jobs import jobs_of
from .lease_model import Leases
from .leases import leases
from .ledger import booked
from .model import Audit, Colocation, Sources, Subject, Window
from .owners import Owner
from .owning import Known, KnownJobs, owned
from .prometheus import Access, Prometheus, PrometheusError
from .quiet_times import QuietQuestion
from .signals import Question, read
from .together import together
from .usage import Joined
from .verdict import Thresholds, judge


@dataclass(frozen=True)
class Order:
    """The inputs of an audit.

    `access` is None without a server. `hosts` has the state of each host that answered. `hosts_asked` names all queried
    hosts. The window ends at `end_seconds`, or now if that is None. `refused` has the reasons for rejected answers. A
    host whose answer is rejected counts as a host without an answer. `notes` has sentences about hosts that answered.
    `exempt` has the names of hosts and tenants, and the UUIDs of GPUs, to leave out. `holidays` are time spans that do
    not count as quiet. `jobs` has the results of slurm_jobs by host, and `nodes` Slurm's names of hosts, if the
    inventory has them. `owners` has the entries of `gpu_owners`.
    """

    window_seconds: float
    access: Access | None = None
    end_seconds: float | None = None
    selector: str = ""
    hosts: Mapping[str, HostState] = field(default_factory=dict)
    hosts_asked: Sequence[str] = ()
    refused: Sequence[str] = ()
    notes: Sequence[str] = ()
    prices: Sequence[Price] = ()
    currency: str = ""
    thresholds: Thresholds = field(default_factory=Thresholds)
    exempt: Sequence[str] = ()
    holidays: Sequence[Span] = ()
    former: Mapping[str, Former] = field(default_factory=dict)
    jobs: Mapping[str, Any] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    owners: Sequence[Owner] = ()


#: Maximum number of reasons that the report lists for hosts that did not answer.
_MOST_REASONS = 20


class AuditError(FleetError):
    """Neither a server nor a host answered."""


def make(order: Order, now_seconds: float, say: Callable[[str], None] = lambda line: None) -> Audit:
    """Return the audit, which lists the sources that did not answer.

    Raises AuditError if no source answered.
    """
    history, missing = _history(order, now_seconds, say)
    silent = sorted(set(order.hosts_asked) - set(order.hosts))
    if silent:
        missing.append(
            "%d of %s did not answer (%s): the holders of their GPUs are known only from metrics."
            % (len(silent), counted(len(order.hosts_asked), "host"), _some(silent))
        )
    for reasons in (order.refused, order.notes):
        missing += reasons[:_MOST_REASONS]
        if len(reasons) > _MOST_REASONS:
            missing.append("Reasons of %s are omitted." % counted(len(reasons) - _MOST_REASONS, "more host"))
    if not order.hosts_asked:
        missing.append("No host was asked: holders are known only from metrics.")
    if history is None and not order.hosts:
        raise AuditError(
            "audit",
            "there is nothing to audit. " + " ".join(missing),
            "Repair the server or the hosts, and run the audit again.",
        )
    window = history.window if history else Window(now_seconds, now_seconds)
    say("judging")
    held = holdings(history, order.hosts, order.prices)
    jobs = _jobs(order, window, [holding.subject for holding in held], say)
    leased, silence = _leases(order, window, say) if history else (None, [])
    colocated, unread = _colocation(order, window) if history else (None, [])
    judged = [
        (holding, judge(holding, order.thresholds, seconds=window.seconds if history else None))
        for holding in together(held, order.thresholds.idle_policy)
        if not _named(holding.subject) & set(order.exempt)
    ]
    found, book = booked(findings(judged, order.former, now_seconds), window.seconds if history else 0.0)
    known = Known(window, bool(history), order.owners, jobs, leased.leases if leased else ())
    book, owners, without = owned(book, found, known, _asking(order, window) if history else None)
    exempt = set(order.exempt)
    away, hidden = gone(
        found,
        {
            name: one
            for name, one in order.former.items()
            if not (one.finding and _named(one.finding.holding.subject) & exempt)
        },
        looked=lambda subject: bool(history and history.records) or subject.host in order.hosts,
    )
    return Audit(
        made_at_seconds=now_seconds,
        window=window,
        sources=Sources(
            prometheus=Prometheus(order.access).name if order.access else "",
            hosts_asked=tuple(sorted(order.hosts_asked)),
            hosts_answered=tuple(sorted(order.hosts)),
            missing=(*missing, *jobs.notes, *without, *silence, *unread, *(history.notes if history else ())),
        ),
        findings=found,
        gone=away,
        unseen=hidden,
        history=history.days if history else (),
        settings=_settings(order),
        currency=order.currency,
        usage=jobs.usage,
        ledger=book,
        leases=leased,
        colocation=colocated,
        owners=owners,
    )


def _named(subject: Subject) -> set[str]:
    """Return the names with which an exemption can refer to a subject."""
    return {subject.host, subject.gpu_uuid, subject.name} - {""}


def _history(order: Order, now_seconds: float, say: Callable[[str], None]) -> tuple[History | None, list[str]]:
    if order.access is None:
        return None, ["No server is configured: use over time is unknown, and no GPU is reported idle."]
    server = Prometheus(order.access)
    try:
        quiet = QuietQuestion(order.thresholds.idle_hours * 3600, tuple(order.holidays))
        question = Question(quiet, order.selector, now_seconds, order.end_seconds)
        history = read(server, order.window_seconds, question, say)
    except PrometheusError as error:
        # Continue with the hosts' state only.
        return None, ["%s Use over time is unknown, and no GPU is reported idle." % error]
    say("%s, %s" % (counted(server.queries, "query", "queries"), counted(server.bytes_received, "byte")))
    if not history.records:
        return history, [
            "%s has no gpu:info. Load the rules of the role gpu_monitoring, and check that it scrapes the exporters."
            % server.name
        ]
    return history, []


def _colocation(order: Order, window: Window) -> tuple[Colocation | None, list[str]]:
    """Return the gain of colocation, and sentences about missing data."""
    if order.access is None:
        return None, []
    notes: list[str] = []
    try:
        asking = Asking(Prometheus(order.access), window.end_seconds, order.selector, notes)
        return colocation(asking, window.seconds), notes
    except PrometheusError as error:
        return None, ["The gain of colocation is unknown. %s" % error]


def _leases(order: Order, window: Window, say: Callable[[str], None]) -> tuple[Leases | None, list[str]]:
    """Return the fleet's leases, and sentences about missing data."""
    if order.access is None:
        return None, []
    notes: list[str] = []
    say("reading the leases")
    try:
        return leases(Asking(Prometheus(order.access), window.end_seconds, order.selector, notes)), notes
    except PrometheusError as error:
        return None, ["The leases are unknown. %s" % error]


def _asking(order: Order, window: Window, notes: list[str] | None = None) -> Asking | None:
    if order.access is None:
        return None
    return Asking(Prometheus(order.access), window.end_seconds, order.selector, [] if notes is None else notes)


def _jobs(order: Order, window: Window, subjects: Sequence[Subject], say: Callable[[str], None]) -> KnownJobs:
    """Return Slurm's jobs with their use, and sentences about missing data.

    The use is None if no host was asked for jobs, or if none answered.
    """
    if not order.jobs:
        return KnownJobs()
    end = window.end_seconds
    start = end - order.window_seconds
    jobs = jobs_of(order.jobs, start, end)
    notes = list(jobs.notes)
    if not jobs.sources:
        return KnownJobs(notes=tuple(notes))
    say("reading the use by jobs")
    names = {subject.host for subject in subjects} | set(order.hosts_asked)
    parts = [subject for subject in subjects if subject.kind in ("gpu", "mig_instance")]
    span, by_job, use = round(order.window_seconds), {}, DeviceUse(1.0)
    asking = _asking(order, window, notes)
    try:
        by_job = labelled(asking, span) if asking else {}
    except PrometheusError as error:
        notes.append("The devices of ended jobs are unknown. %s" % error)
        asking = None
    finder = Finder(parts, hosts_by_node(names, order.nodes), held_now(order.hosts), by_job)
    joined = Joined(jobs, end, finder)
    try:
        use = use_of(asking, span, joined.devices) if asking else use
    except PrometheusError as error:
        notes.append("The use by jobs is unknown. %s" % error)
    shown = {subject.place: str(subject) for subject in parts}
    boards = models_by_name()
    models = {str(one): boards[one.model] for one in parts if one.kind == "gpu" and one.model in boards}
    usage = joined.usage(start, use, lambda device: shown.get(device, " ".join(filter(None, device))), models)
    return KnownJobs(jobs.jobs, joined.ended(start), usage, tuple(dict.fromkeys(notes)))


def _settings(order: Order) -> dict[str, Any]:
    return {
        "thresholds": dataclasses.asdict(order.thresholds),
        "prices": [dataclasses.asdict(price) for price in order.prices],
        "exempt": list(order.exempt),
        "holidays": [list(span) for span in order.holidays],
        "selector": order.selector,
    }


def _some(names: Sequence[str], most: int = 8) -> str:
    more = ", …" if len(names) > most else ""
    return ", ".join(names[:most]) + more
