# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Return how many clients MPS supports. Pure functions.

All numbers are from NVIDIA:

* https://docs.nvidia.com/deploy/mps/when-to-use-mps.html (Client-Server Connection Limits)
* the manual page nvidia-cuda-mps-control(1)
* for MIG: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/ (CUDA Concurrency Mechanisms)
"""

from __future__ import annotations

import re

#: Minimum compute capability for MPS (nvidia-cuda-mps-control(1)).
_FIRST = (3, 5)
#: Since Volta, clients submit work directly, and MPS enforces limits for threads and memory.
VOLTA = (7, 0)

_BEFORE_VOLTA, _VOLTA, _VOLTA_NOW = 16, 48, 60
#: CUDA 13.1 raised the number of client contexts. R590 is the first driver branch for CUDA 13.1 (CUDA Toolkit 13.1
#: release notes).
_VOLTA_NOW_SINCE = 590


def most_clients(
    compute_capability: str | None, driver_version: str | None, slices: tuple[int, int] | None = None
) -> int | None:
    """Return the maximum number of client contexts of one daemon on each GPU.

    Returns None if the number is unknown, and 0 if the GPU does not support MPS. A client process has one context on
    each GPU that it uses. The numbers apply to the default value of CUDA_DEVICE_MAX_CONNECTIONS.

    `compute_capability` is a version as in NVML, such as "9.0". `slices` is (compute slices of the MIG device, compute
    slices of the whole GPU). A MIG device gets its share of the GPU's clients, rounded down, because NVIDIA does not
    document the rounding. For an unknown driver release, the number of the newest driver is returned.
    """
    generation = _generation(compute_capability)
    if generation is None:
        return None
    if generation < _FIRST:
        return 0
    if generation < VOLTA:
        return _BEFORE_VOLTA
    branch = re.match(r"[0-9]+", driver_version or "")
    # Do not refuse a layout that a driver of unknown release may support.
    whole = _VOLTA if branch and int(branch.group()) < _VOLTA_NOW_SINCE else _VOLTA_NOW
    if slices is None:
        return whole
    part, of = slices
    return max(1, whole * part // of)


def limits_bind(compute_capability: str | None) -> bool | None:
    """Return whether MPS enforces clients' limits for threads and memory.

    Returns None if this is unknown.
    """
    generation = _generation(compute_capability)
    return None if generation is None else generation >= VOLTA


def _generation(compute_capability: str | None) -> tuple[int, int] | None:
    found = re.fullmatch(r"([0-9]+)\.([0-9]+)", compute_capability or "")
    return (int(found.group(1)), int(found.group(2))) if found else None
