#!/usr/bin/python3
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate a lab host's hardware and kernel files for the driver's installation.

/etc/simulated-hardware.json describes the hardware: {"gpus": ["2330"], "nvswitches": 4, "nvlink_bridges": 0, "nouveau": false,
"secure_boot": false, "mok": ""}. `boot` creates the hardware below /sys in separate file systems. Then it loads the modules that
a kernel loads by itself and those in /etc/modules-load.d. `modprobe nvidia` loads the stand-in module that is installed for this
kernel. A loaded module has the file /sys/module/nvidia/version, and NVML reports the GPUs. If the role gpu_simulator creates
GPUs, this program does not create them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CONFIGURATION = Path("/etc/simulated-hardware.json")
DEVICES = Path("/sys/bus/pci/devices")
MODULES = Path("/sys/module")
EFI = Path("/sys/firmware/efi/efivars")
#: The role gpu_simulator writes this file if it creates the GPUs itself.
ROLE_CONFIGURATION = Path("/etc/gpusim/gpus.json")
#: PCI buses of the simulated GPUs (gpusim/configuration.py). The driver would not count a GPU on any other bus.
FIRST_BUS, BUS_STEP = 0x1A, 0x0E
GLOBAL = "-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SHIM = "-605dab50-e046-4300-abb6-3dd810dd8b23"
MODELS = {"2330": "H100-80GB", "20b2": "A100-80GB", "26b9": "L40S-48GB", "2901": "B200-180GB"}


def mount(path: Path) -> None:
    while os.path.ismount(path):
        subprocess.run(["umount", str(path)], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "simulated", str(path)], check=True)


def device(slot: int, vendor: str, device_id: str, pci_class: str, vpd: bytes = b"") -> None:
    folder = DEVICES / ("0000:%02x:00.0" % slot)
    folder.mkdir()
    for name, text in (("vendor", vendor), ("device", device_id), ("class", pci_class)):
        (folder / name).write_text(text + "\n")
    (folder / "vpd").write_bytes(vpd)


def boot(hardware: dict) -> None:
    for path in (DEVICES, MODULES, Path("/sys/firmware")):
        mount(path)
    gpus = hardware.get("gpus", [])
    for number, device_id in enumerate(gpus):
        device(FIRST_BUS + BUS_STEP * number, "0x10de", "0x" + device_id, "0x030200")
    for number in range(hardware.get("nvswitches", 0)):
        device(0xC0 + number, "0x10de", "0x22a3", "0x068000")
    for number in range(hardware.get("nvlink_bridges", 0)):
        device(0xE0 + number, "0x15b3", "0x1021", "0x020700", b"ConnectX-7 SMDL=SW_MNG")
    EFI.mkdir(parents=True)
    (EFI / ("SecureBoot" + GLOBAL)).write_bytes(b"\x06\0\0\0" + bytes([bool(hardware.get("secure_boot"))]))
    enrolled = Path(hardware.get("mok") or "/nonexistent")
    (EFI / ("MokListRT" + SHIM)).write_bytes(b"\x06\0\0\0" + (enrolled.read_bytes() if enrolled.exists() else b""))
    if not ROLE_CONFIGURATION.exists():
        Path("/var/lib/gpusim/state").unlink(missing_ok=True)
    blacklisted = any("blacklist nouveau" in path.read_text() for path in Path("/etc/modprobe.d").glob("*.conf"))
    if hardware.get("nouveau") and gpus and not blacklisted:
        (MODULES / "nouveau").mkdir()
    elif gpus and version():
        load(hardware)
    if any("ib_umad" in path.read_text().split() for path in Path("/etc/modules-load.d").glob("*.conf")):
        load_umad()


def version() -> str:
    done = subprocess.run(["modinfo", "-F", "version", "nvidia"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def load(hardware: dict) -> None:
    there = version()
    if not there:
        sys.exit("modprobe: FATAL: Module nvidia not found in directory /lib/modules/%s" % os.uname().release)
    if (MODULES / "nouveau").exists():
        sys.exit("modprobe: ERROR: could not insert 'nvidia': Device or resource busy")
    if (MODULES / "nvidia").exists():
        return
    (MODULES / "nvidia").mkdir()
    (MODULES / "nvidia" / "version").write_text(there + "\n")
    if ROLE_CONFIGURATION.exists():
        return
    counts: dict[str, int] = {}
    for device_id in hardware.get("gpus", []):
        counts[MODELS[device_id]] = counts.get(MODELS[device_id], 0) + 1
    gpus = [{"model": model, "count": count} for model, count in counts.items()]
    layout = {"host": os.uname().nodename, "driver_version": there, "gpus": gpus}
    folders = (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"))
    library = next((path for folder in folders for path in folder.glob("libnvidia-ml.so.[0-9]*.[0-9]*")), None)
    if library is None:
        return
    Path("/var/lib/gpusim").mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ, GPUSIM_LIBRARY=str(library), GPUSIM_MODELS="/srv/mirror/simulated/models",
                       GPUSIM_STATE="/var/lib/gpusim/state")  # fmt: skip
    subprocess.run(["python3", "/srv/mirror/simulated/gpusim", "init", "--config", "-"], input=json.dumps(layout),
                   text=True, env=environment, check=True, stdout=subprocess.DEVNULL)  # fmt: skip


def load_umad() -> None:
    (MODULES / "ib_umad").mkdir(exist_ok=True)


def main() -> None:
    hardware = json.loads(CONFIGURATION.read_text())
    if sys.argv[1:] == ["boot"]:
        boot(hardware)
    elif sys.argv[-1].startswith("nvidia"):
        load(hardware)
    elif sys.argv[-1] == "ib_umad":
        load_umad()
    else:
        sys.exit("modprobe: only the simulated nvidia and ib_umad can be loaded here")


if __name__ == "__main__":
    main()
