# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Resolve APT packages for a bundle: versions, dependencies and alternatives."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.bundle import apt
from ansible_collections.openfleet.gpu.plugins.plugin_utils.bundle.model import Ask, BundleError
from ansible_collections.openfleet.gpu.plugins.plugin_utils.bundle.resolve import choose, resolve

PINNED = ("*nvidia*", "libcuda1")


def index(*packages, machine="x86_64"):
    """Return an APT index of packages. A package is (name, version, fields)."""
    stanzas = []
    for name, version, fields in packages:
        known = {
            "Package": name,
            "Version": version,
            "Architecture": "amd64",
            "Filename": "./%s_%s.deb" % (name, version),
            "Size": "1",
            "SHA256": "AB" * 32,
            **fields,
        }
        stanzas.append("".join("%s: %s\n" % line for line in known.items() if line[1]))
    return apt.AptIndex("\n".join(stanzas), machine)


def driver(version="580.105.08", locked=("nvidia-driver-cuda",), free=()):
    return Ask("nvidia_driver", version, tuple(locked), tuple(free), PINNED, "debian-12 x86_64")


def taken(ask, packages):
    found, elsewhere = resolve(ask, packages)
    return ["%s %s" % (candidate.name, candidate.version) for candidate in found], elsewhere


def test_dependencies_are_followed_recursively():
    packages = index(
        ("nvidia-driver-cuda", "580.105.08-1", {"Depends": "libcuda1 (= 580.105.08-1), libc6 (>= 2.34)"}),
        ("libcuda1", "580.105.08-1", {"Pre-Depends": "nvidia-base", "Recommends": "nvidia-not-this"}),
        ("nvidia-base", "580.105.08-1", {"Depends": "libcuda1"}),
        ("nvidia-not-this", "580.105.08-1", {}),
    )
    assert taken(driver(), packages) == (
        ["libcuda1 580.105.08-1", "nvidia-base 580.105.08-1", "nvidia-driver-cuda 580.105.08-1"],
        ["libc6 (>= 2.34)"],
    )


def test_driver_packages_have_its_version_and_others_the_newest():
    """Give the driver's version to its packages, and the newest to others.

    The request gives nvidia-persistenced no version, because the role pins it.
    """
    packages = index(
        ("nvidia-driver-cuda", "580.105.08-1", {"Depends": "nvlsm, nvidia-base"}),
        *(("nvidia-persistenced", version, {}) for version in ("580.95.05-1", "580.105.08-1", "590.48.01-1")),
        *(("nvidia-base", version, {}) for version in ("580.105.08-1", "590.48.01-1")),
        *(("nvlsm", version, {}) for version in ("2025.10.1-1", "2025.9.2-1")),
    )
    assert taken(driver(free=["nvidia-persistenced", "linux-headers-KERNEL"]), packages) == (
        [
            "nvidia-base 580.105.08-1",
            "nvidia-driver-cuda 580.105.08-1",
            "nvidia-persistenced 580.105.08-1",
            "nvlsm 2025.10.1-1",
        ],
        ["linux-headers-KERNEL"],
    )


def test_present_alternative_satisfies_a_dependency():
    packages = index(
        ("nvidia-driver-cuda", "580.105.08-1", {"Depends": "nvidia-kernel-dkms | nvidia-kernel-580.105.08"}),
        ("nvidia-kernel-dkms", "580.105.08-1", {}),
        ("nvidia-kernel-open-dkms", "580.105.08-1", {"Provides": "nvidia-kernel-580.105.08"}),
    )
    assert taken(driver(locked=["nvidia-driver-cuda", "nvidia-kernel-open-dkms"]), packages)[0] == [
        "nvidia-driver-cuda 580.105.08-1",
        "nvidia-kernel-open-dkms 580.105.08-1",
    ]
    # If none of the alternatives is selected, take the first one, as apt does.
    assert "nvidia-kernel-dkms 580.105.08-1" in taken(driver(), packages)[0]


