# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read one repository: its key, its signed index, and the packages to mirror.

This module does not write to the bundle.

The index stays unchanged, so that hosts can verify the vendor's signature. So it also lists packages that are not
mirrored.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import posixpath
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping

from ...module_utils.packages.openpgp import fingerprints
from . import apt, fetch, rpm, signature
from .model import Ask, BundleError, Candidate, Item, Source
from .resolve import Index, resolve


@dataclass
class Mirror:
    """The mirrored files of one repository.

    `index` has the index files in the order of writing, with signed files last.
    """

    source: Source
    key_fingerprints: tuple[str, ...] = ()
    valid_until: str = ""
    packages: dict[str, Item] = field(default_factory=dict)
    versions: dict[str, set[str]] = field(default_factory=dict)
    index: list[Item] = field(default_factory=list)
    #: Requirements that no package in the repository meets: hosts by (requirement, platform).
    elsewhere: dict[tuple[str, str], set[str]] = field(default_factory=dict)


def read(source: Source, asks: Mapping[Ask, set[str]], bundle: Path, fetcher: fetch.Fetcher) -> Mirror:
    """Read a repository and choose the packages to mirror.

    Raises BundleError if the repository cannot be fetched, is not signed with a trusted key, or lacks a requested
    version.
    """
    mirror = Mirror(source)
    hosts = {host for names in asks.values() for host in names}
    given = source.key.encode()
    where = source.role + "_repository_key" if given else source.key_url
    content = given or fetcher.small(
        where, "Check %s_repository_key_url, or set %s_repository_key to the key." % (source.role, source.role)
    )
    if content is None:
        raise AssertionError("a required file is missing")
    key = signature.check_key(content, source, where)
    mirror.key_fingerprints = fingerprints(key)
    mirror.index.append(_file(source.key_path, "key of the repository", content, "" if given else where, hosts))
    read_index = _apt_index if source.manager == "apt" else _rpm_index
    index = read_index(mirror, key, bundle, fetcher, hosts)
    for ask, names in asks.items():
        taken, elsewhere = resolve(ask, index)
        for candidate in taken:
            item = mirror.packages.setdefault(candidate.path, _package(source, candidate))
            item.hosts |= names
            mirror.versions.setdefault(candidate.name, set()).add(candidate.version)
        for what in elsewhere:
            mirror.elsewhere.setdefault((what, ask.platform), set()).update(names)
    return mirror


def _package(source: Source, candidate: Candidate) -> Item:
    return Item(
        _inside(source, candidate.path),
        "%s %s" % (candidate.name, candidate.version),
        candidate.sha256,
        candidate.size,
        url="%s/%s" % (source.url, candidate.path),
    )


def _inside(source: Source, path: str) -> str:
    """Return the path in the bundle for a file of the repository.

    Raises BundleError for a file outside the repository.
    """
    path = posixpath.normpath(path)
    if path.startswith(("..", "/")):
        raise BundleError(source.url, "its index names a file outside of it: %s" % path, "Use another repository.")
    return "%s/%s" % (source.folder, path)


def text_file(path: str, what: str, content: bytes) -> Item:
    """Return a text file of the bundle with this content."""
    return _file(path, what, content, "", set())


def _file(path: str, what: str, content: bytes, url: str, hosts: set[str]) -> Item:
    return Item(
        path, what, hashlib.sha256(content).hexdigest(), len(content), url=url, content=content, hosts=set(hosts)
    )


# -- APT ---------------------------------------------------------------------------------------------------------------


def _apt_index(mirror: Mirror, key: bytes, bundle: Path, fetcher: fetch.Fetcher, hosts: set[str]) -> Index:
    apt.need_library()
    source = mirror.source
    cure = "Check that %s_repository_url is correct and reachable." % source.role
    inside = "%s/InRelease" % source.url
    content = fetcher.small(inside, cure, optional=True)
    signed = []
    if content is not None:
        release = signature.clearsigned(content, key, source.fingerprints, inside)
        signed.append(_file(source.folder + "/InRelease", "signed index", content, inside, hosts))
    else:
        outside = "%s/Release" % source.url
        plain = fetcher.small(outside, cure)
        signed_by = fetcher.small(outside + ".gpg", cure, optional=True)
        if signed_by is None:
            raise BundleError(
                source.url,
                "it is not signed: it has neither InRelease nor Release.gpg",
                "Hosts would refuse it too. Use a mirror that keeps the vendor's signature.",
            )
        if plain is None:
            raise AssertionError("a required file is missing")
        release = signature.detached(plain, signed_by, key, source.fingerprints, outside)
        signed.append(_file(source.folder + "/Release.gpg", "signature", signed_by, outside + ".gpg", hosts))
        signed.append(_file(source.folder + "/Release", "signed index", plain, outside, hosts))
    text = release.decode("utf-8", "replace")
    mirror.valid_until = apt.valid_until(text)
    packages = _packages(mirror, apt.index_files(text, source.url), bundle, fetcher, hosts)
    mirror.index += signed
    return apt.AptIndex(packages.decode("utf-8", "replace"), source.architecture)


