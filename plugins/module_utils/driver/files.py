# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that the role nvidia_driver keeps on a host, as text. Nothing is read or written here."""

from __future__ import annotations

from typing import Any, NamedTuple

from .rules import OWNER

NAME = OWNER.name
BLACKLIST = "/etc/modprobe.d/%s.conf" % NAME
DRACUT = "/etc/dracut.conf.d/%s.conf" % NAME
MODULES_LOAD = "/etc/modules-load.d/%s.conf" % NAME
SOURCES = "/etc/apt/sources.list.d/%s.sources" % NAME
PREFERENCES = "/etc/apt/preferences.d/%s" % NAME
APT_KEYRING = "/etc/apt/keyrings/%s.gpg" % NAME
REPO = "/etc/yum.repos.d/%s.repo" % NAME
RPM_KEYRING = "/etc/pki/rpm-gpg/RPM-GPG-KEY-%s" % NAME
IMEX_NODES = "/etc/nvidia-imex/nodes_config.cfg"
MANAGED = {
    "apt": (SOURCES, PREFERENCES, BLACKLIST, DRACUT, MODULES_LOAD, IMEX_NODES),
    "dnf": (REPO, BLACKLIST, DRACUT, MODULES_LOAD, IMEX_NODES),
}
KEYRINGS = {"apt": APT_KEYRING, "dnf": RPM_KEYRING}

#: NVIDIA signs packages and repomd.xml (https://github.com/NVIDIA/cuda-repo-management). With module_hotfixes the streams of
#: its module nvidia-driver hide no version: the version is chosen exactly, and locked, for which streams are too coarse
#: (dnf.conf(5)).
VERIFIED = ("gpgcheck=1", "repo_gpgcheck=1", "module_hotfixes=1")

_HEAD = "# Written by Ansible (openfleet.gpu.nvidia_driver); changes made here are overwritten.\n"


def repository_url(repository: dict[str, Any], architecture: str) -> str:
    """BASE/debian12/x86_64, the layout of NVIDIA's (guide, "Network Repository"); a mirror keeps it or gives all of it."""
    return repository["url"].format(
        directory=repository["directory"], architecture=repository["architectures"].get(architecture, architecture)
    )


def key_url(repository: dict[str, Any], architecture: str) -> str:
    return repository["key_url"] or "%s/%s" % (repository_url(repository, architecture).rstrip("/"), repository["key"])


def sources(url: str, keyring: str) -> str:
    """A flat repository: the suite is a path, and there are no components (sources.list(5))."""
    return "%sTypes: deb\nURIs: %s/\nSuites: /\nSigned-By: %s\n" % (_HEAD, url.rstrip("/"), keyring)


def preferences(version: str, patterns: list[str]) -> str:
    """Above 1000, so that a downgrade counts too (apt_preferences(5)). No other version of the driver can come in."""
    return "%sPackage: %s\nPin: version %s-*\nPin-Priority: 1001\n" % (_HEAD, " ".join(patterns), version)


def repo(url: str, keyring: str) -> str:
    return "%s[%s]\nname=NVIDIA driver\nbaseurl=%s/\nenabled=1\n%s\ngpgkey=file://%s\n" % (
        _HEAD,
        NAME,
        url.rstrip("/"),
        "\n".join(VERIFIED),
        keyring,
    )


def blacklist() -> str:
    """nouveau must not bind GPUs before the driver does (guide, "Disabling nouveau")."""
    return _HEAD + "blacklist nouveau\noptions nouveau modeset=0\n"


def dracut() -> str:
    """An initramfs of dracut's has no /etc/modprobe.d unless it is made for this host alone (dracut.conf(5), hostonly)."""
    return '%sinstall_items+=" %s "\nomit_drivers+=" nouveau "\n' % (_HEAD, BLACKLIST)


def modules_load() -> str:
    """NVLSM speaks to NVSwitches through ib_umad, which nothing else loads (Fabric Manager guide, "Systems Using Fourth
    Generation NVSwitches")."""
    return _HEAD + "ib_umad\n"


class Needs(NamedTuple):
    """What the host needs files for: kernel modules (`flavor`), IMEX, an initramfs by dracut, NVLSM."""

    flavor: str
    imex_nodes: tuple[str, ...] = ()
    dracut: bool = False
    subnet_manager: bool = False


def wanted(
    manager: str,
    source: str,
    version: str,
    catalogue: dict[str, Any],
    architecture: str,
    needs: Needs,
) -> dict[str, str]:
    """Path and text of every file that is to be there, for the driver in this version."""
    found = {}
    repository = catalogue["repository"]
    if source == "repository":
        url = repository_url(repository, architecture)
        if manager == "apt":
            found[SOURCES] = sources(url, APT_KEYRING)
        else:
            found[REPO] = repo(url, RPM_KEYRING)
    if manager == "apt" and source != "runfile":
        found[PREFERENCES] = preferences(version, catalogue["patterns"])
    if needs.flavor != "none":
        found[BLACKLIST] = blacklist()
        if needs.dracut:
            found[DRACUT] = dracut()
    if needs.subnet_manager:
        found[MODULES_LOAD] = modules_load()
    if needs.imex_nodes:
        found[IMEX_NODES] = "".join(node + "\n" for node in needs.imex_nodes)
    return found
