# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe lanes to the controller.

A test copies this file to plugin_utils/techniques/lanes.py.
"""

from __future__ import annotations

from ...module_utils.techniques.lanes.model import KEY, NAME
from .access import Turns
from .protocol import FleetTechnique

MOST_LANES = 8


class FleetLanes(FleetTechnique):
    key = KEY
    title = "lanes"
    server = "lane keeper"
    rows = NAME
    row_format = {"gpu!": "gpu_uuid", "count!": "small"}  # noqa: RUF012
    holder_kinds = ("lane_keeper",)
    proposed = True
    part_text = "a lane"
    risk = "its neighbours can see its lane"
    one_gpu = "lanes end at the edge of a GPU"

    def serves(self, state, gpu_uuid):
        return "a lane keeper" if any(row["gpu"] == gpu_uuid for row in state.get(NAME) or ()) else ""

    def most_parts(self, compute_capability):
        return MOST_LANES

    def part(self, parts):
        return {"count": len(parts)}

    def suits(self, isolation, latency):
        return "it stays in its lane" if isolation == "none" and latency == "low" else ""

    def unfit(self, compute_capability, model):
        return "a T4 has no lanes" if model.startswith("T4") else ""

    def access(self, part):
        # A single lane is not shared, so no backend can offer it.
        return Turns(part.count) if part.count > 1 else None
