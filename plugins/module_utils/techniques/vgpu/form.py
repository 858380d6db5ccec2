# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define how a layout describes tenants."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Container, Sequence

from ...layout.fields import PartContext
from ...layout.form import Form, Seen
from ...layout.reader import Key, Node
from ...layout.types import Selector
from ...model import Gpu
from .model import COMPUTE_MODE, KEY
from .part import Vgpu


class VgpuForm(Form):
    """The part `vgpu` of a layout entry. `Form` documents the members."""

    key = KEY
    example = Key("vgpu: {tenants: [{name: notebook-a, memory: 8GiB, sm_percent: 30}]}")
    compute_mode = COMPUTE_MODE
    cdi_devices = True
    lease_limit = "most"

    def parse(self, node: Node, context: PartContext) -> Vgpu | None:
        """Return the part, or None after reporting an error."""
        from .parse import parse

        return parse(node, context)

    def to_data(self, part: Vgpu) -> dict[str, Any]:
        """Return the part in its canonical form."""
        from .parse import to_data

        return to_data(part)

    def export_together(
        self, gpus: Sequence[Gpu], seen: Seen, pin: Callable[[Gpu], Selector] | None, left_out: list[str]
    ) -> dict[str, Vgpu | None]:
        """Return the part of each GPU with tenants, by GPU UUID.

        The value is None if a layout cannot express the tenants.
        """
        from .export import export_together

        return export_together(gpus, seen, pin, left_out)

    def divides(self, part: Vgpu) -> bool:
        """Return True: a tenant may be on any GPU of its entry."""
        return True

    def names(self, part: Vgpu) -> Sequence[str]:
        """Return the names of the tenants."""
        return self.tenants(part)

    def restricted(self, part: Vgpu, uuids: Container[str], cut: bool, taken: Container[str]) -> Vgpu | None:
        """Return the part without tenants that the exported entry cannot have.

        These are tenants with a name in `taken`. With `cut`, these are also tenants that are not pinned to a GPU in
        `uuids`. Returns None if no tenant remains.
        """
        stay = [tenant for tenant in part.tenants if tenant.name not in taken and tenant.was not in taken]
        if cut:
            # An exported tenant without a pin spans several GPUs.
            stay = [tenant for tenant in stay if tenant.gpu is not None and str(tenant.gpu.value).lower() in uuids]
        return dataclasses.replace(part, tenants=tuple(stay)) if stay else None

    def tenants(self, part: Vgpu) -> Sequence[str]:
        """Return the current and earlier names of all tenants."""
        return [name for tenant in part.tenants for name in (tenant.name, tenant.was) if name is not None]
