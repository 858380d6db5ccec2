# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Query, simulate and change the driver's packages with APT."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Iterable, Sequence

from ..durable import replacing
from ..errors import ApplyError, PlanError
from ..packages import apt
from ..processes.command import Run, run_to_end
from . import files, rules
from .model import Host, Request, Transaction, Wanted

_INST = re.compile(r"^Inst ([^\s:]+)(?::\S+)?(?: \[([^\]]+)\])? \((\S+) ")
_REMV = re.compile(r"^(?:Remv|Purg) ([^\s:]+)(?::\S+)?(?: \[([^\]]+)\])?")


class Apt(apt.AptBase):
    """Manage the driver's packages with the host's APT."""

    def __init__(self, call: Run = run_to_end) -> None:
        super().__init__(rules.OWNER, call)

    # -- queries ------------------------------------------------------------------------------------------------------

    def open(self, url: str, key: bytes) -> None:
        """Use private package lists from now on.

        If a repository is given, its list is included. `key` is the content of the repository's key ring, which is
        already verified. Raises PlanError.
        """
        private = self.open_private()
        if url:
            (private / "key.gpg").write_bytes(key)
            ours = private / "sources" / Path(files.SOURCES).name
            ours.write_text(files.sources(url, str(private / "key.gpg")))
            self.ask_also(ours, url)

    def versions(self, name: str) -> list[str]:
        """Return the versions in the sources, newest first."""
        return sorted(self.offered([name])[name], key=rules.order, reverse=True)

    def resolve(
        self, host: Host, request: Request, names: Wanted, pinned: Sequence[str], prefer: str = ""
    ) -> Transaction:
        """Return the changes of an installation.

        The version is the preferred one, or else the newest that matches the request. Raises PlanError.
        """
        anchor = names.locked[0]
        if not self.versions(anchor):
            self.update()
        chosen = rules.choose(self.versions(anchor), request, anchor, prefer)
        assert self._private
        (self._private / "preferences" / files.NAME).write_text(files.preferences(chosen, list(pinned)))
        arguments = [self._exactly(name, chosen) for name in names.locked] + list(names.free)
        following = [name for name, _asked in names.next_kernel if not host.package(name)]
        offered = self.offered(following) if following else {}
        arguments += [name for name in following if offered[name]]
        # Installed parts of the driver that were not requested change too. Otherwise they would stay in another
        # version.
        for package in host.packages:
            if package.name not in names.locked and rules.of_the_driver(package, pinned):
                there = [found for found in self.versions(package.name) if rules.upstream(found) == chosen]
                arguments += ["%s=%s" % (package.name, there[0])] if there else []
        arguments += ["%s-" % name for name in names.unwanted if host.package(name)]
        found = parse(chosen, self.simulate(["install", *arguments], retry=True), tuple(arguments))
        return replace(found, missing=tuple(name for name in following if not offered[name]))

    def resolve_removal(self, host: Host, patterns: Sequence[str], foreign: Sequence[str] = ()) -> Transaction:
        """Return the changes of a removal, including other packages that it removes.

        Raises PlanError.
        """
        own = (package.name for package in host.packages if rules.of_the_driver(package, patterns))
        names = list(dict.fromkeys([*own, *foreign]))
        return parse("", self.simulate(["purge", *names], retry=False), tuple(names)) if names else Transaction("")

    def _exactly(self, name: str, version: str) -> str:
        found = [offered for offered in self.versions(name) if rules.upstream(offered) == version]
        if not found:
            raise PlanError(
                name,
                "the sources have no %s, which belongs to the driver and must have its version" % version,
                "Request another version: %s has %s. Nothing was changed."
                % (name, ", ".join(self.versions(name)) or "none"),
            )
        return "%s=%s" % (name, found[0])

    # -- changes -------------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Copy the private package lists to the host, so that both have the same state."""
        assert self._private
        for path in sorted((self._private / "lists").glob("*")):
            if path.is_file() and not path.is_symlink() and path.name != "lock":
                with path.open("rb") as asked, replacing(Path(apt.LISTS, path.name)) as ours:
                    shutil.copyfileobj(asked, ours)

    def download(self, transaction: Transaction) -> None:
        """Download and verify all packages before anything changes.

        Raises ApplyError.
        """
        problem = self.change("install", "--download-only", *transaction.arguments)
        if problem:
            raise ApplyError(
                "packages",
                "not all of them could be downloaded: %s" % problem,
                "Check that the repository is reachable, then run again.",
                outcome="old",
            )

    def keep(self, packages: Iterable[tuple[str, str]], folder: Path) -> list[str]:
        """Download these packages, given as (name, version), into `folder`.

        Returns the names of the packages that no source offers any more.
        """
        folder.mkdir(parents=True, exist_ok=True)
        missing = []
        for name, version in packages:
            download = ["apt-get", "--quiet", *self._options, "download", "%s=%s" % (name, version)]
            done = self.call(["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(folder), *download])
            if done.returncode != 0:
                missing.append(name)
        return missing

    def install(self, transaction: Transaction) -> str:
        """Apply the changes. Return "" or the error."""
        # Use the downloaded files with the private lists, sources and pins, so that the result is the planned one.
        problem = self.change("install", "--no-download", *transaction.arguments)
        if not problem:
            self.forget_fetched((name, new) for name, _old, new in transaction.installs)
        return problem

    def remove(self, transaction: Transaction) -> str:
        return self.change("purge", *(name for name, _old in transaction.removals))

    def mark(self) -> str:
        """Return "", because a rollback uses the packages that `keep` downloaded."""
        return ""

    def put_back(self, packages: Sequence[str], added: Sequence[str], mark: str) -> str:
        """Install the saved packages and remove the new ones.

        apt is not used, because it would resolve dependencies again.
        """
        said = []
        if added:
            said.append(self.call(["dpkg", "--force-depends", "--force-remove-reinstreq", "--purge", *added]))
        if packages:
            options = ["--force-downgrade", "--force-depends", "--force-confold"]
            said.append(self.call(["dpkg", *options, "--install", *packages]))
        said += [self.call(["dpkg", "--configure", "--pending"]), self.call(["apt-get", "check", "--quiet"])]
        return "; ".join(apt.complaints(done.stdout + done.stderr) for done in said if done.returncode != 0)


def parse(version: str, simulated: str, arguments: tuple[str, ...]) -> Transaction:
    """Return the changes in the output of `apt-get --simulate`.

    The lines are Inst NAME [OLD] (NEW ...) or Remv NAME [OLD].
    """
    installs, removals = [], []
    for line in simulated.splitlines():
        found = _INST.match(line)
        if found and found[2] != found[3]:
            installs.append((found[1], found[2] or "", found[3]))
        found = _REMV.match(line)
        if found:
            removals.append((found[1], found[2] or ""))
    return Transaction(version, tuple(sorted(set(installs))), tuple(sorted(set(removals))), arguments)
