# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write an audit as one self-contained HTML page.

The page has no scripts and loads no fonts or images. Each host's details are a section that appears when its link is
opened (CSS `:target`). So the page is a single file that can be mailed.
"""

from __future__ import annotations

import datetime
import itertools
import math
from pathlib import Path
from typing import Any, Iterable, Sequence

import jinja2

from ..counted import counted
from .fitting import models_by_name, sufficient_profiles
from .ledger import CLASS_OF
from .ledger_model import (
    CLASS_MEANINGS,
    HEADLINES,
    NOT_ASSIGNED,
    RESERVED_UNUSED,
    UNASSIGNED,
    Ledger,
    Row,
    Sum,
    sum_of,
)
from .model import ASKING, MEANINGS, WORDS, Audit, Day, Finding, Holding, Stat
from .report_json import summary, sums
from .resting import duration
from .take_back import ASK, RESIZE, STOP, Action, actions, total_of
from .verdict import held_by
from .workload_model import OwnerTotal, OwnerTotals, Workload
from .write_line import gpus, line, money, part

_TEMPLATES = Path(__file__).parent / "templates"

#: Maximum number of rows in the table of findings. The CSV file has all findings.
_TOP = 100
# Number of findings that a phone shows at first.
_FIRST = 8
#: Maximum number of accounts, users and jobs each on the page. The JSON file has more.
_ROWS_OF_USE = 50
#: Maximum number of workloads for each action in the first table, which must be readable in a minute.
_ROWS_TO_TAKE = 10
#: Headings of the actions, and how to do them.
_HEADINGS = {STOP: "Stop now", ASK: "Ask about", RESIZE: "Resize to free up to"}
_ADVICE = {
    STOP: "ansible-playbook -i INVENTORY openfleet.gpu.rightsize -e gpu_rightsize_dir=DIRECTORY -e gpu_rightsize_reclaim=act "
    "notifies each owner, and its next run after gpu_rightsize_reclaim_notice (default 24h) stops workloads that are still idle.",
    ASK: "No command stops these workloads.",
    RESIZE: "The same command without its last option proposes sizes, and stops nothing. A workload needs its peak memory with a "
    "margin, or its compute of 99 % of the time if this is more.",
}
#: Verdicts whose reason mentions the kind of use. The reasons of other verdicts could contradict a sentence about
#: kernels.
_USES = ("saturated", "oversized_memory", "oversized_compute", "right")
#: Maximum number of teams, users and workloads each on the page. The CSV file has all workloads.
_ROWS_OF_OWNERS = 20
#: Maximum number of hosts in the table of unassigned GPUs.
_HOSTS_OF_FREE = 20

#: Size of the chart in SVG units. Browsers stretch it to the available space.
_CHART = {"width": 640, "height": 150}
#: Margin at the top and bottom of the chart, without which lines at 100 % and 0 % would have half their width.
_EDGE = 3


def environment(*folders: Path) -> jinja2.Environment:
    """Return the Jinja environment of all reports, which escapes every value.

    `folders` have additional templates.
    """
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([_TEMPLATES, *folders]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(words=_words, when=when, percent=_percent, gib=_gib, hours=_hours, counted=counted)
    made.filters["gpu_hours"] = _gpu_hours
    made.filters["part"] = part
    made.filters["number"] = _number
    made.globals.update(meanings=MEANINGS, classes=CLASS_OF, owner_labels=_owner_labels)
    return made


def to_text(audit: Audit) -> str:
    """Return the HTML page.

    Only the map and the hosts' sections show subjects without findings.
    """
    reserved = _reserved(audit.ledger)
    asking = [found for found in audit.findings if found.verdict.word in ASKING or found.id in reserved]
    take = actions(audit.ledger, audit.findings, sufficient_profiles(audit.findings, models_by_name()))
    places = _places(take)
    asking.sort(key=lambda found: (places.get(found.id, len(places)), WORDS.index(found.verdict.word)))
    hosts = _hosts(audit.findings, audit.ledger)
    return (
        environment()
        .get_template("audit.html.j2")
        .render(
            audit=audit,
            line=line(audit),
            sums=summary(audit),
            kinds=WORDS,
            uses=_USES,
            top=asking[:_TOP],
            first=_FIRST,
            asking=len(asking),
            reserved=reserved,
            rest=sum_of(reserved[found.id] for found in asking[_TOP:] if found.id in reserved),
            book=sums(audit.ledger),
            class_meanings=CLASS_MEANINGS,
            not_assigned=(by_host := _not_assigned(audit.ledger)),
            more_free=_more_free(by_host[_HOSTS_OF_FREE:]),
            owners=_owners(audit.owners),
            take=take,
            total_of=total_of,
            who=_holding_owners(audit.ledger),
            held_by=held_by,
            held_for=lambda holding: _held_for(holding, audit.made_at_seconds),
            headline_of={word: title for title, words in HEADLINES.items() for word in words},
            headings=_HEADINGS,
            advice=_ADVICE,
            most_rows=_ROWS_TO_TAKE,
            owner_sum=_owner_sum,
            gpus=gpus,
            most_hosts=_HOSTS_OF_FREE,
            hosts=hosts,
            pages={host["name"]: host["id"] for host in hosts},
            shorts={host["name"]: host["short"] for host in hosts},
            chart=_chart(audit.history),
            money=lambda amount: money(amount, audit.currency),
            bar=_bar,
            shown=_ROWS_OF_USE,
        )
    )


def _reserved(book: Ledger) -> dict[str, Sum]:
    """Return the reserved and unused part of each finding."""
    rows: dict[str, list[Row]] = {}
    for row in book.rows:
        if row.finding and row.gpus and row.word in RESERVED_UNUSED:
            rows.setdefault(row.finding, []).append(row)
    return {name: sum_of(of_finding) for name, of_finding in rows.items()}


def _owners(totals: OwnerTotals) -> list[dict[str, Any]]:
    """Return the tables of owners: their first rows, and the sum of the others."""
    tables = []
    for title, rows in (("team", totals.teams), ("user", totals.users), ("workload", totals.workloads)):
        if title == "team" and not any(one.team for one in rows):
            continue
        ranked = [one for one in rows if one.rank is not None]
        tables.append(
            {
                "title": title,
                "rows": ranked[:_ROWS_OF_OWNERS],
                "more": ranked[_ROWS_OF_OWNERS:],
                "rest": [one for one in rows if one.rank is None],
                "all": rows,
            }
        )
    return tables


def _owner_labels(one: OwnerTotal | Workload, title: str) -> str:
    """Return the user, the team and the contact in this order.

    Leaves out the name that the row has already, in a table by `title`.
    """
    user = one.user if title == "workload" else ""
    team = "team %s" % one.team if one.team and title != "team" else ""
    return " \u00b7 ".join(text for text in (user, team, one.contact) if text)


def _owner_sum(rows: Sequence[OwnerTotal]) -> OwnerTotal:
    """Return the sum of a table's rows."""
    costs = [one.unused_per_month for one in rows if one.unused_per_month is not None]
    return OwnerTotal(
        "",
        "",
        None,
        gpus=round(math.fsum(one.gpus for one in rows), 4),
        held_gpu_hours=round(math.fsum(one.held_gpu_hours for one in rows), 2),
        unused_gpus=round(math.fsum(one.unused_gpus for one in rows), 4),
        unused_gpu_hours=round(math.fsum(one.unused_gpu_hours for one in rows), 2),
        unused_per_month=math.fsum(costs) if costs else None,
    )


