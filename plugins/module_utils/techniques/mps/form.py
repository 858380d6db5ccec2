# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse and write the part `mps` of a layout."""

from __future__ import annotations

from typing import Any, Sequence

from ...layout.fields import PartContext
from ...layout.form import Form
from ...layout.reader import Key, Node
from ...model import Gpu, GpuInstance
from .model import COMPUTE_MODE, DAEMONS, KEY, Mps


class MpsForm(Form):
    """The part `mps` of a layout entry. `Form` documents the members."""

    key = KEY
    example = Key("mps: {name: inference, clients: 4, active_thread_percentage: 25}")
    inside_mig = True
    compute_mode = COMPUTE_MODE
    cdi_devices = True

    def parse(self, node: Node, context: PartContext) -> Mps | None:
        """Return the part, or None after reporting an error."""
        from .parse import parse

        return parse(node, context)

    def to_data(self, part: Mps) -> dict[str, Any]:
        """Return the part in its canonical form."""
        from .parse import to_data

        return to_data(part)

    def export(self, gpu: Gpu, seen: Sequence[Any], instance: GpuInstance | None = None) -> Mps | None:
        """Return the part that describes the GPU or its instance.

        Returns None if neither uses the technique.
        """
        from .export import export

        return export(gpu, seen, instance)

    def describe(self, part: Mps) -> str:
        """Return an exported part as text."""
        from .export import describe

        return describe(part)

    def names(self, part: Mps) -> Sequence[str]:
        """Return the name of the daemon."""
        return (part.name,)

    def divides(self, part: Mps) -> bool:
        """Return whether one daemon serves all GPUs of the entry."""
        return part.daemon_per != DAEMONS[0]
