# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Query and change the toolkit's packages with APT."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Sequence

from ..packages import apt
from ..packages.model import Package
from ..processes.command import Run, run_to_end
from . import files, rules

_REMOVED = re.compile(r"^(?:Remv|Purg) ([^\s:]+)", re.MULTILINE)


class Apt(apt.AptBase):
    """Manage the toolkit's packages with the host's APT."""

    def __init__(self, call: Run = run_to_end) -> None:
        super().__init__(rules.OWNER, call)

    def packages(self) -> tuple[Package, ...]:
        return apt.installed(self.call, rules.PACKAGES)

    def open(self, url: str, key: bytes) -> None:
        """Use this repository in addition to the sources of the host.

        Raises PlanError if the repository is unusable.
        """
        private = self.open_private()
        (private / "key.gpg").write_bytes(key)
        ours = private / "sources" / Path(files.SOURCES["apt"]).name
        ours.write_text(files.sources("apt", url, str(private / "key.gpg")))
        self.ask_also(ours, url)

    def choose(self, asked: str) -> str:
        """Return the full version of the packages.

        Raises PlanError if the sources do not have one of them.
        """
        offered = self.offered(rules.PACKAGES)
        if not all(offered.values()):
            # The lists may be old, or missing on a new host. A source that does not answer may be irrelevant.
            self.update()
            offered = self.offered(rules.PACKAGES)
        return rules.choose(offered, asked)

    def removals(self, version: str, paths: Sequence[str] = ()) -> list[str]:
        """Return the packages that an installation would remove.

        Raises PlanError if the installation is impossible.
        """
        return _REMOVED.findall(self.simulate(["install", *self._arguments(version, paths)], retry=True))

    def removals_of_removing(self, names: Sequence[str]) -> list[str]:
        return _REMOVED.findall(self.simulate(["purge", *names], retry=False))

    def version_of(self, path: str) -> tuple[str, str]:
        """Return the name and version of a package file.

        Returns ("", "") for any other file.
        """
        done = self.call(["dpkg-deb", "--show", "--showformat=${Package}\\t${Version}", path])
        name, _, version = done.stdout.partition("\t")
        return (name, version) if done.returncode == 0 else ("", "")

    # -- Changes: each method returns "" or the error ------------------------------------------------------------------

    def refresh(self) -> str:
        """Download the lists of the toolkit's repository to the host's own lists."""
        self.close()
        return self.update(Path(files.SOURCES["apt"]))

    def download(self, version: str, paths: Sequence[str] = ()) -> str:
        return self.change("install", "--download-only", *self._arguments(version, paths))

    def install(self, version: str, paths: Sequence[str] = ()) -> str:
        """Install the downloaded packages, without network access."""
        # apt ignores files that it has no copy of among its downloads.
        offline = () if paths else ("--no-download",)
        problem = self.change("install", *offline, *self._arguments(version, paths))
        if not problem:
            self.forget_fetched((name, version) for name in rules.PACKAGES)
        return problem

    @staticmethod
    def _arguments(version: str, paths: Sequence[str]) -> list[str]:
        return list(paths) or ["%s=%s" % (name, version) for name in rules.PACKAGES]

    def remove(self, names: Sequence[str]) -> str:
        return self.change("purge", *names)
