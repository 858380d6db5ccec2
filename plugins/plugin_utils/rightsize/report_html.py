# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a proposal as one self-contained HTML page.

It has no scripts and loads no fonts or images.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Mapping, Sequence

from ..audit.ledger_model import CLASS_MEANINGS, CLASSES, Sum
from ..audit.model import WORDS
from ..audit.report_html import environment
from ..audit.write_line import money
from .model import RISKS, Outcome, Proposal
from .pools import to_change
from .sums import line, summary

_TEMPLATES = Path(__file__).parent / "templates"
#: Maximum number of rows in a table. The JSON file has all rows.
_TOP = 200
#: Maximum number of expanded hosts. If there are more, all are collapsed.
_UNFOLDED = 20


def to_text(proposal: Proposal) -> str:
    """Return the HTML page."""
    changing = [one for one in proposal.workloads if one.change in ("moved", "resized")]
    changing.sort(key=lambda one: (-RISKS.index(one.risk), one.host, one.gpu_index, one.name))
    return (
        environment(_TEMPLATES)
        .get_template("rightsize.html.j2")
        .render(
            proposal=proposal,
            line=line(proposal),
            sums=summary(proposal),
            kinds=WORDS,
            changing=changing,
            left=[one for one in proposal.workloads if one.change == "left"],
            staying=[one for one in proposal.workloads if one.change == "stays"],
            hosts=_hosts(proposal),
            ledger=_ledger(proposal),
            savings=_savings(proposal),
            class_meanings=CLASS_MEANINGS,
            in_use_destroyed=sum(change.destroyed_in_use for change in proposal.hosts),
            money=lambda amount: money(amount, proposal.currency),
            to_change=to_change,
            top=_TOP,
            unfolded=_UNFOLDED,
        )
    )


def _hosts(proposal: Proposal) -> list[dict[str, Any]]:
    """Return the changed hosts, with each GPU's workloads before and after."""
    before = _by_gpu([(one.host, one.gpu_index, one.today, one) for one in proposal.workloads])
    after = _by_gpu([(one.then_host, one.then_gpu_index or 0, one.then, one) for one in proposal.workloads])
    found = []
    for number, change in enumerate(proposal.hosts):
        was, will = before.get(change.host, {}), after.get(change.host, {})
        indices = sorted({*was, *will, *change.freed_gpus})
        gpus = [{"index": index, "before": was.get(index, []), "after": will.get(index, [])} for index in indices]
        found.append(
            {
                "id": "host-%d" % number,
                "change": change,
                "gpus": [gpu for gpu in gpus if _changes(gpu)],
                "same": [gpu for gpu in gpus if not _changes(gpu)],
            }
        )
    return found


def _changes(gpu: Mapping[str, Any]) -> bool:
    """Return whether one of the GPU's workloads changes."""
    return any(one.change in ("moved", "resized") for _text, one in (*gpu["before"], *gpu["after"]))


def _ledger(proposal: Proposal) -> list[tuple[str, Sum, Sum]]:
    """Return (class, sum today, sum with the proposal), with the totals last."""
    if not proposal.ledger_today:
        return []
    rows = [(word, proposal.ledger_today[word], proposal.ledger_then[word]) for word in CLASSES]
    rows = [row for row in rows if row[1].gpus or row[2].gpus]
    return [*rows, ("Total", _sum([row[1] for row in rows]), _sum([row[2] for row in rows]))]


def _sum(rows: Sequence[Sum]) -> Sum:
    costs = [row.cost_per_month for row in rows if row.cost_per_month is not None]
    return Sum(
        round(math.fsum(row.gpus for row in rows), 4),
        round(math.fsum(row.gpu_hours for row in rows), 2),
        math.fsum(costs) if costs else None,
    )


def _savings(proposal: Proposal) -> dict[str, Any]:
    """Return the hosts that free or take GPUs, the largest saving first.

    `more` is the number of omitted hosts, `rest` their sum.
    """
    rows = [change for change in proposal.hosts if change.freed_gpus or change.taken_gpus]
    rows.sort(key=lambda change: (-(change.saved_per_month or 0.0), change.host))
    more = rows[_TOP:]
    return {"rows": rows[:_TOP], "more": len(more), "rest": sum(change.saved_per_month or 0.0 for change in more)}


def _by_gpu(rows: list[tuple[str, int, str, Outcome]]) -> dict[str, dict[int, list[tuple[str, Outcome]]]]:
    """Group (text of the allocation, workload) by host and GPU index."""
    found: dict[str, dict[int, list[tuple[str, Outcome]]]] = {}
    for host, index, text, one in sorted(rows, key=lambda row: (*row[:3], row[3].name)):
        found.setdefault(host, {}).setdefault(index, []).append((text, one))
    return found
