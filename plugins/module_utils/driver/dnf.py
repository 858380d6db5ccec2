# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The same as apt.py by DNF."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Iterable, Sequence

from ..command import Run, run_to_end
from ..errors import ApplyError, PlanError
from ..packages import dnf
from . import files, rules
from .model import Host, Request, Transaction, Wanted

#: A row of `dnf history list`, and a line of `dnf history info`.
_NUMBER, _COMMENT = re.compile(r"\s*(\d+) \|"), re.compile(r"Comment +: (.*?) *$")


class Dnf(dnf.DnfBase):
    """The host's DNF, asked for the driver."""

    def __init__(self, call: Run = run_to_end) -> None:
        super().__init__(rules.OWNER, call)

    def open(self, url: str, key: bytes) -> None:
        if url:
            self.ask_also(url, key, files.VERIFIED)

    def versions(self, name: str) -> list[str]:
        return sorted(self.offered([name])[name], key=rules.order, reverse=True)

    def resolve(
        self, host: Host, request: Request, names: Wanted, pinned: Sequence[str], prefer: str = ""
    ) -> Transaction:
        anchor = names.locked[0]
        chosen = rules.choose(self.versions(anchor), request, anchor, prefer)
        exact = []
        for name in names.locked:
            there = [found for found in self.versions(name) if rules.upstream(found) == chosen]
            if not there:
                raise PlanError(
                    name,
                    "the sources have no %s, which belongs to the driver and must be of its version" % chosen,
                    "Ask for another version. Nothing was changed.",
                )
            exact.append((name, there[0]))
        installs = [(name, _installed(host, name), found) for name, found in exact]
        installs += [(name, "", "") for name in names.free if not host.package(name)]
        removals = [(name, _installed(host, name)) for name in names.unwanted if host.package(name)]
        following = [
            (name, asked) for name, asked in names.next_kernel if not host.package(name) and asked not in names.free
        ]
        missing = [asked for name, asked in following if asked not in self._matching(name, asked)]
        following = [(name, asked) for name, asked in following if asked not in missing]
        installs += [(name, "", "") for name, _asked in following]
        arguments = ["%s-%s" % pair for pair in exact] + list(names.free) + [asked for _name, asked in following]
        changes = tuple(change for change in installs if change[1] != change[2] or not change[2])
        return Transaction(chosen, changes, tuple(removals), tuple(arguments), tuple(missing))

    def _matching(self, name: str, asked: str) -> list[str]:
        """Return the offered versions of a package as they are asked for: kernel-devel-5.14.0-427.el9.x86_64."""
        architecture = asked.rpartition(".")[2]
        return ["%s-%s.%s" % (name, version, architecture) for version in self.offered([name])[name]]

    def resolve_removal(self, host: Host, patterns: Sequence[str], foreign: Sequence[str] = ()) -> Transaction:
        """What removing the driver takes away, and packages of others by name."""
        found = [
            package for package in host.packages if rules.of_the_driver(package, patterns) or package.name in foreign
        ]
        return Transaction("", (), tuple((package.name, package.version) for package in found))

    def refresh(self) -> None:
        """DNF fetches for itself when it next needs to."""

    def download(self, transaction: Transaction) -> None:
        problem = self.change("--allowerasing", "install", "--downloadonly", *transaction.arguments)
        if problem:
            raise ApplyError(
                "packages",
                "not all of them could be fetched: %s" % problem,
                "See that the repository answers, and run again.",
                outcome="old",
            )

    def keep(self, packages: Iterable[tuple[str, str]], folder: Path) -> list[str]:
        """The history of DNF is the way back: nothing to keep."""
        return []

    def install(self, transaction: Transaction) -> str:
        return self.change(self._comment, "--allowerasing", "install", *transaction.arguments)

    def remove(self, transaction: Transaction) -> str:
        return self.change(self._comment, "remove", *(name for name, _old in transaction.removals))

    def mark(self) -> str:
        """Return the number of the last transaction in DNF's history: 0 without one, empty if it cannot be read."""
        numbers = self._history()
        return "" if numbers is None else str(max(numbers, default=0))

    def put_back(self, packages: Sequence[str], added: Sequence[str], mark: str) -> str:
        """Undo the role's own transactions after `mark`, the newest first: none if its transaction never began."""
        numbers = self._history() if mark else None
        if numbers is None:
            return "the history of DNF cannot be read"
        for number in sorted(numbers, reverse=True):
            if number > int(mark) and self._is_ours(number):
                problem = self.change("--allowerasing", "history", "undo", str(number))
                if problem:
                    return problem
        return ""

    @property
    def _comment(self) -> str:
        """The option that tells the role's transactions from an administrator's."""
        return "--comment=%s" % self.owner.name

    def _history(self) -> list[int] | None:
        done = self.call(["dnf", "--quiet", "history", "list"])
        if done.returncode != 0:
            return None
        return [int(found[1]) for found in map(_NUMBER.match, done.stdout.splitlines()) if found]

    def _is_ours(self, number: int) -> bool:
        done = self.call(["dnf", "--quiet", "history", "info", str(number)])
        comments = [found[1] for found in map(_COMMENT.match, done.stdout.splitlines()) if found]
        return comments == [self.owner.name]

    def repair(self) -> str:
        done = self.call(["dnf", "--quiet", "check"])
        return "" if done.returncode == 0 else dnf.complaints(done.stdout + done.stderr)

    def forget_lists(self, sources: str) -> None:
        """DNF forgets the lists of a repository that is gone by itself."""


def _installed(host: Host, name: str) -> str:
    package = host.package(name)
    return package.version if package else ""
