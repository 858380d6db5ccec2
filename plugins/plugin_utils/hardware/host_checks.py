# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare NVML with nvidia-smi and with the kernel's files. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Iterator, Mapping

from ...module_utils.hardware.model_readings import Readings
from .outcome import DIFFERS, PASSED, Check, compared, not_run

_SMI = "nvidia-smi"
#: Names in /proc/devices for the major numbers of the driver and of its capabilities.
_MAJORS, _CAP_MAJORS = ("nvidia", "nvidia-frontend"), ("nvidia-caps",)
#: Numbers in the rule for the minors of a GPU's capabilities:
#: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/#device-nodes-and-capabilities
_GPU_STEP, _GI_STEP, _FIRST = 135, 9, 3


def smi_checks(facts: Mapping[str, Any], smi: Mapping[str, Any]) -> Iterator[Check]:
    """Compare the result of gpu_info with nvidia-smi."""
    if smi["problem"]:
        yield not_run(_SMI, None, "gpu_info against nvidia-smi", smi["problem"])
        return
    yield compared(_SMI, None, "driver version", facts.get("driver_version"), smi["driver_version"])
    yield compared(_SMI, None, "CUDA version", facts.get("cuda_version"), smi["cuda_version"])
    by_uuid = {gpu["uuid"]: gpu for gpu in smi["gpus"]}
    if facts["problems"] or facts["lost"]:
        yield not_run(_SMI, None, "UUIDs of all GPUs", "gpu_info does not show all GPUs")
    else:
        yield compared(_SMI, None, "UUIDs of all GPUs", sorted(gpu["uuid"] for gpu in facts["gpus"]), sorted(by_uuid))
    for gpu in facts["gpus"]:
        other = by_uuid.get(gpu["uuid"])
        if other is not None:
            yield from _smi_gpu(gpu, other)


def _smi_gpu(gpu: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Check]:
    index = gpu["index"]
    yield compared(_SMI, index, "name", gpu["name"], other["name"])
    yield compared(_SMI, index, "PCI address", gpu["pci_address"], _address(other["pci_address"]))
    yield compared(_SMI, index, "memory in MiB", _mib(gpu["memory_total_bytes"]), _first_number(other["memory_total"]))
    yield compared(_SMI, index, "serial number", gpu["serial"], _or_none(other["serial"]))
    mig = gpu["mig"]
    yield compared(_SMI, index, "MIG mode", mig["enabled"] if mig["capable"] else None, _switch(other["mig_current"]))
    yield compared(
        _SMI, index, "pending MIG mode", mig["pending"] if mig["capable"] else None, _switch(other["mig_pending"])
    )
    yield compared(_SMI, index, "persistence mode", gpu["persistence_mode"], _switch(other["persistence_mode"]))
    if gpu["compute_mode"] is None:
        yield not_run(_SMI, index, "compute mode", "in MIG mode each instance has its own")
    else:
        yield compared(_SMI, index, "compute mode", gpu["compute_mode"], (other["compute_mode"] or "").lower())
    devices = sorted(
        [instance["id"], compute] for instance in mig["instances"] for compute in instance["compute_instances"]
    )
    found = sorted(
        [int(part) for part in pair] for pair in other["mig_devices"] if all((part or "").isdigit() for part in pair)
    )
    yield compared(_SMI, index, "MIG devices (GPU instance, compute instance)", devices, found)


def kernel_checks(nvml: Mapping[str, Any], files: Mapping[str, Any]) -> Iterator[Check]:
    """Compare NVML with /proc, /dev and /sys."""
    if files["driver_version"] is None or (nvml["simulated"] and not files["gpus"]):
        reason = "/proc/driver/nvidia does not exist"
        if nvml["simulated"]:
            reason = "simulated GPUs have no kernel driver"
        for area in ("kernel", "devices", "capabilities", "PCI"):
            yield not_run(area, None, "all checks", reason)
        return
    facts = nvml["facts"]
    yield compared(
        "kernel", None, "version of the module and of NVML", facts.get("driver_version"), files["driver_version"]
    )
    what = "module nvidia in /proc/modules"
    loaded = "nvidia" in files["modules"]
    if nvml["simulated"] and not loaded:
        yield not_run("kernel", None, what, "this kernel lists no modules, and the simulator cannot add one")
    else:
        found = ", ".join(files["modules"]) or "none"
        yield Check("kernel", None, what, PASSED if loaded else DIFFERS, "loaded", found)
    other = "nouveau" in files["modules"]
    yield Check(
        "kernel",
        None,
        "module nouveau",
        DIFFERS if other else PASSED,
        "not loaded",
        "loaded" if other else "not loaded",
    )
    yield from _device("nvidiactl", None, 255, files, nvml["simulated"])
    for gpu in nvml["gpus"]:
        if not gpu["problem"]:
            yield from _gpu_files(gpu["index"], Readings(gpu["calls"]), nvml, files)


