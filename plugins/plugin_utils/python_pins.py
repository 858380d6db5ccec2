# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read and write requirements with hashes for pip.

https://pip.pypa.io/en/stable/topics/secure-installs/
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)((?:\s*\\\n\s*--hash=sha256:[0-9a-f]{64})*)", re.MULTILINE)
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
#: File name of a wheel, NAME-VERSION-….whl:
#: https://packaging.python.org/en/latest/specifications/binary-distribution-format/#file-name-convention
_WHEEL = re.compile(r"(?P<name>[\w.]+)-(?P<version>[\w.!+]+)-.*\.whl")


@dataclass(frozen=True)
class Pin:
    """An exact version of a package, with the SHA-256 of each allowed file."""

    name: str
    version: str
    sha256: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the lines of a requirements file, ending in a newline."""
        return (
            " \\\n".join(
                ["%s==%s" % (self.name, self.version), *("    --hash=sha256:%s" % digest for digest in self.sha256)]
            )
            + "\n"
        )


def read(text: str) -> list[Pin]:
    """Return the pinned packages of a requirements file."""
    return [Pin(name, version, tuple(_HASH.findall(hashes))) for name, version, hashes in _PIN.findall(text)]


def of_files(files: Iterable[tuple[str, str]]) -> list[Pin]:
    """Return pins for these wheels' packages.

    `files` has pairs of (file name, SHA-256).
    """
    hashes: dict[tuple[str, str], set[str]] = {}
    for name, digest in files:
        wheel = _WHEEL.fullmatch(name)
        if wheel:
            hashes.setdefault((wheel["name"].replace("_", "-").lower(), wheel["version"]), set()).add(digest)
    return [Pin(name, version, tuple(sorted(digests))) for (name, version), digests in sorted(hashes.items())]


def hash_of(text: str) -> str:
    """Return the digits of ``sha256:DIGITS``, or "" for any other text."""
    match = _HASH.fullmatch(text)
    return match.group(1) if match else ""