def _places(take: Sequence[Action]) -> dict[str, int]:
    """Return the position of each finding in the first table."""
    ids = (name for action in take for item in action.items for name in item.findings)
    return {name: number for number, name in enumerate(dict.fromkeys(ids))}


def _holding_owners(book: Ledger) -> dict[str, str]:
    """Return the current users of each finding's part, by ID of the finding."""
    found: dict[str, dict[str, None]] = {}
    for row in book.rows:
        if row.owner and row.owner.owner and row.gpus:
            found.setdefault(row.finding, {})[row.owner.owner] = None
    return {name: ", ".join(users) for name, users in found.items()}


def _held_for(holding: Holding, now: float) -> str:
    """Return since when the GPU is held, as text.

    The start of the oldest holder counts if it is known.
    """
    starts = [one.since_seconds for one in holding.holders or () if one.since_seconds is not None]
    if starts:
        return "started %s ago" % duration(max(0.0, now - min(starts)))
    if holding.held_seconds:
        return "held for at least %s" % duration(holding.held_seconds)
    return "start unknown" if holding.holders else ""


def _not_assigned(book: Ledger) -> list[tuple[str, Sum, Sum]]:
    """Return (host, free, unassigned) for hosts with such GPUs, most GPUs first."""
    rows = sorted((row for row in book.rows if row.gpus and row.word in NOT_ASSIGNED), key=lambda row: row.host)
    found = []
    for host, of_host in itertools.groupby(rows, key=lambda row: row.host):
        known = list(of_host)
        found.append((host, *(sum_of(row for row in known if row.word == word) for word in NOT_ASSIGNED)))
    return sorted(found, key=lambda one: (-(one[1].gpus + one[2].gpus), one[0]))


def _more_free(rows: Sequence[tuple[str, Sum, Sum]]) -> tuple[Sum, Sum, float | None]:
    """Return several hosts' sums of free and of unassigned GPUs, and the cost."""
    free, parts = ([row[number] for row in rows] for number in (1, 2))
    costs = [one.cost_per_month for one in (*free, *parts) if one.cost_per_month is not None]
    sums_of = [Sum(round(sum(one.gpus for one in ones), 4)) for ones in (free, parts)]
    return (sums_of[0], sums_of[1], sum(costs) if costs else None)


