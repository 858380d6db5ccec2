# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the files that the role nvidia_driver manages, with pure functions."""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

from .rules import OWNER

NAME = OWNER.name
BLACKLIST = "/etc/modprobe.d/%s.conf" % NAME
DRACUT = "/etc/dracut.conf.d/%s.conf" % NAME
MODULES_LOAD = "/etc/modules-load.d/%s.conf" % NAME
SOURCES, KEYRINGS = OWNER.sources, OWNER.keyrings
PREFERENCES = "/etc/apt/preferences.d/%s" % NAME
IMEX_NODES = "/etc/nvidia-imex/nodes_config.cfg"
_EVERYWHERE = (BLACKLIST, DRACUT, MODULES_LOAD, IMEX_NODES)
MANAGED = {"apt": (SOURCES["apt"], PREFERENCES, *_EVERYWHERE), "dnf": (SOURCES["dnf"], *_EVERYWHERE)}


def repository_url(repository: dict[str, Any], architecture: str) -> str:
    """Return the address of a repository.

    It is either BASE/debian12/x86_64, as in NVIDIA's repository (guide, "Network Repository"), or the full address of a
    mirror.
    """
    return repository["url"].format(
        directory=repository["directory"], architecture=repository["architectures"].get(architecture, architecture)
    )


def key_url(repository: dict[str, Any], architecture: str) -> str:
    return repository["key_url"] or "%s/%s" % (repository_url(repository, architecture).rstrip("/"), repository["key"])


def preferences(version: str, patterns: Sequence[str]) -> str:
    """Return APT's file that pins the driver version.

    A priority above 1000 allows downgrades (apt_preferences(5)) and blocks other versions.
    """
    return "%sPackage: %s\nPin: version %s-*\nPin-Priority: 1001\n" % (OWNER.head, " ".join(patterns), version)


def blacklist() -> str:
    """Return the file that prevents nouveau from binding the GPUs first.

    Source: guide, "Disabling nouveau".
    """
    return OWNER.head + "blacklist nouveau\noptions nouveau modeset=0\n"


def dracut() -> str:
    """Return the configuration file for dracut.

    Without it, a generic initramfs lacks /etc/modprobe.d: only a host-only initramfs includes it (dracut.conf(5),
    hostonly).
    """
    return '%sinstall_items+=" %s "\nomit_drivers+=" nouveau "\n' % (OWNER.head, BLACKLIST)


def modules_load() -> str:
    """Return the file that loads ib_umad at boot.

    NVLSM needs ib_umad to reach NVSwitches (Fabric Manager guide, "Systems Using Fourth Generation NVSwitches").
    """
    return OWNER.head + "ib_umad\n"


class Needs(NamedTuple):
    """The features that need files: kernel modules, IMEX, dracut and NVLSM.

    `flavor` is the flavour of the kernel modules.
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
    """Return the files that this driver version needs: text by path."""
    found = {}
    if source == "repository":
        url = repository_url(catalogue["repository"], architecture)
        found[SOURCES[manager]] = OWNER.repository(manager, url)
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
