# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a bundle is made of: what hosts want, the repositories that have it, and the files that come of both."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path

from ...module_utils.errors import FleetError
from ..python_pins import Pin


class BundleError(FleetError):
    """The bundle cannot be made as asked. What it already has stays as it is."""


@dataclass(frozen=True)
class Platform:
    """What only a host itself could tell. The architecture is as `uname -m` names it."""

    distribution: str
    architecture: str = "x86_64"
    nvswitch: bool = False
    nvlink_bridges: bool = False
    before_turing: bool = False

    def __str__(self) -> str:
        return "%s %s" % (self.distribution, self.architecture)


@dataclass(frozen=True)
class Source:
    """A repository to mirror. `role` is the prefix of the variables that name it; `folder` and `key_path` are in the bundle."""

    role: str
    manager: str
    architecture: str
    url: str
    key_url: str
    key: str
    fingerprints: tuple[str, ...]
    folder: str
    key_path: str


@dataclass(frozen=True)
class Ask:
    """One set of packages from one repository, as the role on a host asks for it."""

    role: str
    version: str
    #: Of exactly the version, the first of which tells what versions there are; and of whatever version there is.
    locked: tuple[str, ...]
    free: tuple[str, ...] = ()
    #: Patterns of names that the role pins to the version.
    pinned: tuple[str, ...] = ()
    platform: str = ""


@dataclass(frozen=True)
class Relation:
    """A dependency, or what a package provides: `operator` is one of <<, <=, =, >=, >>, or empty for any version."""

    name: str
    operator: str = ""
    version: str = ""

    def __str__(self) -> str:
        return "%s (%s %s)" % (self.name, self.operator, self.version) if self.operator else self.name


@dataclass(frozen=True)
class Candidate:
    """A package of a repository. `path` is relative to the repository; `raw` is for the index that made it."""

    name: str
    version: str
    path: str
    size: int
    sha256: str
    provides: tuple[Relation, ...] = ()
    raw: object = field(default=None, compare=False, repr=False)


@dataclass
class Item:
    """A file of the bundle: from an address, from a local file, or of this content. `hosts` are those it is for.

    `told` is what the manifest says of where it is from, where that is neither an address nor a file that lasts.
    """

    path: str
    what: str
    sha256: str
    size: int
    url: str = ""
    local: Path | None = None
    content: bytes | None = None
    told: str = ""
    hosts: set[str] = field(default_factory=set)

    @property
    def origin(self) -> str:
        return self.told or without_password(self.url) or (str(self.local) if self.local else "")


def without_password(url: str) -> str:
    """For people and manifests: an address may have a name and a password in it."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in url else url


@dataclass
class Wants:
    """All that the hosts want. `named` are things that come from elsewhere, with the hosts that need them."""

    repositories: dict[Source, dict[Ask, set[str]]] = field(default_factory=dict)
    #: (path on the controller, the SHA-256s that it may have, what it is) of files that the inventory names.
    files: dict[tuple[str, tuple[str, ...], str], set[str]] = field(default_factory=dict)
    #: Versions of nvidia-ml-py, with the hashes of their wheels.
    nvml: dict[Pin, set[str]] = field(default_factory=dict)
    named: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def name(self, what: str, platform: str, hosts: set[str]) -> None:
        self.named.setdefault((what, platform), set()).update(hosts)
