# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the decisions about the container toolkit are made of: the host as it was seen, what is asked for, what is to do."""

from __future__ import annotations

from dataclasses import field

from ..frozen import frozen
from ..packages.model import Package, Step


@frozen
class Engine:
    """A container engine. `config` and `drop_in` are the files that nvidia-ctk writes; podman has neither, nor a service."""

    name: str
    binary: str
    unit: str = ""
    config: str = ""
    drop_in: str = ""


@frozen
class Unit:
    """A systemd unit; one that does not exist is neither enabled nor active. `start` is another for each start."""

    enabled: bool = False
    active: bool = False
    start: str = ""
    #: Whether what it has started lives on without it.
    children_stay: bool = False


@frozen
class Host:
    """What was seen. Versions of packages are the package manager's, as 1.18.2-1."""

    manager: str
    architecture: str = "x86_64"
    packages: tuple[Package, ...] = ()
    #: Names of engines that are installed, and whether containerd is used by its CRI.
    engines: tuple[str, ...] = ()
    kubelet: bool = False
    units: dict[str, Unit] = field(default_factory=dict)
    #: Text of the files that count here, where they are there.
    files: dict[str, str] = field(default_factory=dict)
    key_fingerprints: tuple[str, ...] = ()
    #: A driver is installed for the running kernel, so that there are devices to list.
    driver: bool = False
    #: Paths of CDI specifications of GPUs: all, those that list other devices than there are, and those not readable to all.
    specs: tuple[str, ...] = ()
    stale_specs: tuple[str, ...] = ()
    private_specs: tuple[str, ...] = ()
    #: Texts of an engine's files as nvidia-ctk would have them; none where it cannot be asked, as before it is installed.
    configured: dict[str, dict[str, str]] = field(default_factory=dict)
    #: SELinux enforces, and containers may not use devices (the boolean container_use_devices is off).
    selinux_denies: bool = False
    #: Docker: live-restore is on; containers run. None where it does not answer.
    docker_live_restore: bool | None = None
    docker_containers: bool | None = None
    #: What the runs before left behind (Toolkit.record).
    record: dict = field(default_factory=dict)

    def package(self, name: str) -> Package | None:
        return next((package for package in self.packages if package.name == name), None)


@frozen
class Request:
    """What is asked for. `version` is exact, as 1.18.2 or 1.18.2-1, and empty where the toolkit is to go."""

    version: str
    source: str = "repository"
    hold: bool = True
    #: Names of engines, or empty for those that are found.
    engines: tuple[str, ...] = ()
    set_as_default: bool = False
    engine_cdi: bool = False
    restart: str = "safe"
    cdi: bool = True
    selinux_boolean: bool = True
    allow_removal: tuple[str, ...] = ()


@frozen
class Plan:
    """What has to be done, in this order. `pending` are engines that run on with the configuration of before."""

    steps: tuple[Step, ...]
    pending: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
