# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer the files of this folder as a technique."""

from __future__ import annotations

from typing import Any

from .apply import apply
from .export import describe, export
from .model import COMPUTE_MODE, DEFAULT, KEY, SETTING, TimeSlicing
from .observe import OBSERVER
from .parse import EXAMPLE, parse, to_data
from .plan import current, difference, plan, wanted
from .record import record


class TimeSlicingTechnique:
    """Share a GPU by turns. `protocol.Technique` documents the members."""

    key = KEY
    example = EXAMPLE
    setting = SETTING
    default = DEFAULT
    service = None
    inside_mig = False
    compute_mode = COMPUTE_MODE
    observer = OBSERVER

    parse = staticmethod(parse)
    to_data = staticmethod(to_data)
    wanted = staticmethod(wanted)
    current = staticmethod(current)
    plan = staticmethod(plan)
    apply = staticmethod(apply)
    difference = staticmethod(difference)
    export = staticmethod(export)
    describe = staticmethod(describe)
    record = staticmethod(record)

    def export_together(self, *_arguments: Any) -> dict[str, Any]:
        """Return nothing: each GPU is described by itself."""
        return {}

    def divides(self, part: TimeSlicing) -> bool:
        """Return False: each GPU has its own time slice."""
        return False
