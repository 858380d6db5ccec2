# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the steps of every package change: files, key ring, holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable

from ..durable import cure_of, replacing
from ..errors import ApplyError
from ..processes.command import program
from .model import Step
from .registry import PackageManager


class PackageChange:
    """A change of a vendor's packages on one host.

    Each kind of step has a method of the same name. It returns False if nothing had to be done.
    """

    def __init__(self, manager: PackageManager, host: Any, key: bytes, call: Callable[..., Any]) -> None:
        self.manager, self.host, self.key, self.call = manager, host, key, call
        #: Texts of the completed steps.
        self.done: list[str] = []
        #: Content of each changed file before the change. None for a new file.
        self.before: dict[str, bytes | None] = {}

    def _do(self, step: Step) -> None:
        if getattr(self, "_" + step.kind)(step) is not False:
            self.done.append(step.text)

    def _must(self, problem: str, where: str, what: str, cure: str, outcome: str = "unknown") -> None:
        """Raise ApplyError if there is a problem."""
        if problem:
            raise ApplyError(where, "%s: %s" % (what, problem), cure, outcome=outcome, steps_done=self.done)

    def _put(self, path: str, content: bytes | None) -> None:
        """Replace a file atomically, with the same mode, owner and label.

        Deletes the file if `content` is None.
        """
        target = Path(path)
        try:
            before = target.read_bytes() if target.exists() else None
            if content is None:
                target.unlink(missing_ok=True)
            else:
                target = target.resolve()
                target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                former = target.stat() if target.exists() else None
                with replacing(target, former.st_mode & 0o7777 if former else 0o644) as file:
                    if former:
                        os.fchown(file.fileno(), former.st_uid, former.st_gid)
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                if program("restorecon"):
                    self.call(["restorecon", str(target)])
            self.before.setdefault(path, before)
        except OSError as error:
            self._must(str(error), path, "it cannot be written", cure_of(error))

    def _put_back(self) -> None:
        """Restore all changed files."""
        for path, content in list(self.before.items()):
            self._put(path, content)

    def _key(self, step: Step) -> None:
        self._put(self.manager.owner.keyrings[self.manager.manager], self.key)

    def _write(self, step: Step) -> None:
        self._put(step.items[0], step.items[1].encode())

    def _delete(self, step: Step) -> None:
        path = step.items[0]
        self._put(path, None)
        if path == self.manager.owner.sources[self.manager.manager]:
            self.manager.forget_lists(self.host.files.get(path, ""))

    def _hold(self, step: Step) -> None:
        problem = self.manager.hold(step.items)
        self._must(problem, "packages", "they could not be held", "See the package manager's log.")

    def _release(self, step: Step) -> None:
        problem = self.manager.release(step.items)
        self._must(problem, "packages", "they are still held", "See the package manager's log.")
