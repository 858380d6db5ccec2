# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Set a GPU's time slice.

nvidia-smi reports success even for invalid numbers, and a driver reload resets the setting. So the value is read back
with nvidia-smi.
"""

from __future__ import annotations

from ...errors import NvmlError
from ...processes.command import Run, run_tool
from .model import TIME_SLICES
from .nvidia_smi import LIST, NOT_INSTALLED, ask, read_rows
from .steps import SetTimeSlice


def apply(gpu_uuid: str, step: SetTimeSlice) -> None:
    """Apply a step. Raises NvmlError if the step has no effect."""
    set_time_slice(gpu_uuid, step.time_slice)


def set_time_slice(gpu_uuid: str, name: str, run: Run = run_tool) -> None:
    """Set the time slice and read it back.

    Raises NvmlError if nvidia-smi then reports another value.
    """
    number = TIME_SLICES.index(name)
    # Pass the number as a separate argument, which driver branch 470 requires and later branches accept (--help).
    output, reason = ask(["nvidia-smi", "compute-policy", "-i", gpu_uuid, "--set-timeslice", str(number)], run)
    listed, unread = ask([*LIST, "-i", gpu_uuid], run)
    found = list(read_rows(listed).values())
    if found == [name]:
        return
    if reason == unread == NOT_INSTALLED:
        raise NvmlError(
            "gpu %s" % gpu_uuid,
            "the time slice %s cannot be set: %s" % (name, reason),
            "Install nvidia-smi (nvidia-utils or nvidia-driver-cuda, in the driver's version), and run again.",
            gpu=gpu_uuid,
        )
    shown = "shows %s" % found[0] if found else "does not show it (%s)" % unread
    raise NvmlError(
        "gpu %s" % gpu_uuid,
        "the time slice %s was set, but nvidia-smi %s. Its message was: %s"
        % (name, shown, reason or " ".join(output.split())),
        "Check whether this GPU has time slices (nvidia-smi compute-policy -i %s -l)." % gpu_uuid,
        gpu=gpu_uuid,
    )
