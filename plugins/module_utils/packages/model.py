# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define values for packages, their repository and their changes."""

from __future__ import annotations

import re
from typing import Callable, Iterable

from ..frozen import frozen

#: Path formats of the repository's file and its key ring, by package manager.
_SOURCES = {"apt": "/etc/apt/sources.list.d/%s", "dnf": "/etc/yum.repos.d/%s.repo"}
_KEYRINGS = {"apt": "/etc/apt/keyrings/%s.gpg", "dnf": "/etc/pki/rpm-gpg/RPM-GPG-KEY-%s"}


@frozen
class Owner:
    """The role that installs a vendor's packages.

    The role's variables start with `role`, and its files start with `name`. `what` names the software, such as "the
    driver". `vendor` is a word in the names of the vendor's packages, such as "nvidia".
    """

    role: str
    name: str
    what: str
    vendor: str = ""
    #: Content of the repository's file, with the placeholders {name}, {url}, {settings} and {keyring}.
    apt: str = ""
    dnf: str = ""
    #: Settings with which DNF verifies the repository.
    settings: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        """Return the first line of every file that the role writes."""
        return "# Written by Ansible (openfleet.gpu.%s); changes made here are overwritten.\n" % self.role

    @property
    def sources(self) -> dict[str, str]:
        """Return the path of the repository's file, by package manager."""
        # APT recognizes the format of a file by its suffix (sources.list(5)).
        suffix = ".sources" if self.apt.startswith("Types:") else ".list"
        return {"apt": _SOURCES["apt"] % self.name + suffix, "dnf": _SOURCES["dnf"] % self.name}

    @property
    def keyrings(self) -> dict[str, str]:
        """Return the path of the repository's key ring, by package manager."""
        return {manager: path % self.name for manager, path in _KEYRINGS.items()}

    def repository(self, manager: str, url: str, keyring: str = "") -> str:
        """Return the text of the repository's file. The default is the role's key ring."""
        text = {"apt": self.apt, "dnf": self.dnf}[manager]
        keyring = keyring or self.keyrings[manager]
        settings = "\n".join(self.settings)
        return self.head + text.format(name=self.name, url=url.rstrip("/"), settings=settings, keyring=keyring)


@frozen
class Package:
    """An installed package.

    `broken` is true after a failed or interrupted installation.
    """

    name: str
    version: str
    held: bool = False
    broken: bool = False


#: Whether an installed package is part of the software.
IsPart = Callable[[Package], bool]


class PackageHost:
    """A host with packages. Each role's own class for a host is a subclass."""

    packages: tuple[Package, ...]

    def package(self, name: str) -> Package | None:
        return next((package for package in self.packages if package.name == name), None)


@frozen
class Transaction:
    """The changes that the package manager will make.

    Installs are (name, old version or "", new version). Removals are (name, old version).
    """

    version: str
    installs: tuple[tuple[str, str, str], ...] = ()
    removals: tuple[tuple[str, str], ...] = ()
    #: Arguments for the package manager: packages with versions, files, or names with the suffix for removal.
    arguments: tuple[str, ...] = ()
    #: Packages for the next kernel that no source offers.
    missing: tuple[str, ...] = ()

    @property
    def removed(self) -> tuple[str, ...]:
        """Return the names of the removed packages."""
        return tuple(name for name, _version in self.removals)


@frozen
class Step:
    """A step: its kind, and the packages or files (`items`) that it changes."""

    kind: str
    text: str
    items: tuple[str, ...] = ()


def order(version: str) -> tuple[int, ...]:
    """Return the sort key of a version. 1.9.0 comes before 1.17.8."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def hold_steps(hold: bool, names: Iterable[str], held: Iterable[str]) -> list[Step]:
    """Return the step that adds or releases the holds of these packages.

    `held` are the packages with a hold after the change. APT removes the hold of a package that it changes on request.
    """
    held = set(held)
    changed = tuple(name for name in names if (name in held) != hold)
    if not changed:
        return []
    text = "hold %s" if hold else "release the hold of %s"
    return [Step("hold" if hold else "release", text % ", ".join(changed), changed)]
