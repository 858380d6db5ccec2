# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find kernel modules and displays that hold a GPU without a process.

The sources are each module's files and use count in sysfs (Documentation/ABI/testing/sysfs-module of Linux),
/proc/modules, and a PCI device's DRM devices and frame buffers. nvidia_drm counts only if it is in use or its parameter
`modeset` is set (NVIDIA's driver README, "Direct Rendering Manager Kernel Modesetting").
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Iterable, Iterator

from ..frozen import frozen
from ..model import Gpu

_DRM, _MODESET = "nvidia_drm", "nvidia_modeset"
_DRIVER = "nvidia"

_MEDIATED = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# Order in which to unload modules. A module may depend on modules later in this list.
_UNLOADED = (_DRM, _MODESET, "nvidia_vgpu_vfio", "nvidia_fs", "nvidia_peermem", "gdrdrv")

# Module whose node every CUDA process has open. It is not listed, because the process is already a holder.
_OF_PROCESSES = "nvidia_uvm"

# Architectures on which a pending MIG mode survives a reboot (MIG User Guide, "Persistence").
_MODE_SURVIVES = ("ampere",)


@frozen
class KernelHolder:
    """Kernel code that holds a GPU.

    `module` is None if no module, but the kernel itself, holds the GPU. `use_count` is None if the count is unknown.
    `uses` describes the known uses for messages.
    """

    module: str | None
    use_count: int | None = None
    uses: tuple[str, ...] = ()

    def __str__(self) -> str:
        count = "" if self.use_count is None else "use count %d" % self.use_count
        if self.module is None:
            return ", ".join(self.uses)
        details = ", ".join(filter(None, [count, *self.uses]))
        return "%s (%s)" % (self.module, details) if details else self.module


def survives_reboot(gpu: Gpu) -> bool:
    """Return whether a reboot activates the GPU's pending MIG mode."""
    return gpu.architecture in _MODE_SURVIVES


def display_holders(gpu: Gpu, sys: str = "/sys", proc: str = "/proc") -> tuple[KernelHolder, ...]:
    """Return the kernel code that drives a display of this GPU.

    Searches the GPU's PCI device in sysfs.
    """
    device = Path(sys, "bus/pci/devices", gpu.pci_address)
    cards = [name for name in _names(device / "drm") if name.startswith("card")]
    consoles = [
        *_names(device / "graphics"),
        *(fb for card in cards for fb in _names(device / "drm" / card / "graphics")),
    ]
    if not consoles and _read(device / "boot_vga") == "1":
        # The firmware's frame buffer has no link to its GPU.
        consoles = [name for name in _names(Path(sys, "class/graphics")) if name.startswith("fb") and name != "fbcon"]
    count = _use_count(_DRM, sys, proc)
    modeset = _read(Path(sys, "module", _DRM, "parameters/modeset")) in ("Y", "1")
    if not consoles and not (cards and (modeset or count)):
        return ()
    uses = (*cards, *("the console on %s" % console for console in sorted(set(consoles))))
    return (KernelHolder(_DRM if cards or count is not None else None, count, uses),)


def module_holders(sys: str = "/sys", proc: str = "/proc") -> tuple[KernelHolder, ...]:
    """Return the modules that depend on the driver and have other users than modules.

    Such a module may hold any of the host's GPUs.
    """
    holders = []
    for module in _on_top(sys, proc):
        if module == _OF_PROCESSES:
            continue
        count = _use_count(module, sys, proc)
        if count is not None and count > len(_dependents(module, sys, proc)):
            holders.append(KernelHolder(module, count))
    return tuple(holders)


def holders_in_kernel(gpu: Gpu, sys: str = "/sys", proc: str = "/proc") -> tuple[KernelHolder, ...]:
    """Return everything inside the kernel that may hold the GPU.

    This can be an active display on the GPU, or a kernel module in use.
    """
    by_module = {holder.module: holder for holder in (*module_holders(sys, proc), *display_holders(gpu, sys, proc))}
    return tuple(sorted(by_module.values(), key=lambda holder: _order(holder.module)))


def listing(holders: Iterable[KernelHolder]) -> str:
    """Return the holders as text for messages."""
    return ", ".join(map(str, holders)) or "a module that is not in /proc/modules or /sys"


def without_reboot(holders: Iterable[KernelHolder]) -> str:
    """Return how to free the GPU without a reboot.

    The text is one sentence with the commands.
    """
    holders = tuple(holders)
    modules = {holder.module for holder in holders if holder.module} if holders else {_DRM}
    modules |= {_MODESET} if _DRM in modules else set()
    steps = []
    if modules & {_DRM, _MODESET}:
        steps.append("stop the display manager (systemctl isolate multi-user.target)")
    if any("console" in use for holder in holders for use in holder.uses):
        steps.append("unbind the console (echo 0 > /sys/class/vtconsole/vtcon1/bind)")
    if modules:
        steps.append("run modprobe -r %s" % " ".join(sorted(modules, key=_order)))
    return "Without a reboot: %s, and run again." % ", ".join(steps)


def foreseen(gpu: Gpu, sys: str = "/sys", proc: str = "/proc") -> str | None:
    """Return the warning that a display may block the change of the MIG mode.

    For plans. Returns None if there is no such display.
    """
    holders = display_holders(gpu, sys, proc)
    if not holders:
        return None
    cure = "gpu_layout_reboot: true lets the run reboot the host. " if survives_reboot(gpu) else ""
    needs = "may need a reboot of the host" if cure else "may be refused"
    return "gpu %d (%s): the change of MIG mode %s, because %s holds the GPU inside the kernel. %s%s" % (
        *(gpu.index, gpu.uuid, needs, listing(holders)),
        *(cure, without_reboot(holders)),
    )


def virtual_machines(gpu: Gpu, sys: str = "/sys") -> list[str]:
    """Return the GPU's virtual devices that virtual machines use, by name in sysfs.

    The module nvidia_vgpu_vfio assigned them. A mediated device is named by a UUID. Linux 6.8 and later use virtual
    functions instead: one in use has a file with its vGPU type (NVIDIA vGPU software user guide, "Creating an NVIDIA
    vGPU on a Linux with KVM Hypervisor").
    """
    device = Path(sys, "bus/pci/devices", gpu.pci_address)
    functions = [device, *(device / name for name in _names(device) if name.startswith("virtfn"))]
    found = [name for function in functions for name in _names(function) if _MEDIATED.fullmatch(name)]
    typed = [f for f in functions if _read(f / "nvidia/current_vgpu_type") not in ("", "0")]
    return found + [Path(os.path.realpath(str(function))).name for function in typed]


def _order(module: str | None) -> tuple[int, str]:
    return (_UNLOADED.index(module) if module in _UNLOADED else -1, module or "")


def _on_top(sys: str, proc: str) -> list[str]:
    """Return every module that depends on the driver, directly or indirectly."""
    found: list[str] = []
    pending = [_DRIVER]
    while pending:
        for module in _dependents(pending.pop(), sys, proc):
            if module not in found:
                found.append(module)
                pending.append(module)
    return found


def _dependents(module: str, sys: str, proc: str) -> list[str]:
    holders = Path(sys, "module", module, "holders")
    if holders.is_dir():
        return _names(holders)
    return [
        name for fields in _listed(module, proc) for name in fields[3].strip(",").split(",") if name not in ("-", "")
    ]


def _use_count(module: str, sys: str, proc: str) -> int | None:
    """Return the use count of a module.

    Returns None if the module is built in or not loaded.
    """
    text = _read(Path(sys, "module", module, "refcnt"))
    counts = [text] if text else [fields[2] for fields in _listed(module, proc)]
    return int(counts[0]) if counts and re.fullmatch(r"-?\d+", counts[0]) else None


def _listed(module: str, proc: str) -> Iterator[list[str]]:
    """Yield the fields of a module's line in /proc/modules (proc(5)).

    The fields are: name, size, use count, modules that use it, state, address.
    """
    for line in _read(Path(proc, "modules")).split("\n"):
        fields = line.split()
        if len(fields) >= 4 and fields[0] == module:
            yield fields


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
