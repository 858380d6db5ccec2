# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe the current host, the request and the plan of a driver as plain values."""

from __future__ import annotations

from dataclasses import field

from ..frozen import frozen
from ..packages.model import Package, Step


@frozen
class Gpu:
    """A GPU on the PCI bus; `device_id` are four hex digits."""

    address: str
    device_id: str


@frozen
class Unit:
    """A systemd service; one that does not exist is neither enabled nor active."""

    exists: bool = False
    enabled: bool = False
    active: bool = False


@frozen
class SecureBoot:
    """`certificate` signs the modules built on this host, `enrolled` is whether the firmware trusts it."""

    enabled: bool = False
    certificate: str = ""
    enrolled: bool = False


@frozen
class Host:
    """The current state of the host. Versions are the driver's, such as 580.105.08, or empty."""

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
    #: ib_umad, which NVLSM needs to reach NVSwitches.
    umad_loaded: bool = False
    #: dracut builds the initramfs, or may.
    dracut: bool = False
    headers: bool = False
    secure_boot: SecureBoot = SecureBoot()
    packages: tuple[Package, ...] = ()
    units: dict[str, Unit] = field(default_factory=dict)
    #: Text of the existing files that this role writes.
    files: dict[str, str] = field(default_factory=dict)
    #: Fingerprints of the keys in the key ring of the driver's repository, or empty.
    key_fingerprints: tuple[str, ...] = ()
    runfile: str = ""
    #: Driver versions in DKMS.
    dkms: tuple[str, ...] = ()
    #: Folder left by the installer of a .run file.
    installer_log: str = ""
    #: Folder of a driver container, as run by the GPU operator.
    driver_container: str = ""
    #: The earlier change that was interrupted, such as "from 580.95.05 to 580.105.08", or empty.
    interrupted: str = ""

    def package(self, name: str) -> Package | None:
        return next((package for package in self.packages if package.name == name), None)


@frozen
class Request:
    """The request. `version` is a branch (580), an exact version (580.105.08), or empty for removal."""

    version: str
    source: str = "repository"
    variant: str = "headless"
    kernel_modules: str = "auto"
    #: Install modules that are built in advance for each kernel, not DKMS.
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
    """Packages and services that fulfil the request on this host."""

    flavor: str
    #: Packages in exactly the driver's version.
    locked: tuple[str, ...]
    #: Those of `locked` whose kernel modules DKMS builds.
    dkms: tuple[str, ...] = ()
    #: Precompiled modules: (kernel, package name with {version}). The running kernel is the first.
    precompiled: tuple[tuple[str, str], ...] = ()
    #: Packages in any version of the sources.
    free: tuple[str, ...] = ()
    #: Packages to remove: the other flavour's modules.
    unwanted: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    #: Packages with headers or signed modules for the next kernel too: (name, request to the package manager).
    next_kernel: tuple[tuple[str, str], ...] = ()


@frozen
class Transaction:
    """The package manager's changes: (name, old version or "", new version) and (name, old version)."""

    version: str
    installs: tuple[tuple[str, str, str], ...] = ()
    removals: tuple[tuple[str, str], ...] = ()
    #: The request to the package manager: name=version, name, name-.
    arguments: tuple[str, ...] = ()
    #: Packages for the next kernel that no source has.
    missing: tuple[str, ...] = ()


@frozen
class Plan:
    """Steps in order. `disruptive`: clients must stop first. `reboot`: why one is needed afterwards, or empty."""

    version: str
    steps: tuple[Step, ...] = ()
    disruptive: bool = False
    reboot: str = ""
    notes: tuple[str, ...] = ()
    transaction: Transaction | None = None
