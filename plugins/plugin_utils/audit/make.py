# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One audit, from what is asked to the finished object: server, hosts, words, comparison."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Sequence

from ...module_utils.errors import FleetError
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
    """What is asked. `access` is None where there is no server; `hosts` has those that answered of `hosts_asked`.

    The window ends at `end_seconds`, or now if it is None: the series of a server tell of a past time as well as of now.
    `refused` says of hosts whose answer was not taken why; to all else they are hosts that did not answer. `notes` are of hosts
    that did.
    `exempt` are hosts, GPUs' UUIDs and tenants of which nothing is said, `holidays` spans of time that do not count as quiet.
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


#: Hosts of which the report says why they did not answer.
_MOST_REASONS = 20


class AuditError(FleetError):
    """There is nothing to audit with: no server answered, and no host."""


def make(order: Order, now_seconds: float, say: Callable[[str], None] = lambda line: None) -> Audit:
    """The audit. A server or hosts that do not answer are missing, and said; raises AuditError where neither does."""
    history, missing = _history(order, now_seconds, say)
    silent = sorted(set(order.hosts_asked) - set(order.hosts))
    if silent:
        missing.append(
            "%d of %d hosts did not answer (%s): who holds their GPUs is not known but by the server."
            % (len(silent), len(order.hosts_asked), _some(silent))
        )
    for reasons in (order.refused, order.notes):
        missing += reasons[:_MOST_REASONS]
        if len(reasons) > _MOST_REASONS:
            missing.append("The reasons of %d more hosts are left out." % (len(reasons) - _MOST_REASONS))
    if not order.hosts_asked:
        missing.append("No host was asked: who holds what is known only as far as the server has it.")
    if history is None and not order.hosts:
        raise AuditError(
            "audit",
            "there is nothing to audit with. " + " ".join(missing),
            "Mend the server or the hosts, and run again.",
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
    """What an exemption may call it."""
    return {subject.host, subject.gpu_uuid, subject.name} - {""}


def _history(order: Order, now_seconds: float, say: Callable[[str], None]) -> tuple[History | None, list[str]]:
    if order.access is None:
        return None, ["No server was named: use over time is not known, and no GPU is called idle for it."]
    server = Prometheus(order.access)
    try:
        quiet = QuietQuestion(order.thresholds.idle_hours * 3600, tuple(order.holidays))
        question = Question(quiet, order.selector, now_seconds, order.end_seconds)
        history = read(server, order.window_seconds, question, say)
    except PrometheusError as error:
        # With hosts the audit goes on, with half of its sight.
        return None, ["%s Use over time is not known, and no GPU is called idle for it." % error]
    say("%d queries, %d bytes" % (server.queries, server.bytes_received))
    if not history.records:
        return history, ["%s has no gpu:info: its rules are not loaded, or nothing is scraped." % server.name]
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
