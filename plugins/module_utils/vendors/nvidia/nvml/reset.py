# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reset a GPU, for which NVML has no call. A MIG mode change may need a reset.

nvidia-smi resets hardware, but refuses simulated GPUs. gpusim resets these.
"""

from __future__ import annotations

from typing import Callable

from ....errors import ResetRefusedError
from ....processes.command import TimeoutExpired, run_tool

# Time limit in seconds. The GPUs of an 8-GPU baseboard take tens of seconds, so a longer reset hangs.
TIMEOUT_SECONDS = 300

# A function that resets the GPU with this UUID. Its second argument is true if the GPU is simulated.
Reset = Callable[[str, bool], None]


def reset_gpu(gpu: str, simulated: bool) -> None:
    """Reset the GPU with this UUID.

    Raises ResetRefusedError with the tool's message, for example if the GPU is in use.
    """
    command = ["gpusim", "reset", gpu] if simulated else ["nvidia-smi", "--gpu-reset", "-i", gpu]
    where, cure = "gpu %s" % gpu, "Stop the processes that use the GPU and run again, or reboot the host."
    try:
        done = run_tool(command, timeout_seconds=TIMEOUT_SECONDS)
    except FileNotFoundError:
        raise ResetRefusedError(
            where,
            "%s is not installed, which resets GPUs" % command[0],
            "Install it (nvidia-utils or nvidia-driver-cuda, in the driver's version), or reboot the host.",
            gpu=gpu,
        ) from None
    except TimeoutExpired:
        raise ResetRefusedError(
            where, "%s did not end within %d s" % (" ".join(command), TIMEOUT_SECONDS), cure, gpu=gpu
        ) from None
    if done.returncode != 0:
        output = " ".join((done.stdout + done.stderr).split()).rstrip(".")
        raise ResetRefusedError(where, "%s refused: %s" % (" ".join(command), output), cure, gpu=gpu)
