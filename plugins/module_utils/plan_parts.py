# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define a technique's parts of a plan: for a GPU, and for its services."""

from __future__ import annotations

from typing import Any, ClassVar, Dict, List, Mapping, Protocol, Sequence, Tuple

from .disturbance import Disturbance
from .frozen import frozen
from .model import Gpu

#: Profile and compute slices of the instances of a GPU, by start, while steps are simulated.
Instances = Dict[int, Tuple[str, List[int]]]


class GpuStep:
    """A step on one GPU, as a frozen dataclass whose text is shown in plans.

    By default it affects no device.
    """

    #: Key of the technique that applies it.
    technique: ClassVar[str]
    #: Its key in `Plan.counts`.
    counted: ClassVar[str] = ""
    #: Whether it creates or destroys devices.
    changes_devices: ClassVar[bool] = False
    #: Whether it ends workloads in an instance or on the GPU.
    ends: ClassVar[bool] = False

    @property
    def ended_instance(self) -> int | None:
        """Return the id of the GPU instance of which it destroys something."""
        return None

    def switches(self, gpu: Gpu) -> bool:
        """Return whether the whole GPU becomes another device."""
        return False

    def change(self, instances: Instances, starts: Mapping[int, int]) -> None:
        """Simulate the step on `instances`.

        `starts` has the starts of the current instances by id.
        """

    def implied(self, steps: Sequence[GpuStep]) -> bool:
        """Return whether other steps of the GPU imply it."""
        return False


@frozen
class GpuPart:
    """A technique's steps on one GPU, and its texts before and after them."""

    steps: tuple[GpuStep, ...] = ()
    before: str = ""
    after: str = ""


@frozen
class NoPart:
    """The HostPart of a technique that neither host nor layout have."""

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
    """A technique's steps on a host's services, such as daemons."""

    #: Key of the technique.
    key: str
    #: Holders that the steps would interrupt.
    disturbs: tuple[Disturbance, ...]

    @property
    def steps(self) -> Sequence[Any]:
        """Return the steps."""

    def lines(self) -> list[str]:
        """Return the steps in words, for people."""

    def planned(self) -> Sequence[Any]:
        """Return the planned objects on the GPUs, in the form of `Service.seen`."""

    def to_data(self) -> list[dict[str, Any]]:
        """Return the steps in the form of saved plans, without current workloads."""

    def gpus_changed(self) -> frozenset[str]:
        """Return the UUIDs of the GPUs that a step affects."""

    def before(self, gpu_uuid: str) -> str:
        """Return the current objects on a GPU in words, or ""."""

    def after(self, gpu_uuid: str) -> str:
        """Return the planned objects on a GPU in words, or ""."""