def _hosts(findings: Iterable[Finding], book: Ledger) -> list[dict[str, Any]]:
    """Return the hosts with their GPUs, for the template.

    A GPU's cells are its instances. A GPU without instances is itself a cell. Tenants are rows in their GPU's table.
    """
    hosts = []
    wasted: dict[str, list[Row]] = {}
    for row in book.rows:
        if row.word in (*RESERVED_UNUSED, *NOT_ASSIGNED):
            wasted.setdefault(row.host, []).append(row)
    unassigned: dict[tuple[str, str], list[Row]] = {}
    for row in book.rows:
        if row.word == UNASSIGNED:
            unassigned.setdefault((row.host, row.gpu_uuid), []).append(row)
    ordered = sorted(findings, key=lambda found: found.holding.subject.rack_order)
    for number, (name, of_host) in enumerate(itertools.groupby(ordered, key=lambda found: found.holding.subject.host)):
        gpus = []
        for (index, uuid), of_gpu in itertools.groupby(of_host, key=_gpu):
            rows = list(of_gpu)
            gpus.append(
                {
                    "index": index,
                    "uuid": uuid,
                    "model": next((row.holding.subject.model for row in rows if row.holding.subject.model), ""),
                    "rows": rows,
                    "cells": [row for row in rows if row.holding.subject.kind in ("gpu", "mig_instance")],
                    "unassigned": sum(row.gpus for row in unassigned.get((name, uuid), ())),
                }
            )
        hosts.append({
            "name": name, "id": "host-%d" % number, "gpus": gpus,
            "waste": [
                (title, sum_of(row for row in wasted.get(name, ()) if row.word in words))
                for title, words in HEADLINES.items()
            ],
        })  # fmt: skip
    for host, short in zip(hosts, short_names([host["name"] for host in hosts])):
        host["short"] = short
    return hosts


def short_names(names: Sequence[str]) -> list[str]:
    """Remove the domain that all names share.

    A single name does not change.
    """
    parts = [name.split(".") for name in names]
    same = 0
    while len(parts) > 1 and all(len(one) > same + 1 and one[-same - 1] == parts[0][-same - 1] for one in parts):
        same += 1
    return [".".join(one[: len(one) - same]) for one in parts]


def _gpu(found: Finding) -> tuple[str, str]:
    return (found.holding.subject.gpu_index, found.holding.subject.gpu_uuid)


def _bar(stat: Stat | None, total: float | None) -> dict[str, float] | None:
    """Return median, 95th percentile and maximum as percentages of the bar's length.

    Returns None if one of these statistics is unknown.
    """
    if stat is None or not total or stat.max is None:
        return None
    p50, p95 = stat.p50 if stat.p50 is not None else 0.0, stat.p95 if stat.p95 is not None else stat.max
    return {name: min(100.0, 100 * value / total) for name, value in (("p50", p50), ("p95", p95), ("max", stat.max))}


def _chart(days: tuple[Day, ...]) -> dict[str, Any] | None:
    """Return the lines of the chart of daily averages.

    Days with unknown values are gaps. Returns None for fewer than two days.
    """
    if len(days) < 2:
        return None
    room = _CHART["height"] - 2 * _EDGE
    across = [_CHART["width"] * number / (len(days) - 1) for number in range(len(days))]
    lines = []
    for name, title in (
        ("held_ratio", "held by a workload"),
        ("busy_ratio", "a kernel ran"),
        ("memory_ratio", "memory in use"),
    ):
        values = [getattr(day, name) for day in days]
        known = [value for value in values if value is not None]
        if not known:
            continue
        parts: list[list[str]] = [[]]
        for x, value in zip(across, values):
            if value is None:
                parts.append([])
            else:
                parts[-1].append("%.1f,%.1f" % (x, _EDGE + room * (1 - min(1.0, max(0.0, value)))))
        lines.append(
            {"name": name, "title": title, "last": known[-1], "parts": [" ".join(part) for part in parts if part]}
        )
    if not lines:
        return None
    grid = [_EDGE + room * share for share in (0, 0.5, 1)]
    end = 2 * days[-1].start_seconds - days[-2].start_seconds
    first, last = (when(seconds)[:10] for seconds in (days[0].start_seconds, end))
    return {**_CHART, "lines": lines, "grid": grid, "first": first, "last": last}


def _words(word: str) -> str:
    return word.replace("_", " ")


def when(seconds: float | None) -> str:
    """Return a Unix time as a date and time in UTC."""
    if seconds is None:
        return ""
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _percent(ratio: float | None) -> str:
    return "?" if ratio is None else "%.0f\u00a0%%" % (100 * ratio)


def _gib(count: float | None) -> str:
    return "?" if count is None else "%.1f\u00a0GiB" % (count / (1 << 30))


def _hours(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return "%.0f days" % (seconds / 86400) if seconds >= 172800 else "%.0f h" % (seconds / 3600)


def _number(value: float) -> str:
    """Return a number with at most two decimals, so that rows add up to their total."""
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def _gpu_hours(seconds: float) -> str:
    hours = seconds / 3600
    return "%.1f" % hours if hours < 100 else f"{hours:,.0f}"
