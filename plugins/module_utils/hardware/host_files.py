# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read files of the kernel and the driver in /proc, /dev and /sys.

Every file may be missing.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any, Iterable

from ..processes.proc_files import link, read

_MOST = 1 << 16
_NODES = re.compile(r"nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset)")
_MIG_MINOR = re.compile(r"(\S+) (\d+)")
_PARAMETERS = ("NvLinkDisable",)
_PCI_FILES = (
    "vendor", "device", "subsystem_vendor", "subsystem_device", "class", "numa_node",
    "current_link_speed", "current_link_width", "max_link_speed", "max_link_width",
)  # fmt: skip


def read_host(pci_addresses: Iterable[str], root: str = "/") -> dict[str, Any]:
    """Return the data in the files.

    `root` is where the host's file system is mounted.
    """
    at = Path(root)
    return {
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "driver_version": _driver_version(at),
        "modules": _modules(at),
        "parameters": _parameters(at),
        "majors": _majors(at),
        "gpus": _gpus(at),
        "mig_minors": dict(_mig_minors(at)),
        "capabilities": sorted(path.name for path in _listed(at / "proc/driver/nvidia/capabilities/mig")),
        "devices": _devices(at),
        "pci": {address: _pci(at, address) for address in pci_addresses},
    }


def _driver_version(root: Path) -> str | None:
    """Return the version of the loaded kernel module."""
    match = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", read(str(root / "proc/driver/nvidia/version"), _MOST))
    return match.group(1) if match else None


def _modules(root: Path) -> list[str]:
    lines = read(str(root / "proc/modules"), 1 << 20).splitlines()
    return sorted(line.split()[0] for line in lines if line.startswith(("nvidia", "nouveau")))


def _parameters(root: Path) -> dict[str, str]:
    """Return the parameters of the loaded module that affect GPU features."""
    lines = read(str(root / "proc/driver/nvidia/params"), _MOST).splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _colon, value in pairs if name in _PARAMETERS}


def _majors(root: Path) -> dict[str, int]:
    """Return the major numbers of the driver's character devices by name.

    The names are those in /proc/devices.
    """
    text = read(str(root / "proc/devices"), _MOST).partition("Block devices")[0]
    return {name: int(major) for major, name in re.findall(r"^ *(\d+) (nvidia\S*)$", text, re.MULTILINE)}


def _gpus(root: Path) -> dict[str, dict[str, str]]:
    """Return the lines of each GPU's file `information`, by PCI address.

    The files are in /proc/driver/nvidia/gpus.
    """
    gpus = {}
    for folder in _listed(root / "proc/driver/nvidia/gpus"):
        lines = read(str(folder / "information"), _MOST).splitlines()
        gpus[folder.name] = {
            key.strip(): value.strip() for key, colon, value in (line.partition(":") for line in lines) if colon
        }
    return gpus


def _mig_minors(root: Path) -> Iterable[tuple[str, int]]:
    for line in read(str(root / "proc/driver/nvidia-caps/mig-minors"), 1 << 20).splitlines():
        match = _MIG_MINOR.fullmatch(line.strip())
        if match:
            yield match.group(1), int(match.group(2))


def _devices(root: Path) -> list[dict[str, Any]]:
    """Return the driver's device nodes, including capabilities.

    Each node has its major and minor number and its mode.
    """
    nodes = [path for path in _listed(root / "dev") if _NODES.fullmatch(path.name)]
    nodes += _listed(root / "dev/nvidia-caps")
    devices = []
    for path in nodes:
        try:
            info = path.stat()
        except OSError:
            continue
        if stat.S_ISCHR(info.st_mode):
            name = str(path.relative_to(root / "dev"))
            mode = "%04o" % stat.S_IMODE(info.st_mode)
            devices.append(
                {"name": name, "major": os.major(info.st_rdev), "minor": os.minor(info.st_rdev), "mode": mode}
            )
    return devices


def _pci(root: Path, address: str) -> dict[str, str] | None:
    folder = root / "sys/bus/pci/devices" / address
    if not folder.is_dir():
        return None
    values = {name: read(str(folder / name), _MOST).strip() for name in _PCI_FILES}
    values["driver"] = (link(str(folder / "driver")) or "").rpartition("/")[2]
    return values


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
