# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the text of the files that the role nvidia_driver manages. Pure functions."""

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

#: NVIDIA signs packages and repomd.xml (https://github.com/NVIDIA/cuda-repo-management). Without module_hotfixes, the
#: streams of NVIDIA's module nvidia-driver would hide versions. The exact version is selected and locked, so no stream
#: is needed (dnf.conf(5)).
VERIFIED = ("gpgcheck=1", "repo_gpgcheck=1", "module_hotfixes=1")

_HEAD = "# Written by Ansible (openfleet.gpu.nvidia_driver); changes made here are overwritten.\n"


def repository_url(repository: dict[str, Any], architecture: str) -> str:
    """Return the address of a repository.

    It is BASE/debian12/x86_64, as at NVIDIA (guide, "Network Repository"), or the full address of a mirror.
    """
    return repository["url"].format(
        directory=repository["directory"], architecture=repository["architectures"].get(architecture, architecture)
    )


def key_url(repository: dict[str, Any], architecture: str) -> str:
    return repository["key_url"] or "%s/%s" % (repository_url(repository, architecture).rstrip("/"), repository["key"])


def sources(url: str, keyring: str) -> str:
    """Return the source of a flat repository.

    Its suite is a path, and it has no components (sources.list(5)).
    """
    return "%sTypes: deb\nURIs: %s/\nSuites: /\nSigned-By: %s\n" % (_HEAD, url.rstrip("/"), keyring)


def preferences(version: str, patterns: list[str]) -> str:
    """Return the pin file.

    A priority above 1000 allows downgrades (apt_preferences(5)) and blocks other versions.
    """
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
    """Return the file that prevents nouveau from binding the GPUs first.

    Source: guide, "Disabling nouveau".
    """
    return _HEAD + "blacklist nouveau\noptions nouveau modeset=0\n"


def dracut() -> str:
    """Return the configuration file for dracut.

    Only a host-only initramfs includes /etc/modprobe.d (dracut.conf(5), hostonly).
    """
    return '%sinstall_items+=" %s "\nomit_drivers+=" nouveau "\n' % (_HEAD, BLACKLIST)


def modules_load() -> str:
    """Return the file that loads ib_umad at boot.

    NVLSM needs ib_umad to reach NVSwitches (Fabric Manager guide, "Systems Using Fourth Generation NVSwitches").
    """
    return _HEAD + "ib_umad\n"


class Needs(NamedTuple):
    """The features that need files.

    They are kernel modules (`flavor`), IMEX, an initramfs built by dracut, and NVLSM.
    """

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
    """Return every desired file (text by path) for this version of the driver."""
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
