# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Predict, make, repair and undo changes with DNF.

The module `dnf` adds a vendor's repository, versions and locks.
"""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import Any, Sequence

from ..errors import PlanError
from ..processes.command import Run, run_to_end

VERSIONLOCK = "/etc/dnf/plugins/versionlock.list"
CACHE = "/var/cache/dnf"
_SETTINGS = (
    "--setopt=install_weak_deps=False",
    # Keep the dependencies of removed packages, because other packages may need them.
    "--setopt=clean_requirements_on_remove=False",
    # By default, DNF waits for another DNF without a limit.
    "--setopt=exit_on_lock=True",
    # The plugin versionlock (dnf-plugins-core) hides all other versions of a locked package.
    "--disableplugin=versionlock",
)
DNF = ("dnf", "--assumeyes", "--quiet", *_SETTINGS)
#: DNF's exit status if another DNF is running, and the seconds to wait for it, as for apt.
_LOCKED, _LOCK_SECONDS, _LOCK_PAUSE_SECONDS = 200, 120, 2
#: A row in `dnf history list`, and a line in `dnf history info`.
_NUMBER, _COMMENT = re.compile(r"\s*(\d+) \|"), re.compile(r"Comment +: (.*?) *$")


class DnfChanges:
    """Changes with DNF on this host.

    `name` is the comment that marks the role's own transactions in DNF's history. `what` names the software, such as
    "the driver".
    """

    def __init__(self, name: str, what: str, call: Run = run_to_end) -> None:
        self.name, self.what, self.call = name, what, _Patient(call)
        #: Options for all queries and changes, such as a repository.
        self._options: tuple[str, ...] = ()

    def change(self, *arguments: str) -> str:
        """Change packages. Return "" or the error."""
        return self.problem_of(self.call([*DNF, *self._options, *arguments]))

    @staticmethod
    def problem_of(done: Any) -> str:
        return "" if done.returncode == 0 else complaints(done.stderr)

    @property
    def comment(self) -> str:
        """Return the option that marks a transaction in DNF's history as the role's own."""
        return "--comment=%s" % self.name

    def simulate(self, *arguments: str) -> list[tuple[str, str, str]]:
        """Return the predicted changes: (action, name, VERSION-RELEASE).

        The action is "install" or "remove". Raises PlanError if DNF finds no solution.
        """
        done = self.call(["dnf", "--assumeno", *_SETTINGS, *self._options, *arguments])
        rows = table(done.stdout)
        # With --assumeno, DNF answers its own question with no and then exits with status 1.
        if done.returncode != 0 and not rows:
            raise PlanError(
                "packages",
                "dnf finds no way to %s %s: %s"
                % (next(word for word in arguments if word[0] != "-"), self.what, complaints(done.stderr)),
                "Enable the missing repositories, or request another version. Nothing was changed.",
            )
        return rows

    def repair(self) -> str:
        """Complete a killed transaction.

        Removes the old version of a package that is installed in two versions.
        """
        if self.call(["dnf", "--quiet", "check", "--duplicates"]).returncode != 0:
            problem = self.change(self.comment, "remove", "--duplicates")
            if problem:
                return problem
        done = self.call(["dnf", "--quiet", "check", "--dependencies"])
        return "" if done.returncode == 0 else complaints(done.stdout + done.stderr)

    def mark(self) -> str:
        """Return the number of DNF's last transaction.

        Returns "0" if there is none, and "" if it cannot be read.
        """
        numbers = self._history()
        return "" if numbers is None else str(max(numbers, default=0))

    def put_back(self, packages: Sequence[str], added: Sequence[str], mark: str) -> str:
        """Undo the role's own transactions after `mark`, newest first."""
        numbers = self._history() if mark else None
        if numbers is None:
            return "the history of DNF cannot be read"
        for number in sorted(numbers, reverse=True):
            if number > int(mark) and self._is_ours(number):
                problem = self.change("--allowerasing", "history", "undo", str(number))
                if problem:
                    return problem
        return ""

    def _history(self) -> list[int] | None:
        done = self.call(["dnf", "--quiet", "history", "list"])
        if done.returncode != 0:
            return None
        return [int(found[1]) for found in map(_NUMBER.match, done.stdout.splitlines()) if found]

    def _is_ours(self, number: int) -> bool:
        done = self.call(["dnf", "--quiet", "history", "info", str(number)])
        comments = [found[1] for found in map(_COMMENT.match, done.stdout.splitlines()) if found]
        return comments == [self.name]


class _Patient:
    """Runs a command again as long as another DNF is running."""

    def __init__(self, call: Run) -> None:
        self._call = call

    def __call__(self, command: Sequence[str], **more: Any) -> Any:
        deadline = time.monotonic() + _LOCK_SECONDS
        done: Any = self._call(command, **more)
        while done.returncode == _LOCKED and command[0] == "dnf" and time.monotonic() < deadline:
            time.sleep(_LOCK_PAUSE_SECONDS)
            done = self._call(command, **more)
        return done


def table(text: str) -> list[tuple[str, str, str]]:
    """Parse the table that DNF prints before a change.

    Returns (install or remove, name, VERSION-RELEASE) for each row. A row begins with one blank. A long row continues
    on a line with more indentation.
    """
    rows: list[tuple[str, list[str]]] = []
    action = ""
    for line in text.splitlines():
        words = line.split()
        if line.startswith("Transaction Summary"):
            break
        if not words:
            action = ""
        elif not line.startswith(" "):
            heading = line.lower()
            kinds = (("install", ("installing", "upgrading", "downgrading", "reinstalling")), ("remove", ("removing",)))
            found = [kind for kind, beginnings in kinds if heading.startswith(beginnings)]
            action = found[0] if found and line.endswith(":") else ""
        elif action and words[0] == "replacing":
            rows.append(("remove", [words[1].rpartition(".")[0], "", *words[2:]]))
        elif action and line[1] != " ":
            rows.append((action, words))
        elif rows:
            rows[-1][1].extend(words)
    return [(kind, words[0], words[2].rpartition(":")[2]) for kind, words in rows if len(words) > 2]


def forget_cache(name: str) -> None:
    """Delete DNF's cache of a repository."""
    for path in Path(CACHE).glob(name + "-[0-9a-f]*"):
        if path.is_dir():
            shutil.rmtree(str(path), ignore_errors=True)
        else:
            path.unlink()
    for path in Path(CACHE).glob(name + "*.solv*"):
        path.unlink()


def locked(text: str) -> set[str]:
    """Return the names in a versionlock.list.

    Each line is NAME-EPOCH:VERSION-RELEASE.*
    """
    lines = (line.strip() for line in text.splitlines())
    return {line.partition(":")[0].rpartition("-")[0] for line in lines if ":" in line and line[:1] not in "#!"}


def complaints(output: str) -> str:
    """Return the lines that describe the error.

    These are the error lines with the indented lines below them, or else the end of the output.
    """
    found: list[str] = []
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    for line in lines:
        if line.lower().startswith("error") or (found and line.startswith(" ")):
            found.append(line.strip())
    return " ".join(found[:6] or [line.strip() for line in lines[-3:]]) or "it gave no reason"
