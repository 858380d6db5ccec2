# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe time slicing to the controller.

Workloads take turns on a whole GPU, without limits.
"""

from __future__ import annotations

from typing import Any, Sequence

from ...module_utils.techniques.time_slicing.model import DEFAULT, KEY, TimeSlicing
from .access import Turns
from .protocol import FleetTechnique, Part


class FleetTimeSlicing(FleetTechnique):
    """Time slicing. `FleetTechnique` documents the members."""

    key = KEY
    title = "time slicing"
    proposed = True
    takes_turns = True
    part_text = "a time-sliced GPU"
    risk = "a fault of one workload can end all workloads on the GPU"

    def part(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the driver's default time slice, and a replica for each workload."""
        return {"slice": DEFAULT, "replicas": len(parts)}

    def suits(self, isolation: str, latency: str) -> str:
        """Return the reason for a workload without isolation that can wait."""
        return "it trusts its neighbours and can wait" if isolation == "none" and latency == "batch" else ""

    def access(self, part: TimeSlicing) -> Turns:
        """Return the replicas and the time slice."""
        return Turns(part.replicas, "" if part.slice == DEFAULT else part.slice)
