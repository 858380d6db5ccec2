# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reset a GPU, which a change of the MIG mode may need. NVML has no call for this.

nvidia-smi resets hardware, but refuses to reset simulated GPUs. gpusim resets simulated GPUs.
"""

from __future__ import annotations

from typing import Callable

from ....errors import ResetRefusedError
from ....processes.command import TimeoutExpired, run_tool

# The GPUs of an 8-GPU baseboard take tens of seconds to reset. A reset that takes longer than this limit hangs.
TIMEOUT_SECONDS = 300

# A function that resets the GPU with this UUID. The second argument is true if the GPU is simulated.
Reset = Callable[[str, bool], None]


def reset_gpu(gpu: str, simulated: bool) -> None:
    """Reset the GPU with this UUID.

    Raises ResetRefusedError with the message of the tool, for example if the GPU is in use.
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
