# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the kernel's and the driver's files to their usual places.

`follow` updates the files after each change of the state. /proc and /sys accept no new files, so tmpfs mounts cover
/proc/driver and /sys/bus/pci/devices. Bind mounts of single files cover /proc/devices and /proc/modules. These two must
exist.
"""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

from . import kernel_files
from .control import Control
from .errors import FleetError

# The mounts' source in /proc/mounts, by which `remove` recognizes them.
MOUNT_SOURCE = "gpusim"
# Poll interval. It matters only for changes by processes that died before they could announce their change.
LOOK_EVERY_SECONDS = 10
READ_BY_ALL = 0o444


def write(state: dict[str, Any], root: Path) -> list[str]:
    """Write a host's files below `root`, and remove files of former instances.

    Return the omitted files with reasons. `state` is the output of `gpusim show --json`. The caller must be root. Raise
    FleetError on a host with a real driver, and if a mount fails.
    """
    proc = root / "proc" / "driver"
    if not _is_ours(proc):
        if (proc / "nvidia").exists():
            raise FleetError(str(proc / "nvidia"), "this host has a real driver", "Do not simulate GPUs on this host")
        _mount_over(proc)
    left_out = []
    major = _write_devices(root, proc, left_out)
    _write_modules(root, proc, left_out)
    _write_tree(proc, {path: text.encode() for path, text in kernel_files.proc_files(state).items()})
    _write_pci(state, root, left_out)
    return left_out + _nodes(state, root, major)


def follow(control: Control, root: Path) -> None:
    """Write the files after each change of the state.

    This function never returns.
    """
    written = None
    while True:
        # Read the counter before the state, so that the next round detects a change in between.
        seen = control.changes()
        state = control.dump()
        desired = (kernel_files.proc_files(state), [kernel_files.pci_files(gpu) for gpu in state["gpus"]])
        if desired != written:
            write(state, root)
            written = desired
        control.changes(since=seen, wait_seconds=LOOK_EVERY_SECONDS)


def remove(root: Path) -> None:
    """Remove the mounts and the capability nodes."""
    for path in ("proc/devices", "proc/modules", "sys/bus/pci/devices", "proc/driver"):
        if _is_ours(root / path):
            _run(["umount", str(root / path)])
    nodes = root / "dev" / "nvidia-caps"
    if nodes.is_dir():
        for node in nodes.iterdir():
            node.unlink()
        nodes.rmdir()
    links = root / "dev" / "char"
    for link in links.iterdir() if links.is_dir() else ():
        if link.is_symlink() and str(link.readlink()).startswith("../nvidia-caps/"):
            link.unlink()


def _write_devices(root: Path, proc: Path, left_out: list[str]) -> int:
    """Write /proc/devices, and return the capabilities' major number."""
    path = root / "proc" / "devices"
    text, major = kernel_files.devices(path.read_text(encoding="utf-8"))
    _cover(path, text, proc, left_out)
    return major


def _write_modules(root: Path, proc: Path, left_out: list[str]) -> None:
    path = root / "proc" / "modules"
    if path.exists():
        _cover(path, kernel_files.modules(path.read_text(encoding="utf-8")), proc, left_out)
    else:
        left_out.append(f"{path}: this kernel has no such file, and none can be added to /proc")


def _cover(path: Path, text: str, proc: Path, left_out: list[str]) -> None:
    """Mount a file over another one.

    The mounted file never changes, so use this function only for content that does not depend on instances.
    """
    if _is_ours(path):
        return
    new = proc / f"{path.name}.new"
    try:
        new.write_text(text, encoding="utf-8")
        new.chmod(READ_BY_ALL)
        _run(["mount", "--bind", str(new), str(path)])
    except FleetError as error:
        left_out.append(f"{path}: {error}")
    finally:
        # A mounted file needs no path, so remove the path.
        new.unlink(missing_ok=True)


def _write_pci(state: dict[str, Any], root: Path, left_out: list[str]) -> None:
    """Write the GPUs' folders in sysfs.

    Links to the kernel's own devices are next to them.
    """
    folder = root / "sys" / "bus" / "pci" / "devices"
    if not folder.is_dir():
        left_out.append(f"{folder}: this kernel shows no PCI devices")
        return
    if not _is_ours(folder):
        kernels = {path.name: os.readlink(path) for path in folder.iterdir() if path.is_symlink()}
        _mount_over(folder)
        for name, target in kernels.items():
            (folder / name).symlink_to(target)
    for gpu in state["gpus"]:
        device = folder / kernel_files.pci_address(gpu)
        if device.is_symlink():
            device.unlink()
        for name, content in kernel_files.pci_files(gpu).items():
            _write(device / name, content)
        if not (device / "driver").is_symlink():
            # The kernel does not have this driver, so the link leads to an existing folder. Programs read the path's
            # last part, and some check that the path exists.
            (device / "driver").symlink_to("../../../../../proc/driver/nvidia")
    gpus = {kernel_files.pci_address(gpu) for gpu in state["gpus"]}
    for device in folder.iterdir():
        if device.is_dir() and not device.is_symlink() and device.name not in gpus:
            _empty(device)
            device.rmdir()


def _write_tree(top: Path, files: dict[str, bytes]) -> None:
    """Write files to a folder, and remove all others.

    The keys are relative paths.
    """
    for path, content in files.items():
        _write(top / path, content)
    for path in sorted(top.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(top).as_posix() not in files:
            path.unlink()


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _mount_over(folder: Path) -> None:
    _run(["mount", "-t", "tmpfs", "-o", "mode=0555,size=16m", MOUNT_SOURCE, str(folder)])


def _is_ours(path: Path) -> bool:
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    return any(line.split()[:2] == [MOUNT_SOURCE, str(path)] for line in mounts)


def _write(path: Path, content: bytes) -> None:
    """Replace the file atomically if the content has changed."""
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.chmod(READ_BY_ALL)
    new.replace(path)


def _nodes(state: dict[str, Any], root: Path, major: int) -> list[str]:
    """Create the existing capabilities' nodes. Return omitted nodes with reasons.

    Programs cannot open a node, because no driver has its number.
    """
    folder = root / "dev" / "nvidia-caps"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    desired = {f"nvidia-cap{minor}": (minor, mode) for minor, mode in kernel_files.capabilities(state).values()}
    for node in folder.iterdir():
        if node.name not in desired:
            node.unlink()
    left_out = []
    for name, (minor, mode) in desired.items():
        node = folder / name
        number = os.makedev(major, minor)
        # udev creates this link for nodes of devtmpfs. Without the link, runc's containers lose the device when systemd
        # reloads.
        link = root / "dev" / "char" / f"{major}:{minor}"
        if link.parent.is_dir() and not link.is_symlink():
            link.symlink_to(f"../nvidia-caps/{name}")
        if node.exists() and node.stat().st_rdev == number:
            continue
        try:
            node.unlink(missing_ok=True)
            os.mknod(node, stat.S_IFCHR | mode, number)
            # mknod applied the umask, so set the mode again.
            node.chmod(mode)
        except PermissionError:
            left_out.append(f"{node}: no permission to make device nodes here")
    return left_out


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        output = done.stdout.decode(errors="replace").strip()
        raise FleetError(" ".join(command), f"failed: {output}", "Run gpusim as root with permission to mount")
