# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generate the content of the files that the kernel and the driver provide.

Programs that do not use NVML read these files, for example static programs and Go programs.

/proc/driver/nvidia/version, /proc/driver/nvidia/gpus/ADDRESS/information /proc/driver/nvidia/capabilities/…,
/proc/driver/nvidia-caps/mig-minors /proc/devices, /proc/modules /sys/bus/pci/devices/ADDRESS/…

Sources of the formats: the chapter "Using the /proc File System Interface" of the driver's README, "Device Nodes and
Capabilities" in the MIG User Guide, proc(5), and Documentation/ABI/testing/sysfs-bus-pci of Linux. Simulated GPUs have
no interrupts and memory addresses, so the files omit them or contain 0.
"""

from __future__ import annotations

import functools
import os
import struct
from typing import Any

# The capabilities' minor numbers (MIG User Guide). They depend on the maximum numbers of GPUs, GPU instances and
# compute instances.
CONFIG_MINOR, MONITOR_MINOR, FIRST_INSTANCE_MINOR = 1, 2, 3
GPUS, GPU_INSTANCES, COMPUTE_INSTANCES = 32, 15, 8
MINORS_PER_INSTANCE = 1 + COMPUTE_INSTANCES
MINORS_PER_GPU = GPU_INSTANCES * MINORS_PER_INSTANCE

# The capability nodes' modes (MIG User Guide): only root may configure, and all users may use instances.
ROOT_READS, ALL_READ = 0o400, 0o444

# The driver uses any free major number for capabilities. Numbers 240 to 254 are for local use
# (Documentation/admin-guide/devices.txt of Linux).
LOCAL_MAJORS = range(240, 255)
# The GPUs' major number (same document).
NVIDIA_MAJOR = 195
CAPS = "nvidia-caps"

# GT/s by PCIe generation, in the kernel's format (drivers/pci/probe.c, pci_speed_string).
LINK_SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
# PCI class codes of display controllers with and without a display.
VGA, CONTROLLER_3D = 0x030000, 0x030200


def instance_minor(gpu_minor: int, gpu_instance: int, compute_instance: int | None = None) -> int:
    """Return the minor number of an instance's capability."""
    minor = FIRST_INSTANCE_MINOR + gpu_minor * MINORS_PER_GPU + gpu_instance * MINORS_PER_INSTANCE
    return minor if compute_instance is None else minor + 1 + compute_instance


@functools.lru_cache(maxsize=None)
def mig_minors() -> str:
    """Return the text of mig-minors.

    The file lists missing instances too.
    """
    lines = [f"config {CONFIG_MINOR}", f"monitor {MONITOR_MINOR}"]
    for gpu in range(GPUS):
        for instance in range(GPU_INSTANCES):
            lines.append(f"gpu{gpu}/gi{instance}/access {instance_minor(gpu, instance)}")
            lines += [
                f"gpu{gpu}/gi{instance}/ci{part}/access {instance_minor(gpu, instance, part)}"
                for part in range(COMPUTE_INSTANCES)
            ]
    return "\n".join(lines) + "\n"


def proc_files(state: dict[str, Any]) -> dict[str, str]:
    """Return a host's files below /proc/driver, as {path: content}.

    `state` is the output of `gpusim show --json`.
    """
    driver = state["host"]["driver_version"]
    files = {
        "nvidia/version": f"NVRM version: NVIDIA UNIX {os.uname().machine} Kernel Module  {driver}  simulated\n"
        "GCC version:  simulated\n",
    }
    for gpu in state["gpus"]:
        if not gpu.get("lost"):
            address = pci_address(gpu)
            files[f"nvidia/gpus/{address}/information"] = _information(gpu, address)
    for path, (minor, mode) in capabilities(state).items():
        files[f"nvidia/capabilities/{path}"] = (
            f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
        )
    files["nvidia-caps/mig-minors"] = mig_minors()
    return files


def pci_address(gpu: dict[str, Any]) -> str:
    """Return a GPU's address in the kernel's format.

    The domain has four digits, and letters are lower case.
    """
    return gpu["pci_address"][-12:].lower()


def _information(gpu: dict[str, Any], address: str) -> str:
    figures = {
        "Model": gpu["name"],
        "GPU UUID": gpu["uuid"],
        "Video BIOS": gpu.get("vbios_version") or "??.??.??.??.??",
        "Bus Type": "PCIe",
        "Bus Location": address,
        "Device Minor": gpu["minor_number"],
        "GPU Excluded": "No",
    }
    return "".join(f"{name + ':':<17}{value}\n" for name, value in figures.items())


