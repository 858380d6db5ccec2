# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the GPU vendors. A new vendor needs a folder and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from ..model import Device
from ..plan.gpu_plan import Target
from .nvidia.vendor import NvidiaVendor

if TYPE_CHECKING:
    from .protocol import Divider, Vendor

VENDORS: tuple[Vendor, ...] = (NvidiaVendor(),)

#: All dividers by key.
DIVIDERS: dict[str, Divider] = {divider.key: divider for vendor in VENDORS for divider in vendor.dividers}


def vendor_of_host() -> Vendor:
    """Return the vendor of the host's GPUs.

    Without GPUs of a known vendor, returns the first vendor.
    """
    return next((vendor for vendor in VENDORS[1:] if vendor.present()), VENDORS[0])


def vendor_of(device: Device) -> Vendor:
    """Return the vendor of a device."""
    return next(vendor for vendor in VENDORS if vendor.key == device.vendor)


def divider_of(device: Device) -> Divider:
    """Return the divider that can divide a device."""
    return DIVIDERS[device.divider]


def target_data(target: Target) -> dict[str, Any]:
    """Return a target as data for journals and saved plans.

    The settings' names and each divider's `target_keys` are top-level keys.
    """
    data: dict[str, Any] = {"gpu_uuid": target.gpu_uuid, "where": target.where, "sharing": target.sharing}
    for key, divider in DIVIDERS.items():
        divided = target.division is not None and target.division.divider == key
        data.update(divider.target_data(target.division if divided else None))
    return {**data, **target.settings}


def target_from_data(data: Mapping[str, Any]) -> Target:
    """Return the target from data that `target_data` created.

    Raises KeyError, TypeError or ValueError if the data is invalid.
    """
    divisions = [divider.from_target_data(data) for divider in DIVIDERS.values()]
    own = {"gpu_uuid", "where", "sharing"}.union(*(divider.target_keys for divider in DIVIDERS.values()))
    settings = {name: value for name, value in data.items() if name not in own}
    division = next((each for each in divisions if each is not None), None)
    return Target(data["gpu_uuid"], data["where"], data["sharing"], division, settings)
