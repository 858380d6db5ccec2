# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find holders of GPUs in the kernel, from sysfs and /proc/modules."""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders import find
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import find_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.kernel import (
    display_holders,
    foreseen,
    holders_in_kernel,
    listing,
    virtual_machines,
    without_reboot,
)
from tests.unit.module_utils.holders.holder_hosts import Proc, gpu, host, no_tools

A100 = dataclasses.replace(gpu(0), architecture="ampere")
H100 = dataclasses.replace(gpu(0), architecture="hopper")

MODULES = """nvidia_uvm 3481600 0 - Live 0xffffffffc2b70000 (POE)
nvidia_drm 118784 4 - Live 0xffffffffc2b40000 (POE)
nvidia_modeset 1765376 5 nvidia_drm, Live 0xffffffffc2960000 (POE)
nvidia 61440000 104 nvidia_uvm,nvidia_modeset, Live 0xffffffffbf000000 (POE)
ext4 1000000 7 - Live 0xffffffffc0000000
"""


class Kernel:
    """Write the kernel's files to a folder."""

    def __init__(self, folder):
        self.sys, self.proc = folder / "sys", folder / "proc"
        self.device = self.sys / "bus/pci/devices" / A100.pci_address
        self.device.mkdir(parents=True)
        self.proc.mkdir()

    def write(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def module(self, name, count, *holders):
        self.write(self.sys / "module" / name / "refcnt", str(count))
        (self.sys / "module" / name / "holders").mkdir()
        for holder in holders:
            (self.sys / "module" / name / "holders" / holder).mkdir()

    def roots(self):
        return {"sys": str(self.sys), "proc": str(self.proc)}


@pytest.fixture
def kernel(tmp_path):
    return Kernel(tmp_path)


def loaded(kernel, count, modeset="Y"):
    """Simulate a desktop on which `count` programs have the driver's DRM device open."""
    kernel.module("nvidia", 9, "nvidia_modeset", "nvidia_uvm")
    kernel.module("nvidia_uvm", 0)
    kernel.module("nvidia_modeset", 1, "nvidia_drm")
    kernel.module("nvidia_drm", count)
    kernel.write(kernel.sys / "module/nvidia_drm/parameters/modeset", modeset)
    (kernel.device / "drm/card1").mkdir(parents=True)
    (kernel.device / "drm/renderD129").mkdir()


def test_display_is_detected_with_its_module_and_count(kernel):
    loaded(kernel, 4)
    assert listing(display_holders(A100, **kernel.roots())) == "nvidia_drm (use count 4, card1)"
    line = foreseen(A100, **kernel.roots())
    assert line.startswith("gpu 0 (GPU-0): the change of MIG mode may need a reboot of the host")
    assert "gpu_layout_reboot: true" in line and "modprobe -r nvidia_drm nvidia_modeset" in line
    # On this GPU, a pending mode does not survive a reboot, so the message does not suggest a reboot.
    assert "reboot: true" not in foreseen(H100, **kernel.roots()) and "nvidia_drm" in foreseen(H100, **kernel.roots())


@pytest.mark.parametrize(("count", "modeset", "held"), [(0, "Y", True), (1, "N", True), (0, "N", False)])
def test_module_holds_by_modesetting_or_by_its_users(kernel, count, modeset, held):
    loaded(kernel, count, modeset)
    assert bool(display_holders(A100, **kernel.roots())) == held
    assert (foreseen(A100, **kernel.roots()) is not None) == held


def test_display_of_another_gpu_is_no_holder(kernel):
    loaded(kernel, 4)
    assert foreseen(dataclasses.replace(A100, pci_address="0000:99:00.0"), **kernel.roots()) is None


def test_console_is_named_with_a_way_to_unbind(kernel):
    (kernel.device / "graphics/fb0").mkdir(parents=True)
    assert "the console on fb0" in foreseen(A100, **kernel.roots())
    assert "vtconsole" in without_reboot(display_holders(A100, **kernel.roots()))
    (kernel.device / "graphics/fb0").rmdir()
    assert foreseen(A100, **kernel.roots()) is None
    kernel.write(kernel.device / "boot_vga", "1")
    (kernel.sys / "class/graphics/fb0").mkdir(parents=True)
    assert "the console on fb0" in foreseen(A100, **kernel.roots())


def test_dependent_modules_count_by_their_additional_users(kernel):
    """A module's use count includes the modules that depend on it: nvidia_drm for nvidia_modeset."""
    loaded(kernel, 0, "N")
    # Programs that use other GPUs have nvidia_uvm open too. The scan reports them as holders of those GPUs.
    kernel.write(kernel.sys / "module/nvidia_uvm/refcnt", "12")
    assert holders_in_kernel(A100, **kernel.roots()) == ()
    kernel.module("nvidia_fs", 2)
    (kernel.sys / "module/nvidia/holders/nvidia_fs").mkdir()
    assert listing(holders_in_kernel(A100, **kernel.roots())) == "nvidia_fs (use count 2)"
    assert "modprobe -r nvidia_fs" in without_reboot(holders_in_kernel(A100, **kernel.roots()))
    assert "nvidia_drm" not in without_reboot(holders_in_kernel(A100, **kernel.roots()))


def test_proc_modules_is_used_if_sysfs_is_hidden(kernel):
    kernel.write(kernel.proc / "modules", MODULES)
    found = holders_in_kernel(A100, **kernel.roots())
    assert listing(found) == "nvidia_drm (use count 4), nvidia_modeset (use count 5)"


def test_gpu_part_of_a_virtual_machine_is_a_holder(kernel, tmp_path, monkeypatch):
    name = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
    assert virtual_machines(A100, str(kernel.sys)) == []
    (kernel.device / name).mkdir()
    function = kernel.sys / "devices/0000:3b:00.4"
    kernel.write(function / "nvidia/current_vgpu_type", "741")
    idle = kernel.sys / "devices/0000:3b:00.5"
    kernel.write(idle / "nvidia/current_vgpu_type", "0")
    (kernel.device / "virtfn0").symlink_to(function)
    (kernel.device / "virtfn1").symlink_to(idle)
    assert virtual_machines(A100, str(kernel.sys)) == [name, "0000:3b:00.4"]
    # The scan must read this kernel file only if the module is loaded.
    monkeypatch.setattr(find, "_VGPU_MODULE", str(kernel.sys))
    monkeypatch.setattr("%s.kernel.virtual_machines" % find.__package__, lambda _gpu: [name])
    (holder,) = find_holders(host(A100), str(Proc(tmp_path / "p").folder), str(tmp_path), no_tools, str(tmp_path))
    assert holder.kind == "unknown" and name in holder.who
