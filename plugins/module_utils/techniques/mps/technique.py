# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Offer the files of this folder as a technique."""

from __future__ import annotations

from .form import MpsForm
from .service import MpsService


class MpsTechnique(MpsForm):
    """Share a GPU by MPS. `protocol.Technique` documents the members."""

    setting = None
    service = MpsService
