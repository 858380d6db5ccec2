# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One repository: its key, its signed index, and the packages to take. Reads and fetches; writes nothing.

The index is kept as it was signed, with all that is not mirrored in it, so that hosts verify the vendor's signature.
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
    """What is to be had of one repository. `index` is in the order of writing: what is signed comes last."""

    source: Source
    key_fingerprints: tuple[str, ...] = ()
    valid_until: str = ""
    packages: dict[str, Item] = field(default_factory=dict)
    versions: dict[str, set[str]] = field(default_factory=dict)
    index: list[Item] = field(default_factory=list)
    #: What must come from elsewhere, by platform, with the hosts that need it.
    elsewhere: dict[tuple[str, str], set[str]] = field(default_factory=dict)


def look(source: Source, asks: Mapping[Ask, set[str]], bundle: Path, fetcher: fetch.Fetcher) -> Mirror:
    """Raises BundleError."""
    found = Mirror(source)
    hosts = {host for names in asks.values() for host in names}
    given = source.key.encode()
    where = source.role + "_repository_key" if given else source.key_url
    content = given or fetcher.small(
        where, "See %s_repository_key_url, or give the key itself in %s_repository_key." % (source.role, source.role)
    )
    assert content is not None
    key = signature.check_key(content, source, where)
    found.key_fingerprints = fingerprints(key)
    found.index.append(_file(source.key_path, "key of the repository", content, "" if given else where, hosts))
    seek = _look_apt if source.manager == "apt" else _look_rpm
    index = seek(found, key, bundle, fetcher, hosts)
    for ask, names in asks.items():
        taken, elsewhere = resolve(ask, index)
        for candidate in taken:
            item = found.packages.setdefault(candidate.path, _package(source, candidate))
            item.hosts |= names
            found.versions.setdefault(candidate.name, set()).add(candidate.version)
        for what in elsewhere:
            found.elsewhere.setdefault((what, ask.platform), set()).update(names)
    return found


def _package(source: Source, candidate: Candidate) -> Item:
    return Item(
        _inside(source, candidate.path),
        "%s %s" % (candidate.name, candidate.version),
        candidate.sha256,
        candidate.size,
        url="%s/%s" % (source.url, candidate.path),
    )


def _inside(source: Source, path: str) -> str:
    """Where a file of the repository lies in the bundle. Raises BundleError."""
    path = posixpath.normpath(path)
    if path.startswith(("..", "/")):
        raise BundleError(source.url, "its index names a file outside of it: %s" % path, "Do not use it.")
    return "%s/%s" % (source.folder, path)


def text_file(path: str, what: str, content: bytes) -> Item:
    """A file whose content is known."""
    return _file(path, what, content, "", set())


def _file(path: str, what: str, content: bytes, url: str, hosts: set[str]) -> Item:
    return Item(
        path, what, hashlib.sha256(content).hexdigest(), len(content), url=url, content=content, hosts=set(hosts)
    )


# -- APT ---------------------------------------------------------------------------------------------------------------


def _look_apt(found: Mirror, key: bytes, bundle: Path, fetcher: fetch.Fetcher, hosts: set[str]) -> Index:
    apt.need_library()
    source = found.source
    cure = "See that %s_repository_url is right and answers." % source.role
    inside = "%s/InRelease" % source.url
    content = fetcher.small(inside, cure, optional=True)
    signed = []
    if content is not None:
        release = signature.clearsigned(content, key, source.fingerprints, inside)
        signed.append(_file(source.folder + "/InRelease", "signed index", content, inside, hosts))
    else:
        outside = "%s/Release" % source.url
        plain = fetcher.small(outside, cure)
        beside = fetcher.small(outside + ".gpg", cure, optional=True)
        if beside is None:
            raise BundleError(
                source.url,
                "it is not signed: there is neither InRelease nor Release.gpg",
                "Hosts refuse it too. Take a mirror that keeps the vendor's signature.",
            )
        assert plain is not None
        release = signature.detached(plain, beside, key, source.fingerprints, outside)
        signed.append(_file(source.folder + "/Release.gpg", "signature", beside, outside + ".gpg", hosts))
        signed.append(_file(source.folder + "/Release", "signed index", plain, outside, hosts))
    text = release.decode("utf-8", "replace")
    found.valid_until = apt.valid_until(text)
    packages = _packages(found, apt.index_files(text, source.url), bundle, fetcher, hosts)
    found.index += signed
    return apt.AptIndex(packages.decode("utf-8", "replace"), source.architecture)


