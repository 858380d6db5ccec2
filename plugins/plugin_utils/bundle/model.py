# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dataclasses of a bundle: needs of hosts, repositories, packages and files."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path

from ...module_utils.errors import FleetError
from ..python_pins import Pin


class BundleError(FleetError):
    """The bundle cannot be made. The previous bundle does not change."""


@dataclass(frozen=True)
class Platform:
    """Properties of a host, as set in the inventory.

    `architecture` is the output of `uname -m`.
    """

    distribution: str
    architecture: str = "x86_64"
    nvswitch: bool = False
    nvlink_bridges: bool = False
    before_turing: bool = False

    def __str__(self) -> str:
        return "%s %s" % (self.distribution, self.architecture)


@dataclass(frozen=True)
class Source:
    """A repository to mirror.

    `role` is the prefix of its variables. `folder` and `key_path` are paths in the bundle.
    """

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
    """A role's request for packages from one repository."""

    role: str
    version: str
    #: Packages that must have this version. The first one determines which versions are available.
    locked: tuple[str, ...]
    #: Packages that may have any version.
    free: tuple[str, ...] = ()
    #: Patterns for the packages that the role pins to the version.
    pinned: tuple[str, ...] = ()
    platform: str = ""


@dataclass(frozen=True)
class Relation:
    """A dependency of a package, or a name that a package provides.

    `operator` is `<<`, `<=`, `=`, `>=` or `>>`, or empty for any version.
    """

    name: str
    operator: str = ""
    version: str = ""

    def __str__(self) -> str:
        return "%s (%s %s)" % (self.name, self.operator, self.version) if self.operator else self.name


@dataclass(frozen=True)
class Candidate:
    """A package in a repository.

    `path` is relative to the repository. `raw` has its requirements, in a form that only its index (apt.py or rpm.py)
    can read.
    """

    name: str
    version: str
    path: str
    size: int
    sha256: str
    provides: tuple[Relation, ...] = ()
    raw: object = field(default=None, compare=False, repr=False)


@dataclass
class Item:
    """A file of the bundle, from a URL, a local file or given content.

    `hosts` need the file. The manifest names `source` as the origin, or else the URL or the local path.
    """

    path: str
    what: str
    sha256: str
    size: int
    url: str = ""
    local: Path | None = None
    content: bytes | None = None
    source: str = ""
    hosts: set[str] = field(default_factory=set)

    @property
    def origin(self) -> str:
        return self.source or without_password(self.url) or (str(self.local) if self.local else "")


def without_password(url: str) -> str:
    """Return a URL without user name and password, for messages and manifests."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in url else url


@dataclass
class Wants:
    """All files and packages that the hosts need.

    `named` has the hosts that need a package, by (package of the distribution, platform).
    """

    repositories: dict[Source, dict[Ask, set[str]]] = field(default_factory=dict)
    #: Hosts by files that the inventory names: (path on the controller, allowed SHA-256s, description).
    files: dict[tuple[str, tuple[str, ...], str], set[str]] = field(default_factory=dict)
    #: Hosts by version of nvidia-ml-py, with its wheels' hashes.
    nvml: dict[Pin, set[str]] = field(default_factory=dict)
    #: Hosts whose pods lease GPUs, by architecture.
    leases: dict[str, set[str]] = field(default_factory=dict)
    named: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def name(self, what: str, platform: str, hosts: set[str]) -> None:
        self.named.setdefault((what, platform), set()).update(hosts)
