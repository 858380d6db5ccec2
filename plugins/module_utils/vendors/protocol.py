# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the interface of a GPU vendor.

A vendor is a folder next to this file. Only `registry.py` names the folder.
A device (`model.Device`) is a GPU as its vendor's session reads it. A divider divides a device into parts. A setting has one
value for each whole device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, ContextManager, Iterable, Iterator, Mapping, Protocol, Sequence

if TYPE_CHECKING:
    from ..errors import DeviceError
    from ..layout.form import Form
    from ..model import Division, Host, LostGpu
    from ..plan.disturbance import Disturbance
    from ..plan.gpu_plan import GpuPlan, Target
    from ..plan.ownership import Ownership
    from ..plan.parts import DivisionPart, GpuPart, GpuStep
    from ..plan.services import Pids


class Gap(Protocol):
    """A value that a device does not report, unlike other devices of its model."""

    @property
    def gpu(self) -> Any:
        """Return the device."""

    @property
    def completed(self) -> Any:
        """Return a copy of the device with another device's value.

        Returns None if no other device has the value and the device cannot work without it.
        """

    def lost(self) -> LostGpu:
        """Return the device as a lost one."""


class Session(Protocol):
    """A connection to a host's devices, as a context manager. A run has one."""

    #: Called after the devices were read.
    observers: Sequence[Any]
    #: Whether only this process simulates the devices.
    private: bool

    def observe(self, *, only: str | None = None) -> Host:
        """Return the host with its devices.

        UUIDs of devices must start with GPU-, or `layout/selectors.py` needs a pattern for them. If `only` is a UUID,
        reads only this device, and returns the others as last read. A device that fails is in `Host.lost`. Raises
        DeviceError if the driver fails.
        """

    def give_up(self, gpu: str, error: DeviceError) -> None:
        """Count a device as lost for the rest of the session."""


