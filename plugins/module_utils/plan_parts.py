# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define what a plan holds of a technique: on one GPU, and beside the GPUs."""

from __future__ import annotations

from typing import Any, ClassVar, Dict, List, Mapping, Protocol, Sequence, Tuple

from .disturbance import Disturbance
from .frozen import frozen
from .model import Gpu

#: What a GPU is divided into while a plan is read: by the start of each instance its profile and compute slices.
Instances = Dict[int, Tuple[str, List[int]]]


class GpuStep:
    """A step on one GPU: a frozen dataclass whose text is what plans say. No device notices one that has these members."""

    #: Key of the technique that carries it out.
    technique: ClassVar[str]
    #: Word under which `Plan.counts` has it.
    counted: ClassVar[str] = ""
    #: Whether devices come or go by it.
    changes_devices: ClassVar[bool] = False
    #: Whether it ends what runs in an instance, or on the GPU.
    ends: ClassVar[bool] = False

    @property
    def ended_instance(self) -> int | None:
        """Return the id of the GPU instance that it destroys, whole or in part."""
        return None

    def switches(self, gpu: Gpu) -> bool:
        """Return whether the GPU as a whole becomes another device."""
        return False

    def change(self, instances: Instances, starts: Mapping[int, int]) -> None:
        """Do to `instances` what the step does to the GPU's. `starts` has the starts of the present ones by id."""

    def implied(self, steps: Sequence[GpuStep]) -> bool:
        """Return whether it goes without saying beside the other steps of the GPU."""
        return False


@frozen
class GpuPart:
    """What a technique does with one GPU, and its words for the GPU before and after; empty where it has none."""

    steps: tuple[GpuStep, ...] = ()
    before: str = ""
    after: str = ""


@frozen
class NoPart:
    """The part of a technique that a host has nothing of and the layout asks nothing of. `HostPart` documents the members."""

    key: str
    disturbs: ClassVar[tuple[Disturbance, ...]] = ()
    steps: ClassVar[Sequence[Any]] = ()

    def lines(self) -> list[str]:
        """Return no step."""
        return []

    def planned(self) -> Sequence[Any]:
        """Return nothing."""
        return ()

    def to_data(self) -> list[dict[str, Any]]:
        """Return no step."""
        return []

    def gpus_changed(self) -> frozenset[str]:
        """Return no GPU."""
        return frozenset()

    def before(self, gpu_uuid: str) -> str:
        """Return nothing."""
        return ""

    after = before


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

    def planned(self) -> Sequence[Any]:
        """Return what is on the planned GPUs when the plan is done, as `Service.seen` has it."""

    def to_data(self) -> list[dict[str, Any]]:
        """Return the steps as saved plans have them, whatever runs on the host just now."""

    def gpus_changed(self) -> frozenset[str]:
        """Return the UUIDs of the GPUs that notice a step."""

    def before(self, gpu_uuid: str) -> str:
        """Return in words what is beside the GPU before the plan; empty where nothing is."""

    def after(self, gpu_uuid: str) -> str:
        """Return in words what is beside it when the plan is done."""
