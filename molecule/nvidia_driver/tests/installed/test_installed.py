# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that the driver is installed with the same version in all its parts."""

from __future__ import annotations

import os

import pytest

VERSION = "580.95.05"
PARTS = [
    "nvidia-driver-cuda",
    "nvidia-kernel-open-dkms",
    "libnvidia-ml1",
    "libcuda1",
    "nvidia-persistenced",
    "nvidia-fabricmanager",
]


def test_all_parts_have_the_requested_version(lab_host):
    host = lab_host("hgx")
    for name in PARTS:
        assert host.package(name).version == VERSION + "-1", name
    assert host.check_output("cat /sys/module/nvidia/version") == VERSION
    assert host.check_output("modinfo -F version nvidia") == VERSION
    assert host.file("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").linked_to.endswith(".so." + VERSION)


def test_nvml_answers_for_every_gpu(lab_host):
    said = lab_host("hgx").check_output("nvidia-smi").splitlines()
    assert said[0] == "Driver Version: " + VERSION
    assert len([line for line in said if line.endswith("NVIDIA H100 80GB HBM3")]) == 8


def test_dkms_built_open_modules_for_the_running_kernel(lab_host):
    host = lab_host("hgx")
    assert host.check_output("modinfo -F license nvidia") == "Dual MIT/GPL"
    kernel = host.check_output("uname -r")
    assert "nvidia/%s, %s, x86_64: installed" % (VERSION, kernel) in host.check_output("dkms status")


@pytest.mark.parametrize("name", ["nvidia-persistenced", "nvidia-fabricmanager"])
def test_services_run_and_are_enabled(lab_host, name):
    service = lab_host("hgx").service(name)
    assert service.is_running
    assert service.is_enabled


def test_nouveau_is_not_loaded_at_boot(lab_host):
    host = lab_host("hgx")
    assert not host.file("/sys/module/nouveau").exists
    assert host.file("/etc/modprobe.d/openfleet-nvidia-driver.conf").contains("^blacklist nouveau$")
    # The initramfs can load nouveau long before the root file system with /etc is available.
    files = host.check_output("lsinitramfs /boot/initrd.img-$(uname -r)").splitlines()
    assert "etc/modprobe.d/openfleet-nvidia-driver.conf" in files


def test_no_held_package_is_missing(lab_host):
    assert set(PARTS) <= set(lab_host("hgx").check_output("apt-mark showhold").split())


def test_apt_verifies_the_repository_of_the_driver(lab_host):
    host = lab_host("hgx")
    text = host.file("/etc/apt/sources.list.d/openfleet-nvidia-driver.sources").content_string
    assert "Signed-By: /etc/apt/keyrings/openfleet-nvidia-driver.gpg" in text
    assert "trusted" not in text.lower()
    assert host.run("apt-get update --error-on=any").rc == 0
    for path in ("sources.list.d/openfleet-nvidia-driver.sources", "keyrings/openfleet-nvidia-driver.gpg"):
        assert host.file("/etc/apt/" + path).mode == 0o644


@pytest.mark.parametrize("name", ["libcuda1", "libnvidia-ml1", "nvidia-smi"])
def test_debians_userspace_is_really_installed(lab_host, name):
    host = lab_host("pcie")
    branch = {"bookworm": "535", "trixie": "550"}[os.environ.get("LAB_RELEASE") or "bookworm"]
    assert host.package(name).version.startswith(branch + ".")
    assert name in host.check_output("apt-mark showhold").split()
    assert "Debian NVIDIA Maintainers" in host.check_output("dpkg-query -W -f '${Maintainer}' " + name)


def test_libraries_install_no_kernel_modules(lab_host):
    host = lab_host("pcie")
    assert not host.package("dkms").is_installed
    assert not host.file("/etc/modprobe.d/openfleet-nvidia-driver.conf").exists
    host.check_output("python3 -c 'import ctypes; ctypes.CDLL(\"libcuda.so.1\")'")


def test_host_without_a_version_is_not_changed(lab_host):
    host = lab_host("blackwell")
    assert not host.file("/var/lib/openfleet-gpu").exists
    assert host.check_output("apt-mark showhold") == ""
