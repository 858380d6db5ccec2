# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the step that sets the time slice of a GPU."""

from __future__ import annotations

from typing import ClassVar

from ...frozen import frozen
from ...plan.parts import GpuStep
from .model import KEY


@frozen
class SetTimeSlice(GpuStep):
    """Set the time slice of a GPU."""

    technique: ClassVar[str] = KEY
    time_slice: str

    def __str__(self) -> str:
        return "set time slice %s" % self.time_slice
