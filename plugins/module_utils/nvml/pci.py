# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NVIDIA GPUs that sit in a host, read from sysfs: known before there is any driver."""

from __future__ import annotations

from pathlib import Path

DEVICES = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
#: PCI base class 03 is a display controller; data-centre GPUs are 0302 (3D controller).
_DISPLAY = "0x03"


def nvidia_gpus(devices: str = DEVICES) -> list[dict[str, str]]:
    """`address` and `device_id` (four hex digits) of each NVIDIA GPU, in order of address; none without sysfs."""
    found = []
    folder = Path(devices)
    for device in sorted(folder.iterdir()) if folder.is_dir() else ():
        attributes = {name: _read(device / name) for name in ("vendor", "class", "device")}
        if attributes["vendor"] == _NVIDIA and attributes["class"].startswith(_DISPLAY):
            found.append({"address": device.name, "device_id": attributes["device"][2:]})
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text().strip().lower()
    except OSError:
        return ""