def _gpu_files(index: int, readings: Readings, nvml: Mapping[str, Any], files: Mapping[str, Any]) -> Iterator[Check]:
    fact = next((gpu for gpu in nvml["facts"]["gpus"] if gpu["index"] == index), None)
    if fact is None:
        yield not_run("kernel", index, "all checks", "gpu_info does not show this GPU")
        return
    address, minor = fact["pci_address"], readings.value("nvmlDeviceGetMinorNumber")
    information = files["gpus"].get(address)
    if information is None:
        yield Check(
            "kernel", index, "/proc/driver/nvidia/gpus", DIFFERS, address, ", ".join(sorted(files["gpus"])) or "none"
        )
    else:
        for what, expected, key in (
            ("UUID", fact["uuid"], "GPU UUID"),
            ("model", fact["name"], "Model"),
            ("VBIOS", readings.value("nvmlDeviceGetVbiosVersion"), "Video BIOS"),
            ("device minor", None if minor is None else str(minor), "Device Minor"),
        ):
            # Unprivileged users see question marks instead of the value.
            found = information.get(key)
            if found is None or "??" in found:
                yield not_run("kernel", index, "%s in /proc" % what, "the file does not show it")
            else:
                check = compared("kernel", index, "%s in /proc" % what, expected, found)
                # NVML reports the VBIOS version in upper case, the open kernel module in lower case.
                same = what == "VBIOS" and found.upper() == str(expected).upper()
                yield replace(check, outcome=PASSED) if same else check
    if minor is not None:
        yield from _device("nvidia%d" % minor, index, minor, files, nvml["simulated"])
        yield from _capabilities(index, minor, fact, files)
    yield from _pci(index, readings, fact, files["pci"].get(address))


def _device(name: str, gpu: int | None, minor: int, files: Mapping[str, Any], simulated: bool) -> Iterator[Check]:
    node = next((node for node in files["devices"] if node["name"] == name), None)
    major = next((files["majors"][key] for key in _MAJORS if key in files["majors"]), None)
    if node is None and simulated:
        yield not_run("devices", gpu, "/dev/%s" % name, "simulated GPUs have no device nodes")
    elif node is None:
        yield Check("devices", gpu, "/dev/%s" % name, DIFFERS, "a character device", "missing")
    elif major is None:
        yield not_run("devices", gpu, "/dev/%s" % name, "/proc/devices lists no nvidia driver")
    else:
        yield compared(
            "devices", gpu, "/dev/%s" % name, "%d:%d" % (major, minor), "%d:%d" % (node["major"], node["minor"])
        )


def _capabilities(index: int, minor: int, fact: Mapping[str, Any], files: Mapping[str, Any]) -> Iterator[Check]:
    """Check the capability minors of a GPU's instances, and their device nodes.

    The minors must follow the documented rule.
    """
    if not fact["mig"]["instances"]:
        yield not_run("capabilities", index, "minors of instances", "the GPU has no instances")
        return
    for instance in fact["mig"]["instances"]:
        first = _FIRST + minor * _GPU_STEP + instance["id"] * _GI_STEP
        name = "gpu%d/gi%d/access" % (minor, instance["id"])
        yield compared("capabilities", index, name, first, files["mig_minors"].get(name))
        expected = [first]
        for compute in instance["compute_instances"]:
            name = "gpu%d/gi%d/ci%d/access" % (minor, instance["id"], compute)
            yield compared("capabilities", index, name, first + 1 + compute, files["mig_minors"].get(name))
            expected.append(first + 1 + compute)
        present = {node["minor"] for node in files["devices"] if node["name"].startswith("nvidia-caps/")}
        missing = [number for number in expected if number not in present]
        what = "nodes of GPU instance %d" % instance["id"]
        if missing:
            # nvidia-modprobe creates a missing node at its first use.
            yield not_run(
                "capabilities",
                index,
                what,
                "not created yet: %s" % ", ".join("nvidia-cap%d" % number for number in missing),
            )
        else:
            yield Check("capabilities", index, what, PASSED, "present", "present")


def _pci(index: int, readings: Readings, fact: Mapping[str, Any], found: Mapping[str, str] | None) -> Iterator[Check]:
    if found is None:
        yield not_run("PCI", index, "all checks", "/sys shows no PCI device %s" % fact["pci_address"])
        return
    info = readings.value("nvmlDeviceGetPciInfo") or {}
    ids = (info.get("pciDeviceId") or 0, info.get("pciSubSystemId") or 0)
    yield compared("PCI", index, "vendor and device", _ids(ids[0]), [found["vendor"], found["device"]])
    yield compared("PCI", index, "subsystem", _ids(ids[1]), [found["subsystem_vendor"], found["subsystem_device"]])
    yield compared("PCI", index, "kernel driver", "nvidia", found["driver"])
    width = readings.value("nvmlDeviceGetCurrPcieLinkWidth")
    yield compared(
        "PCI", index, "width of the link", None if width is None else str(width), found["current_link_width"] or None
    )
    node = _first_number(found["numa_node"]) if not found["numa_node"].startswith("-") else None
    yield compared("PCI", index, "NUMA node", fact["numa_node"], node)


def _ids(both: int) -> list[str]:
    return ["0x%04x" % (both & 0xFFFF), "0x%04x" % (both >> 16)]


def _address(text: str | None) -> str | None:
    """Convert NVML's PCI address to the format of sysfs, or return None.

    NVML's domain has eight digits, sysfs' has four.
    """
    match = re.fullmatch(r"0*([0-9A-Fa-f]{4}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])", text or "")
    return "%s:%s:%s.%s" % tuple(part.lower() for part in match.groups()) if match else text


def _mib(size_bytes: int | None) -> int | None:
    return None if size_bytes is None else size_bytes >> 20


def _first_number(text: str | None) -> int | None:
    match = re.match(r"\d+", text or "")
    return int(match.group()) if match else None


def _or_none(text: str | None) -> str | None:
    return None if text is None or "N/A" in text else text


def _switch(text: str | None) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(text or "")
