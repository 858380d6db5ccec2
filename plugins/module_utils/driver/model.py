# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the decisions about a driver are made of: the host as it was seen, what is asked for, what is to be done."""

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
    """`certificate` is the one that modules built on this host are signed with, `enrolled` whether the firmware trusts it."""

    enabled: bool = False
    certificate: str = ""
    enrolled: bool = False


@frozen
class Host:
    """What was seen. Versions are the driver's, as 580.105.08, and empty where there is none."""

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
    #: ib_umad, by which NVLSM reaches NVSwitches.
    umad_loaded: bool = False
    #: dracut makes the initramfs here, or may.
    dracut: bool = False
    headers: bool = False
    secure_boot: SecureBoot = SecureBoot()
    packages: tuple[Package, ...] = ()
    units: dict[str, Unit] = field(default_factory=dict)
    #: Text of the files that this role writes, where they are there.
    files: dict[str, str] = field(default_factory=dict)
    #: Fingerprints of the keys in the key ring of the driver's repository; empty where there is none.
    key_fingerprints: tuple[str, ...] = ()
    runfile: str = ""
    #: Versions of the driver that DKMS knows.
    dkms: tuple[str, ...] = ()
    #: Folder that the installer of a .run file leaves behind.
    installer_log: str = ""
    #: Folder of a driver container, as the GPU operator runs it.
    driver_container: str = ""
    #: An earlier change did not come to its end.
    interrupted: bool = False

    def package(self, name: str) -> Package | None:
        return next((package for package in self.packages if package.name == name), None)


@frozen
class Request:
    """What is asked for. `version` is a branch (580), an exact version (580.105.08), or empty where the driver is to go."""

    version: str
    source: str = "repository"
    variant: str = "headless"
    kernel_modules: str = "auto"
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
    """Packages and services that make the request true on this host."""

    flavor: str
    #: Of exactly the driver's version.
    locked: tuple[str, ...]
    #: Of whatever version the sources have.
    free: tuple[str, ...] = ()
    #: Not to be there: the other flavour's modules.
    unwanted: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    #: Packages that bring headers or signed modules for the next kernel too: (name, what to ask the package manager for).
    next_kernel: tuple[tuple[str, str], ...] = ()


@frozen
class Transaction:
    """What the package manager would do: (name, old version or "", new version) and (name, old version)."""

    version: str
    installs: tuple[tuple[str, str, str], ...] = ()
    removals: tuple[tuple[str, str], ...] = ()
    #: What to ask of the package manager for just this: name=version, name, name-.
    arguments: tuple[str, ...] = ()
    #: Packages for the next kernel that no source has.
    missing: tuple[str, ...] = ()


@frozen
class Plan:
    """Steps in order. `disruptive`: clients must leave the GPUs first. `reboot`: why one is needed afterwards, or empty."""

    version: str
    steps: tuple[Step, ...] = ()
    disruptive: bool = False
    reboot: str = ""
    notes: tuple[str, ...] = ()
    transaction: Transaction | None = None
