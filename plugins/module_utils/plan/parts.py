# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define a technique's parts of a plan: on a GPU and on the host."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, Sequence

from ..frozen import frozen
from .disturbance import Disturbance

#: Effects that a step can need: a reset of its GPU, or a reload of the driver for all GPUs of the host. If a
#: reset is refused, a reboot of the host is needed.
RESET, RELOAD = "reset", "reload"


class GpuStep:
    """A step on one GPU. Plans show its text.

    Subclasses are frozen dataclasses. By default, a step affects no device.
    """

    #: Key of the technique that applies the step.
    technique: ClassVar[str]
    #: Key in `Plan.counts` that counts the step.
    counted: ClassVar[str] = ""
    #: Whether the step creates or destroys devices.
    changes_devices: ClassVar[bool] = False
    #: Whether the step ends workloads in an instance or on the GPU.
    ends: ClassVar[bool] = False
    #: RESET or RELOAD if the step takes effect only then. Otherwise "".
    needs: ClassVar[str] = ""

    @property
    def ended_instance(self) -> int | None:
        """Return the id of the GPU instance in which the step destroys something."""
        return None

    def switches(self, gpu: Any) -> bool:
        """Return whether the step turns the whole GPU into another device."""
        return False

    def implied(self, steps: Sequence[GpuStep]) -> bool:
        """Return whether other steps on the GPU include this step."""
        return False


@frozen
class GpuPart:
    """A technique's steps on one GPU, with the state before and after them as text."""

    steps: tuple[GpuStep, ...] = ()
    before: str = ""
    after: str = ""


class DivisionPart(Protocol):
    """A divider's steps on one GPU. Each implementation is a frozen dataclass."""

    @property
    def steps(self) -> tuple[GpuStep, ...]:
        """Return the steps."""

    @property
    def kept(self) -> Sequence[Any]:
        """Return the GPU's parts that stay."""

    @property
    def left(self) -> Sequence[Any]:
        """Return other owners' parts without a layout entry, which are not changed."""

    @property
    def disturbs(self) -> tuple[Disturbance, ...]:
        """Return what the steps would interrupt on the GPU, with the holders.

        Does not include the effects of a reload of the driver.
        """

    def kept_uuids(self) -> list[str]:
        """Return the UUIDs of the GPU's devices that no step removes."""

    def planned(self) -> Sequence[Any]:
        """Return the kept and the new parts, each with a fixed position."""

    def before(self) -> str:
        """Return the observed division as text."""

    def after(self) -> str:
        """Return the division after all steps as text."""


@frozen
class NoPart:
    """The HostPart of a technique that neither the host nor the layout uses."""

    key: str
    disturbs: ClassVar[tuple[Disturbance, ...]] = ()
    steps: ClassVar[Sequence[Any]] = ()

    def lines(self) -> list[str]:
        """Return no lines."""
        return []

    def planned(self) -> Sequence[Any]:
        """Return no objects."""
        return ()

    def to_data(self) -> list[dict[str, Any]]:
        """Return no steps."""
        return []

    def gpus_changed(self) -> frozenset[str]:
        """Return no GPUs."""
        return frozenset()

    def before(self, gpu_uuid: str) -> str:
        """Return ""."""
        return ""

    after = before


class HostPart(Protocol):
    """A technique's steps for its services on a host, such as daemons."""

    #: Key of the technique.
    key: str
    #: Everything that the steps would interrupt, with the holders.
    disturbs: tuple[Disturbance, ...]

    @property
    def steps(self) -> Sequence[Any]:
        """Return the steps."""

    def lines(self) -> list[str]:
        """Return the steps as lines of text."""

    def planned(self) -> Sequence[Any]:
        """Return the daemons or tenants after the steps, in the form of `Service.seen`."""

    def to_data(self) -> list[dict[str, Any]]:
        """Return the steps as data for saved plans, without current workloads."""

    def gpus_changed(self) -> frozenset[str]:
        """Return the UUIDs of the GPUs that a step affects."""

    def before(self, gpu_uuid: str) -> str:
        """Return the current daemons or tenants on a GPU as text, or ""."""

    def after(self, gpu_uuid: str) -> str:
        """Return the planned daemons or tenants on a GPU as text, or ""."""
