# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run APT for all packages that this collection installs.

Queries use a private directory with its own package lists, sources and pins. They change nothing in the host's package
manager, so that a run in check mode knows exact versions even on a bare host. A repository that does not answer or has
a wrong signature is found before any file is written.
"""

from __future__ import annotations

import glob
import re
import shutil
from pathlib import Path
from typing import Iterable, Sequence

from ..durable import replacing
from ..errors import PlanError
from ..processes.command import Done
from .manager import Manager
from .model import IsPart, Package, Transaction

LISTS = "/var/lib/apt/lists"
ARCHIVES = "/var/cache/apt/archives"
_FOLDERS = (("sources", "/etc/apt/sources.list.d"), ("preferences", "/etc/apt/preferences.d"))
_BROKEN = ("half-installed", "unpacked", "half-configured", "triggers-awaited", "triggers-pending")
_ADDRESS = re.compile(r"\w+://(\S+)")
_INST = re.compile(r"^Inst ([^\s:]+)(?::\S+)?(?: \[([^\]]+)\])? \((\S+) ")
_REMV = re.compile(r"^(?:Remv|Purg) ([^\s:]+)(?::\S+)?(?: \[([^\]]+)\])?")
#: A mirror that hangs must not block the run. By default, apt waits two minutes per try.
_NETWORK = ("-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=30", "-o", "Acquire::https::Timeout=30")
CHANGE = (
    "apt-get", "--yes", "--quiet", "--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages",
    "-o", "Dpkg::Use-Pty=0", "-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold",
    "-o", "DPkg::Lock::Timeout=120", *_NETWORK,
)  # fmt: skip


class Apt(Manager):
    """APT on this host."""

    manager = "apt"
    exactly = "%s=%s"

    # -- Queries --------------------------------------------------------------------------------------------------------

    def installed(self, names: Sequence[str] = ()) -> tuple[Package, ...]:
        """Return the installed packages with these names, or all. Raises PlanError."""
        form = "${Package}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\n"
        done = self.call(["dpkg-query", "-W", "-f", form, *names])
        # dpkg fails for an unknown name, but still prints the other packages.
        if done.returncode != 0 and not names:
            raise PlanError(
                "dpkg", done.stderr.strip() or "it does not answer", "Repair the package database, then run again."
            )
        return tuple(
            Package(name, version, held=want == "hold", broken=status in _BROKEN)
            for name, version, want, status in (line.split("\t") for line in done.stdout.splitlines())
            if version and status not in ("not-installed", "config-files")
        )

    def open(self, url: str, key: bytes) -> None:
        """Use this repository in queries, in addition to the host's sources.

        Adds no repository if the address is empty. `key` is the verified content of its key ring. Raises PlanError if
        the repository is unusable.
        """
        private = self.make_private()
        # apt downloads as another user, who needs access to the folder.
        private.chmod(0o755)
        (private / "lists" / "partial").mkdir(parents=True)
        # Link the host's own sources, pins and lists, except this role's files.
        for kind, folder in _FOLDERS:
            (private / kind).mkdir()
            for path in Path(folder).glob("*"):
                if self.owner.name not in path.name and path.is_file():
                    (private / kind / path.name).symlink_to(path)
        for path in Path(LISTS).glob("*"):
            if path.is_file() and path.name != "lock":
                (private / "lists" / path.name).symlink_to(path)
        self._options = (
            "-o", "Dir::Etc::sourceparts=%s" % (private / "sources"),
            "-o", "Dir::Etc::preferencesparts=%s" % (private / "preferences"),
            "-o", "Dir::State::lists=%s" % (private / "lists"),
            "-o", "Dir::Cache=%s" % private,
            # Keep downloads for the change itself, which may follow later, after a drain.
            "-o", "Dir::Cache::archives=%s" % ARCHIVES,
            "-o", "APT::Get::List-Cleanup=0",
        )  # fmt: skip
        if url:
            (private / "key.gpg").write_bytes(key)
            sources = private / "sources" / Path(self.owner.sources["apt"]).name
            sources.write_text(self.owner.repository("apt", url, str(private / "key.gpg")))
            problem = self.update(sources)
            if problem:
                raise self.refused(url, problem)

    def update(self, sources: Path | None = None) -> str:
        """Download the lists of one sources file, or of all. Return "" or the error."""
        only = ("-o", "Dir::Etc::sourcelist=%s" % sources, "-o", "Dir::Etc::sourceparts=-") if sources else ()
        cleanup = ("-o", "APT::Get::List-Cleanup=0")
        return self.problem_of(self.call([*CHANGE, "update", "--error-on=any", *self._options, *only, *cleanup]))

    def offered(self, names: Sequence[str], needed: Iterable[str] = ()) -> dict[str, list[str]]:
        """Return the versions of each package in the sources.

        The versions are in apt's order of preference. If a needed package has no version, downloads the lists again,
        because they may be old, or missing on a new host.
        """
        found: dict[str, list[str]] = {name: [] for name in names}
        done = self.call(["apt-cache", *self._options, "madison", *names])
        for line in done.stdout.splitlines():
            row = [part.strip() for part in line.split("|")]
            if len(row) == 3 and row[1] not in found.get(row[0], [row[1]]):
                found[row[0]].append(row[1])
        if all(found[name] for name in needed):
            return found
        # Ignore a failure, because the source that does not answer may be irrelevant.
        self.update()
        return self.offered(names)

    def plan_install(
        self,
        packages: Sequence[Package],
        arguments: Sequence[str],
        is_part: IsPart,
        unwanted: Sequence[str] = (),
        pins: str = "",
    ) -> Transaction:
        """Return the changes of an installation that also removes the unwanted packages.

        `packages` are the host's packages. `pins` is the content of APT's file with pins. Raises PlanError.
        """
        if pins and self._private:
            (self._private / "preferences" / self.owner.name).write_text(pins)
        arguments = (*arguments, *("%s-" % name for name in unwanted))
        return parse(self._simulate(["install", *arguments], retry=True), arguments)

    def plan_removal(self, packages: Sequence[Package], names: Sequence[str], is_part: IsPart) -> Transaction:
        """Return the changes of a removal, including dependent packages.

        Raises PlanError.
        """
        return parse(self._simulate(["purge", *names], retry=False), tuple(names))

    def _simulate(self, arguments: Sequence[str], retry: bool) -> str:
        """Return the output of a simulation.

        If `retry` is true, a failed simulation is repeated with new lists, because the old ones may be outdated or
        missing. Raises PlanError if apt finds no solution.
        """
        command = [*CHANGE, "--simulate", *self._options, *arguments]
        done = self.call(command)
        if done.returncode != 0 and retry:
            # Ignore a source that does not answer. It only matters if the next simulation fails too.
            self.update()
            done = self.call(command)
        if done.returncode != 0:
            raise PlanError(
                "packages",
                "apt finds no way to %s %s: %s"
                % (arguments[0], self.owner.what, complaints(done.stdout + done.stderr)),
                "Add the missing sources to the host, or request another version. Nothing was changed.",
            )
        return done.stdout

    def version_of(self, path: str) -> tuple[str, str]:
        """Return the name and version of a package file, or ("", "") for any other file."""
        done = self.call(["dpkg-deb", "--show", "--showformat=${Package}\\t${Version}", path])
        name, _unused, version = done.stdout.partition("\t")
        return (name, version) if done.returncode == 0 else ("", "")

    # -- Changes: each method returns "" or the error ------------------------------------------------------------------

    def change(self, *arguments: str) -> str:
        """Change packages. Return "" or the error."""
        return self.problem_of(self.call([*CHANGE, *self._options, *arguments]))

    @staticmethod
    def problem_of(done: Done) -> str:
        return "" if done.returncode == 0 else complaints(done.stdout + done.stderr)

    def repair(self) -> str:
        """Complete an interrupted change."""
        self.call(["dpkg", "--configure", "--pending", "--force-confdef", "--force-confold"])
        done = self.call([*CHANGE, "--fix-broken", "install"])
        audit = self.call(["dpkg", "--audit"])
        return complaints(done.stdout + done.stderr + audit.stdout) if done.returncode or audit.stdout.strip() else ""

    def download(self, transaction: Transaction) -> str:
        """Download and verify all packages before anything changes."""
        return self.change("install", "--download-only", *transaction.arguments)

    def refresh(self) -> None:
        """Copy the private package lists to the host."""
        for path in sorted((self._private / "lists").glob("*")) if self._private else ():
            if path.is_file() and not path.is_symlink() and path.name != "lock":
                with path.open("rb") as source, replacing(Path(LISTS, path.name)) as target:
                    shutil.copyfileobj(source, target)

    def install(self, transaction: Transaction) -> str:
        """Install the downloaded packages, and remove those to be removed."""
        # Use the downloaded files with the private lists, sources and pins, so that the result is as planned. APT would
        # ignore files of the host, because they are not among the downloads.
        local = any(argument.startswith("/") for argument in transaction.arguments)
        problem = self.change("install", *(() if local else ("--no-download",)), *transaction.arguments)
        if not problem:
            self.forget_fetched((name, new) for name, _old, new in transaction.installs)
        return problem

    def remove(self, transaction: Transaction) -> str:
        return self.change("purge", *transaction.removed)

    def hold(self, names: Sequence[str]) -> str:
        return self.problem_of(self.call(["apt-mark", "hold", *names]))

    def release(self, names: Sequence[str]) -> str:
        return self.problem_of(self.call(["apt-mark", "unhold", *names]))

    def forget_fetched(self, packages: Iterable[tuple[str, str]]) -> None:
        """Delete downloaded files of installed packages, given as (name, version).

        APT keeps these files because it downloaded them separately.
        """
        for name, version in packages:
            # In file names, apt quotes the colon after an epoch.
            for path in Path(ARCHIVES).glob(glob.escape("%s_%s_" % (name, version.replace(":", "%3a"))) + "*.deb"):
                path.unlink()

    def forget_lists(self, sources: str) -> None:
        """Delete the lists of removed sources, as the next `apt-get update` would."""
        for address in _ADDRESS.findall(sources):
            # APT's file names omit the scheme, quote underscores, and have underscores in place of slashes.
            name = address.rstrip("/").replace("_", "%5f").replace("/", "_")
            for path in Path(LISTS).glob(glob.escape(name) + "_*"):
                path.unlink()

    # -- Rollback ------------------------------------------------------------------------------------------------------

    def keep(self, packages: Iterable[tuple[str, str]], folder: Path) -> list[str]:
        folder.mkdir(parents=True, exist_ok=True)
        missing = []
        for name, version in packages:
            download = ["apt-get", "--quiet", *self._options, "download", self.exactly % (name, version)]
            done = self.call(["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(folder), *download])
            if done.returncode != 0:
                missing.append(name)
        return missing

    def put_back(self, packages: Sequence[str], added: Sequence[str], mark: str) -> str:
        """Install the saved packages and remove the new ones.

        Uses dpkg instead of apt, because apt would resolve dependencies again.
        """
        results = []
        if added:
            results.append(self.call(["dpkg", "--force-depends", "--force-remove-reinstreq", "--purge", *added]))
        if packages:
            options = ["--force-downgrade", "--force-depends", "--force-confold"]
            results.append(self.call(["dpkg", *options, "--install", *packages]))
        results += [self.call(["dpkg", "--configure", "--pending"]), self.call(["apt-get", "check", "--quiet"])]
        return "; ".join(complaints(done.stdout + done.stderr) for done in results if done.returncode != 0)


def parse(simulated: str, arguments: tuple[str, ...]) -> Transaction:
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
    return Transaction("", tuple(sorted(set(installs))), tuple(sorted(set(removals))), arguments)


def complaints(output: str) -> str:
    """Return the lines with errors.

    Without error lines, returns the lines with warnings, or else the last lines.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for marks in (("E:", "dpkg: error", "Error!", "Consult "), ("W:", "Err:"), ("",)):
        found = [line for line in lines if line.startswith(marks)]
        if found:
            return " ".join(dict.fromkeys(found[-6:]))
    return "it gave no reason"
