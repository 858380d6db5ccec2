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
    """A GPU on the PCI bus. `device_id` is its PCI device id in four hex digits."""

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
    """The host's Secure Boot state.

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
    #: Whether dracut is the tool that builds the initramfs.
    dracut: bool = False
    headers: bool = False
    secure_boot: SecureBoot = SecureBoot()
    packages: tuple[Package, ...] = ()
    units: dict[str, Unit] = field(default_factory=dict)
    #: Texts of the files that this role manages and that exist.
    files: dict[str, str] = field(default_factory=dict)
    #: Fingerprints of the keys in the driver repository's key ring. Empty without a key ring.
    key_fingerprints: tuple[str, ...] = ()
    runfile: str = ""
    #: Driver versions that are registered in DKMS.
    dkms: tuple[str, ...] = ()
    #: Folder that a .run file's installer left on the host. Empty without such a driver.
    installer_log: str = ""
    #: Folder of a container with the driver, such as the GPU operator's driver container. Empty without one.
    driver_container: str = ""
    #: Text about an interrupted change, such as "from 580.95.05 to 580.105.08". Empty if none was interrupted.
    interrupted: str = ""


@frozen
class Request:
    """The requested driver.

    `version` is a branch (580), an exact version (580.105.08), or "" for removal.
    """

    version: str
    source: str = "repository"
    variant: str = "headless"
    kernel_modules: str = "auto"
    #: Whether to install modules that were built in advance for each kernel. Otherwise DKMS builds them.
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
    """The packages and services that the request needs on this host."""

    flavor: str
    #: Packages that must have exactly the driver's version.
    locked: tuple[str, ...]
    #: Packages in `locked` whose kernel modules DKMS builds.
    dkms: tuple[str, ...] = ()
    #: Precompiled modules: (kernel, package name with {version}). The running kernel comes first.
    precompiled: tuple[tuple[str, str], ...] = ()
    #: Packages that may have any version that a source offers.
    free: tuple[str, ...] = ()
    #: Packages to remove: kernel modules of the other flavour.
    unwanted: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    #: Headers or signed modules that the next kernel needs: (package name, argument for the package manager).
    next_kernel: tuple[tuple[str, str], ...] = ()


@frozen
class Plan:
    """The steps in order.

    Clients must stop first if `disruptive` is true. `reboot` is the reason for a reboot afterwards, or "".
    """

    version: str
    steps: tuple[Step, ...] = ()
    disruptive: bool = False
    reboot: str = ""
    notes: tuple[str, ...] = ()
    transaction: Transaction | None = None
