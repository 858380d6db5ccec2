# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Export the time slice of a GPU as a part of a layout."""

from __future__ import annotations

from typing import Any, Sequence

from ...model import Gpu, GpuInstance
from .model import TIME_SLICES, TimeSlicing, time_slice_of
from .model import describe as in_words


def export(gpu: Gpu, seen: Sequence[Any] = (), instance: GpuInstance | None = None) -> TimeSlicing | None:
    """Return the part of an entry that describes the GPU's time slice.

    Returns None if the time slice is the default or unknown.
    """
    time_slice = time_slice_of(gpu)
    return TimeSlicing(str(time_slice)) if time_slice in TIME_SLICES[1:] else None


def describe(part: TimeSlicing) -> str:
    """Return the time slice as text."""
    return in_words(part.slice)
