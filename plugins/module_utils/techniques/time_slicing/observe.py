# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the time slices of GPUs."""

from __future__ import annotations

import dataclasses
from typing import Sequence

from ...model import Gpu, Setting
from ...processes.command import Run, run_tool
from .model import SETTING, describe, time_slice_of
from .nvidia_smi import LIST, NOT_INSTALLED, ask, read_rows
from .record import Record


class TimeSliceObserver:
    """Read the time slices with nvidia-smi."""

    setting = SETTING

    def recorded(self, directory: str) -> bool:
        """Return whether the collection set a time slice on a GPU of the host."""
        return Record(directory).any()

    def observe(self, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
        """Return the GPUs with their time slices."""
        return with_time_slices(gpus)

    def describe(self, gpu: Gpu) -> str:
        """Return the time slice as text."""
        return describe(time_slice_of(gpu))


def with_time_slices(gpus: Sequence[Gpu], run: Run = run_tool) -> tuple[Gpu, ...]:
    """Return the GPUs with their time slices.

    The setting of a GPU without a time slice has the reason.
    """
    listed, reason = ask([*LIST], run)
    rows = read_rows(listed)
    return tuple(_with(gpu, _time_slice(gpu, rows, reason, run)) for gpu in gpus)


def _time_slice(gpu: Gpu, rows: dict[int, str], reason: str, run: Run) -> Setting:
    if gpu.index in rows:
        return Setting(rows[gpu.index])
    if reason and reason != NOT_INSTALLED:
        # Query this GPU alone, because the output for all GPUs ends at the first GPU that fails or has no time slice.
        listed, reason = ask([*LIST, "-i", gpu.uuid], run)
        found = list(read_rows(listed).values())
        if found:
            return Setting(found[0])
    return Setting(None, reason or "nvidia-smi lists none")


def _with(gpu: Gpu, time_slice: Setting) -> Gpu:
    return dataclasses.replace(gpu, settings={**gpu.settings, SETTING: time_slice})


OBSERVER = TimeSliceObserver()
