# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe the current host, the request and the plan as plain values."""

# `frozen` makes dataclasses.
# pylint: disable=invalid-field-call
from __future__ import annotations

from dataclasses import field

from ..frozen import frozen
from ..packages.model import Package, PackageHost, Step, Transaction


@frozen
class Engine:
    """A container engine.

    nvidia-ctk writes `config` and `drop_in`. Podman has no such files and no service.
    """

    name: str
    binary: str
    unit: str = ""
    config: str = ""
    drop_in: str = ""


@frozen
class Unit:
    """A systemd unit.

    A missing unit is neither enabled nor active. `start` identifies the last start of the unit.
    """

    enabled: bool = False
    active: bool = False
    start: str = ""
    #: Whether the engine's containers survive a restart of the unit.
    children_stay: bool = False


@frozen
class Host(PackageHost):
    """The current state of the host.

    Versions are in the package manager's form, such as 1.18.2-1.
    """

    manager: str
    architecture: str = "x86_64"
    packages: tuple[Package, ...] = ()
    #: Names of the installed engines.
    engines: tuple[str, ...] = ()
    kubelet: bool = False
    units: dict[str, Unit] = field(default_factory=dict)
    #: Text of the existing files that are relevant for the plan.
    files: dict[str, str] = field(default_factory=dict)
    key_fingerprints: tuple[str, ...] = ()
    #: Whether a driver is installed for the running kernel.
    driver: bool = False
    #: Paths of the CDI specifications for GPUs: all, outdated ones, and those that some users cannot read.
    specs: tuple[str, ...] = ()
    stale_specs: tuple[str, ...] = ()
    private_specs: tuple[str, ...] = ()
    #: Each engine's files (text by path) with nvidia-ctk's changes. Empty if nvidia-ctk is not installed yet.
    configured: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Whether SELinux prevents containers from using devices: it enforces, and the boolean container_use_devices is
    #: off.
    selinux_denies: bool = False
    #: Whether Docker's live-restore is on, and whether Docker has running containers. Both are None if Docker does not
    #: answer.
    docker_live_restore: bool | None = None
    docker_containers: bool | None = None
    #: The record of earlier runs (Toolkit.record).
    record: dict = field(default_factory=dict)


@frozen
class Request:
    """The requested toolkit.

    `version` is an exact version, such as 1.18.2 or 1.18.2-1, or "" for removal.
    """

    version: str
    source: str = "repository"
    hold: bool = True
    #: Names of the engines to configure. Empty for all installed engines.
    engines: tuple[str, ...] = ()
    set_as_default: bool = False
    engine_cdi: bool = False
    restart: str = "safe"
    cdi: bool = True
    selinux_boolean: bool = True
    allow_removal: tuple[str, ...] = ()


@frozen
class Plan:
    """The steps in order.

    `pending` has the engines that continue to run with their previous configuration.
    """

    steps: tuple[Step, ...]
    pending: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    #: The package changes. None if there are none, or if they come from files.
    transaction: Transaction | None = None
