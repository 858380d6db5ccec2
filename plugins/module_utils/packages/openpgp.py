# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fingerprints of OpenPGP keys, read without gpg, which few hosts have (RFC 9580, formerly RFC 4880)."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Iterator

_PUBLIC_KEY = 6


class KeyFormatError(ValueError):
    """What was given is no OpenPGP key."""


def binary(content: bytes) -> bytes:
    """The keys without ASCII armour, as every apt reads them. Raises KeyFormatError."""
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
            # Left out: header lines (Version: ...), and the checksum.
            body.append(line)
    if not blocks or body is not None:
        raise KeyFormatError("it has no whole public key block")
    return b"".join(blocks)


def fingerprints(content: bytes) -> tuple[str, ...]:
    """Those of the primary keys, in upper case, in order. Raises KeyFormatError where there is none."""
    found = tuple(_fingerprint(body) for tag, body in _packets(binary(content)) if tag == _PUBLIC_KEY)
    if not found:
        raise KeyFormatError("there is no public key in it")
    return found


def _fingerprint(body: bytes) -> str:
    version = body[0] if body else 0
    if version == 4:
        return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()
    if version == 6:
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise KeyFormatError("it is of version %d, and only 4 and 6 are known" % version)


def _packets(content: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    try:
        while position < len(content):
            head = content[position]
            if not head & 0x80:
                raise KeyFormatError("it is no OpenPGP data")
            position += 1
            if head & 0x40:
                tag = head & 0x3F
                first = content[position]
                if first < 192:
                    length, position = first, position + 1
                elif first < 224:
                    length, position = ((first - 192) << 8) + content[position + 1] + 192, position + 2
                elif first == 255:
                    length, position = int.from_bytes(content[position + 1 : position + 5], "big"), position + 5
                else:
                    raise KeyFormatError("it is cut into parts, as keys never are")
            else:
                tag, kind = (head >> 2) & 0x0F, head & 3
                if kind == 3:
                    raise KeyFormatError("a packet has no length")
                octets = 1 << kind
                length, position = int.from_bytes(content[position : position + octets], "big"), position + octets
            body = content[position : position + length]
            if len(body) != length:
                raise KeyFormatError("it is cut off")
            yield tag, body
            position += length
    except IndexError:
        raise KeyFormatError("it is cut off") from None
