# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's packages, with the host's package manager, and their repository."""

from __future__ import annotations

import os
import shutil
import sys

from exporter_install.host import UNITS, Installation, output, run

#: NVIDIA's repository, where the hosts' own sources do not have the packages.
APT_SOURCE, APT_KEY = "etc/apt/sources.list.d/openfleet-dcgm.list", "etc/apt/keyrings/openfleet-dcgm.asc"
DNF_SOURCE, DNF_KEY = "etc/yum.repos.d/openfleet-dcgm.repo", "etc/pki/rpm-gpg/RPM-GPG-KEY-openfleet-dcgm"


def has_apt() -> bool:
    return bool(shutil.which("dpkg-query"))


def there(package: str) -> str:
    """Its version, or nothing."""
    if has_apt():
        status, said = output(["dpkg-query", "--show", "--showformat=${db:Status-Abbrev}${Version}", package])
        return said[2:].strip() if status == 0 and said.startswith("ii") else ""
    status, said = output(["rpm", "--query", "--queryformat=%{VERSION}-%{RELEASE}", package])
    return said.strip() if status == 0 else ""


def missing(packages: list[str], version: str) -> list[str]:
    """What is not installed, as a package manager is asked for it. A version is the exporter's own."""
    lacking = []
    for package in packages:
        has, wanted = there(package), version if package.endswith("-exporter") else ""
        # 1:4.8.2-1 may be asked for as it is, without its epoch, and without its revision.
        names = (has, has.partition(":")[2] or has)
        if not has or (wanted and not any(name == wanted or name.startswith(wanted + "-") for name in names)):
            if wanted and has_apt():
                package += "=%s%s" % (wanted, "" if "-" in wanted else "-*")
            lacking.append(package + "-" + wanted if wanted and not has_apt() else package)
    return lacking


def write_repository(target: Installation, repository: dict) -> None:
    url, key = repository["url"], repository["key"].encode()
    wanted = {}
    if url and has_apt():
        wanted = {APT_KEY: key, APT_SOURCE: ("deb [signed-by=/%s] %s /\n" % (APT_KEY, url)).encode()}
    elif url:
        text = "[openfleet-dcgm]\nname=DCGM, for openfleet.gpu\nbaseurl=%s\nenabled=1\ngpgcheck=1\ngpgkey=file:///%s\n"
        wanted = {DNF_KEY: key, DNF_SOURCE: (text % (url, DNF_KEY)).encode()}
    for path in (APT_KEY, APT_SOURCE, DNF_KEY, DNF_SOURCE):
        if path in wanted:
            target.write(path, wanted[path])
        else:
            target.remove(path)


def bring(target: Installation, bundle: dict) -> None:
    """The packages, with the host's package manager."""
    write_repository(target, bundle["repository"])
    lacking = missing(bundle["packages"], bundle["version"])
    if not lacking:
        return
    if not target.doing("install packages %s" % ", ".join(lacking)):
        return
    if has_apt():
        quiet = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        run(["apt-get", "update", "-q"], env=quiet)
        force = ["-o", "Dpkg::Options::=--force-confold", "--allow-downgrades", "--allow-change-held-packages"]
        run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *force, *lacking], env=quiet)
    else:
        run(["dnf", "install", "-q", "-y", *lacking])
    lacking = missing(bundle["packages"], bundle["version"])
    if lacking:
        sys.exit("after an installation without errors these packages are missing: %s" % ", ".join(lacking))


def take_away(target: Installation, packages: list[str]) -> None:
    installed = [package for package in packages if there(package)]
    if installed and target.doing("remove packages %s" % ", ".join(installed)):
        quiet = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        run(["apt-get" if has_apt() else "dnf", "remove", "-q", "-y", *installed], env=quiet)
    write_repository(target, {"url": "", "key": ""})


def mask(target: Installation, units: list[str]) -> None:
    """Units that packages bring, ahead of them: they would listen on all addresses as soon as they are installed."""
    for unit in units:
        path = target.path("%s/%s" % (UNITS, unit))
        if path.is_symlink() and os.readlink(str(path)) == "/dev/null":
            continue
        if not target.doing("mask %s" % unit):
            continue
        if target.booted:
            output(["systemctl", "stop", unit])
        if path.exists() or path.is_symlink():
            path.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to("/dev/null")
        if target.booted:
            run(["systemctl", "daemon-reload"])
