# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test rules for drivers: versions, modules, packages, NVSwitch and Secure Boot."""

from __future__ import annotations

import re

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.driver import rules
from ansible_collections.openfleet.gpu.plugins.module_utils.driver.model import Package, Request, SecureBoot
from ansible_collections.openfleet.gpu.plugins.module_utils.driver.observe import distribution
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import PlanError
from tests.unit.module_utils.driver.driver_hosts import (
    AMPERE,
    BLACKWELL,
    DISTRIBUTIONS,
    GRACE,
    HOPPER,
    PASCAL,
    REPOSITORY,
    TURING,
    VOLTA,
    gpus,
    host,
    packages,
)

# -- Versions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "version"),
    [
        ("580.105.08-1", "580.105.08"),
        ("580.95.05-0ubuntu1", "580.95.05"),
        ("3:580.95.05-1.el9", "580.95.05"),
        ("535.261.03-1~deb12u1", "535.261.03"),
        ("550.163-2", "550.163"),
        ("1.19.1-1", ""),
        ("2025.06.11-1", ""),
        ("12.9.79-1", ""),
        ("4.4.1-1", ""),
    ],
)
def test_upstream_version_of_a_package(package, version):
    assert rules.upstream(package) == version


def test_versions_compare_as_numbers():
    """Compare versions as numbers. As strings, 580.95.05 would be the newest."""
    versions = ["580.105.08", "580.95.05", "580.95.15", "595.58.03", "590.48.01"]
    assert sorted(versions, key=rules.order) == ["580.95.05", "580.95.15", "580.105.08", "590.48.01", "595.58.03"]


@pytest.mark.parametrize(
    ("version", "asked", "right"),
    [
        ("580.95.05", "580.95.05", True),
        ("580.95.05", "580", True),
        ("580.95.05", "580.95", True),
        ("580.95.05", "580.9", False),
        ("580.95.05", "58", False),
        ("590.48.01", "580", False),
        ("", "580", False),
    ],
)
def test_versions_that_satisfy_a_request(version, asked, right):
    assert rules.satisfies(version, asked) is right


@pytest.mark.parametrize("asked", ["580.105", "580", "580.105.08"])
def test_valid_requested_versions(asked):
    rules.check_version(asked)


@pytest.mark.parametrize("asked", ["latest", "58", "580.105.08-1", "580.", "R580"])
def test_invalid_requested_versions(asked):
    with pytest.raises(PlanError, match="in quotes"):
        rules.check_version(asked)


# -- Kernel modules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "asked", "branch", "chosen"),
    [
        ([HOPPER] * 8, "auto", 580, "open"),
        ([TURING], "auto", 580, "open"),
        ([AMPERE, TURING], "auto", 590, "open"),
        ([PASCAL], "auto", 580, "proprietary"),
        ([VOLTA, AMPERE], "auto", 580, "proprietary"),
        ([AMPERE], "proprietary", 590, "proprietary"),
        ([BLACKWELL], "auto", 580, "open"),
        ([HOPPER], "none", 580, "none"),
        ([], "auto", 580, "open"),
    ],
)
def test_open_modules_if_all_gpus_support_them(ids, asked, branch, chosen):
    assert rules.flavor(gpus(*ids), asked, branch) == chosen


@pytest.mark.parametrize(
    ("ids", "asked", "branch", "said"),
    [
        ([PASCAL], "open", 580, "do not support 0000:10:00.0"),
        ([VOLTA], "auto", 590, "branch 590 has no support for 0000:10:00.0"),
        ([BLACKWELL], "proprietary", 590, "needs the open modules"),
        ([GRACE], "proprietary", 580, "needs the open modules"),
        ([HOPPER], "proprietary", 620, "branch 620 has no proprietary modules"),
        ([BLACKWELL, PASCAL], "auto", 580, "no driver supports all of its GPUs"),
    ],
)
def test_unavailable_modules(ids, asked, branch, said):
    with pytest.raises(PlanError, match=said) as caught:
        rules.flavor(gpus(*ids), asked, branch)
    assert caught.value.cure


