# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define what a plan holds of a technique: on one GPU, and beside the GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Sequence

from .disturbance import Disturbance


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


class HostPart(Protocol):
    """What a technique does beside the GPUs of a host, such as with daemons."""

    #: Key of the technique.
    key: str
    #: Holders that the steps would disturb.
    disturbs: tuple[Disturbance, ...]

    @property
    def steps(self) -> Sequence[Any]:
        """Return the steps; none where nothing changes."""

    def lines(self) -> list[str]:
        """Return the steps in words, for people."""

    def to_data(self) -> list[dict[str, Any]]:
        """Return the steps as saved plans have them, whatever runs on the host just now."""

    def gpus_changed(self) -> frozenset[str]:
        """Return the UUIDs of the GPUs that notice a step."""

    def before(self, gpu_uuid: str) -> str:
        """Return in words what is beside the GPU before the plan; empty where nothing is."""

    def after(self, gpu_uuid: str) -> str:
        """Return in words what is beside it when the plan is done."""
