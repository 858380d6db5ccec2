# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sum up a proposal in numbers and in one line."""

from __future__ import annotations

from typing import Any

from ..audit.write_line import money
from ..counted import counted
from .model import Proposal


def summary(proposal: Proposal) -> dict[str, Any]:
    """Return a proposal's totals."""
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
    """Return the proposal as one line."""
    sums = summary(proposal)
    words = sums["workloads"]
    if not proposal.hosts:
        text = "no change proposed: %d of %s in use" % (proposal.used_today, counted(proposal.gpus, "GPU"))
    else:
        text = "%s instead of %d, %s: %s, %d resized" % (
            counted(proposal.used_then, "GPU"),
            proposal.used_today,
            counted(sums["hosts"], "changed layout"),
            counted(words["moved"], "workload moves", "workloads move"),
            words["resized"],
        )
        if proposal.saved_per_month is not None:
            text += "; saves %s per month" % money(proposal.saved_per_month, proposal.currency)
    return text + "; %d excluded, %d can be reclaimed" % (words["left"], sums["reclaimable"])
