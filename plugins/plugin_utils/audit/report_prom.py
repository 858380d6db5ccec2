# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the ledger's sums as metrics, for node_exporter's textfile collector."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Mapping

from ...module_utils.printable import printable
from .ledger_model import CLASSES, Ledger, Row, Sum, sum_of
from .model import Audit

#: Maximum number of users with their own series. A team's users with fewer GPUs are added up.
_MOST_USERS = 500
OTHER_USERS = "(other users)"
#: A series' labels as (name, value).
Labels = tuple[tuple[str, str], ...]


def to_text(audit: Audit) -> str:
    """Return the metrics in Prometheus' text format.

    The sums by owner add up to the sums by class.
    """
    by_class: dict[Labels, Sum] = {(("class", word),): one for word, one in audit.ledger.by_class().items()}
    lines = _gauges("gpu_audit_", "by class", by_class)
    lines += _gauges("gpu_audit_owner_", "by owner and class", _by_owner(audit.ledger))
    lines += [
        "# HELP gpu_audit_timestamp_seconds Time of the last audit.",
        "# TYPE gpu_audit_timestamp_seconds gauge",
        "gpu_audit_timestamp_seconds %.0f" % audit.made_at_seconds,
    ]
    return "\n".join(lines) + "\n"


def _by_owner(book: Ledger) -> dict[Labels, Sum]:
    """Return the sums by team, user and class.

    The names of team and user are empty for parts without an owner.
    """
    rows: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in book.rows:
        rows[(row.owner.team, row.owner.owner) if row.owner else ("", "")].append(row)
    users = sorted((one for one in rows if any(one)), key=lambda one: (-_held(rows[one]), one))
    for team, user in users[_MOST_USERS:]:
        rows[team, OTHER_USERS] += rows.pop((team, user))
    return {
        (("owner_team", team), ("owner_user", user), ("class", word)): sum_of(of_class)
        for (team, user), of_owner in sorted(rows.items())
        for word in CLASSES
        if (of_class := [row for row in of_owner if row.word == word])
    }


def _held(rows: list[Row]) -> float:
    return math.fsum(row.gpu_hours for row in rows) + math.fsum(row.gpus for row in rows)


def _gauges(prefix: str, title: str, sums: Mapping[Labels, Sum]) -> list[str]:
    costs = {labels: one.cost_per_month for labels, one in sums.items() if one.cost_per_month is not None}
    return [
        *_gauge(prefix + "gpus", "GPUs %s in the last audit." % title, {name: one.gpus for name, one in sums.items()}),
        *_gauge(
            prefix + "gpu_hours",
            "GPU hours %s in the window of the last audit." % title,
            {labels: one.gpu_hours for labels, one in sums.items()},
        ),
        *_gauge(prefix + "cost_per_month", "Cost of a month %s in the last audit." % title, costs),
    ]


def _gauge(name: str, meaning: str, values: Mapping[Labels, float]) -> list[str]:
    if not values:
        return []
    rows = [
        "%s{%s} %s" % (name, ",".join('%s="%s"' % (label, _escaped(text)) for label, text in labels), repr(value))
        for labels, value in values.items()
    ]
    return ["# HELP %s %s" % (name, meaning), "# TYPE %s gauge" % name, *rows]


def _escaped(text: str) -> str:
    """Return a label value.

    https://prometheus.io/docs/instrumenting/exposition_formats
    """
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')
