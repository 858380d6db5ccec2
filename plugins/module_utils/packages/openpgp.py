# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the fingerprints of OpenPGP keys without gpg, which few hosts have.

The format is RFC 9580, formerly RFC 4880. apt, dnf and gpgv later read the same bytes, so this module refuses all bytes
that they might accept as another key. Only packets of public keys are permitted (RFC 9580, 10.1), and the first packet
must be a primary key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Iterator

_PUBLIC_KEY = 6
#: Tags of the packets signature, public key, user id, public subkey and user attribute (RFC 9580, 5).
_OF_PUBLIC_KEYS = (2, _PUBLIC_KEY, 13, 14, 17)
#: Names of OpenPGP packets that are refused, by packet tag.
_NAMES = {
    5: "a secret key",
    7: "a secret subkey",
    8: "compressed data",
    11: "literal data",
    12: "gpg's own trust record",
}


class KeyFormatError(ValueError):
    """The data is not an OpenPGP key."""


def binary(content: bytes) -> bytes:
    """Return the keys without ASCII armour, which every release of apt accepts.

    Raises KeyFormatError.
    """
    if b"-----BEGIN" not in content:
        return content
    blocks: list[bytes] = []
    body: list[bytes] | None = None
    for line in (line.strip() for line in content.splitlines()):
        if line == b"-----BEGIN PGP PUBLIC KEY BLOCK-----":
            body = []
        elif line == b"-----END PGP PUBLIC KEY BLOCK-----" and body is not None:
            try:
                blocks.append(base64.b64decode(b"".join(body), validate=True))
            except binascii.Error as error:
                raise KeyFormatError("its armour is damaged: %s" % error) from None
            body = None
        elif body is not None and b":" not in line and not line.startswith(b"="):
            # Skip header lines (Version: ...) and the checksum.
            body.append(line)
    if not blocks or body is not None:
        raise KeyFormatError("it has no complete public key block")
    return b"".join(blocks)


def fingerprints(content: bytes) -> tuple[str, ...]:
    """Return the fingerprints of the primary keys in upper case, in order.

    Raises KeyFormatError without a key, or if a packet is not part of a public key.
    """
    found = []
    for tag, offset, body in _packets(binary(content)):
        if tag == _PUBLIC_KEY:
            found.append(_fingerprint(body))
        elif not found:
            raise _wrong(tag, offset, "belongs to no key: no public key is before it")
    if not found:
        raise KeyFormatError("it contains no public key")
    return tuple(found)


def _wrong(tag: int, offset: int, problem: str) -> KeyFormatError:
    return KeyFormatError("the packet with tag %d at byte %d %s" % (tag, offset, problem))


def _fingerprint(body: bytes) -> str:
    version = body[0] if body else 0
    if version == 4:
        return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()
    if version == 6:
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise KeyFormatError("it is of version %d, and only 4 and 6 are known" % version)


def _packets(content: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the tag, position and body of each packet (RFC 9580, 4.2).

    Raises KeyFormatError if a packet is not part of a public key.
    """
    position = 0
    while position < len(content):
        start, head = position, content[position]
        if not head & 0x80:
            raise KeyFormatError("it is not OpenPGP data at byte %d" % start)
        tag = head & 0x3F if head & 0x40 else (head >> 2) & 0x0F
        if tag not in _OF_PUBLIC_KEYS:
            name = " (%s)" % _NAMES[tag] if tag in _NAMES else ""
            raise _wrong(tag, start, "is not part of a public key%s" % name)
        try:
            length, position = _length(content, position)
        except IndexError:
            raise _wrong(tag, start, "is truncated") from None
        if length is None:
            raise _wrong(tag, start, "has no fixed length, unlike packets of keys")
        body = content[position : position + length]
        if len(body) != length:
            raise _wrong(tag, start, "is truncated")
        yield tag, start, body
        position += length


def _length(content: bytes, position: int) -> tuple[int | None, int]:
    """Return the length and the start of a packet's body.

    The length is None if the body has several parts or extends to the end.
    """
    head, position = content[position], position + 1
    if not head & 0x40:
        # The length has 1, 2 or 4 octets. Type 3 means that the body extends to the end (RFC 9580, 4.2.2).
        octets = 1 << (head & 3)
        return (None, position) if octets == 8 else (_number(content, position, octets), position + octets)
    first = content[position]
    if first < 192:
        return first, position + 1
    if first < 224:
        return ((first - 192) << 8) + content[position + 1] + 192, position + 2
    return (_number(content, position + 1, 4), position + 5) if first == 255 else (None, position)


def _number(content: bytes, position: int, octets: int) -> int:
    """Return the number in these octets. Raises IndexError if octets are missing."""
    return int.from_bytes([content[at] for at in range(position, position + octets)], "big")
