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
        """Return a copy of the device with the value of another device.

        Returns None if no other device has the value, and the device cannot work without it.
        """

    def lost(self) -> LostGpu:
        """Return the device as a lost device."""


class Session(Protocol):
    """A connection to the devices of a host, as a context manager. A run has one."""

    #: Called after the devices were read.
    observers: Sequence[Any]
    #: Whether the devices are simulated for this process only.
    private: bool

    def observe(self, *, only: str | None = None) -> Host:
        """Return the host with its devices.

        UUIDs of devices must start with GPU-, or `layout/selectors.py` needs a pattern for them. If `only` is a UUID,
        only this device is read, and the other devices are returned as last read. A device that fails is in
        `Host.lost`. Raises DeviceError if the driver fails.
        """

    def give_up(self, gpu: str, error: DeviceError) -> None:
        """Treat a device as lost for the rest of the session."""


class Divider(Protocol):
    """Divide a device into parts. The methods that plan have no side effects."""

    #: Value of `sharing` in `gpu_layout`, and key of the steps.
    key: str
    #: Top-level keys of a target in journals and saved plans.
    target_keys: Sequence[str]

    def wanted(self, part: Any) -> Division:
        """Return the desired division that the part of a layout entry describes."""

    def current(self, device: Any) -> Division | None:
        """Return the desired division that restores the observed division.

        All its parts are pinned to their positions.
        """

    def plan(self, device: Any, target: Target, ownership: Ownership, undivided: Sequence[str]) -> DivisionPart:
        """Return the steps from the current to the desired division.

        `undivided` are the values of `sharing` that need no division, for messages. Raises PlanError if the device
        cannot be divided in this way, or if parts of other owners would be removed.
        """

    def disturbed(self, device: Any, steps: Iterable[GpuStep]) -> tuple[Disturbance, ...]:
        """Return the holders that the steps would disturb on the device as read now."""

    def apply(self, session: Any, gpu_uuid: str, steps: Sequence[GpuStep], done: Callable[[GpuStep], None]) -> None:
        """Apply steps in this order, and call `done` for each completed one.

        If a step needs a reset, reset the device. Raises DeviceError if a step has no effect.
        """

    def reload(self, session: Any) -> None:
        """Reload the driver to complete steps that need a reload. Raises DeviceError."""

    def leave_pending(self, session: Any, plans: Sequence[GpuPlan]) -> None:
        """Leave the steps that need a reset pending until the host reboots.

        If one of these steps fails, all of them are reverted and ApplyError is raised.
        """

    def reboot_line(self, device: Any) -> str:
        """Return a sentence if the plan may need a reboot, else "".

        A reboot is needed if the device may refuse a reset.
        """

    def untouched(self, device: Any, wanted: Division | None) -> bool:
        """Return whether the division is as wanted or as after a boot."""

    def only(self, device: Any, parts: Sequence[Any]) -> Any:
        """Return a copy of the device that has only these parts."""

    def report(self, planned: Any, device: Any) -> dict[str, Any]:
        """Return the keys about the division in the modules' return value `gpus`.

        `planned` is the device as it was read for the plan. `device` is the device as it was last read.
        """

    def target_data(self, division: Division | None) -> dict[str, Any]:
        """Return `target_keys` with their values in journals and saved plans.

        The argument is None if the target is not divided, or divided by another divider. In both cases, a new divider
        must return {}.
        """

    def from_target_data(self, data: Mapping[str, Any]) -> Division | None:
        """Return the division that `target_data` wrote, or None.

        A release without this divider may have written the data. If the data lacks `target_keys`, a new divider must
        return None. Raises KeyError, TypeError or ValueError if the data is invalid.
        """

    def pinned(self, division: Division | None, planned: Any) -> Division | None:
        """Return the desired division with the parts under `planned` in a saved plan."""

    def observed_data(self, device: Any) -> dict[str, Any]:
        """Return the observed division in the format of saved plans."""

    def differences(self, then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Return the differences between two values of `observed_data`.

        The first list has the differences of the device, and the second has the differences of its parts.
        """


class DeviceSetting(Protocol):
    """A value that is set on each whole device."""

    #: Key of the steps.
    key: str
    #: Name in `Target.settings`, journals and saved plans.
    setting: str

    def current(self, gpu: Any) -> str | None:
        """Return the value that restores the observed state.

        Returns None if the value must not be changed.
        """

    def observed(self, gpu: Any) -> str | None:
        """Return the observed value, for saved plans."""

    def plan(self, gpu: Any, target: Target) -> GpuPart:
        """Return the steps that set the value of the target.

        Raises PlanError if the device does not support the value.
        """

    def apply(self, session: Any, gpu_uuid: str, step: Any) -> None:
        """Apply a step. Raises DeviceError if the step has no effect."""

    def difference(self, then: str | None, now: str | None) -> str | None:
        """Return the difference between a saved and an observed value as text, or None."""

    def untouched(self, gpu: Any, wanted: str | None) -> bool:
        """Return whether the value is as wanted or as after a boot."""


class VendorSetting(DeviceSetting, Protocol):
    """A setting whose value the kind of sharing determines. The session reads it."""

    def wanted(self, sharing: str, form: Form | None) -> str | None:
        """Return the value for a kind of sharing, or None for no change.

        `form` is the technique's form. It is None for kinds of sharing without a part in the layout.
        """


class Vendor(Protocol):
    """A vendor of GPUs."""

    key: str
    #: The class of errors about devices: DeviceError or a subclass. The session and the dividers raise it if the driver
    #: fails, UnansweredCallError if a call does not return, ResetRefusedError if a device refuses a reset, and
    #: DriverAbsentError if the driver is missing. Planning raises PlanError.
    failure: type[Any]
    #: Names for messages: the library that reads the devices, the command that shows them, and other tools that divide
    #: them.
    reader: str
    command: str
    other_tools: str

    @property
    def dividers(self) -> Sequence[Any]:
        """Return the dividers, as `Divider`."""

    @property
    def settings(self) -> Sequence[VendorSetting]:
        """Return the settings, in the order of their steps."""

    def present(self) -> bool:
        """Return whether the host has GPUs of this vendor."""

    def open(self) -> ContextManager[Any]:
        """Return a new session. Raises DriverAbsentError if the driver is missing."""

    def with_holders(self, host: Host, own: Pids) -> Host:
        """Return the host with the holders of its devices and their parts.

        `own` maps the UUID of each device to the PIDs of service processes. The result has them neither as holders nor as
        processes of a device.
        """

    def gaps(self, host: Host) -> Iterator[Gap]:
        """Yield values that a device does not report, unlike other devices of its model."""

    def lost_error(self, where: str, gpus: Sequence[LostGpu]) -> DeviceError:
        """Return the error for these lost devices, with the fix."""

    def after(self, plan: Any) -> Any:
        """Return the device after its plan is applied. Parts of other owners are left out."""

    def lend(self, source: str) -> None:
        """Use this text of the driver's binding if the host has no binding."""

    def respawn(self) -> None:
        """Restart the module with an interpreter that has the driver's binding.

        Returns only if the host has no such interpreter.
        """

    def without_driver(self, error: Any) -> dict[str, Any]:
        """Return what check mode reports about a host whose driver or binding is missing."""

    def binding(self) -> dict[str, Any]:
        """Return what check mode reports about the installed binding."""
