# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the sums of the ledger as metrics.

The textfile collector of node_exporter reads them.
"""

from __future__ import annotations

from .model import Audit


def to_text(audit: Audit) -> str:
    """Return the metrics in the text format of Prometheus."""
    sums = audit.ledger.by_class()
    lines = _gauge("gpu_audit_gpus", "GPUs by class in the last audit.", {word: one.gpus for word, one in sums.items()})
    lines += _gauge(
        "gpu_audit_gpu_hours",
        "GPU hours by class in the window of the last audit.",
        {word: one.gpu_hours for word, one in sums.items()},
    )
    costs = {word: one.cost_per_month for word, one in sums.items() if one.cost_per_month is not None}
    lines += _gauge("gpu_audit_cost_per_month", "Cost of a month by class in the last audit.", costs)
    lines += [
        "# HELP gpu_audit_timestamp_seconds Time of the last audit.",
        "# TYPE gpu_audit_timestamp_seconds gauge",
        "gpu_audit_timestamp_seconds %.0f" % audit.made_at_seconds,
    ]
    return "\n".join(lines) + "\n"


def _gauge(name: str, meaning: str, values: dict[str, float]) -> list[str]:
    if not values:
        return []
    rows = ['%s{class="%s"} %s' % (name, word, repr(value)) for word, value in values.items()]
    return ["# HELP %s %s" % (name, meaning), "# TYPE %s gauge" % name, *rows]
