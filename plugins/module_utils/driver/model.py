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
class Gpu:
    """A GPU on the PCI bus. `device_id` has four hex digits."""

    address: str
    device_id: str


@frozen
class Unit:
    """A systemd service. A missing service is neither enabled nor active."""

    exists: bool = False
    enabled: bool = False
    active: bool = False


@frozen
class SecureBoot:
    """The Secure Boot state of the host.

    `certificate` signs the modules that are built on this host. `enrolled` is true if the firmware trusts it.
    """

    enabled: bool = False
    certificate: str = ""
    enrolled: bool = False


@frozen
class Host(PackageHost):
    """The current state of the host.

    Versions are driver versions, such as 580.105.08, or "".
    """

    distribution: str
    architecture: str
    kernel: str
    gpus: tuple[Gpu, ...] = ()
    nvswitches: int = 0
    nvlink_bridges: int = 0
    loaded: str = ""
    on_disk: str = ""
    library: str = ""
    nouveau_loaded: bool = False
    #: Whether ib_umad is loaded. NVLSM needs it to reach NVSwitches.
    umad_loaded: bool = False
    #: Whether dracut may build the initramfs.
    dracut: bool = False
    headers: bool = False
    secure_boot: SecureBoot = SecureBoot()
    packages: tuple[Package, ...] = ()
    units: dict[str, Unit] = field(default_factory=dict)
    #: Text of the existing files that this role manages.
    files: dict[str, str] = field(default_factory=dict)
    #: Fingerprints of the keys in the key ring for the driver's repository. Empty if there is none.
    key_fingerprints: tuple[str, ...] = ()
    runfile: str = ""
    #: Driver versions that are registered in DKMS.
    dkms: tuple[str, ...] = ()
    #: Folder that the installer of a .run file left on the host. Empty if there is none.
    installer_log: str = ""
    #: Folder of a driver container, such as the GPU operator's container.
    driver_container: str = ""
    #: An earlier change that was interrupted, such as "from 580.95.05 to 580.105.08", or "".
    interrupted: str = ""


@frozen
class Request:
    """The request.

    `version` is a branch (580), an exact version (580.105.08), or "" for removal.
    """

    version: str
    source: str = "repository"
    variant: str = "headless"
    kernel_modules: str = "auto"
    #: Whether to install modules that were built in advance for each kernel instead of using DKMS.
    precompiled: bool = False
    upgrade: bool = False
    hold: bool = True
    persistenced: bool = True
    fabric_manager: str = "auto"
    imex: bool = False
    reboot: str = "never"
    allow_removal: tuple[str, ...] = ()

    @property
    def present(self) -> bool:
        return bool(self.version)


@frozen
class Wanted:
    """The packages and services that fulfil the request on this host."""

    flavor: str
    #: Packages that must have exactly the version of the driver.
    locked: tuple[str, ...]
    #: Packages in `locked` whose kernel modules DKMS builds.
    dkms: tuple[str, ...] = ()
    #: Precompiled modules: (kernel, package name with {version}). The running kernel comes first.
    precompiled: tuple[tuple[str, str], ...] = ()
    #: Packages that may have any version that the sources have.
    free: tuple[str, ...] = ()
    #: Packages to remove: the kernel modules of the other flavour.
    unwanted: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    #: (package name, request to the package manager) for headers or signed modules that the next kernel needs.
    next_kernel: tuple[tuple[str, str], ...] = ()


@frozen
class Plan:
    """The steps in order.

    If `disruptive` is true, clients must stop first. `reboot` is the reason for a reboot afterwards, or "".
    """

    version: str
    steps: tuple[Step, ...] = ()
    disruptive: bool = False
    reboot: str = ""
    notes: tuple[str, ...] = ()
    transaction: Transaction | None = None
