# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer the files of this folder as a technique."""

from __future__ import annotations

from typing import Any

from .export import describe, export
from .model import COMPUTE_MODE, DAEMONS, KEY, Mps
from .parse import EXAMPLE, parse, to_data
from .service import MpsService


class MpsTechnique:
    """Share a GPU by MPS. `protocol.Technique` documents the members."""

    key = KEY
    example = EXAMPLE
    inside_mig = True
    compute_mode = COMPUTE_MODE
    setting = None
    service = MpsService

    parse = staticmethod(parse)
    to_data = staticmethod(to_data)
    export = staticmethod(export)
    describe = staticmethod(describe)

    def export_together(self, *_arguments: Any) -> dict[str, Any]:
        """Return nothing: each GPU is described by itself."""
        return {}

    def divides(self, part: Mps) -> bool:
        """Return whether one daemon serves all GPUs of the entry."""
        return part.daemon_per != DAEMONS[0]