def capabilities(state: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return a host's capabilities.

    The result is {path below /proc/driver/nvidia/capabilities: (minor, mode)}.
    """
    found = {"mig/config": (CONFIG_MINOR, ROOT_READS), "mig/monitor": (MONITOR_MINOR, ROOT_READS)}
    for gpu in state["gpus"]:
        minor = gpu["minor_number"]
        for instance in gpu["gpu_instances"]:
            at = f"gpu{minor}/mig/gi{instance['id']}"
            found[f"{at}/access"] = (instance_minor(minor, instance["id"]), ALL_READ)
            for part in instance["compute_instances"]:
                found[f"{at}/ci{part['id']}/access"] = (instance_minor(minor, instance["id"], part["id"]), ALL_READ)
    return found


def devices(kernels: str) -> tuple[str, int]:
    """Return the text of /proc/devices with the driver, and a major number.

    `kernels` is the text from the kernel, or an earlier result of this function. The major number belongs to the
    capabilities.
    """
    characters, separator, blocks = kernels.partition("\nBlock devices:")
    words = [line.split() for line in characters.splitlines()]
    numbers = {name: int(number) for number, name in (pair for pair in words if len(pair) == 2 and pair[0].isdigit())}
    major = numbers.get(CAPS)
    if major is None:
        major = next(number for number in reversed(LOCAL_MAJORS) if number not in numbers.values())
    lines = characters.rstrip("\n").splitlines()
    for number, name in ((NVIDIA_MAJOR, "nvidia"), (major, CAPS)):
        if name not in numbers:
            lines.append(f"{number:3d} {name}")
    return "\n".join(lines) + "\n" + separator + blocks, major


def modules(kernels: str) -> str:
    """Return the text of /proc/modules with the driver's module.

    `kernels` is the kernel's text or an earlier result.
    """
    if any(line.split()[:1] == ["nvidia"] for line in kernels.splitlines()):
        return kernels
    # Fields in proc(5): name, size, users, dependents, state, address. POE means proprietary, out of tree, unsigned.
    return "nvidia 0 0 - Live 0x0000000000000000 (POE)\n" + kernels


def pci_files(gpu: dict[str, Any]) -> dict[str, bytes]:
    """Return a GPU's files in sysfs."""
    vendor, device = _halves(gpu["pci_device_id"])
    subsystem_vendor, subsystem_device = _halves(gpu["pci_subsystem_id"] or 0)
    pci_class = VGA if gpu["display"] else CONTROLLER_3D
    width, speed = gpu["pcie_width"], LINK_SPEEDS.get(gpu["pcie_generation"])
    address = pci_address(gpu)
    identifiers = f"{vendor:04X}:{device:04X}", f"{subsystem_vendor:04X}:{subsystem_device:04X}"
    texts = {
        "vendor": f"0x{vendor:04x}",
        "device": f"0x{device:04x}",
        "subsystem_vendor": f"0x{subsystem_vendor:04x}",
        "subsystem_device": f"0x{subsystem_device:04x}",
        "class": f"0x{pci_class:06x}",
        "numa_node": "-1" if gpu["numa_node"] is None else str(gpu["numa_node"]),
        # Start, end and flags of six regions, of the ROM, and of six regions for virtual functions.
        "resource": "\n".join(["0x0000000000000000 " * 2 + "0x0000000000000000"] * 13),
        "uevent": f"DRIVER=nvidia\nPCI_CLASS={pci_class:X}\nPCI_ID={identifiers[0]}\nPCI_SUBSYS_ID={identifiers[1]}\n"
        f"PCI_SLOT_NAME={address}",
        "current_link_width": str(width),
        "max_link_width": str(width),
    }
    if speed:
        texts["max_link_speed"] = f"{speed} GT/s PCIe"
    files = {name: f"{text}\n".encode() for name, text in texts.items()}
    # The configuration space's header (PCI Local Bus Specification 3.0, figure 6-1). It contains only identifiers and
    # class.
    files["config"] = struct.pack(
        "<HHHHBBBB32xHH16x", vendor, device, 0, 0, 0, 0, pci_class >> 8 & 0xFF, pci_class >> 16,
        subsystem_vendor, subsystem_device,
    )  # fmt: skip
    return files


def _halves(both: int) -> tuple[int, int]:
    """Split NVML's combined number into the vendor and the device."""
    return both & 0xFFFF, both >> 16
