# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read and write requirements with hashes, as pip has them: https://pip.pypa.io/en/stable/topics/secure-installs/"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)((?:\s*\\\n\s*--hash=sha256:[0-9a-f]{64})*)", re.MULTILINE)
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
#: NAME-VERSION-...whl:
#: https://packaging.python.org/en/latest/specifications/binary-distribution-format/#file-name-convention
_WHEEL = re.compile(r"(?P<name>[\w.]+)-(?P<version>[\w.!+]+)-.*\.whl")


@dataclass(frozen=True)
class Pin:
    """An exact version of a package, and the SHA-256 of each of its files that may be installed."""

    name: str
    version: str
    sha256: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The lines of a requirements file, with an end of line."""
        return (
            " \\\n".join(
                ["%s==%s" % (self.name, self.version), *("    --hash=sha256:%s" % digest for digest in self.sha256)]
            )
            + "\n"
        )


def read(text: str) -> list[Pin]:
    """The exact versions that a requirements file names."""
    return [Pin(name, version, tuple(_HASH.findall(hashes))) for name, version, hashes in _PIN.findall(text)]


def of_files(files: Iterable[tuple[str, str]]) -> list[Pin]:
    """The versions of wheels, given by (file name, SHA-256)."""
    found: dict[tuple[str, str], set[str]] = {}
    for name, digest in files:
        wheel = _WHEEL.fullmatch(name)
        if wheel:
            found.setdefault((wheel["name"].replace("_", "-").lower(), wheel["version"]), set()).add(digest)
    return [Pin(name, version, tuple(sorted(digests))) for (name, version), digests in sorted(found.items())]


def hash_of(text: str) -> str:
    """The digits of ``sha256:DIGITS``; empty where it is not one."""
    found = _HASH.fullmatch(text)
    return found.group(1) if found else ""