def _packages(
    mirror: Mirror, listed: Mapping[str, tuple[str, int]], bundle: Path, fetcher: fetch.Fetcher, hosts: set[str]
) -> bytes:
    """Fetch the index and return its text.

    Mirrors all compressed forms in the Release, because apt chooses one of them.
    """
    source = mirror.source
    forms: dict[str, bytes] = {}
    text = b""
    for name in apt.FORMS:
        if name not in listed:
            continue
        sha256, size = listed[name]
        url, here = "%s/%s" % (source.url, name), bundle / source.folder / name
        if name == "Packages" and hashlib.sha256(text).hexdigest() == sha256:
            content: bytes | None = text
        elif fetch.has(here, sha256):
            content = here.read_bytes()
        else:
            content = fetcher.small(url, "Run again.", optional=True)
        if content is None:
            continue
        if len(content) != size or hashlib.sha256(content).hexdigest() != sha256:
            raise BundleError(
                url,
                "its SHA-256 differs from the signed Release, so it was not kept",
                "Run again: the mirror may be updating. If it recurs, the file was altered.",
            )
        forms[name] = content
        text = text or _unpacked(name, content)
        mirror.index.append(_file("%s/%s" % (source.folder, name), "index", content, url, hosts))
    if not forms:
        raise BundleError(
            source.url, "it has none of the indexes in its Release (%s)" % ", ".join(listed), "Run again later."
        )
    return text


def _unpacked(name: str, content: bytes) -> bytes:
    if name.endswith(".xz"):
        return lzma.decompress(content)
    return gzip.decompress(content) if name.endswith(".gz") else content


# -- RPM ---------------------------------------------------------------------------------------------------------------


def _rpm_index(mirror: Mirror, key: bytes, bundle: Path, fetcher: fetch.Fetcher, hosts: set[str]) -> Index:
    source = mirror.source
    url, here = "%s/%s" % (source.url, rpm.REPOMD), "%s/%s" % (source.folder, rpm.REPOMD)
    rpm.library()
    top = fetcher.small(url, "Check that %s_repository_url is correct and reachable." % source.role)
    signed_by = fetcher.small(url + ".asc", "Run again.", optional=True)
    if signed_by is None:
        raise BundleError(
            source.url,
            "it is not signed: it has no repomd.xml.asc",
            "Hosts would refuse it too. Use a mirror that keeps the vendor's signature.",
        )
    if top is None:
        raise AssertionError("a required file is missing")
    signature.detached(top, signed_by, key, source.fingerprints, url)
    with tempfile.TemporaryDirectory(prefix="openfleet-bundle-") as name:
        folder = Path(name)
        (folder / "repomd.xml").write_bytes(top)
        for record in rpm.records(folder / "repomd.xml", url):
            content = _record(mirror, record, bundle, fetcher, hosts)
            if record.what == "primary":
                # Keep the file name, which shows the compression.
                primary = folder / posixpath.basename(record.path)
                primary.write_bytes(content)
        mirror.index.append(_file(here + ".asc", "signature", signed_by, url + ".asc", hosts))
        mirror.index.append(_file(here, "signed index", top, url, hosts))
        return rpm.RpmIndex(primary, source.architecture, url)


def _record(mirror: Mirror, record: rpm.Record, bundle: Path, fetcher: fetch.Fetcher, hosts: set[str]) -> bytes:
    """Fetch and verify one index file, and return its content.

    The content is empty if the file does not exist and dnf does not need it.
    """
    source, (what, path, kind, checksum) = mirror.source, record
    url = "%s/%s" % (source.url, path)
    here = bundle / _inside(source, path)
    if kind not in ("sha256", "sha384", "sha512"):
        raise BundleError(
            url, "its checksum is %s, which is not secure" % kind, "Use a repository with SHA-256 checksums."
        )
    content: bytes | None = here.read_bytes() if here.is_file() else None
    if content is None or hashlib.new(kind, content).hexdigest() != checksum:
        content = fetcher.small(url, "Run again.", optional=what not in rpm.NEEDED)
    if content is None:
        return b""
    if hashlib.new(kind, content).hexdigest() != checksum:
        raise BundleError(
            url,
            "its checksum differs from the signed repomd.xml, so it was not kept",
            "Run again: the mirror may be updating. If it recurs, the file was altered.",
        )
    mirror.index.append(_file(_inside(source, path), "index", content, url, hosts))
    return content
