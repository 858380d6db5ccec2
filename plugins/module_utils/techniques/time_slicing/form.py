# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse and write the part `time_slicing` of a layout."""

from __future__ import annotations

from typing import Any, Sequence

from ...layout.fields import PartContext
from ...layout.form import Form
from ...layout.reader import Key, Node
from ...model import Gpu, GpuInstance
from .model import COMPUTE_MODE, KEY, TimeSlicing


class TimeSlicingForm(Form):
    """The part `time_slicing` of a layout entry. `Form` documents the members."""

    key = KEY
    example = Key("time_slicing: {slice: long}")
    compute_mode = COMPUTE_MODE

    def parse(self, node: Node, context: PartContext) -> TimeSlicing | None:
        """Return the part, or None after reporting an error."""
        from .parse import parse

        return parse(node, context)

    def to_data(self, part: TimeSlicing) -> dict[str, Any]:
        """Return the part in its canonical form."""
        from .parse import to_data

        return to_data(part)

    def export(self, gpu: Gpu, seen: Sequence[Any], instance: GpuInstance | None = None) -> TimeSlicing | None:
        """Return the part that describes the GPU.

        Returns None if the GPU does not use the technique.
        """
        from .export import export

        return export(gpu, seen, instance)

    def describe(self, part: TimeSlicing) -> str:
        """Return an exported part as text."""
        from .export import describe

        return describe(part)
