# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe how pods share a GPU or a MIG instance.

A scheduler backend maps these values to its own resources and settings, for any technique.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True)
class Turns:
    """Pods take turns on the GPU, without limits and without a service on the host.

    `pods` is the maximum number of pods. `interval` is the driver's name of the time slice, or empty for the default.
    """

    pods: int
    interval: str = ""


@dataclass(frozen=True)
class Clients:
    """Pods are clients of the MPS daemon `name`, and each pod has these limits.

    `pods` is the maximum number of pods. `memory_bytes` is None if memory is not limited.
    """

    name: str
    pods: int
    sm_percent: int
    memory_bytes: int | None = None


Access = Union[Turns, Clients]
