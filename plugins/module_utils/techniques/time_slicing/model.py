# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define time slices: how long a process runs on a GPU before the next one does."""

from __future__ import annotations

from ...frozen import frozen
from ...model import Gpu

KEY = "time_slicing"
SETTING = "time_slice"
#: Processes of several users take turns.
COMPUTE_MODE = "default"

#: The driver's four slices (nvidia-smi compute-policy --help), in the order of its numbers 0 to 3.
TIME_SLICES = ("default", "short", "medium", "long")
DEFAULT = TIME_SLICES[0]
#: An invalid number that the driver accepted.
UNKNOWN = "unknown"


@frozen
class TimeSlicing:
    """A time slice. `slice` is one of TIME_SLICES, `replicas` the number of clients that the GPU is offered to."""

    slice: str
    replicas: int = 1


def time_slice_of(gpu: Gpu) -> str | None:
    """Return the observed time slice, one of TIME_SLICES or UNKNOWN, or None if it was not read or does not exist."""
    return gpu.setting(SETTING)


def describe(time_slice: str | None) -> str:
    """Return the time slice in words, or an empty text for the default or an unknown one."""
    return "" if time_slice in (None, DEFAULT) else "time slice %s" % time_slice
