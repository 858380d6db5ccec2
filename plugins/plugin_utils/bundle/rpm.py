# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the files of an RPM repository.

These are the signed repomd.xml and the package index. Fetches nothing.
"""

from __future__ import annotations

import os
import re
import tempfile
from itertools import zip_longest
from pathlib import Path
from typing import Any, Iterable, NamedTuple, Sequence

from .model import BundleError, Candidate, Relation
from .resolve import Index

REPOMD = "repodata/repomd.xml"
#: Index files that dnf requires.
NEEDED = ("primary", "filelists")
#: Suffix for types of index files that only RHEL 7's yum needs: databases with another index file's content.
_DATABASE = "_db"
_OPERATORS = {"EQ": "=", "LT": "<<", "LE": "<=", "GT": ">>", "GE": ">="}
#: Operators of boolean dependencies (https://rpm-software-management.github.io/rpm/manual/boolean_dependencies.html).
_BOOLEAN = re.compile(r" (?:and|or|if|else|unless|with|without) ")
_RELATION = re.compile(r"^(\S+)(?: (<=|>=|=|<|>) (\S+))?$")
_SEGMENT = re.compile(r"[0-9]+|[A-Za-z]+|~|\^")


def library() -> Any:
    """Import createrepo_c and return it. Raises BundleError if it is not installed."""
    # createrepo_c has a copy of librpm, which prints errors on machines without RPM's settings. Provide empty settings.
    with tempfile.TemporaryDirectory(prefix="openfleet-bundle-") as folder:
        for name in ("rpmrc", "macros"):
            Path(folder, name).touch()
        before = os.environ.get("RPM_CONFIGDIR")
        os.environ["RPM_CONFIGDIR"] = before or folder
        try:
            import createrepo_c
        except ImportError as error:
            raise BundleError(
                "this controller",
                "the Python that runs Ansible cannot read the indexes of RPM repositories: %s" % error,
                "pip install createrepo_c",
            ) from None
        finally:
            if before is None:
                del os.environ["RPM_CONFIGDIR"]
    return createrepo_c


class Record(NamedTuple):
    """A file of the index: type, path, kind of checksum, and checksum."""

    what: str
    path: str
    kind: str
    checksum: str


def records(path: Path, where: str) -> list[Record]:
    """Return the index files that dnf may request.

    Raises BundleError if repomd.xml is not usable.
    """
    cr = library()
    try:
        files = [
            Record(record.type, record.location_href, record.checksum_type, record.checksum)
            for record in cr.Repomd(str(path)).records
            if not record.type.endswith(_DATABASE)
        ]
    except cr.CreaterepoCError as error:
        raise BundleError(where, "it is not the index of an RPM repository: %s" % error, "Check the address.") from None
    missing = set(NEEDED) - {record.what for record in files}
    if missing:
        raise BundleError(
            where, "it lists no %s, which dnf requires" % ", ".join(sorted(missing)), "Use another repository."
        )
    return files


class RpmIndex(Index):
    """The packages of one architecture, from a primary.xml, which may be compressed."""

    #: On RPM hosts, roles request exact versions but pin nothing, so dnf installs other packages in their newest
    #: version.
    pins = False

    def __init__(self, primary: Path, machine: str, where: str) -> None:
        super().__init__()
        self._architectures = (machine, "noarch")
        cr = library()
        try:
            cr.xml_parse_primary(str(primary), None, self._add, None, True)
        except cr.CreaterepoCError as error:
            raise BundleError(where, "its index cannot be read: %s" % error, "Run again.") from None

    def _add(self, package: Any) -> None:
        if package.arch not in self._architectures or package.checksum_type != "sha256":
            return
        files = [folder + name for _kind, folder, name, *_digest in package.files]
        candidate = Candidate(
            package.name,
            _evr(package.epoch, package.version, package.release),
            package.location_href,
            package.size_package,
            package.pkgId.lower(),
            (*map(_relation, package.provides), *map(Relation, files)),
            tuple(map(_relation, package.requires)),
        )
        self.add(candidate)

    def requires(self, candidate: Candidate) -> Iterable[tuple[Relation, ...]]:
        """Yield a package's requirements.

        Includes conditional ones, because only a host can evaluate their conditions.
        """
        if not isinstance(candidate.raw, tuple):
            raise AssertionError("not a package of an RPM repository")
        for relation in candidate.raw:
            if relation.name.startswith("rpmlib("):
                continue
            if relation.name.startswith("("):
                for part in conditional(relation.name):
                    if self.named(part.name) or self.providers(part.name):
                        yield (part,)
                continue
            yield (relation,)

    def compare(self, one: str, other: str, exact: bool = True) -> int:
        return compare(one, other, exact)


def _relation(entry: Sequence[Any]) -> Relation:
    name, flags, epoch, version, release = entry[:5]
    operator = _OPERATORS.get(flags or "", "")
    return Relation(name, operator, _evr(epoch, version, release)) if operator else Relation(name)


def _evr(epoch: str | None, version: str, release: str | None) -> str:
    text = "%s-%s" % (version, release) if release else version
    return "%s:%s" % (epoch, text) if epoch not in (None, "", "0") else text


def conditional(text: str) -> list[Relation]:
    """Return the single dependencies in a boolean dependency."""
    relations = []
    for part in _BOOLEAN.split(text):
        part = part.strip()
        while part.startswith("("):
            part = part[1:].strip()
        while part.endswith(")") and part.count(")") > part.count("("):
            part = part[:-1].strip()
        match = _RELATION.match(part)
        if match:
            operator = {"<": "<<", ">": ">>"}.get(match[2] or "", match[2] or "")
            relations.append(Relation(match[1], operator, match[3] or ""))
    return relations


# -- Versions (rpm-version(7)) -----------------------------------------------------------------------------------------


def compare(one: str, other: str, exact: bool = True) -> int:
    """Compare two versions of the form `[epoch:]version[-release]`.

    If `exact` is false, a version without a release equals that version with any release.
    """
    (epoch, version, release), (epoch2, version2, release2) = map(_split, (one, other))
    order = (epoch > epoch2) - (epoch < epoch2) or _compare(version, version2)
    if order or (not exact and not (release and release2)):
        return order
    return _compare(release, release2)


def _split(text: str) -> tuple[int, str, str]:
    epoch, colon, rest = text.rpartition(":")
    version, _dash, release = rest.partition("-")
    return int(epoch) if colon and epoch.isdigit() else 0, version, release


def _compare(one: str, other: str) -> int:
    """Compare two versions segment by segment. A segment is all digits or all letters.

    Separators are ignored. `~` sorts before everything else, even before the end of the text. `^` sorts directly after the end.
    Digits sort after letters.
    """
    for mine, theirs in zip_longest(_SEGMENT.findall(one), _SEGMENT.findall(other), fillvalue=""):
        if mine == theirs:
            continue
        ranks = [_rank(mine), _rank(theirs)]
        if ranks[0] != ranks[1]:
            return 1 if ranks[0] > ranks[1] else -1
        if mine.isdigit():
            if int(mine) != int(theirs):
                return 1 if int(mine) > int(theirs) else -1
        else:
            return 1 if mine > theirs else -1
    return 0


def _rank(segment: str) -> int:
    if segment == "~":
        return 0
    if not segment:
        return 1
    if segment == "^":
        return 2
    return 4 if segment.isdigit() else 3
