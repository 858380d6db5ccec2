# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write an audit as CSV: tables of findings, GPU hours and owners.

Unknown values are empty cells.
"""

from __future__ import annotations

import csv
import datetime
import io
import unicodedata
from typing import Any, Iterable, Mapping, Sequence

from ...module_utils.printable import printable
from .model import Audit, Finding, Stat
from .workload_model import Workload

_GIB = float(1 << 30)
_FIGURES = ("p50", "p95", "p99", "max")
#: Spreadsheets treat cells that start with these characters as formulas, even after spaces and control characters. Some
#: cells contain command lines, which users choose. See https://owasp.org/www-community/attacks/CSV_Injection
_STARTS_FORMULA = ("=", "+", "-", "@")

COLUMNS = (
    "id", "state", "verdict", "reason", "use", "waste_per_month", "currency", "host", "gpu_index", "gpu_uuid", "model",
    "kind", "mig_profile", "mig_instance", "name", "holders", "first_found", "quiet_hours", "memory_total_gib",
    *("memory_%s_gib" % figure for figure in _FIGURES),
    *("compute_%s_percent" % figure for figure in _FIGURES),
    "busy_mean_percent", "tensor_p95_percent", "bandwidth_p95_percent", "history_hours", "missing",
)  # fmt: skip

#: Columns of audit-hours.csv.
HOURS_COLUMNS = (
    "host", "gpu_index", "gpu_uuid", "mig_instance", "name", "class", "finding_id", "gpus", "gpu_hours", "cost_per_month",
    "currency", "workload_kind", "workload", "user", "team", "contact",
)  # fmt: skip

#: Columns of audit-owners.csv.
OWNERS_COLUMNS = (
    "rank", "workload", "user", "team", "contact", "gpus", "gpu_hours_held", "unused_gpus", "unused_gpu_hours",
    "unused_per_month", "currency", "gpu_hours_measured", "gpu_hours_used", "efficiency_percent", "memory_max_gib",
)  # fmt: skip


def to_text(audit: Audit) -> str:
    """Return the audit as comma-separated values with a header (RFC 4180).

    Every cell is quoted, because some spreadsheets also split at semicolons. The last rows are the previous audit's
    findings that are now unseen or gone. Their only number is the waste in the previous audit.
    """
    return table(COLUMNS, (_row(found, audit.currency) for found in (*audit.findings, *audit.unseen, *audit.gone)))


def hours_text(audit: Audit) -> str:
    """Return the rows of the ledger as comma-separated values.

    They add up to the sums of the ledger.
    """
    return table(
        HOURS_COLUMNS,
        (
            {
                "host": row.host,
                "gpu_index": row.gpu_index,
                "gpu_uuid": row.gpu_uuid,
                "mig_instance": row.mig_instance,
                "name": row.name,
                "class": row.word,
                "finding_id": row.finding,
                # A part of a GPU needs more than two decimals.
                "gpus": "%.4f" % row.gpus,
                "gpu_hours": row.gpu_hours,
                "cost_per_month": row.cost_per_month,
                "currency": audit.currency if row.cost_per_month is not None else None,
                **_owner_cells(row.owner),
            }
            for row in audit.ledger.rows
        ),
    )


def owners_text(audit: Audit) -> str:
    """Return the totals by workload as comma-separated values.

    They add up to the sums of the ledger.
    """
    return table(
        OWNERS_COLUMNS,
        (
            {
                "rank": one.rank,
                "workload": one.name,
                "user": one.user,
                "team": one.team,
                "contact": one.contact,
                "gpus": "%.4f" % one.gpus,
                "gpu_hours_held": one.held_gpu_hours,
                "unused_gpus": "%.4f" % one.unused_gpus,
                "unused_gpu_hours": one.unused_gpu_hours,
                "unused_per_month": one.unused_per_month,
                "currency": audit.currency if one.unused_per_month is not None else None,
                "gpu_hours_measured": one.measured_gpu_hours,
                "gpu_hours_used": one.used_gpu_hours,
                "efficiency_percent": None if one.efficiency_ratio is None else 100 * one.efficiency_ratio,
                "memory_max_gib": None if one.memory_max_bytes is None else one.memory_max_bytes / _GIB,
            }
            for one in audit.owners.workloads
        ),
    )


def _owner_cells(owner: Workload | None) -> dict[str, Any]:
    if owner is None:
        return {}
    return {
        "workload_kind": owner.kind,
        "workload": str(owner),
        "user": owner.owner,
        "team": owner.team,
        "contact": owner.contact,
    }


def table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table as comma-separated values with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return text.getvalue()


def _row(found: Finding, currency: str) -> dict[str, Any]:
    holding, verdict = found.holding, found.verdict
    subject = holding.subject
    first = found.first_found_seconds
    known = holding.memory or holding.busy
    row = {
        "id": found.id,
        "state": found.state,
        "verdict": verdict.word,
        "reason": verdict.reason,
        "use": verdict.use,
        "waste_per_month": verdict.waste_per_month,
        "currency": currency if verdict.waste_per_month is not None else None,
        "host": subject.host,
        "gpu_index": subject.gpu_index,
        "gpu_uuid": subject.gpu_uuid,
        "model": subject.model,
        "kind": subject.kind,
        "mig_profile": subject.mig_profile,
        "mig_instance": subject.mig_instance,
        "name": subject.name,
        "holders": None if holding.holders is None else "; ".join(map(str, holding.holders)),
        "first_found": None
        if first is None
        else datetime.datetime.fromtimestamp(first, datetime.timezone.utc).isoformat(),
        "quiet_hours": holding.quiet.seconds / 3600 if holding.quiet else None,
        "memory_total_gib": None if holding.memory_total_bytes is None else holding.memory_total_bytes / _GIB,
        "busy_mean_percent": _percent(holding.busy, "mean"),
        "tensor_p95_percent": _percent(holding.tensor, "p95"),
        "bandwidth_p95_percent": _percent(holding.bandwidth, "p95"),
        "history_hours": known.seconds / 3600 if known else None,
        "missing": "; ".join(holding.missing),
    }
    for figure in _FIGURES:
        memory = getattr(holding.memory, figure, None)
        row["memory_%s_gib" % figure] = None if memory is None else memory / _GIB
        row["compute_%s_percent" % figure] = _percent(holding.compute, figure)
    return row


def _percent(stat: Stat | None, figure: str) -> float | None:
    value = getattr(stat, figure, None)
    return None if value is None else 100 * value


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, float):
        return "%.2f" % value
    text = printable(str(value))
    # NFKC turns full-width and similar characters into plain ones.
    begins = unicodedata.normalize("NFKC", text.lstrip(" ")[:1])[:1]
    return "'" + text if begins in _STARTS_FORMULA else text