# -- Packages ----------------------------------------------------------------------------------------------------------


def wanted(distribution="debian-12", branch=580, request=None, **more):
    seen = host(distribution, **more)
    return rules.wanted(seen, request or Request(str(branch)), DISTRIBUTIONS[distribution], branch)


HEADLESS = [
    ("debian-12", 580, ("nvidia-driver-cuda", "nvidia-kernel-open-dkms")),
    ("debian-13", 620, ("nvidia-driver-cuda", "nvidia-kernel-open-dkms")),
    ("ubuntu-22.04", 570, ("libnvidia-compute-570", "nvidia-utils-570", "nvidia-dkms-570-open")),
    ("ubuntu-24.04", 580, ("libnvidia-compute-580", "nvidia-utils-580", "nvidia-dkms-580-open")),
    ("ubuntu-24.04", 590, ("libnvidia-compute", "nvidia-dkms-open")),
    ("el-8", 580, ("nvidia-driver-cuda", "kmod-nvidia-open-dkms")),
    ("el-9", 570, ("nvidia-driver-cuda", "kmod-nvidia-open-dkms")),
    ("el-10", 595, ("nvidia-driver-cuda", "kmod-nvidia-open-dkms")),
]


@pytest.mark.parametrize(("distribution", "branch", "locked"), HEADLESS)
def test_packages_of_a_headless_host(distribution, branch, locked):
    found = wanted(distribution, branch)
    assert found.locked == locked
    assert found.units == ("nvidia-persistenced.service",)


def test_each_distribution_has_expected_packages():
    assert {distribution for distribution, *_ in HEADLESS} == set(DISTRIBUTIONS)


def test_other_flavour_must_not_be_installed():
    request = Request("580", kernel_modules="proprietary")
    found = wanted(request=request)
    assert "nvidia-kernel-dkms" in found.locked
    assert {"nvidia-kernel-open-dkms", "nvidia-open-kernel-dkms"} <= set(found.unwanted)


def test_headers_are_installed_if_missing_for_this_kernel():
    assert wanted(headers=False).free == ("nvidia-persistenced", "linux-headers-6.1.0-40-amd64")
    assert wanted(headers=True).free == ("nvidia-persistenced",)


def test_libraries_alone_need_no_daemon_no_headers_and_no_modules():
    found = wanted(request=Request("580", kernel_modules="none"), headers=False)
    assert (found.locked, found.free, found.units, found.unwanted) == (("nvidia-driver-cuda",), (), (), ())


@pytest.mark.parametrize(
    ("distribution", "branch", "name"),
    [
        ("debian-12", 570, "nvidia-fabricmanager-570"),
        ("debian-12", 580, "nvidia-fabricmanager"),
        ("ubuntu-22.04", 570, "nvidia-fabricmanager-570"),
        ("el-9", 570, "nvidia-fabric-manager"),
        ("el-9", 580, "nvidia-fabricmanager"),
    ],
)
def test_nvswitches_need_fabric_manager_of_the_drivers_version(distribution, branch, name):
    found = wanted(distribution, branch, nvswitches=4)
    assert name in found.locked
    assert "nvidia-fabricmanager.service" in found.units
    assert "nvlsm" not in found.free


def test_blackwell_boards_need_the_subnet_manager():
    found = wanted(gpus=gpus(*[BLACKWELL] * 8), nvlink_bridges=4)
    assert "nvidia-fabricmanager" in found.locked
    assert "nvlsm" in found.free


@pytest.mark.parametrize(("asked", "there"), [("auto", False), ("absent", False), ("present", True)])
def test_without_nvswitches_fabric_manager_is_installed_only_on_request(asked, there):
    found = wanted(request=Request("580", fabric_manager=asked))
    assert ("nvidia-fabricmanager" in found.locked) is there


def test_source_without_fabric_manager_is_refused_for_nvswitches():
    with pytest.raises(PlanError, match="distribution has no fabric manager"):
        wanted(branch=535, request=Request("535", source="distribution"), nvswitches=4)


def test_missing_branches_of_a_source():
    with pytest.raises(PlanError, match="branch 580 is not available from nvidia_driver_source distribution"):
        wanted(request=Request("580", source="distribution"))


