# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe the current host, the request and the plan of the container toolkit as plain values."""

from __future__ import annotations

from dataclasses import field

from ..frozen import frozen
from ..packages.model import Package, Step


@frozen
class Engine:
    """A container engine. `config` and `drop_in` are written by nvidia-ctk. podman has no files and no service."""

    name: str
    binary: str
    unit: str = ""
    config: str = ""
    drop_in: str = ""


@frozen
class Unit:
    """A systemd unit. A missing one is neither enabled nor active. `start` identifies its last start."""

    enabled: bool = False
    active: bool = False
    start: str = ""
    #: Whether its containers survive a restart.
    children_stay: bool = False


@frozen
class Host:
    """The current state of the host. Versions are the package manager's, such as 1.18.2-1."""

    manager: str
    architecture: str = "x86_64"
    packages: tuple[Package, ...] = ()
    #: Names of engines that are installed, and whether containerd is used by its CRI.
    engines: tuple[str, ...] = ()
    kubelet: bool = False
    units: dict[str, Unit] = field(default_factory=dict)
    #: Text of the existing files that matter here.
    files: dict[str, str] = field(default_factory=dict)
    key_fingerprints: tuple[str, ...] = ()
    #: A driver is installed for the running kernel.
    driver: bool = False
    #: Paths of CDI specifications of GPUs: all, outdated ones, and those not readable for everyone.
    specs: tuple[str, ...] = ()
    stale_specs: tuple[str, ...] = ()
    private_specs: tuple[str, ...] = ()
    #: Texts of an engine's files with nvidia-ctk's changes. Empty if nvidia-ctk is not installed yet.
    configured: dict[str, dict[str, str]] = field(default_factory=dict)
    #: SELinux enforces, and containers may not use devices (the boolean container_use_devices is off).
    selinux_denies: bool = False
    #: Docker: live-restore is on, and containers run. None if it does not answer.
    docker_live_restore: bool | None = None
    docker_containers: bool | None = None
    #: The record of earlier runs (Toolkit.record).
    record: dict = field(default_factory=dict)

    def package(self, name: str) -> Package | None:
        return next((package for package in self.packages if package.name == name), None)


@frozen
class Request:
    """The request. `version` is exact, such as 1.18.2 or 1.18.2-1, or empty for removal."""

    version: str
    source: str = "repository"
    hold: bool = True
    #: Names of engines, or empty for all installed ones.
    engines: tuple[str, ...] = ()
    set_as_default: bool = False
    engine_cdi: bool = False
    restart: str = "safe"
    cdi: bool = True
    selinux_boolean: bool = True
    allow_removal: tuple[str, ...] = ()


@frozen
class Plan:
    """Steps in order. `pending` are engines that keep running with their previous configuration."""

    steps: tuple[Step, ...]
    pending: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
