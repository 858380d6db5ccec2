# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record the installed files and the version of their sources.

The record shows that nothing has changed, so that the sources need not be sent to the host.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Iterable

from .files import Installation


class Manifest:
    """Checksums of the installed files, and the version of their sources."""

    def __init__(self, target: Installation, relative: str, *made_from: str) -> None:
        self._target, self._relative = target, relative
        #: For the same kind of machine, equal versions mean equal sources.
        self.version = hashlib.sha256("\0".join(made_from).encode()).hexdigest()[:12]
        self._sums: dict[str, str] = {}
        try:
            manifest = json.loads(target.path(relative).read_bytes().decode())
            if manifest["version"] == self.version:
                self._sums = dict(manifest["sha256"])
        except (OSError, ValueError, KeyError, TypeError):
            pass

    @property
    def files(self) -> list[str]:
        """Return the paths of the files that were installed from these sources.

        They are relative to the root.
        """
        return list(self._sums)

    def holds(self, *files: str) -> bool:
        """Return whether the files are unchanged since their installation."""
        return all(self._sums.get(path, "") == _sum_of(self._target.path(path)) for path in files)

    def record(self, files: Iterable[str]) -> None:
        """Record the current files.

        Call this last, so that an interrupted installation is repeated.
        """
        sums = {path: _sum_of(self._target.path(path)) for path in files}
        manifest = {"version": self.version, "sha256": {path: checksum for path, checksum in sums.items() if checksum}}
        self._target.write(self._relative, (json.dumps(manifest, indent=2) + "\n").encode())


def _sum_of(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
