# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Return how many clients MPS supports. Pure.

Each number is NVIDIA's: https://docs.nvidia.com/deploy/mps/when-to-use-mps.html (Client-Server Connection Limits), the manual
page nvidia-cuda-mps-control(1), and for MIG https://docs.nvidia.com/datacenter/tesla/mig-user-guide/ (CUDA Concurrency
Mechanisms).
"""

from __future__ import annotations

import re

#: Minimum compute capability for MPS (nvidia-cuda-mps-control(1)).
_FIRST = (3, 5)
#: From Volta on, clients submit work directly, and thread and memory limits are enforced.
VOLTA = (7, 0)

_BEFORE_VOLTA, _VOLTA, _VOLTA_NOW = 16, 48, 60
#: CUDA 13.1 raised the number of contexts. Its first driver branch is R590 (CUDA Toolkit 13.1 release notes).
_VOLTA_NOW_SINCE = 590


def most_clients(
    compute_capability: str | None, driver_version: str | None, slices: tuple[int, int] | None = None
) -> int | None:
    """Return the client contexts of one daemon on each GPU at a time. None if unknown, 0 if MPS does not run.

    `compute_capability` as in NVML (``9.0``). `slices`: (compute slices of the MIG device, those of the whole GPU). A MIG
    device gets its share of the GPU's clients, rounded down, because NVIDIA does not document the rounding. A client process
    has a context on each GPU that it uses. The limit is for the default CUDA_DEVICE_MAX_CONNECTIONS. For a driver of unknown
    release the highest known limit is returned.
    """
    generation = _generation(compute_capability)
    if generation is None:
        return None
    if generation < _FIRST:
        return 0
    if generation < VOLTA:
        return _BEFORE_VOLTA
    branch = re.match(r"[0-9]+", driver_version or "")
    # An unknown release must not refuse a layout that the driver may support.
    whole = _VOLTA if branch and int(branch.group()) < _VOLTA_NOW_SINCE else _VOLTA_NOW
    if slices is None:
        return whole
    part, of = slices
    return max(1, whole * part // of)


def limits_bind(compute_capability: str | None) -> bool | None:
    """Return whether thread and memory limits of clients are enforced, or None if unknown."""
    generation = _generation(compute_capability)
    return None if generation is None else generation >= VOLTA


def _generation(compute_capability: str | None) -> tuple[int, int] | None:
    found = re.fullmatch(r"([0-9]+)\.([0-9]+)", compute_capability or "")
    return (int(found.group(1)), int(found.group(2))) if found else None
