# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many clients MPS serves. Pure.

Each number is NVIDIA's: https://docs.nvidia.com/deploy/mps/when-to-use-mps.html (Client-Server Connection Limits), the manual
page nvidia-cuda-mps-control(1), and for MIG https://docs.nvidia.com/datacenter/tesla/mig-user-guide/ (CUDA Concurrency
Mechanisms).
"""

from __future__ import annotations

import re

#: MPS serves no GPU below (nvidia-cuda-mps-control(1)).
_FIRST = (3, 5)
#: From here on clients submit their work by themselves, and limits of threads and memory bind.
VOLTA = (7, 0)

_BEFORE_VOLTA, _VOLTA, _VOLTA_NOW = 16, 48, 60
#: More contexts came with CUDA 13.1; its first driver branch is R590 (CUDA Toolkit 13.1 release notes).
_VOLTA_NOW_SINCE = 590


def most_clients(
    compute_capability: str | None, driver_version: str | None, slices: tuple[int, int] | None = None
) -> int | None:
    """Client contexts that one daemon serves on each GPU at a time; None where it is not known, 0 where MPS does not run.

    `compute_capability` as NVML tells it (``9.0``). `slices`: (compute slices of the MIG device, those of its whole GPU). A
    MIG device has a part of the GPU's clients, in proportion; NVIDIA does not say how the number is rounded, so down.
    A client process has a context on each GPU that it uses; the limit holds for the default CUDA_DEVICE_MAX_CONNECTIONS.
    Of a driver whose release is not known, the most that any serves.
    """
    generation = _generation(compute_capability)
    if generation is None:
        return None
    if generation < _FIRST:
        return 0
    if generation < VOLTA:
        return _BEFORE_VOLTA
    branch = re.match(r"[0-9]+", driver_version or "")
    # What the driver could do is not refused because its release is not known.
    whole = _VOLTA if branch and int(branch.group()) < _VOLTA_NOW_SINCE else _VOLTA_NOW
    if slices is None:
        return whole
    part, of = slices
    return max(1, whole * part // of)


def limits_bind(compute_capability: str | None) -> bool | None:
    """Whether clients can be held to a share of the threads and to an amount of memory; None where it is not known."""
    generation = _generation(compute_capability)
    return None if generation is None else generation >= VOLTA


def _generation(compute_capability: str | None) -> tuple[int, int] | None:
    found = re.fullmatch(r"([0-9]+)\.([0-9]+)", compute_capability or "")
    return (int(found.group(1)), int(found.group(2))) if found else None
