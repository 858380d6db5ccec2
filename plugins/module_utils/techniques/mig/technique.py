# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer the files of this folder as a technique."""

from __future__ import annotations

from .apply import apply, leave_pending, mode_changes
from .fit import largest_part
from .form import MigForm
from .plan import disturbed, plan


class MigTechnique(MigForm):
    """Divide a GPU into instances. `protocol.DividingTechnique` documents the members."""

    setting = None
    service = None

    plan = staticmethod(plan)
    disturbed = staticmethod(disturbed)
    largest_part = staticmethod(largest_part)
    apply = staticmethod(apply)
    mode_changes = staticmethod(mode_changes)
    leave_pending = staticmethod(leave_pending)
