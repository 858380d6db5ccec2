# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan time slices. Pure functions."""

from __future__ import annotations

from ...errors import PlanError
from ...model import Gpu
from ...plan.gpu_plan import Target
from ...plan.parts import GpuPart
from .model import DEFAULT, SETTING, TIME_SLICES, TimeSlicing, describe, time_slice_of
from .steps import SetTimeSlice


def wanted(part: TimeSlicing | None) -> str:
    """Return the desired time slice of an entry.

    For other kinds of sharing, this is the driver's default.
    """
    return DEFAULT if part is None else part.slice


def current(gpu: Gpu) -> str | None:
    """Return the time slice that a rollback sets.

    Returns None if the observed time slice is UNKNOWN, because it cannot be set.
    """
    now = time_slice_of(gpu)
    return now if now in TIME_SLICES else None


def plan(gpu: Gpu, target: Target) -> GpuPart:
    """Return the step that sets the target's time slice. None changes nothing.

    If the time slice was not read, the driver's default is assumed. Raises PlanError if the GPU has no time slices.
    """
    now, time_slice = time_slice_of(gpu), target.settings.get(SETTING)
    if time_slice in (None, now) or (now is None and time_slice == DEFAULT):
        return GpuPart(before=describe(now), after=describe(now))
    problem = gpu.settings[SETTING].problem if SETTING in gpu.settings else None
    if problem is not None:
        raise PlanError(
            "%s on %s" % (target.where, gpu.label),
            "its time slice cannot be set: %s" % problem,
            "Write slice: default, or choose another sharing for this GPU.",
        )
    return GpuPart((SetTimeSlice(time_slice),), describe(now), describe(time_slice))


def difference(then: str | None, now: str | None) -> str | None:
    """Return the difference between the saved and the current time slice as text.

    Returns None if the two are equal, or if one of them was not read.
    """
    if None in (then, now) or then == now:
        return None
    return "time slice was %s and is %s" % (then, now)
