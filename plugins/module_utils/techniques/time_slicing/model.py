# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define time slices: how long a process runs on a GPU before the next one does."""

from __future__ import annotations

from ...frozen import frozen
from ...model import Gpu

KEY = "time_slicing"
SETTING = "time_slice"
#: Compute mode of GPUs with time slices. In the default mode, several users' processes can open the GPU.
COMPUTE_MODE = "default"

#: Names of the driver's four time slices (nvidia-smi compute-policy --help). A name's position is the driver's number.
TIME_SLICES = ("default", "short", "medium", "long")
DEFAULT = TIME_SLICES[0]
#: Name for any other number, because the driver accepts any number.
UNKNOWN = "unknown"


@frozen
class TimeSlicing:
    """The part `time_slicing`: a time slice and a number of clients.

    `slice` is one of TIME_SLICES. The GPU is offered to `replicas` clients.
    """

    slice: str
    replicas: int = 1


def time_slice_of(gpu: Gpu) -> str | None:
    """Return the observed time slice: one of TIME_SLICES, or UNKNOWN.

    Returns None if the time slice was not read or the GPU has none.
    """
    return gpu.setting(SETTING)


def describe(time_slice: str | None) -> str:
    """Return the time slice as text.

    Returns "" if the time slice is the default or was not read.
    """
    return "" if time_slice in (None, DEFAULT) else "time slice %s" % time_slice
