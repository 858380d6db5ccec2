# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find NVIDIA GPUs in sysfs, without a driver."""

from __future__ import annotations

import os
from pathlib import Path

DEVICES = "/sys/bus/pci/devices"
# The driver's information file for a GPU. It contains the UUID.
_INFORMATION = "/proc/driver/nvidia/gpus/%s/information"
_NVIDIA = "0x10de"
# PCI base class 03 is a display controller. Data center GPUs have class 0302 (3D controller).
_DISPLAY = "0x03"

# Rows of (source, first driver that supports the model, model, PCI device ids). A driver is a version or a branch. A
# unit test compares the rows with the model files, which hosts do not have. Models that branch 470 or older supports
# are omitted.
_MINIMUM_DRIVERS = """
guide 525.85.12 H100-80GB 2330 2331 2322 2324
guide 535.161.07 H20-96GB 2329
guide 550.90.07 H200-141GB 2335 233b
guide 570.133.20 B200-180GB 2901
guide 570.133.20 GB200-186GB 2941
guide 575.51.03 RTXPRO6000-96GB 2bb5
guide 575.64 RTXPRO4500-32GB 2c31
guide 580.82.07 B300-269GB 3182
open 525 H100-94GB 2339
open 525 L4-24GB 27b8
open 525 RTX6000ADA-48GB 26b1
open 535 GH200-96GB 2342
open 535 H100-94GB 2321 233a
open 535 L40S-48GB 26b9
open 570.133.07 RTXPRO6000-96GB 2bb1 2bb4
open 570.153.02 RTXPRO5000-48GB 2bb3
open 580.82.07 GB300-278GB 31c2
unconfirmed 525.85.12 H100-96GB 233d 2338
unconfirmed 565.57.01 GH200-144GB 2348
unconfirmed 570.86.15 H20-141GB 232c
"""
_SOURCES = {
    "guide": "NVIDIA MIG User Guide 620, Deployment Considerations",
    "open": "README of NVIDIA/open-gpu-kernel-modules, Compatible GPUs",
    "unconfirmed": "not confirmed",
}


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
    functions are excluded. So is a boot display adapter without a driver, which may be too old for the NVIDIA driver.
    """
    expected = []
    for gpu in nvidia_gpus(devices):
        device = Path(devices, gpu["address"])
        driver = os.path.basename(os.path.realpath(device / "driver")) if (device / "driver").exists() else ""  # noqa: PTH119
        is_spare_display = not driver and _read(device / "boot_vga") == "1"
        if driver in ("nvidia", "") and not (device / "physfn").exists() and not is_spare_display:
            expected.append(gpu["address"])
    return expected


def minimum_driver(device_id: str) -> tuple[str, str, str] | None:
    """Return model, first driver and source for a PCI device ID, or None."""
    for line in _MINIMUM_DRIVERS.split("\n"):
        source, version, model, *ids = line.split() or ("", "", "")
        if device_id in ids:
            return model, version, _SOURCES[source]
    return None


def device_id_of(address: str) -> str:
    """Return the PCI device ID at this address as four hex digits, or ""."""
    return _read(Path(DEVICES, address, "device"))[2:]


def uuid_of(address: str) -> str | None:
    """Return the UUID from the driver's information file for this address, or None."""
    try:
        lines = Path(_INFORMATION % address).read_text().splitlines()
    except OSError:
        return None
    uuids = [line.partition(":")[2].strip() for line in lines if line.startswith("GPU UUID")]
    # The driver writes question marks before it has initialized the GPU.
    return uuids[0] if uuids and uuids[0].startswith("GPU-") and "?" not in uuids[0] else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip().lower()
    except OSError:
        return ""
