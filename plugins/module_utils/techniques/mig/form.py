# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse and write MIG in a layout."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from ...layout.fields import PartContext
from ...layout.form import Form
from ...layout.reader import Key, Node
from ...layout.types import MigInstance, Selector
from ...model import Gpu

#: Value in `gpu_layout`.
KEY = "mig"


class MigForm(Form):
    """The part `mig` of a layout entry. `Form` documents the members.

    `inside` lists the forms of the techniques that can share an instance.
    """

    key = KEY
    setting = None
    service = None
    example = Key("mig: [{profile: 3g.40gb}]")
    #: None, because the compute mode is set for the instances and not for the GPU.
    compute_mode = None
    lease_limit = "profiles"

    def __init__(self, inside: Sequence[Form]) -> None:
        self._inside = inside

    def parse(self, node: Node, context: PartContext) -> tuple[MigInstance, ...] | None:
        """Return the part, or None after reporting an error."""
        from .parse import parse

        return parse(node, context, self._inside)

    def to_data(self, part: Sequence[MigInstance]) -> list[dict[str, Any]]:
        """Return the part in its canonical form."""
        from .parse import to_data

        return to_data(part, self._inside)

    def export_together(
        self,
        gpus: Sequence[Gpu],
        seen: Mapping[str, Sequence[Any]],
        pin: Callable[[Gpu], Selector] | None,
        left_out: list[str],
    ) -> dict[str, tuple[MigInstance, ...] | None]:
        """Return the instances of each GPU in MIG mode, by GPU UUID.

        The value is None while a change of the GPU's MIG mode is pending.
        """
        from .export import export_together

        return export_together(gpus, seen, pin, left_out, self._inside)
