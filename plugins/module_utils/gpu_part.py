# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define what a plan holds of a technique on one GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class PartStep(Protocol):
    """A step of a technique on one GPU: a dataclass whose text is what plans say. No device comes or goes by it."""

    #: Key of the technique.
    technique: str


@dataclass(frozen=True)
class GpuPart:
    """What a technique does with one GPU, and its words for the GPU before and after; empty where it has none."""

    steps: tuple[PartStep, ...] = ()
    before: str = ""
    after: str = ""
