# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A proposal in numbers, and in one line."""

from __future__ import annotations

from typing import Any

from ..audit.write_line import money
from .model import Proposal


def summary(proposal: Proposal) -> dict[str, Any]:
    """What automation asks first."""
    changes = [outcome.change for outcome in proposal.workloads]
    return {
        "gpus": proposal.gpus,
        "gpus_used_today": proposal.used_today,
        "gpus_used_then": proposal.used_then,
        "gpus_saved": proposal.saved_gpus,
        "saved_per_month": proposal.saved_per_month,
        "currency": proposal.currency,
        "hosts": sum(1 for change in proposal.hosts if change.changes_layout),
        "workloads": {word: changes.count(word) for word in ("moved", "resized", "stays", "left")},
        "instances_destroyed": proposal.destroyed,
        "reclaimable": sum(1 for one in proposal.reclaim if not one.spared),
    }


def line(proposal: Proposal) -> str:
    """The proposal in one line."""
    sums = summary(proposal)
    words = sums["workloads"]
    if not proposal.hosts:
        text = "nothing to change: %d of %d GPUs are in use" % (proposal.used_today, proposal.gpus)
    else:
        text = "%d GPUs instead of %d, with %s: %s, %s in another part of it" % (
            proposal.used_then,
            proposal.used_today,
            _count(sums["hosts"], "other layout"),
            "1 workload moves" if words["moved"] == 1 else "%d workloads move" % words["moved"],
            "1 stays on its GPU" if words["resized"] == 1 else "%d stay on their GPU" % words["resized"],
        )
        if proposal.saved_per_month is not None:
            text += "; %s a month" % money(proposal.saved_per_month, proposal.currency)
    return text + "; %d left as they are, %d can be reclaimed" % (words["left"], sums["reclaimable"])


def _count(number: int, what: str) -> str:
    return "%d %s%s" % (number, what, "" if number == 1 else "s")
