# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Share the code of APT and DNF: queries with private options, repository errors."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Iterable, Sequence

from ..errors import PlanError
from ..processes.command import Run, run_to_end
from .model import Owner


class Manager:
    """The host's package manager, for an owner's packages."""

    #: Name of the package manager in Ansible's facts.
    manager: str
    #: Format of the argument for one version of a package, with its name and version.
    exactly: str

    def __init__(self, owner: Owner, call: Run = run_to_end) -> None:
        self.owner, self.call = owner, call
        self._private: Path | None = None
        #: Options for queries in the private directory. Empty without the directory.
        self._options: tuple[str, ...] = ()

    def make_private(self) -> Path:
        """Create a private directory for queries, in place of an earlier one."""
        self.close()
        self._private = Path(tempfile.mkdtemp(prefix=self.owner.name + "-"))
        return self._private

    def close(self) -> None:
        """Remove the private directory."""
        if self._private:
            shutil.rmtree(str(self._private), ignore_errors=True)
        self._private, self._options = None, ()

    def excluding(self, names: Sequence[str]) -> list[str]:
        """Return the arguments that prevent upgrades of these packages."""
        return []

    def mark(self) -> str:
        """Return the current position in the history for `put_back`, or ""."""
        return ""

    def keep(self, packages: Iterable[tuple[str, str]], folder: Path) -> list[str]:
        """Download packages for `put_back` to install, given as (name, version).

        Returns the names of packages that no source offers now.
        """
        return []

    def refused(self, url: str, problem: str) -> PlanError:
        """Return the error for an unusable repository."""
        return PlanError(
            url,
            "the repository cannot be used: %s" % problem,
            "Check that the address is right and answers, and that the repository is signed with the key of "
            "%s_repository_fingerprints. Nothing was changed." % self.owner.role,
        )
