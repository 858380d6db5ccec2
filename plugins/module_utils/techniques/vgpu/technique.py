# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Combine the files of this folder into a technique."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...layout.types import Layout
from .form import VgpuForm
from .model import KEY, applies, root_of_files, spec_files

if TYPE_CHECKING:
    from .service import VgpuService


class VgpuTechnique(VgpuForm):
    """Share a GPU between tenants. `protocol.Technique` documents the members."""

    setting = None

    @property
    def service(self) -> type[VgpuService]:
        """Return the service."""
        from .service import VgpuService

        return VgpuService

    def used(self, layout: Layout | None, private: bool) -> bool:
        """Return whether the host or the layout has tenants."""
        desired = layout is not None and any(entry.sharing == KEY for entry in layout.entries)
        return desired or (applies(private) and any(spec_files(root_of_files())))
