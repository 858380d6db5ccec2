# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Combine the files of this folder into a technique."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...layout.types import Layout
from .form import MpsForm
from .model import KEY, spec_files

if TYPE_CHECKING:
    from .service import MpsService


class MpsTechnique(MpsForm):
    """Share a GPU by MPS. `protocol.Technique` documents the members."""

    setting = None

    @property
    def service(self) -> type[MpsService]:
        """Return the service."""
        from .service import MpsService

        return MpsService

    def used(self, layout: Layout | None, private: bool) -> bool:
        """Return whether the host has daemons or the layout needs any."""
        return _asked(layout) or (not private and any(spec_files(Path("/"))))


def _asked(layout: Layout | None) -> bool:
    """Return whether the layout needs daemons for GPUs, instances or other techniques."""
    return any(
        KEY in (entry.sharing, *(instance.sharing for instance in entry.instances))
        or getattr(entry.part, "mps_clients", None) is not None
        for entry in (layout.entries if layout is not None else ())
    )
