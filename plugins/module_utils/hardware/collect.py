# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read all data for the hardware check. Changes nothing.

Most of the data can be read without root.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable

from ..processes.bounded import bounded
from ..vendors.nvidia.nvml.calls import _binding
from .host_files import read_host
from .nvidia_smi import read_nvidia_smi
from .reader import HardwareReader

SCHEMA = 1
#: Time limit in seconds, in case the driver hangs.
TIMEOUT_SECONDS = 300.0
_MOST_BYTES = 1 << 26


def collect(
    progress: Callable[[str], None] = lambda text: None, seconds: float = TIMEOUT_SECONDS, root: str = "/"
) -> dict[str, Any]:
    """Return the readings of this host.

    Raises FleetError if the driver or pynvml is missing, or after `seconds`.
    """
    # Import pynvml here, so that the caller gets the error about a missing pynvml. Only the child process loads the
    # driver.
    _binding()
    return json.loads(
        bounded(lambda: json.dumps(_read(progress, root)), "this host", seconds, _MOST_BYTES, keep=(1, 2))
    )


def _read(progress: Callable[[str], None], root: str) -> dict[str, Any]:
    made = time.time()
    with HardwareReader() as reader:
        nvml = reader.read(progress)
    progress("nvidia-smi")
    smi = read_nvidia_smi()
    progress("files of the kernel")
    files = read_host([gpu["pci_address"] for gpu in nvml["facts"]["gpus"] if gpu["pci_address"]], root)
    return {"schema": SCHEMA, "made": made, "root": os.geteuid() == 0, "nvml": nvml, "nvidia_smi": smi, "files": files}
