# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values of a bundle: what hosts need, the repositories, and the files."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path

from ...module_utils.errors import FleetError
from ..python_pins import Pin


class BundleError(FleetError):
    """The bundle cannot be made. The previous bundle stays as it is."""


@dataclass(frozen=True)
class Platform:
    """Properties of a host that the inventory has to state.

    The architecture is that of `uname -m`.
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
    """A set of packages that a role requests from one repository."""

    role: str
    version: str
    #: Packages with exactly this version. The first one determines the available versions.
    locked: tuple[str, ...]
    #: Packages with any version.
    free: tuple[str, ...] = ()
    #: Patterns of names that the role pins to the version.
    pinned: tuple[str, ...] = ()
    platform: str = ""


@dataclass(frozen=True)
class Relation:
    """A dependency or a provided name.

    `operator` is one of <<, <=, =, >=, >>, or empty for any version.
    """

    name: str
    operator: str = ""
    version: str = ""

    def __str__(self) -> str:
        return "%s (%s %s)" % (self.name, self.operator, self.version) if self.operator else self.name


@dataclass(frozen=True)
class Candidate:
    """A package of a repository.

    `path` is relative to the repository. `raw` is private to its index.
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
    """A file of the bundle, from an address, a local file or given content.

    `hosts` are the hosts that need it.

    `source` replaces the address or the local file as its origin in the manifest.
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
    """Return the address without user name and password, for messages and manifests."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in url else url


@dataclass
class Wants:
    """Everything that the hosts need.

    `named` has hosts by (package of the distribution, platform).
    """

    repositories: dict[Source, dict[Ask, set[str]]] = field(default_factory=dict)
    #: Hosts by (path on the controller, allowed SHA-256s, description) of files that the inventory names.
    files: dict[tuple[str, tuple[str, ...], str], set[str]] = field(default_factory=dict)
    #: Hosts by version of nvidia-ml-py with the hashes of its wheels.
    nvml: dict[Pin, set[str]] = field(default_factory=dict)
    named: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def name(self, what: str, platform: str, hosts: set[str]) -> None:
        self.named.setdefault((what, platform), set()).update(hosts)
