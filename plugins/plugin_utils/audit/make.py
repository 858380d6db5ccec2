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
from .compare import Former, findings, gone
from .history import History
from .holdings import HostState, Price, holdings
from .model import Audit, Sources, Subject, Window
from .prometheus import Access, Prometheus, PrometheusError
from .quiet_times import QuietQuestion
from .signals import Question, read
from .together import together
from .verdict import Thresholds, judge


@dataclass(frozen=True)
class Order:
    """The inputs of an audit.

    `access` is None without a server. `hosts` has the state of each host that answered. `hosts_asked` names all queried hosts.
    The window ends at `end_seconds`, or now if `end_seconds` is None.
    `refused` has the reasons for rejected answers. If a host's answer is rejected, the host is treated as if it had not answered.
    `notes` has sentences about hosts that answered.
    `exempt` has the names of hosts and tenants, and the UUIDs of GPUs, to leave out.
    `holidays` are time spans that do not count as quiet.
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


#: Maximum number of reasons that the report lists for hosts without an answer.
_MOST_REASONS = 20


class AuditError(FleetError):
    """Neither a server nor a host answered."""


def make(order: Order, now_seconds: float, say: Callable[[str], None] = lambda line: None) -> Audit:
    """Return the audit.

    The audit lists the sources that did not answer. Raises AuditError if no source answered.
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
    judged = [
        (holding, judge(holding, order.thresholds, seconds=window.seconds if history else None))
        for holding in together(holdings(history, order.hosts, order.prices), order.thresholds.idle_policy)
        if not _named(holding.subject) & set(order.exempt)
    ]
    found = findings(judged, order.former, now_seconds)
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
            missing=tuple(missing) + (history.notes if history else ()),
        ),
        findings=found,
        gone=away,
        unseen=hidden,
        history=history.days if history else (),
        settings=_settings(order),
        currency=order.currency,
    )


def _named(subject: Subject) -> set[str]:
    """Return the names that an exemption can use for a subject."""
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
        # Continue with the state of the hosts alone.
        return None, ["%s Use over time is unknown, and no GPU is reported idle." % error]
    say("%s, %s" % (counted(server.queries, "query", "queries"), counted(server.bytes_received, "byte")))
    if not history.records:
        return history, [
            "%s has no gpu:info. Load the rules of the role gpu_monitoring, and check that it scrapes the exporters."
            % server.name
        ]
    return history, []


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