def test_secure_boot_uses_ubuntus_signed_modules():
    request = Request("580", source="distribution")
    found = wanted(
        "ubuntu-24.04", request=request, secure_boot=SecureBoot(True), headers=False, kernel="6.8.0-90-generic"
    )
    assert "linux-modules-nvidia-580-server-open-6.8.0-90-generic" in found.free
    assert not [name for name in (*found.locked, *found.free) if "dkms" in name or "headers" in name]


def test_ubuntus_signed_modules_are_installed_if_precompiled_ones_are_requested():
    request = Request("580", source="distribution", precompiled=True)
    found = wanted("ubuntu-24.04", request=request, kernel="6.8.0-90-generic")
    assert "linux-modules-nvidia-580-server-open-6.8.0-90-generic" in found.free
    assert not found.dkms


@pytest.mark.parametrize(
    ("kernel", "flavor", "name"),
    [
        ("5.14.0-570.12.1.el9_6.x86_64", "proprietary", "kmod-nvidia-{version}-5.14.0-570.12.1"),
        ("6.12.0-211.50.1.el10_2.aarch64", "open", "kmod-nvidia-open-{version}-6.12.0-211.50.1"),
        ("6.12.0-211.51.1.el10_2.aarch64+64k", "open", "kmod-64k-nvidia-open-{version}-6.12.0-211.51.1"),
    ],
)
def test_precompiled_modules_are_named_by_driver_and_kernel(kernel, flavor, name):
    request = Request("580", kernel_modules=flavor, precompiled=True)
    found = wanted("el-10", request=request, kernel=kernel, headers=False)
    assert [pattern for _kernel, pattern in found.precompiled] == [name]
    assert not found.dkms and not found.next_kernel
    assert not [name for name in (*found.locked, *found.free) if "dkms" in name or "devel" in name]
    assert {"kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms"} <= set(found.unwanted)


def test_newer_installed_kernels_need_precompiled_modules_too():
    kernels = ("5.14.0-503.26.1.el9_5", "5.14.0-570.12.1.el9_6", "5.14.0-570.23.1.el9_6")
    installed = tuple(Package("kernel-core", kernel) for kernel in kernels)
    request = Request("580", kernel_modules="proprietary", precompiled=True)
    found = wanted("el-9", request=request, kernel="5.14.0-570.12.1.el9_6.x86_64", packages=installed)
    names = [pattern.format(version="580.95.05") for _kernel, pattern in found.precompiled]
    assert names == ["kmod-nvidia-580.95.05-5.14.0-570.12.1", "kmod-nvidia-580.95.05-5.14.0-570.23.1"]


def test_a_distribution_without_precompiled_modules_is_refused():
    with pytest.raises(PlanError, match="debian-12 has no precompiled open kernel modules"):
        wanted("debian-12", request=Request("580", precompiled=True))


def test_precompiled_modules_of_another_driver_are_stale():
    names = {
        "kmod-nvidia-580.95.05-5.14.0-570.12.1": "580.95.05-3.el9_6",
        "kmod-nvidia-580.105.08-5.14.0-570.12.1": "580.105.08-3.el9_6",
        # These modules belong to the previous kernel, which the host can still boot.
        "kmod-nvidia-580.105.08-5.14.0-503.26.1": "580.105.08-3.el9_5",
        "kmod-nvidia-open-580.105.08-5.14.0-570.12.1": "580.105.08-3.el9_6",
        "kmod-nvidia-open-dkms": "580.95.05-1.el9",
        "kmod-kvdo": "8.2.6.3-1.el9",
    }
    installed = tuple(Package(name, version) for name, version in names.items())
    seen = host("el-9", packages=installed, kernel="5.14.0-570.12.1.el9_6.x86_64")

    def stale(**more):
        request = Request("580", **more)
        return rules.stale_modules(seen, rules.wanted(seen, request, DISTRIBUTIONS["el-9"], 580), "580.105.08")

    first, new, older, other, _dkms, _foreign = names
    assert stale(precompiled=True, kernel_modules="proprietary") == [first, other]
    assert stale() == [first, new, older, other]
    # If the site provides the kernel modules itself, the rules treat none of them as stale.
    assert stale(kernel_modules="none") == []


