# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test RPM repositories in a bundle: versions, dependencies, chosen packages."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.bundle import rpm
from ansible_collections.openfleet.gpu.plugins.plugin_utils.bundle.model import Ask, BundleError
from ansible_collections.openfleet.gpu.plugins.plugin_utils.bundle.resolve import resolve

#: The driver's packages have an epoch in RPM repositories.
VERSION = ("3", "580.105.08", "1.el9")


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("580.95.05-1.el9", "580.105.08-1.el9"),
        ("590.48.01-1.el9", "3:580.105.08-1.el9"),
        ("1.18.2-1", "1.18.2-2"),
        # rpm-version(7): letters sort before digits, a tilde sorts before the end, and a caret after it.
        ("1.0a", "1.0.1"),
        ("1.0~rc1", "1.0"),
        ("1.0", "1.0^git1"),
        ("1.0^git1", "1.0.1"),
        ("1.0~rc1^git1", "1.0"),
        ("1.0a", "1.0b"),
        ("fc4", "fc5"),
        ("5.5p9", "5.5p10"),
    ],
)
def test_versions_compare_like_rpm(less, more):
    assert rpm.compare(less, more) == -1
    assert rpm.compare(more, less) == 1
    assert rpm.compare(less, less) == 0


@pytest.mark.parametrize(("one", "other"), [("1.0", "1_0"), ("1.05", "1.5"), ("2.0.1.", "2.0.1"), ("0:1.0", "1.0")])
def test_versions_equal_to_rpm(one, other):
    assert rpm.compare(one, other) == 0


def test_dependency_without_a_release_matches_any():
    assert rpm.compare("3:580.105.08-1.el9", "3:580.105.08", exact=False) == 0
    assert rpm.compare("3:580.105.08-1.el9", "3:580.105.08") == 1
    assert rpm.compare("3:580.105.08-1.el9", "580.105.08", exact=False) == 1


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("(a or b)", ["a", "b"]),
        (
            "(libcuda(x86-64) = 3:580.1 if libc.so.6(GLIBC_2.4)(64bit))",
            ["libcuda(x86-64) (= 3:580.1)", "libc.so.6(GLIBC_2.4)(64bit)"],
        ),
        ("(a >= 1 with (b or c < 2))", ["a (>= 1)", "b", "c (<< 2)"]),
    ],
)
def test_parts_of_a_boolean_dependency(text, parts):
    assert [str(found) for found in rpm.conditional(text)] == parts


def index(tmp_path, *packages):
    """Return the index that createrepo_c makes of these packages.

    A package is (name, (epoch, version, release), requires, provides, more).
    """
    cr = rpm.library()
    path = tmp_path / "primary.xml.gz"
    written = cr.PrimaryXmlFile(str(path), cr.GZ_COMPRESSION)
    written.set_num_of_pkgs(len(packages))
    for name, version, requires, provides, more in packages:
        package = cr.Package()
        package.name, (package.epoch, package.version, package.release) = name, version
        package.arch = more.get("arch", "x86_64")
        package.checksum_type, package.pkgId = more.get("kind", "sha256"), "ab" * 32
        package.location_href = "%s-%s.rpm" % (name, version[1])
        package.size_package = 1
        package.requires = [(*entry, False) for entry in requires]
        package.provides = [(name, "EQ", *version, False), *((*entry, False) for entry in provides)]
        package.files = [("", folder, file) for folder, file in more.get("files", [])]
        written.add_pkg(package)
    written.close()
    return rpm.RpmIndex(path, "x86_64", "x")


def anything(name):
    return (name, None, None, None, None)


def exactly(name, version=VERSION):
    return (name, "EQ", version[0], version[1], None)


def taken(packages, locked=("nvidia-driver-cuda",), free=(), version="580.105.08"):
    ask = Ask("nvidia_driver", version, tuple(locked), tuple(free), ("*nvidia*",), "el-9 x86_64")
    found, elsewhere = resolve(ask, packages)
    return ["%s %s" % (candidate.name, candidate.version) for candidate in found], elsewhere


def test_dependencies_by_name_by_what_is_provided_and_by_file(tmp_path):
    packages = index(
        tmp_path,
        (
            "nvidia-driver-cuda",
            VERSION,
            [exactly("libcuda(x86-64)"), anything("rpmlib(X)"), anything("/usr/bin/tool")],
            [],
            {},
        ),
        (
            "nvidia-driver-cuda-libs",
            VERSION,
            [anything("libc.so.6()(64bit)")],
            [("libcuda(x86-64)", "EQ", *VERSION)],
            {},
        ),
        ("nvidia-tool", VERSION, [], [], {"files": [("/usr/bin/", "tool")]}),
        ("nvidia-other", VERSION, [], [], {}),
    )
    assert taken(packages) == (
        [
            "nvidia-driver-cuda 3:580.105.08-1.el9",
            "nvidia-driver-cuda-libs 3:580.105.08-1.el9",
            "nvidia-tool 3:580.105.08-1.el9",
        ],
        ["libc.so.6()(64bit)"],
    )


def test_both_versions_are_taken_if_dnf_chooses(tmp_path):
    newer = ("3", "590.48.01", "1.el9")
    packages = index(
        tmp_path,
        ("nvidia-driver-cuda", VERSION, [], [], {}),
        ("nvidia-persistenced", VERSION, [], [], {}),
        ("nvidia-persistenced", newer, [], [], {}),
    )
    assert taken(packages, free=["nvidia-persistenced"])[0] == [
        "nvidia-driver-cuda 3:580.105.08-1.el9",
        "nvidia-persistenced 3:580.105.08-1.el9",
        "nvidia-persistenced 3:590.48.01-1.el9",
    ]


def test_conditional_dependencies_are_taken_if_available(tmp_path):
    packages = index(
        tmp_path,
        ("nvidia-driver-cuda", VERSION, [anything("(nvidia-x if xorg)"), anything("(a or b)")], [], {}),
        ("nvidia-x", VERSION, [], [], {}),
    )
    assert taken(packages) == (["nvidia-driver-cuda 3:580.105.08-1.el9", "nvidia-x 3:580.105.08-1.el9"], [])


def test_other_architectures_and_weak_checksums_are_ignored(tmp_path):
    packages = index(
        tmp_path,
        ("nvidia-driver-cuda", VERSION, [anything("nvidia-a"), anything("nvidia-b"), anything("nvidia-c")], [], {}),
        ("nvidia-a", VERSION, [], [], {"arch": "i686"}),
        ("nvidia-b", VERSION, [], [], {"arch": "noarch"}),
        ("nvidia-c", VERSION, [], [], {"kind": "sha"}),
    )
    assert taken(packages) == (
        ["nvidia-b 3:580.105.08-1.el9", "nvidia-driver-cuda 3:580.105.08-1.el9"],
        ["nvidia-a", "nvidia-c"],
    )


def test_invalid_index_is_named(tmp_path):
    (tmp_path / "repomd.xml").write_text("<html>not here</html")
    with pytest.raises(BundleError, match="repodata"):
        rpm.records(tmp_path / "repomd.xml", "https://example.org/repodata/repomd.xml")
