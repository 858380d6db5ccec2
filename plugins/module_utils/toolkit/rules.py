# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the rules of NVIDIA's container toolkit as pure functions.

The rules are about versions, packages, engines and restarts. "guide" is
https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/.
"""

from __future__ import annotations

import re
from typing import Iterable, Mapping, Sequence

from ..errors import PlanError
from ..packages.model import Owner, Package, order
from .model import Engine, Host, Request

OWNER = Owner(
    "container_toolkit",
    "openfleet-container-toolkit",
    "the toolkit",
    "nvidia",
    # The repository is flat: it has a path and no components (sources.list(5)).
    apt="deb [signed-by={keyring}] {url} /\n",
    dnf="[{name}]\nname=NVIDIA Container Toolkit\nbaseurl={url}\nenabled=1\n{settings}\ngpgkey=file://{keyring}\n"
    "sslverify=1\n",
    # NVIDIA does not sign the RPM packages, but the repository's metadata with their checksums. repo_gpgcheck verifies
    # the metadata, as in NVIDIA's own .repo file.
    settings=("repo_gpgcheck=1", "gpgcheck=0"),
)

#: Packages in the order of their dependencies. They require each other in exactly the same version (guide,
#: "install-guide.html").
PACKAGES = (
    "libnvidia-container1",
    "libnvidia-container-tools",
    "nvidia-container-toolkit-base",
    "nvidia-container-toolkit",
)

REFRESH_PATH, REFRESH_SERVICE = "nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service"
#: The first release that updates the specification itself (guide, "cdi-support.html"), and that writes drop-ins for
#: containerd and CRI-O (https://github.com/NVIDIA/nvidia-container-toolkit/issues/1260).
_UNIT_AND_DROP_IN_SINCE = (1, 18)

#: Engines that nvidia-ctk can configure, and Podman, which reads specifications without configuration. containerd's
#: drop-in is in its default folder (https://github.com/NVIDIA/nvidia-container-toolkit/pull/1407), and CRI-O's in the
#: folder of crio.conf.d(5).
ENGINES = (
    Engine("docker", "dockerd", "docker.service", "/etc/docker/daemon.json"),
    Engine(
        "containerd",
        "containerd",
        "containerd.service",
        "/etc/containerd/config.toml",
        "/etc/containerd/conf.d/99-nvidia.toml",
    ),
    Engine("crio", "crio", "crio.service", "/etc/crio/crio.conf", "/etc/crio/crio.conf.d/99-nvidia.toml"),
    Engine("podman", "podman"),
)
BY_NAME = {engine.name: engine for engine in ENGINES}

_VERSION = re.compile(r"^\d+\.\d+\.\d+(-\d+)?$")


def check_version(asked: str) -> None:
    if not _VERSION.match(asked):
        raise PlanError(
            "container_toolkit_version",
            "%r is not a version of the toolkit" % asked,
            'Write an exact version in quotes, such as "1.19.1". The release notes list all versions.',
        )


def is_version(version: str, asked: str) -> bool:
    """Return whether a package version is the requested one.

    The request may be with or without a revision.
    """
    return version == asked or version.startswith(asked + "-")


def installed(packages: Sequence[Package]) -> str:
    """Return the version of the installed packages.

    Returns "" if a package is missing or if their versions differ.
    """
    there = {package.name: package for package in packages if not package.broken}
    versions = {package.version for package in there.values()}
    return versions.pop() if len(versions) == 1 and set(there) >= set(PACKAGES) else ""


def choose(offered: Mapping[str, Sequence[str]], asked: str) -> str:
    """Return the full version in which the sources have all packages.

    Raises PlanError if they have none.
    """
    common = set.intersection(*map(set, offered.values()))
    fitting = sorted((found for found in common if is_version(found, asked)), key=order)
    if not fitting:
        there = sorted(common, key=order, reverse=True)
        raise PlanError(
            "container_toolkit_version",
            "the sources do not have all packages of the toolkit in version %s" % asked,
            "Available: %s. Nothing was changed." % (", ".join(there[:8]) or "none"),
        )
    return fitting[-1]


def keeps_specification(version: str) -> bool:
    return order(version)[:2] >= _UNIT_AND_DROP_IN_SINCE


def has_drop_in(engine: Engine, version: str) -> bool:
    return bool(engine.drop_in) and order(version)[:2] >= _UNIT_AND_DROP_IN_SINCE


def engines(host: Host, request: Request) -> tuple[Engine, ...]:
    """Return the engines to configure.

    By default, containerd is left out if Docker is installed, because Docker then uses it, unless a kubelet is
    installed too. Raises PlanError if a requested engine is not installed.
    """
    if request.engines:
        missing = sorted(set(request.engines) - set(host.engines))
        if missing:
            raise PlanError(
                "container_toolkit_runtimes",
                "%s is not installed" % ", ".join(missing),
                "Install it first, or remove it from the list. [] selects all installed engines (here: %s)."
                % (", ".join(host.engines) or "none"),
            )
        return tuple(engine for engine in ENGINES if engine.name in request.engines)
    return tuple(
        engine
        for engine in ENGINES
        if engine.name in host.engines
        and not (engine.name == "containerd" and "docker" in host.engines and not host.kubelet)
    )


def takes_effect_by(engine: Engine, host: Host, policy: str, cdi_changed: bool) -> str:
    """Return how an engine applies a configuration.

    The result is "reload", "restart", "pending" if a restart is not permitted now, or "" if the engine is not running.

    Docker applies runtimes at a reload, which ends no container
    (https://docs.docker.com/reference/cli/dockerd/#configuration-reload-behavior). Docker applies CDI only when it
    starts. Without live-restore, a restart ends its containers (https://docs.docker.com/engine/daemon/live-restore/).
    Containers of containerd and CRI-O have their own monitor processes, and survive a restart if systemd does not kill
    these.
    """
    unit = host.units.get(engine.unit)
    if unit is None or not unit.active:
        return ""
    if policy == "never":
        return "pending"
    if engine.name == "docker" and not cdi_changed:
        return "reload"
    if policy == "always":
        return "restart"
    if engine.name == "docker":
        harmless = host.docker_live_restore is True or host.docker_containers is False
    else:
        harmless = unit.children_stay
    return "restart" if harmless else "pending"


def is_part(package: Package) -> bool:
    """Return whether a package is part of the toolkit."""
    return package.name in PACKAGES


def check_removals(removals: Iterable[str], allowed: Iterable[str], action: str) -> None:
    others = sorted(set(removals) - set(PACKAGES) - set(allowed))
    if others:
        raise PlanError(
            "container_toolkit_allow_removal",
            "to %s the toolkit, %s would have to be removed" % (action, ", ".join(others)),
            "Add them there to permit it. Nothing was changed.",
        )
