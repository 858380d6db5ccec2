# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a node's devices from lines of gres.conf, as pure functions.

https://slurm.schedmd.com/gres.conf.html
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Sequence

from .conf import GRES_CONF, GresLinesError, gpu_devices

_GPU_PATH = re.compile(r"/dev/nvidia([0-9]+)$")


def slots(lines: Sequence[str], node: str, types: Sequence[str], minors: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the devices of gres/gpu in Slurm's order.

    `types` has the types in the order of the node's Gres=, which sorts the lines. `minors` has the GPUs' device minors
    by UUID. Each device has `type`, `files` and `gpu`, the UUID of its GPU, which is empty for a pad. Raises
    GresLinesError if a line has no file or an unknown GPU's file, or if no line is for the node's GPUs.
    """
    by_minor = {minor: uuid for uuid, minor in minors.items()}
    found = [
        {"type": kind, "gpu": _gpu(files[0], by_minor), "files": list(files)}
        for kind, files in gpu_devices(lines, node)
    ]
    if not found:
        raise GresLinesError(
            GRES_CONF,
            "no line has Name=gpu and File= or MultipleFiles= for the node %s" % node,
            "List the devices, because their numbers are unknown with AutoDetect.",
        )
    order = [*types, *(slot["type"] for slot in found)]
    return sorted(found, key=lambda slot: order.index(slot["type"]))


def _gpu(path: str, by_minor: Mapping[int, str]) -> str:
    """Return the UUID of the GPU with this device node, or "" for other files."""
    match = _GPU_PATH.match(path)
    if not match:
        return ""
    if int(match[1]) not in by_minor:
        raise GresLinesError(GRES_CONF, "no GPU has the device node %s" % path, "Check /proc/driver/nvidia/gpus.")
    return by_minor[int(match[1])]
