# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the files of a flat APT repository (sources.list(5)).

These are the signed Release file and the package index. Fetches nothing.
"""

from __future__ import annotations

import email.utils
import io
import posixpath
from datetime import datetime, timezone
from typing import Iterable

from .model import BundleError, Candidate, Relation
from .resolve import Index

try:
    from debian.deb822 import Packages, PkgRelation, Release
    from debian.debian_support import Version

    PROBLEM = ""
except ImportError as error:
    PROBLEM = str(error)

#: dpkg's architecture (`dpkg --print-architecture`) for each architecture of `uname -m`.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
#: Supported file names of the index, the preferred one first.
FORMS = ("Packages.xz", "Packages.gz", "Packages")


def need_library() -> None:
    if PROBLEM:
        raise BundleError(
            "this controller",
            "the Python that runs Ansible cannot read Debian's indexes: %s" % PROBLEM,
            "pip install python-debian",
        )


def index_files(release: str, where: str) -> dict[str, tuple[str, int]]:
    """Return the index files in a signed Release: {name: (SHA-256, size)}.

    Raises BundleError if it lists no supported index file, or is no longer valid.
    """
    fields = Release(release)
    listed = {
        posixpath.normpath(entry["name"]): (entry["sha256"].lower(), int(entry["size"]))
        for entry in fields.get("SHA256", [])
    }
    forms = {name: listed[name] for name in FORMS if name in listed}
    if not forms:
        raise BundleError(
            where,
            "its Release lists no index with a SHA-256, only: %s" % (", ".join(sorted(listed)) or "nothing"),
            "Use a flat repository like NVIDIA's.",
        )
    until = fields.get("Valid-Until", "")
    moment = email.utils.parsedate_to_datetime(until) if until else None
    if moment and moment.astimezone(timezone.utc) < datetime.now(timezone.utc):
        raise BundleError(
            where, "its Release expired at %s, so hosts refuse it" % until, "Use a mirror that is kept up to date."
        )
    return forms


def valid_until(release: str) -> str:
    return Release(release).get("Valid-Until", "")


class AptIndex(Index):
    """The packages of one architecture, from the text of a Packages file."""

    #: On APT hosts, the roles pin all driver packages to one version.
    pins = True

    def __init__(self, text: str, machine: str) -> None:
        super().__init__()
        wanted = ("all", ARCHITECTURES.get(machine, machine))
        for entry in Packages.iter_paragraphs(io.StringIO(text), use_apt_pkg=False):
            # Ignore packages without a SHA-256, which cannot be verified.
            if entry.get("Architecture") not in wanted or not entry.get("SHA256"):
                continue
            candidate = Candidate(
                entry["Package"],
                entry["Version"],
                posixpath.normpath(entry["Filename"]),
                int(entry["Size"]),
                entry["SHA256"].lower(),
                tuple(relation for group in _relations(entry.get("Provides", "")) for relation in group),
                ", ".join(entry[name] for name in ("Pre-Depends", "Depends") if entry.get(name)),
            )
            self.add(candidate)

    def requires(self, candidate: Candidate) -> Iterable[tuple[Relation, ...]]:
        return _relations(str(candidate.raw))

    def compare(self, one: str, other: str, exact: bool = True) -> int:
        """Compare two versions like dpkg.

        A version without a revision differs from the same version with one.
        """
        first, second = Version(one), Version(other)
        return (first > second) - (first < second)


def _relations(text: str) -> list[tuple[Relation, ...]]:
    if not text:
        return []
    return [
        tuple(Relation(entry["name"], *(entry.get("version") or ("", ""))) for entry in group)
        for group in PkgRelation.parse_relations(text)
    ]