def test_packages_of_the_driver():
    patterns = DISTRIBUTIONS["debian-12"]["patterns"]
    ours = packages("580.95.05-1", "nvidia-driver-cuda", "libcuda1", "libnvidia-ml1", "firmware-nvidia-gsp")
    # nvlsm has its own version number and is useless without the driver.
    ours += packages("2025.06.11-1", "nvlsm")
    others = [
        Package("nvidia-container-toolkit", "1.19.1-1"),
        Package("infiniband-diags", "44.0-2"),
        Package("cuda-toolkit-13-0", "13.0.2-1"),
        Package("glx-alternative-nvidia", "1.2.2"),
        # This package is Debian's own, and desktop programs depend on it.
        Package("libxnvctrl0", "525.85.05-3~deb12u1"),
        Package("linux-image-amd64", "580.1-1"),
    ]
    assert all(rules.of_the_driver(package, patterns) for package in ours)
    assert not any(rules.of_the_driver(package, patterns) for package in others)


# -- The host ----------------------------------------------------------------------------------------------------------


def test_parts_of_different_versions_are_named():
    seen = host(loaded="580.95.05", on_disk="580.105.08", library="580.105.08")
    assert rules.skew(seen) == (
        "the loaded kernel module is 580.95.05; the module for this kernel is 580.105.08; the NVML library is 580.105.08"
    )
    assert rules.skew(host(loaded="580.95.05", on_disk="580.95.05", library="580.95.05")) == ""
    assert rules.skew(host(library="580.95.05")) == ""


def test_secure_boot_with_an_enrolled_key_does_not_block():
    trusted = SecureBoot(True, "/var/lib/dkms/mok.pub", True)
    assert rules.secure_boot_problem(host(secure_boot=trusted), "open", signed=False) is None
    assert rules.secure_boot_problem(host(secure_boot=SecureBoot(True)), "none", signed=False) is None
    assert rules.secure_boot_problem(host(secure_boot=SecureBoot(True)), "open", signed=True) is None
    assert rules.secure_boot_problem(host(), "open", signed=False) is None


def test_secure_boot_without_a_key_explains_enrolling():
    fresh = rules.secure_boot_problem(host(secure_boot=SecureBoot(True)), "open", signed=False)
    assert "openssl req" in fresh.cure
    assert "mokutil --import /var/lib/dkms/mok.pub" in fresh.cure
    made = SecureBoot(True, "/var/lib/shim-signed/mok/MOK.der")
    there = rules.secure_boot_problem(host(secure_boot=made), "open", signed=False)
    assert "openssl" not in there.cure
    assert "mokutil --import /var/lib/shim-signed/mok/MOK.der" in there.cure


RELEASES = [
    ('ID=debian\nVERSION_ID="12"\n', "debian-12"),
    ('NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n', "ubuntu-24.04"),
    ('ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="9.6"\n', "el-9"),
    ('ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="10.1"\n', "el-10"),
    ('ID="almalinux"\nID_LIKE="rhel centos fedora"\nVERSION_ID="8.10"\n', "el-8"),
    ("ID=arch\n", "arch-"),
]


@pytest.mark.parametrize(("release", "name"), RELEASES)
def test_distributions_are_detected_by_os_release(release, name):
    assert distribution(release) == name


@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
def test_each_distribution_is_detectable_and_documented(name):
    family, _, version = name.partition("-")
    assert family in {known.partition("-")[0] for _, known in RELEASES}
    page = (REPOSITORY / "docs" / "nvidia_driver.md").read_text(encoding="utf-8")
    title = "RHEL" if family == "el" else family
    rows = re.findall(r"^\| (%s\b.*?) \| (\w+)" % title, page, re.MULTILINE | re.IGNORECASE)
    versions = {each: manager for title, manager in rows for each in re.findall(r"[\d.]*\d", title)}
    assert versions.get(version) == DISTRIBUTIONS[name]["manager"]
