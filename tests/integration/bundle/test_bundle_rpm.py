# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test bundles of RPM repositories: chosen packages, verification and refusals."""

from __future__ import annotations

import pytest

from tests.integration.bundle.rpm_vendor import build, sign

DRIVER = "repositories/driver/rhel9/x86_64/"
TOOLKIT = "repositories/container-toolkit/rpm/x86_64/"
INDEX = {
    "repodata/" + name
    for name in ("repomd.xml", "repomd.xml.asc", "primary.xml.gz", "filelists.xml.gz", "other.xml.gz")
}
PACKAGES = {
    "%s-580.105.08-1.el9.x86_64.rpm" % name
    for name in ("nvidia-driver-cuda", "nvidia-driver-libs", "kmod-nvidia-open-dkms", "nvidia-persistenced")
}


@pytest.fixture
def rpm_site(site):
    """Return the site with the vendor's driver folder as `repository`."""
    site.repository = build(site.vendor.root / "rpm", site.vendor)
    for host in site.hosts:
        site.platforms(host, "el-9")
    site.variables.update(
        nvidia_driver_repository_url=site.vendor.url + "/rpm/driver/{directory}/{architecture}",
        container_toolkit_repository_url=site.vendor.url + "/rpm/toolkit/{family}/{architecture}",
        container_toolkit_repository_key_url=site.vendor.url + "/rpm/toolkit/gpgkey",
    )
    return site


def names(site, folder):
    return {
        path.relative_to(site.bundle / folder).as_posix()
        for path in (site.bundle / folder).rglob("*")
        if path.is_file()
    }


def test_packages_and_index_equal_the_vendors(rpm_site):
    rpm_site.make()
    assert names(rpm_site, DRIVER) == PACKAGES | INDEX | {"D42D0685.pub"}
    for name in names(rpm_site, DRIVER):
        assert (rpm_site.bundle / DRIVER / name).read_bytes() == (rpm_site.repository / name).read_bytes()
    assert {name for name in names(rpm_site, TOOLKIT) if name.endswith(".rpm")} == {
        "%s-1.18.2-1.x86_64.rpm" % name
        for name in (
            "libnvidia-container1",
            "libnvidia-container-tools",
            "nvidia-container-toolkit-base",
            "nvidia-container-toolkit",
        )
    }
    needed = {entry["name"] for entry in rpm_site.manifest()["needed_from_the_distribution"]}
    assert needed == {"dkms", "libseccomp", "kernel-devel-KERNEL", "kernel-headers"}
    before = rpm_site.files()
    rpm_site.vendor.requests.clear()
    assert "changed=0" in rpm_site.make()
    assert rpm_site.files() == before
    asked = {name.rpartition("/")[2] for name, _range in rpm_site.vendor.requests}
    assert asked == {"repomd.xml", "repomd.xml.asc", "D42D0685.pub", "gpgkey"}


def nothing_is_kept(site):
    assert not (site.bundle / DRIVER / "repodata" / "repomd.xml").exists()
    assert not (site.bundle / "manifest.json").exists()


def test_an_index_without_a_signature_is_refused(rpm_site):
    (rpm_site.repository / "repodata" / "repomd.xml.asc").unlink()
    assert "it is not signed" in rpm_site.make(expect=1)
    nothing_is_kept(rpm_site)


def test_index_signed_by_another_key_is_refused(rpm_site):
    (rpm_site.repository / "repodata" / "repomd.xml.asc").unlink()
    sign(rpm_site.repository, rpm_site.vendor, rpm_site.vendor.build.FOREIGN)
    assert "not signed by a trusted key" in rpm_site.make(expect=1)
    nothing_is_kept(rpm_site)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("repodata/repomd.xml", "the signature is wrong"),
        ("repodata/primary.xml.gz", "differs from the signed repomd.xml"),
        ("nvidia-driver-libs-580.105.08-1.el9.x86_64.rpm", "SHA-256"),
    ],
)
def test_changed_files_are_refused(rpm_site, name, problem):
    path = rpm_site.repository / name
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    assert problem in rpm_site.make(expect=1)
    nothing_is_kept(rpm_site)
    assert not (rpm_site.bundle / DRIVER / name).exists()
