# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run APT for all packages that this collection installs.

Queries use a private directory with its own package lists, sources and pins. They do not change the package manager,
lists and configuration of the host. A run in check mode therefore knows exact versions even on a bare host. If a
repository does not answer or has a wrong signature, this is found before any file is written.
"""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import Iterable, Sequence

from ..errors import PlanError
from ..processes.command import Done, Run
from .manager import Manager
from .model import Package

LISTS = "/var/lib/apt/lists"
ARCHIVES = "/var/cache/apt/archives"
_FOLDERS = (("sources", "/etc/apt/sources.list.d"), ("preferences", "/etc/apt/preferences.d"))
_BROKEN = ("half-installed", "unpacked", "half-configured", "triggers-awaited", "triggers-pending")
_ADDRESS = re.compile(r"\w+://(\S+)")
#: A mirror that hangs must not block the run. apt's own timeout is two minutes per try.
_NETWORK = ("-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=30", "-o", "Acquire::https::Timeout=30")
CHANGE = (
    "apt-get", "--yes", "--quiet", "--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages",
    "-o", "Dpkg::Use-Pty=0", "-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold",
    "-o", "DPkg::Lock::Timeout=120", *_NETWORK,
)  # fmt: skip


class AptBase(Manager):
    """APT on this host."""

    manager = "apt"
    command = CHANGE

    # -- Queries --------------------------------------------------------------------------------------------------------

    def open_private(self) -> Path:
        """Return a private directory for queries.

        It has the sources, pins and lists of the host, without those of this role.
        """
        private = self.make_private()
        # apt downloads as another user, who needs access to the folder.
        private.chmod(0o755)
        (private / "lists" / "partial").mkdir(parents=True)
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
            # Keep downloads for the change, which may run later, after a drain.
            "-o", "Dir::Cache::archives=%s" % ARCHIVES,
            "-o", "APT::Get::List-Cleanup=0",
        )  # fmt: skip
        return private

    def ask_also(self, sources: Path, url: str) -> None:
        """Download the lists in this sources file, for the repository at `url`.

        Raises PlanError if the repository is unusable.
        """
        problem = self.update(sources)
        if problem:
            raise self.refused(url, problem)

    def update(self, sources: Path | None = None) -> str:
        """Download the lists of one sources file, or of all. Return "" or the error."""
        only = ("-o", "Dir::Etc::sourcelist=%s" % sources, "-o", "Dir::Etc::sourceparts=-") if sources else ()
        cleanup = ("-o", "APT::Get::List-Cleanup=0")
        return self.problem_of(self.call([*CHANGE, "update", "--error-on=any", *self._options, *only, *cleanup]))

    def offered(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Return the versions that the sources have of each package.

        They are in apt's order of preference.
        """
        found: dict[str, list[str]] = {name: [] for name in names}
        done = self.call(["apt-cache", *self._options, "madison", *names])
        for line in done.stdout.splitlines():
            row = [part.strip() for part in line.split("|")]
            if len(row) == 3 and row[1] not in found.get(row[0], [row[1]]):
                found[row[0]].append(row[1])
        return found

    def simulate(self, arguments: Sequence[str], retry: bool) -> str:
        """Return the output of a simulation.

        If `retry` is true, a failed simulation is repeated with new lists, because the lists may be old, or missing on
        a new host. Raises PlanError if apt finds no solution.
        """
        command = [*CHANGE, "--simulate", *self._options, *arguments]
        done = self.call(command)
        if done.returncode != 0 and retry:
            # If a source does not answer, this matters only if the simulation fails without the source.
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

    # -- Changes: each method returns "" or the error ------------------------------------------------------------------

    @staticmethod
    def problem_of(done: Done) -> str:
        return "" if done.returncode == 0 else complaints(done.stdout + done.stderr)

    def repair(self) -> str:
        """Complete an interrupted change."""
        self.call(["dpkg", "--configure", "--pending", "--force-confdef", "--force-confold"])
        done = self.call([*CHANGE, "--fix-broken", "install"])
        audit = self.call(["dpkg", "--audit"])
        return complaints(done.stdout + done.stderr + audit.stdout) if done.returncode or audit.stdout.strip() else ""

    def hold(self, names: Sequence[str]) -> str:
        return self.problem_of(self.call(["apt-mark", "hold", *names]))

    def release(self, names: Sequence[str]) -> str:
        return self.problem_of(self.call(["apt-mark", "unhold", *names]))

    def forget_fetched(self, packages: Iterable[tuple[str, str]]) -> None:
        """Delete the files of installed packages, given as (name, version).

        If apt only downloads a package, it keeps the file.
        """
        for name, version in packages:
            # In file names, apt quotes the colon of an epoch.
            for path in Path(ARCHIVES).glob(glob.escape("%s_%s_" % (name, version.replace(":", "%3a"))) + "*.deb"):
                path.unlink()

    def forget_lists(self, sources: str) -> None:
        """Delete the lists of removed sources, as the next `apt-get update` would.

        `sources` is the text of a sources file.
        """
        for address in _ADDRESS.findall(sources):
            # In apt's file names, the scheme is missing, underscores are quoted, and slashes are underscores.
            name = address.rstrip("/").replace("_", "%5f").replace("/", "_")
            for path in Path(LISTS).glob(glob.escape(name) + "_*"):
                path.unlink()


def installed(call: Run, names: Sequence[str] = ()) -> tuple[Package, ...]:
    """Return packages in any state: those with these names, or all.

    Raises PlanError if dpkg fails.
    """
    form = "${Package}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\n"
    done = call(["dpkg-query", "-W", "-f", form, *names])
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


def complaints(output: str) -> str:
    """Return the lines with errors, or else the warnings, or else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for marks in (("E:", "dpkg: error", "Error!", "Consult "), ("W:", "Err:"), ("",)):
        found = [line for line in lines if line.startswith(marks)]
        if found:
            return " ".join(dict.fromkeys(found[-6:]))
    return "it gave no reason"
