# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define a technique from this folder's files."""

from __future__ import annotations

from .form import LanesForm
from .service import LanesService


class LanesTechnique(LanesForm):
    setting = None
    service = LanesService

    def used(self, layout, private):
        return True
