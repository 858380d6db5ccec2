# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build stand-ins for NVIDIA's RPM repositories: signed indexes and fake packages."""

from __future__ import annotations

import hashlib

import createrepo_c as cr

from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit.rules import PACKAGES

EXACT = ("3", "580.105.08", "1.el9")
#: The packages' names and requirements. Each package exists in the requested version and in an older one.
DRIVER = {
    "nvidia-driver-cuda": ["nvidia-driver-libs", "dkms"],
    "nvidia-driver-libs": [],
    "kmod-nvidia-open-dkms": ["dkms"],
    "nvidia-persistenced": [],
    "nvidia-settings": [],
}


def write(folder, packages):
    """Write fake package files from (name, (epoch, version, release), required names)."""
    (folder / "repodata").mkdir(parents=True)
    files = {
        "primary": cr.PrimaryXmlFile(str(folder / "repodata" / "primary.xml.gz"), cr.GZ_COMPRESSION),
        "filelists": cr.FilelistsXmlFile(str(folder / "repodata" / "filelists.xml.gz"), cr.GZ_COMPRESSION),
        "other": cr.OtherXmlFile(str(folder / "repodata" / "other.xml.gz"), cr.GZ_COMPRESSION),
    }
    for file in files.values():
        file.set_num_of_pkgs(len(packages))
    for name, version, requires in packages:
        path = folder / ("%s-%s-%s.x86_64.rpm" % (name, version[1], version[2]))
        path.write_text("stands for %s %s\n" % (name, version))
        package = cr.Package()
        package.name, (package.epoch, package.version, package.release) = name, version
        package.arch, package.checksum_type = "x86_64", "sha256"
        package.pkgId = hashlib.sha256(path.read_bytes()).hexdigest()
        package.location_href, package.size_package = path.name, path.stat().st_size
        package.provides = [(name, "EQ", *version, False)]
        package.requires = [(wanted, None, None, None, None, False) for wanted in requires]
        for file in files.values():
            file.add_pkg(package)
    repomd = cr.Repomd()
    for kind, file in files.items():
        file.close()
        record = cr.RepomdRecord(kind, str(folder / "repodata" / (kind + ".xml.gz")))
        record.fill(cr.SHA256)
        repomd.set_record(record)
    (folder / "repodata" / "repomd.xml").write_text(repomd.xml_dump())


def build(root, vendor):
    """Build the folders driver/rhel9/x86_64 and toolkit/rpm/x86_64 below `root`.

    The vendor's key signs the repositories.
    """
    older = ("3", "580.95.05", "1.el9")
    driver, toolkit = root / "driver" / "rhel9" / "x86_64", root / "toolkit" / "rpm" / "x86_64"
    write(driver, [(name, version, needs) for name, needs in DRIVER.items() for version in (older, EXACT)])
    write(
        toolkit, [(name, ("0", version, "1"), ["libseccomp"]) for name in PACKAGES for version in ("1.17.8", "1.18.2")]
    )
    (driver / "D42D0685.pub").write_text(vendor.key)
    (root / "toolkit" / "gpgkey").write_text(vendor.key)
    for folder in (driver, toolkit):
        sign(folder, vendor, vendor.build.OWNER)
    return driver


def sign(folder, vendor, who):
    top = str(folder / "repodata" / "repomd.xml")
    vendor.build.gpg("--local-user", who, "--armor", "--output", top + ".asc", "--detach-sign", top, home=vendor.home)
