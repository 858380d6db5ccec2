# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install and remove NVIDIA's packages, their repository and their units' masks."""

from __future__ import annotations

import os

from ..files import Installation, InstallError
from .host import UNITS, Record, booted, output, refuse
from .managers import Apt, manager

# Files for NVIDIA's repository, which is used if the host's sources do not have the packages.
APT_SOURCE, APT_KEY = "etc/apt/sources.list.d/openfleet-dcgm.list", "etc/apt/keyrings/openfleet-dcgm.asc"
DNF_REPOSITORY = "openfleet-dcgm"
DNF_SOURCE, DNF_KEY = "etc/yum.repos.d/openfleet-dcgm.repo", "etc/pki/rpm-gpg/RPM-GPG-KEY-openfleet-dcgm"
REPOSITORY_FILES = (APT_KEY, APT_SOURCE, DNF_KEY, DNF_SOURCE)
# Prefix of DCGM 4's packages. DCGM 3's package has no suffix. The role does not change it, because the site installed
# it.
FAMILY = "datacenter-gpu-manager-"


def missing(host, packages: list[str], version: str) -> list[str]:
    """Return the missing packages as arguments of the install command.

    `version` is the exporter's version.
    """
    lacking = []
    for package in packages:
        has, wanted = host.installed_version(package), version if package.endswith("-exporter") else ""
        # The version 1:4.8.2-1 may also be given without the epoch, the revision, or both.
        names = (has, has.partition(":")[2] or has)
        if not has or (wanted and not any(name == wanted or name.startswith(wanted + "-") for name in names)):
            lacking.append(host.asked(package, wanted))
    return lacking


def dnf_source(url: str, repo_gpgcheck: bool) -> str:
    """Return the content of the repository file.

    NVIDIA signs packages and repomd.xml: https://github.com/NVIDIA/cuda-repo-management
    """
    lines = [
        "[%s]" % DNF_REPOSITORY,
        "name=DCGM, for openfleet.gpu",
        "baseurl=%s" % url,
        "enabled=1",
        "gpgcheck=1",
        "repo_gpgcheck=%d" % repo_gpgcheck,
        "gpgkey=file:///%s" % DNF_KEY,
    ]
    return "".join(line + "\n" for line in lines)


def write_repository(target: Installation, repository: dict) -> None:
    url, key = repository["url"], repository["key"].encode()
    wanted = {}
    if url and isinstance(manager(), Apt):
        wanted = {APT_KEY: key, APT_SOURCE: ("deb [signed-by=/%s] %s /\n" % (APT_KEY, url)).encode()}
    elif url:
        wanted = {DNF_KEY: key, DNF_SOURCE: dnf_source(url, repository["repo_gpgcheck"]).encode()}
    for path in REPOSITORY_FILES:
        if path in wanted:
            target.write(path, wanted[path])
        else:
            target.remove(path)


def bring(target: Installation, bundle: dict) -> None:
    """Install the packages.

    Masks their units first. Otherwise they would listen on all addresses as soon as they are installed.
    """
    host, packages, version = manager(), bundle["packages"], bundle["version"]
    before = {path: target.path(path).read_bytes() for path in REPOSITORY_FILES if target.path(path).exists()}
    write_repository(target, bundle["repository"])
    torn = host.torn(packages)
    if torn and target.doing("complete the interrupted change of packages %s" % ", ".join(torn)):
        host.repair()
    lacking = missing(host, packages, version)
    command = host.install(lacking, version)
    if lacking and not target.check:
        try:
            host.refresh(DNF_REPOSITORY if bundle["repository"]["url"] else "")
        except InstallError:
            # Restore the former files, because the new ones would break other runs of the package manager.
            for path in REPOSITORY_FILES:
                if path in before:
                    target.write(path, before[path])
                else:
                    target.remove(path)
            raise
        plan = host.plan(command)
        others = plan.others(lambda name: name.startswith(FAMILY) or name in packages)
        if others:
            refuse(
                "nothing was installed: to install %s, the package manager would %s. Set a dcgm_exporter_version or "
                "dcgm_exporter_packages that fit the installed packages, or make that change by hand when no jobs run on the "
                "host." % (", ".join(lacking), others)
            )
        Record(target).add("packages", plan.new)
    for unit in bundle["masked"]:
        mask(target, unit)
    if lacking:
        # The packages' scripts reload systemd.
        target.reload(run=False, changed=True)
    if lacking and target.doing("install packages %s" % ", ".join(lacking)):
        host.change(command)
        lacking = missing(host, packages, version)
        if lacking:
            refuse("the installation succeeded, but these packages are missing: %s" % ", ".join(lacking))


def to_remove(target: Installation) -> list[str]:
    """Return the installed packages of the role, all of which must be removed.

    Raises InstallError if the removal would affect other packages.
    """
    host = manager()
    packages = [package for package in Record(target).names("packages") if host.installed_version(package)]
    if packages:
        plan = host.plan(host.remove(packages))
        others = plan.others(lambda name: name in packages)
        if plan.new:
            others = ", ".join([others, "install " + " ".join(plan.new)]).strip(", ")
        if others:
            refuse(
                "nothing was removed: to remove %s, which the role installed, the package manager would %s. Remove these "
                "packages by hand." % (", ".join(packages), others)
            )
    return packages


def take_away(target: Installation, packages: list[str]) -> None:
    host = manager()
    if packages:
        target.reload(run=False, changed=True)
    if packages and target.doing("remove packages %s" % ", ".join(packages)):
        host.change(host.remove(packages))
    write_repository(target, {"url": "", "key": ""})
    if not target.check:
        host.forget(DNF_REPOSITORY)
    for unit in Record(target).names("masked"):
        path = "%s/%s" % (UNITS, unit)
        if is_masked(target, path):
            target.remove(path)


def is_masked(target: Installation, path: str) -> bool:
    return target.path(path).is_symlink() and os.readlink(str(target.path(path))) == "/dev/null"


def mask(target: Installation, unit: str) -> None:
    relative = "%s/%s" % (UNITS, unit)
    path = target.path(relative)
    if is_masked(target, relative):
        return
    if path.exists() or path.is_symlink():
        refuse(
            "%s is a unit that your site installed. The role must mask the package's unit with this name, because it listens "
            "on all addresses. Remove your unit first. The role installs its own." % path
        )
    if not target.doing("mask %s" % unit):
        target.reload(changed=True)
        return
    Record(target).add("masked", [unit])
    if booted(target):
        output(["systemctl", "stop", unit])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/dev/null")
    target.reload(booted(target), changed=True)
