# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's packages, their repository and the unit that they bring: put there, and taken away again as far as they were."""

from __future__ import annotations

import os

from ..files import Installation
from .host import UNITS, Record, booted, output, refuse, run
from .managers import Apt, manager

#: NVIDIA's repository, where the hosts' own sources do not have the packages.
APT_SOURCE, APT_KEY = "etc/apt/sources.list.d/openfleet-dcgm.list", "etc/apt/keyrings/openfleet-dcgm.asc"
DNF_REPOSITORY = "openfleet-dcgm"
DNF_SOURCE, DNF_KEY = "etc/yum.repos.d/openfleet-dcgm.repo", "etc/pki/rpm-gpg/RPM-GPG-KEY-openfleet-dcgm"
#: DCGM 4's. The one of DCGM 3 has no more to its name, and is a site's own.
FAMILY = "datacenter-gpu-manager-"


def missing(host, packages: list[str], version: str) -> list[str]:
    """What is not installed, as a package manager is asked for it. A version is the exporter's own."""
    lacking = []
    for package in packages:
        has, wanted = host.installed_version(package), version if package.endswith("-exporter") else ""
        # 1:4.8.2-1 may be asked for as it is, without its epoch, and without its revision.
        names = (has, has.partition(":")[2] or has)
        if not has or (wanted and not any(name == wanted or name.startswith(wanted + "-") for name in names)):
            lacking.append(host.asked(package, wanted))
    return lacking


def dnf_source(url: str, repo_gpgcheck: bool) -> str:
    """NVIDIA signs its packages, and repomd.xml too: https://github.com/NVIDIA/cuda-repo-management"""
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
    for path in (APT_KEY, APT_SOURCE, DNF_KEY, DNF_SOURCE):
        if path in wanted:
            target.write(path, wanted[path])
        else:
            target.remove(path)


def bring(target: Installation, bundle: dict) -> None:
    """The packages; ahead of them the masks of their units, which would listen on all addresses as soon as they are there."""
    host, packages, version = manager(), bundle["packages"], bundle["version"]
    write_repository(target, bundle["repository"])
    lacking = missing(host, packages, version)
    command = host.install(lacking, version)
    if lacking and not target.check:
        host.refresh(DNF_REPOSITORY if bundle["repository"]["url"] else "")
        plan = host.plan(command)
        others = plan.others(lambda name: name.startswith(FAMILY) or name in packages)
        if others:
            refuse(
                "nothing was installed: to install %s, the package manager would %s. Another dcgm_exporter_version or other "
                "dcgm_exporter_packages may fit what the host has; or make that change by hand, when the host is free of "
                "jobs." % (", ".join(lacking), others)
            )
        Record(target).add("packages", plan.new)
    for unit in bundle["masked"]:
        mask(target, unit)
    if lacking and target.doing("install packages %s" % ", ".join(lacking)):
        run(command)
        lacking = missing(host, packages, version)
        if lacking:
            refuse("after an installation without errors these packages are missing: %s" % ", ".join(lacking))


def to_remove(target: Installation) -> list[str]:
    """Of what the role installed, what is there. Ends where other packages would go with it."""
    host = manager()
    packages = [package for package in Record(target).names("packages") if host.installed_version(package)]
    if packages:
        plan = host.plan(host.remove(packages))
        others = plan.others(lambda name: name in packages)
        if plan.new:
            others = ", ".join([others, "install " + " ".join(plan.new)]).strip(", ")
        if others:
            refuse(
                "nothing was removed: to remove %s, which the role installed, the package manager would %s. Remove the one "
                "or the other by hand." % (", ".join(packages), others)
            )
    return packages


def take_away(target: Installation, packages: list[str]) -> None:
    host = manager()
    if packages and target.doing("remove packages %s" % ", ".join(packages)):
        run(host.remove(packages))
    write_repository(target, {"url": "", "key": ""})
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
            "%s is there, a site's own unit in the place of the package's, which the role masks as it listens on all "
            "addresses. Remove it first: the role has a unit of its own." % path
        )
    if not target.doing("mask %s" % unit):
        return
    Record(target).add("masked", [unit])
    if booted(target):
        output(["systemctl", "stop", unit])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/dev/null")
    if booted(target):
        run(["systemctl", "daemon-reload"])
