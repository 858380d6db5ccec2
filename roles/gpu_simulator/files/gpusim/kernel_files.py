# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of the kernel driver, for programs that read them without NVML: static ones, and those written in Go.

    /proc/driver/nvidia/version, /proc/driver/nvidia/gpus/ADDRESS/information
    /proc/driver/nvidia/capabilities/…, /proc/driver/nvidia-caps/mig-minors
    /dev/nvidia-caps/nvidia-capN

Forms: the chapter "Using the /proc File System Interface" of the driver's README, and "Device Nodes and Capabilities" of the
MIG User Guide. What no GPU here has (an interrupt, a DMA mask) is left out.
"""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

from .errors import FleetError

#: MIG User Guide: minors of the capabilities, for as many GPUs, GPU instances and compute instances as there can be.
CONFIG_MINOR, MONITOR_MINOR, FIRST_INSTANCE_MINOR = 1, 2, 3
GPUS, GPU_INSTANCES, COMPUTE_INSTANCES = 32, 15, 8
MINORS_PER_INSTANCE = 1 + COMPUTE_INSTANCES
MINORS_PER_GPU = GPU_INSTANCES * MINORS_PER_INSTANCE

#: Modes of capability nodes (MIG User Guide): root alone configures, everybody may use an instance.
ROOT_READS, ALL_READ = 0o400, 0o444

#: The real major number is any that is free. Documentation/admin-guide/devices.txt of Linux: 240 to 254 are for local use.
LOCAL_MAJORS = range(240, 255)

#: What /proc/mounts calls the file system, by which it is known again.
MOUNT_SOURCE = "gpusim"


def instance_minor(gpu_minor: int, gpu_instance: int, compute_instance: int | None = None) -> int:
    """Return the minor number of an instance's capability."""
    minor = FIRST_INSTANCE_MINOR + gpu_minor * MINORS_PER_GPU + gpu_instance * MINORS_PER_INSTANCE
    return minor if compute_instance is None else minor + 1 + compute_instance


def mig_minors() -> str:
    """Return mig-minors: every capability that there can be, whether the instance exists or not."""
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
    """Return the files below /proc/driver of a host: {path: content}. `state` is that of `gpusim show --json`."""
    driver = state["host"]["driver_version"]
    files = {
        "nvidia/version": f"NVRM version: NVIDIA UNIX {os.uname().machine} Kernel Module  {driver}  simulated\n"
        "GCC version:  simulated\n",
    }
    for gpu in state["gpus"]:
        if not gpu.get("lost"):
            # The kernel has four digits of the domain, and small letters.
            address = gpu["pci_address"][-12:].lower()
            files[f"nvidia/gpus/{address}/information"] = _information(gpu, address)
    for path, (minor, mode) in capabilities(state).items():
        files[f"nvidia/capabilities/{path}"] = (
            f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
        )
    files["nvidia-caps/mig-minors"] = mig_minors()
    return files


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
    """Return the capabilities of a host: {path below /proc/driver/nvidia/capabilities: (minor, mode)}."""
    found = {"mig/config": (CONFIG_MINOR, ROOT_READS), "mig/monitor": (MONITOR_MINOR, ROOT_READS)}
    for gpu in state["gpus"]:
        minor = gpu["minor_number"]
        for instance in gpu["gpu_instances"]:
            at = f"gpu{minor}/mig/gi{instance['id']}"
            found[f"{at}/access"] = (instance_minor(minor, instance["id"]), ALL_READ)
            for part in instance["compute_instances"]:
                found[f"{at}/ci{part['id']}/access"] = (instance_minor(minor, instance["id"], part["id"]), ALL_READ)
    return found


def write(state: dict[str, Any], root: Path) -> list[str]:
    """Write the files of a host below `root`, and remove those that are not its any more; return what was left out.

    Mounts a file system of its own over /proc/driver first, unless it is there. Needs root; raises FleetError.
    """
    proc = root / "proc" / "driver"
    _mount(proc)
    files = proc_files(state)
    for path, content in files.items():
        _write(proc / path, content)
    for path in sorted(proc.rglob("*"), reverse=True):
        relative = path.relative_to(proc).as_posix()
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif relative not in files:
            path.unlink()
    return _nodes(state, root)


def remove(root: Path) -> None:
    """Take the files away again: the mount over /proc/driver and the capability nodes."""
    proc = root / "proc" / "driver"
    if _is_ours(proc):
        _run(["umount", str(proc)])
    nodes = root / "dev" / "nvidia-caps"
    if nodes.is_dir():
        for node in nodes.iterdir():
            node.unlink()
        nodes.rmdir()


def _mount(proc: Path) -> None:
    if _is_ours(proc):
        return
    if (proc / "nvidia").exists():
        raise FleetError(str(proc / "nvidia"), "this host has a real driver", "Leave its files as they are")
    _run(["mount", "-t", "tmpfs", "-o", "mode=0555,size=16m", MOUNT_SOURCE, str(proc)])


def _is_ours(proc: Path) -> bool:
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    return any(line.split()[:2] == [MOUNT_SOURCE, str(proc)] for line in mounts)


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(content, encoding="utf-8")
    new.chmod(ALL_READ)
    new.replace(path)


def _nodes(state: dict[str, Any], root: Path) -> list[str]:
    """Make the nodes of the capabilities that exist. Opening one fails: no driver has their major number."""
    folder = root / "dev" / "nvidia-caps"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    wanted = {f"nvidia-cap{minor}": (minor, mode) for minor, mode in capabilities(state).values()}
    for node in folder.iterdir():
        if node.name not in wanted:
            node.unlink()
    major = _free_major()
    left_out = []
    for name, (minor, mode) in wanted.items():
        node = folder / name
        if node.exists():
            continue
        try:
            os.mknod(node, stat.S_IFCHR | mode, os.makedev(major, minor))
            # The umask took its part.
            node.chmod(mode)
        except PermissionError:
            left_out.append(str(node))
    return left_out


def _free_major() -> int:
    lines = Path("/proc/devices").read_text(encoding="utf-8").split("Block devices:")[0].splitlines()
    taken = {int(words[0]) for words in map(str.split, lines) if len(words) == 2 and words[0].isdigit()}
    return next(major for major in reversed(LOCAL_MAJORS) if major not in taken)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        said = done.stdout.decode(errors="replace").strip()
        raise FleetError(" ".join(command), f"failed: {said}", "Run gpusim as root, where it may mount")