class Divider(Protocol):
    """Divide a device into parts. The methods that plan are pure."""

    #: Value of `sharing` in `gpu_layout`, and key of the steps.
    key: str
    #: A target's top-level keys in journals and saved plans.
    target_keys: Sequence[str]

    def wanted(self, part: Any) -> Division:
        """Return the desired division in the part of a layout entry."""

    def current(self, device: Any) -> Division | None:
        """Return the desired division that restores the observed one.

        All its parts are pinned to their positions.
        """

    def plan(self, device: Any, target: Target, ownership: Ownership, undivided: Sequence[str]) -> DivisionPart:
        """Return the steps from the current to the desired division.

        `undivided` has the values of `sharing` that need no division, for messages. Raises PlanError if the device
        cannot be divided in this way, or if other owners' parts would be removed.
        """

    def disturbed(self, device: Any, steps: Iterable[GpuStep]) -> tuple[Disturbance, ...]:
        """Return the holders that the steps would disturb on the device as read now."""

    def apply(self, session: Any, gpu_uuid: str, steps: Sequence[GpuStep], done: Callable[[GpuStep], None]) -> None:
        """Apply steps in this order, and call `done` for each completed one.

        Resets the device if a step needs it. Raises DeviceError if a step has no effect.
        """

    def reload(self, session: Any) -> None:
        """Reload the driver to complete steps that need a reload. Raises DeviceError."""

    def leave_pending(self, session: Any, plans: Sequence[GpuPlan]) -> None:
        """Leave the steps that need a reset pending until the host reboots.

        If one of them fails, all are reverted and ApplyError is raised.
        """

    def reboot_line(self, device: Any) -> str:
        """Return a sentence if the plan may need a reboot, else "".

        A reboot is needed if the device may refuse a reset.
        """

    def untouched(self, device: Any, wanted: Division | None) -> bool:
        """Return whether the division is the wanted one or the one after a boot."""

    def only(self, device: Any, parts: Sequence[Any]) -> Any:
        """Return a copy of the device with these parts only."""

    def report(self, planned: Any, device: Any) -> dict[str, Any]:
        """Return the keys about the division in the modules' return value `gpus`.

        `planned` is the device as read for the plan, `device` as last read.
        """

    def target_data(self, division: Division | None) -> dict[str, Any]:
        """Return `target_keys` with their values in journals and saved plans.

        The argument is None if the target is not divided, or has another divider. A new divider must then return {}.
        """

    def from_target_data(self, data: Mapping[str, Any]) -> Division | None:
        """Return the division from data of `target_data`, or None.

        The data may come from a release without this divider. So a new divider must return None if `target_keys` are
        missing. Raises KeyError, TypeError or ValueError if the data is invalid.
        """

    def pinned(self, division: Division | None, planned: Any) -> Division | None:
        """Return the desired division with the parts under `planned` in a saved plan."""

    def observed_data(self, device: Any) -> dict[str, Any]:
        """Return the observed division in the format of saved plans."""

    def differences(self, then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Return the differences between two values of `observed_data`.

        The first list has the device's differences, the second its parts'.
        """


class DeviceSetting(Protocol):
    """A value that can be set on each whole device."""

    #: Key of the steps.
    key: str
    #: Name in `Target.settings`, journals and saved plans.
    setting: str

    def current(self, gpu: Any) -> str | None:
        """Return the value that restores the observed state, or None for no change."""

    def observed(self, gpu: Any) -> str | None:
        """Return the observed value, for saved plans."""

    def plan(self, gpu: Any, target: Target) -> GpuPart:
        """Return the steps that set the target's value.

        Raises PlanError if the device does not support the value.
        """

    def apply(self, session: Any, gpu_uuid: str, step: Any) -> None:
        """Apply a step. Raises DeviceError if the step has no effect."""

    def difference(self, then: str | None, now: str | None) -> str | None:
        """Return the difference between a saved and an observed value as text, or None."""

    def untouched(self, gpu: Any, wanted: str | None) -> bool:
        """Return whether the value is the wanted one or the one after a boot."""


class VendorSetting(DeviceSetting, Protocol):
    """A setting that follows from the kind of sharing. The session reads its value."""

    def wanted(self, sharing: str, form: Form | None) -> str | None:
        """Return the value for a kind of sharing, or None for no change.

        `form` is the technique's form. It is None for kinds of sharing without a part in the layout.
        """


class Vendor(Protocol):
    """A vendor of GPUs."""

    key: str
    #: Class of errors about devices: DeviceError or a subclass. The session and the dividers raise it if the driver
    #: fails, UnansweredCallError if a call does not return, ResetRefusedError if a device refuses a reset, and
    #: DriverAbsentError without a driver. Planning raises PlanError.
    failure: type[Any]
    #: Names for messages: the library that reads devices, the command that shows them, and other tools that divide
    #: them.
    reader: str
    command: str
    other_tools: str

    @property
    def dividers(self) -> Sequence[Any]:
        """Return the vendor's dividers, as `Divider`."""

    @property
    def settings(self) -> Sequence[VendorSetting]:
        """Return the vendor's settings, in the order of their steps."""

    def present(self) -> bool:
        """Return whether the host has GPUs of this vendor."""

    def open(self) -> ContextManager[Any]:
        """Return a new session. Raises DriverAbsentError if the driver is missing."""

    def with_holders(self, host: Host, own: Pids) -> Host:
        """Return the host with the holders of its devices and their parts.

        `own` has the PIDs of services' processes by device UUID. The result lists them neither as holders nor as
        processes.
        """

    def gaps(self, host: Host) -> Iterator[Gap]:
        """Yield values that a device does not report, unlike other devices of its model."""

    def lost_error(self, where: str, gpus: Sequence[LostGpu]) -> DeviceError:
        """Return the error for these lost devices, with the fix."""

    def after(self, plan: Any) -> Any:
        """Return the device after its plan is applied, without other owners' parts."""

    def lend(self, source: str) -> None:
        """Use this text of the driver's binding if the host has no binding."""

    def respawn(self) -> None:
        """Restart the module with an interpreter that has the driver's binding.

        Returns only if the host has no such interpreter.
        """

    def without_driver(self, error: Any) -> dict[str, Any]:
        """Return check mode's result for a host without the driver or its binding."""

    def binding(self) -> dict[str, Any]:
        """Return check mode's result about the installed binding."""
