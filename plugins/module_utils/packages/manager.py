# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What APT and DNF have in common: questions with options of their own, changes, and the refusal of a repository."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Sequence

from ..command import Done, Run, run_to_end
from ..errors import PlanError
from .model import Owner


class Manager:
    """A package manager of the host, asked for what the owner brings."""

    #: Name of the manager, as in the host's facts.
    manager: str
    #: The command with the options of every change.
    command: Sequence[str]

    def __init__(self, owner: Owner, call: Run = run_to_end) -> None:
        self.owner, self.call = owner, call
        self._private: Path | None = None
        #: What makes the manager ask in the private directory; nothing outside of open and close.
        self._options: tuple[str, ...] = ()

    def make_private(self) -> Path:
        """Return a new directory for questions, in place of an earlier one."""
        self.close()
        self._private = Path(tempfile.mkdtemp(prefix=self.owner.name + "-"))
        return self._private

    def close(self) -> None:
        """Remove the private directory."""
        if self._private:
            shutil.rmtree(str(self._private), ignore_errors=True)
        self._private, self._options = None, ()

    def change(self, *arguments: str) -> str:
        """Change packages. Empty, or what went wrong."""
        return self.problem_of(self.call([*self.command, *self._options, *arguments]))

    @staticmethod
    def problem_of(done: Done) -> str:
        """Return what went wrong; empty if nothing did."""
        raise NotImplementedError

    def refused(self, url: str, problem: str) -> PlanError:
        """Return the error for a repository that cannot be used."""
        return PlanError(
            url,
            "the repository cannot be used: %s" % problem,
            "See that the address is right and answers, and that it is signed with the key of "
            "%s_repository_fingerprints. Nothing was changed." % self.owner.role,
        )
