# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer the files of this folder as a technique."""

from __future__ import annotations

from typing import Any, Sequence

from ...model import Gpu, GpuInstance
from .export import export_together
from .model import COMPUTE_MODE, KEY
from .parse import EXAMPLE, parse, to_data
from .part import Vgpu
from .service import VgpuService


class VgpuTechnique:
    """Share a GPU by tenants. `protocol.Technique` documents the members."""

    key = KEY
    example = EXAMPLE
    inside_mig = False
    compute_mode = COMPUTE_MODE
    setting = None
    service = VgpuService

    parse = staticmethod(parse)
    to_data = staticmethod(to_data)
    export_together = staticmethod(export_together)

    def divides(self, part: Vgpu) -> bool:
        """Return True: a tenant may be on any GPU of its entry."""
        return True

    def export(self, gpu: Gpu, seen: Sequence[Any], instance: GpuInstance | None = None) -> None:
        """Return None: GPUs with tenants are described together."""

    def describe(self, part: Vgpu) -> str:
        """Return the names of the tenants."""
        return "tenants %s" % ", ".join(tenant.name for tenant in part.tenants)
