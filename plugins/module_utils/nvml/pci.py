# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find NVIDIA GPUs in sysfs, without a driver."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Sequence

from ..model import Gpu, LostGpu

DEVICES = "/sys/bus/pci/devices"
# The driver's information file for a GPU. It contains the UUID.
_INFORMATION = "/proc/driver/nvidia/gpus/%s/information"
_NVIDIA = "0x10de"
# PCI base class 03 is a display controller. Data center GPUs have class 0302 (3D controller).
_DISPLAY = "0x03"


def nvidia_gpus(devices: str = DEVICES) -> list[dict[str, str]]:
    """Return the NVIDIA GPUs on the PCI bus, in the order of their addresses.

    Each has `address` and `device_id` (four hex digits). Returns [] if there is no sysfs.
    """
    gpus = []
    folder = Path(devices)
    for device in sorted(folder.iterdir()) if folder.is_dir() else ():
        attributes = {name: _read(device / name) for name in ("vendor", "class", "device")}
        if attributes["vendor"] == _NVIDIA and attributes["class"].startswith(_DISPLAY):
            gpus.append({"address": device.name, "device_id": attributes["device"][2:]})
    return gpus


def expected_gpus(devices: str = DEVICES) -> list[str]:
    """Return the addresses of the NVIDIA GPUs that the driver should list, in order.

    These GPUs are bound to the driver nvidia or to no driver. GPUs with other drivers (vfio-pci, nouveau) and virtual
    functions do not count. A boot display adapter without a driver does not count either, because it may be too old for
    the NVIDIA driver.
    """
    expected = []
    for gpu in nvidia_gpus(devices):
        device = Path(devices, gpu["address"])
        driver = os.path.basename(os.path.realpath(device / "driver")) if (device / "driver").exists() else ""  # noqa: PTH119
        is_spare_display = not driver and _read(device / "boot_vga") == "1"
        if driver in ("nvidia", "") and not (device / "physfn").exists() and not is_spare_display:
            expected.append(gpu["address"])
    return expected


def with_bus(gpus: Sequence[Gpu], lost: Sequence[LostGpu], simulated: bool) -> tuple[LostGpu, ...]:
    """Return the lost GPUs, and add GPUs that the driver does not list.

    If one lost GPU has no address, its address is added if it can be determined. Simulated GPUs are not on the bus of
    the machine, unless `gpusim kernel-files` simulates the bus.
    """
    if simulated and not os.path.ismount(DEVICES):
        return tuple(lost)
    known = {(gpu.pci_address or "").lower() for gpu in (*gpus, *lost)}
    missing = [address for address in expected_gpus() if address not in known]
    unplaced = [gpu for gpu in lost if gpu.pci_address is None]
    elsewhere = [gpu for gpu in gpus if gpu.pci_address is None]
    if len(missing) == len(unplaced) == 1 and not elsewhere:
        # If one GPU has no address and one address has no GPU, they belong together.
        placed = dataclasses.replace(unplaced[0], pci_address=missing[0], uuid=unplaced[0].uuid or _uuid(missing[0]))
        return tuple(placed if gpu is unplaced[0] else gpu for gpu in lost)
    if len(missing) <= len(unplaced) + len(elsewhere):
        return tuple(lost)
    problem = "it is on the PCI bus, but missing in the driver"
    return (*lost, *(LostGpu(None, problem, uuid=_uuid(address), pci_address=address) for address in missing))


def _uuid(address: str) -> str | None:
    """Return the UUID from the driver's information file for this address, or None."""
    try:
        lines = Path(_INFORMATION % address).read_text().splitlines()
    except OSError:
        return None
    uuids = [line.partition(":")[2].strip() for line in lines if line.startswith("GPU UUID")]
    # The driver writes question marks until it has initialized the GPU.
    return uuids[0] if uuids and uuids[0].startswith("GPU-") and "?" not in uuids[0] else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip().lower()
    except OSError:
        return ""
