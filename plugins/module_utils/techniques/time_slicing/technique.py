# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Combine the files of this folder into a technique."""

from __future__ import annotations

from typing import Any

from ...model import Gpu
from .form import TimeSlicingForm
from .model import DEFAULT, SETTING
from .observe import OBSERVER
from .plan import current, difference, plan, wanted
from .record import record
from .steps import SetTimeSlice


class TimeSlicingTechnique(TimeSlicingForm):
    """Share a GPU with time slices. `SettingTechnique` documents the members."""

    setting = SETTING
    default = DEFAULT
    service = None
    observer = OBSERVER

    wanted = staticmethod(wanted)
    current = staticmethod(current)
    plan = staticmethod(plan)
    difference = staticmethod(difference)
    record = staticmethod(record)

    def observed(self, gpu: Gpu) -> str | None:
        """Return the observed time slice, for saved plans."""
        return gpu.setting(SETTING)

    def untouched(self, gpu: Gpu, wanted: str | None) -> bool:
        """Return whether the time slice is as wanted or as after a boot."""
        return gpu.setting(SETTING) in (None, DEFAULT, wanted)

    def apply(self, session: Any, gpu_uuid: str, step: SetTimeSlice) -> None:
        """Apply a step."""
        from .apply import apply

        apply(gpu_uuid, step)