@pytest.mark.parametrize(
    ("relation", "provides", "found"),
    [
        ("libcuda.so.1", "libcuda.so.1", True),
        ("libcuda.so.1 (>= 500)", "libcuda.so.1 (= 580)", True),
        ("libcuda.so.1 (>= 600)", "libcuda.so.1 (= 580)", False),
        # Debian Policy 7.5: if a Provides has no version, it does not satisfy a dependency with a version.
        ("libcuda.so.1 (>= 500)", "libcuda.so.1", False),
        ("libcuda1 (<< 580.105.08-1)", "", False),
        ("libcuda1 (<= 580.105.08-1)", "", True),
        ("libcuda1 (>> 580.95.05-1)", "", True),
        ("libcuda1 (= 580.105.08)", "", False),
        ("libcuda1:any (= 580.105.08-1)", "", True),
    ],
)
def test_versions_of_relations(relation, provides, found):
    packages = index(
        ("nvidia-driver-cuda", "580.105.08-1", {"Depends": relation}),
        ("libcuda1", "580.105.08-1", {"Provides": provides}),
    )
    names, elsewhere = taken(driver(), packages)
    assert ("libcuda1 580.105.08-1" in names) is found
    assert elsewhere == ([] if found else [relation])


def test_other_architectures_are_ignored():
    packages = index(
        ("nvidia-driver-cuda", "580.105.08-1", {"Depends": "libcuda1, nvidia-data"}),
        ("libcuda1", "580.105.08-1", {"Architecture": "i386"}),
        ("nvidia-data", "580.105.08-1", {"Architecture": "all"}),
    )
    assert taken(driver(), packages) == (["nvidia-data 580.105.08-1", "nvidia-driver-cuda 580.105.08-1"], ["libcuda1"])
    arm = index(("nvidia-driver-cuda", "580.105.08-1", {"Architecture": "arm64"}), machine="aarch64")
    assert taken(driver(), arm)[0] == ["nvidia-driver-cuda 580.105.08-1"]


def test_package_without_a_checksum_is_ignored():
    packages = index(("nvidia-driver-cuda", "580.105.08-1", {"SHA256": "", "MD5sum": "ab"}))
    with pytest.raises(BundleError, match="has no nvidia-driver-cuda of version"):
        resolve(driver(), packages)


def test_branch_is_its_highest_version():
    packages = index(
        *(("nvidia-driver-cuda", version, {}) for version in ("580.95.05-1", "580.105.08-1", "590.48.01-1"))
    )
    assert choose(driver("580"), packages) == "580.105.08"


def test_missing_version_is_refused_with_the_available_ones():
    packages = index(*(("nvidia-driver-cuda", version, {}) for version in ("580.95.05-1", "580.105.08-1")))
    with pytest.raises(BundleError) as refused:
        resolve(driver("590"), packages)
    assert refused.value.where == "nvidia_driver_version"
    assert refused.value.cure == "Available: 580.105.08, 580.95.05."


def test_driver_part_without_the_version_is_named():
    packages = index(("nvidia-driver-cuda", "580.105.08-1", {}), ("nvidia-fabricmanager", "580.95.05-1", {}))
    with pytest.raises(BundleError) as refused:
        resolve(driver(locked=["nvidia-driver-cuda", "nvidia-fabricmanager"]), packages)
    assert refused.value.where == "nvidia-fabricmanager"
    assert "580.95.05-1" in refused.value.cure


def test_toolkit_version_must_exist_for_all_its_packages():
    names = ("libnvidia-container1", "nvidia-container-toolkit")
    packages = index(
        *((name, version, {}) for name in names for version in ("1.18.2-1", "1.9.0-1")),
        ("libnvidia-container1", "1.18.2-2", {}),
    )
    ask = Ask("container_toolkit", "1.18.2", names, platform="debian-12 x86_64")
    assert taken(ask, packages)[0] == ["%s 1.18.2-1" % name for name in names]
    with pytest.raises(BundleError, match="container_toolkit_version"):
        resolve(Ask("container_toolkit", "1.18.3", names), packages)
