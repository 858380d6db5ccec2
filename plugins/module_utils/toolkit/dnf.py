# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Query and change the toolkit's packages with DNF. Same interface as apt.py."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

from ..packages import dnf
from ..packages.model import Package
from ..processes.command import Run, run_to_end
from . import files, rules


class Dnf(dnf.DnfBase):
    """Manage the toolkit's packages with the host's DNF."""

    def __init__(self, call: Run = run_to_end, versionlock: str = dnf.VERSIONLOCK) -> None:
        super().__init__(rules.OWNER, call)
        self._versionlock = Path(versionlock)

    def packages(self) -> tuple[Package, ...]:
        form = "%{NAME}\\t%{VERSION}-%{RELEASE}\\n"
        done = self.call(["rpm", "-q", "--qf", form, *rules.PACKAGES])
        locks = self._versionlock.read_text() if self._versionlock.exists() else ""
        versions: dict[str, list[str]] = {}
        for line in done.stdout.splitlines():
            name, tab, version = line.partition("\t")
            if tab:
                versions.setdefault(name, []).append(version)
        # A killed transaction leaves a package installed in its old and its new version.
        return tuple(
            Package(name, newest, held=dnf.is_held(name, newest, locks), broken=len(each) > 1)
            for name, each in versions.items()
            for newest in [max(each, key=rules.numbers)]
        )

    def open(self, url: str, key: bytes) -> None:
        self.ask_also(url, key, files.VERIFIED)

    def choose(self, asked: str) -> str:
        return rules.choose(self.offered(rules.PACKAGES), asked)

    def removals(self, version: str, paths: Sequence[str] = ()) -> list[str]:
        """Return an empty list.

        For an installation without --allowerasing, DNF removes nothing.
        """
        return []

    def removals_of_removing(self, names: Sequence[str]) -> list[str]:
        return self.dependents(names)

    def version_of(self, path: str) -> tuple[str, str]:
        done = self.call(["rpm", "-qp", "--qf", "%{NAME}\\t%{VERSION}-%{RELEASE}", path])
        name, _, version = done.stdout.partition("\t")
        return (name, version) if done.returncode == 0 else ("", "")

    def refresh(self) -> str:
        """Do nothing, because DNF downloads its lists when it needs them."""
        self.close()
        return ""

    def download(self, version: str, paths: Sequence[str] = ()) -> str:
        return self.change("install", "--downloadonly", *self._arguments(version, paths))

    def install(self, version: str, paths: Sequence[str] = ()) -> str:
        there = {package.name: package.version for package in self.packages()}
        older = any(rules.numbers(there.get(name, "0")) > rules.numbers(version) for name in rules.PACKAGES)
        return self.change("downgrade" if older else "install", *self._arguments(version, paths))

    @staticmethod
    def _arguments(version: str, paths: Sequence[str]) -> list[str]:
        return list(paths) or ["%s-%s" % (name, version) for name in rules.PACKAGES]

    def remove(self, names: Sequence[str]) -> str:
        problem = self.change("remove", *names)
        locks = dnf.locked(self._versionlock.read_text()) if self._versionlock.exists() else set()
        # When a package is removed, its lock remains.
        return problem or (self.release(names) if locks & set(names) else "")
