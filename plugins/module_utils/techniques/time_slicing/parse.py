# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read and write the part `time_slicing` of an entry in `gpu_layout`."""

from __future__ import annotations

from typing import Any

from ...layout.fields import PartContext
from ...layout.reader import Key, Node
from ...layout.types import MOST_CLIENTS
from .model import TIME_SLICES, TimeSlicing

KEYS = {
    "slice": Key("slice: long", required=True),
    "replicas": Key("replicas: 4"),
}


def parse(node: Node, context: PartContext) -> TimeSlicing | None:
    """Return the part, or None after reporting an error."""
    fields = node.fields(KEYS)
    if fields is None:
        return None
    return TimeSlicing(
        fields.read("slice", lambda field: field.choice(TIME_SLICES)),
        fields.read("replicas", lambda field: field.integer(1, MOST_CLIENTS), 1),
    )


def to_data(part: TimeSlicing) -> dict[str, Any]:
    """Return the part in its canonical form."""
    data: dict[str, Any] = {"slice": part.slice}
    if part.replicas != 1:
        data["replicas"] = part.replicas
    return data