def _packages(
    found: Mirror, listed: Mapping[str, tuple[str, int]], bundle: Path, fetcher: fetch.Fetcher, hosts: set[str]
) -> bytes:
    """The text of the index. All forms of it that are signed and there are mirrored, since apt asks for those it likes."""
    source = found.source
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
                "it is not what the signed Release names: the SHA-256 differs",
                "It was changed, or the mirror is in the middle of an update; run again. Nothing of it was kept.",
            )
        forms[name] = content
        text = text or _unpacked(name, content)
        found.index.append(_file("%s/%s" % (source.folder, name), "index", content, url, hosts))
    if not forms:
        raise BundleError(source.url, "it has none of the indexes that it names (%s)" % ", ".join(listed), "Run again.")
    return text


def _unpacked(name: str, content: bytes) -> bytes:
    if name.endswith(".xz"):
        return lzma.decompress(content)
    return gzip.decompress(content) if name.endswith(".gz") else content


# -- RPM ---------------------------------------------------------------------------------------------------------------


def _look_rpm(found: Mirror, key: bytes, bundle: Path, fetcher: fetch.Fetcher, hosts: set[str]) -> Index:
    source = found.source
    url, here = "%s/%s" % (source.url, rpm.REPOMD), "%s/%s" % (source.folder, rpm.REPOMD)
    rpm.library()
    top = fetcher.small(url, "See that %s_repository_url is right and answers." % source.role)
    beside = fetcher.small(url + ".asc", "Run again.", optional=True)
    if beside is None:
        raise BundleError(
            source.url,
            "it is not signed: there is no repomd.xml.asc",
            "Hosts refuse it too. Take a mirror that keeps the vendor's signature.",
        )
    assert top is not None
    signature.detached(top, beside, key, source.fingerprints, url)
    with tempfile.TemporaryDirectory(prefix="openfleet-bundle-") as name:
        folder = Path(name)
        (folder / "repomd.xml").write_bytes(top)
        for record in rpm.records(folder / "repomd.xml", url):
            content = _record(found, record, bundle, fetcher, hosts)
            if record.what == "primary":
                # Its compression is told by its name.
                primary = folder / posixpath.basename(record.path)
                primary.write_bytes(content)
        found.index.append(_file(here + ".asc", "signature", beside, url + ".asc", hosts))
        found.index.append(_file(here, "signed index", top, url, hosts))
        return rpm.RpmIndex(primary, source.architecture, url)


def _record(found: Mirror, record: rpm.Record, bundle: Path, fetcher: fetch.Fetcher, hosts: set[str]) -> bytes:
    """One file of the index, verified. Only what dnf needs has to be there."""
    source, (what, path, kind, checksum) = found.source, record
    url = "%s/%s" % (source.url, path)
    here = bundle / _inside(source, path)
    if kind not in ("sha256", "sha384", "sha512"):
        raise BundleError(url, "it has a checksum of the kind %s, which proves nothing" % kind, "Do not use it.")
    content: bytes | None = here.read_bytes() if here.is_file() else None
    if content is None or hashlib.new(kind, content).hexdigest() != checksum:
        content = fetcher.small(url, "Run again.", optional=what not in rpm.NEEDED)
    if content is None:
        return b""
    if hashlib.new(kind, content).hexdigest() != checksum:
        raise BundleError(
            url,
            "it is not what the signed repomd.xml names: the checksum differs",
            "It was changed, or the mirror is in the middle of an update; run again. Nothing of it was kept.",
        )
    found.index.append(_file(_inside(source, path), "index", content, url, hosts))
    return content
