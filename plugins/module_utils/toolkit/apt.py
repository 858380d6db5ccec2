# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The toolkit's packages by APT: which versions there are, and the doing of it.

What is only asked is asked with lists and sources in a directory of its own: a dry run changes nothing, and a repository
with a wrong signature, or one that does not answer, is found out before a file is written.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Callable, Sequence

from ..errors import PlanError
from . import files, rules
from .model import Package

_LISTS = "/var/lib/apt/lists"
_ARCHIVES = "/var/cache/apt/archives"
_PARTS = "/etc/apt/sources.list.d"
_REMOVED = re.compile(r"^(?:Remv|Purg) ([^\s:]+)", re.MULTILINE)
_BROKEN = ("half-installed", "unpacked", "half-configured", "triggers-awaited", "triggers-pending")
#: A mirror that hangs must not hang the run: apt's own default is two minutes a try.
_APT = (
    "apt-get", "--yes", "--quiet", "--no-install-recommends",
    "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=30", "-o", "Acquire::https::Timeout=30",
    "-o", "Dpkg::Use-Pty=0", "-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold",
    "-o", "DPkg::Lock::Timeout=120",
)  # fmt: skip
_CHANGE = (*_APT, "--allow-downgrades", "--allow-change-held-packages")


class Apt:
    """The host's APT."""

    manager = "apt"

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        self._private: Path | None = None
        self._options: tuple[str, ...] = ()

    def packages(self) -> tuple[Package, ...]:
        form = "${Package}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\n"
        done = self.call(["dpkg-query", "-W", "-f", form, *rules.PACKAGES])
        # It fails where it does not know one of them, and tells of the others all the same.
        rows = (line.split("\t") for line in done.stdout.splitlines())
        return tuple(
            Package(name, version, held=want == "hold", broken=status in _BROKEN)
            for name, version, want, status in rows
            if version and status not in ("not-installed", "config-files")
        )

    # -- Asking --------------------------------------------------------------------------------------------------------

    def open(self, url: str, key: bytes) -> None:
        """Ask this repository besides the host's own sources from now on. Raises PlanError where it cannot be used."""
        self.close()
        private = Path(tempfile.mkdtemp(prefix="openfleet-container-toolkit-"))
        # apt fetches as a user of its own, who must be able to walk through.
        private.chmod(0o755)
        self._private = private
        (private / "lists" / "partial").mkdir(parents=True)
        (private / "sources").mkdir()
        (private / "key.gpg").write_bytes(key)
        ours = private / "sources" / Path(files.SOURCES["apt"]).name
        ours.write_text(files.sources("apt", url, str(private / "key.gpg")))
        for path in Path(_PARTS).glob("*"):
            if path.name != ours.name and path.is_file():
                (private / "sources" / path.name).symlink_to(path)
        for path in Path(_LISTS).glob("*"):
            if path.is_file() and path.name != "lock":
                (private / "lists" / path.name).symlink_to(path)
        self._options = (
            "-o", "Dir::Etc::sourceparts=%s" % (private / "sources"),
            "-o", "Dir::State::lists=%s" % (private / "lists"),
            "-o", "Dir::Cache=%s" % private,
            "-o", "APT::Get::List-Cleanup=0",
        )  # fmt: skip
        problem = self._update(ours)
        if problem:
            raise PlanError(
                url,
                "the repository cannot be used: %s" % problem,
                "See that the address is right and answers, and that it is signed with the key of "
                "container_toolkit_repository_fingerprints. Nothing was changed.",
            )

    def close(self) -> None:
        if self._private:
            shutil.rmtree(str(self._private), ignore_errors=True)
        self._private, self._options = None, ()

    def _update(self, sources: Path | None) -> str:
        """Fetch the lists of one file of sources, or of all. Empty, or what went wrong."""
        only = ("-o", "Dir::Etc::sourcelist=%s" % sources, "-o", "Dir::Etc::sourceparts=-") if sources else ()
        cleanup = ("-o", "APT::Get::List-Cleanup=0")
        done = self.call([*_APT, "update", "--error-on=any", *self._options, *only, *cleanup])
        return "" if done.returncode == 0 else _complaints(done.stderr)

    def choose(self, asked: str) -> str:
        """The packages' full version. Raises PlanError where the sources do not have all of them in it."""
        offered = self._offered()
        if not all(offered.values()):
            # The lists may be old, or missing as on a host just installed. What does not answer may not be needed.
            self._update(None)
            offered = self._offered()
        common = set.intersection(*map(set, offered.values()))
        fitting = sorted((found for found in common if rules.is_version(found, asked)), key=rules.numbers)
        if not fitting:
            there = sorted(common, key=rules.numbers, reverse=True)
            raise PlanError(
                "container_toolkit_version",
                "the sources do not have all packages of the toolkit in version %s" % asked,
                "There is: %s. Nothing was changed." % (", ".join(there[:8]) or "none"),
            )
        return fitting[-1]

    def _offered(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {name: [] for name in rules.PACKAGES}
        done = self.call(["apt-cache", *self._options, "madison", *rules.PACKAGES])
        for line in done.stdout.splitlines():
            row = [part.strip() for part in line.split("|")]
            if len(row) == 3 and row[0] in found:
                found[row[0]].append(row[1])
        return found

    def removals(self, version: str, paths: Sequence[str] = ()) -> list[str]:
        """Names of packages that installing would remove; raises PlanError where it cannot be done."""
        return self._simulate(["install", *self._arguments(version, paths)], "install", retry=True)

    def removals_of_removing(self, names: Sequence[str]) -> list[str]:
        return self._simulate(["purge", *names], "remove", retry=False)

    def _simulate(self, arguments: Sequence[str], action: str, retry: bool) -> list[str]:
        command = [*_CHANGE, "--simulate", *self._options, *arguments]
        done = self.call(command)
        if done.returncode != 0 and retry:
            self._update(None)
            done = self.call(command)
        if done.returncode != 0:
            raise PlanError(
                "packages",
                "apt finds no way to %s the toolkit: %s" % (action, _complaints(done.stdout + done.stderr)),
                "Give the host the sources that it lacks. Nothing was changed.",
            )
        return _REMOVED.findall(done.stdout)

    def version_of(self, path: str) -> tuple[str, str]:
        """Name and version of a package file; empty where it is none."""
        done = self.call(["dpkg-deb", "--show", "--showformat=${Package}\\t${Version}", path])
        name, _, version = done.stdout.partition("\t")
        return (name, version) if done.returncode == 0 else ("", "")

    # -- Doing: empty, or what went wrong ------------------------------------------------------------------------------

    def refresh(self) -> str:
        """Fetch the lists of the toolkit's repository into the host's own."""
        self.close()
        return self._update(Path(files.SOURCES["apt"]))

    def download(self, version: str, paths: Sequence[str] = ()) -> str:
        done = self.call([*_CHANGE, "install", "--download-only", *self._arguments(version, paths)])
        return "" if done.returncode == 0 else _complaints(done.stdout + done.stderr)

    def install(self, version: str, paths: Sequence[str] = ()) -> str:
        """From what was fetched: nothing depends on a network here."""
        done = self.call([*_CHANGE, "install", "--no-download", *self._arguments(version, paths)])
        if done.returncode != 0:
            return _complaints(done.stdout + done.stderr)
        for name in rules.PACKAGES:
            for path in Path(_ARCHIVES).glob("%s_%s_*.deb" % (name, version)):
                path.unlink()
        return ""

    @staticmethod
    def _arguments(version: str, paths: Sequence[str]) -> list[str]:
        return list(paths) or ["%s=%s" % (name, version) for name in rules.PACKAGES]

    def remove(self, names: Sequence[str]) -> str:
        done = self.call([*_CHANGE, "purge", *names])
        return "" if done.returncode == 0 else _complaints(done.stdout + done.stderr)

    def repair(self) -> str:
        self.call(["dpkg", "--configure", "--pending", "--force-confdef", "--force-confold"])
        done = self.call([*_CHANGE, "--fix-broken", "install"])
        return "" if done.returncode == 0 else _complaints(done.stdout + done.stderr)

    def hold(self, names: Sequence[str]) -> str:
        done = self.call(["apt-mark", "hold", *names])
        return "" if done.returncode == 0 else _complaints(done.stderr)

    def release(self, names: Sequence[str]) -> str:
        done = self.call(["apt-mark", "unhold", *names])
        return "" if done.returncode == 0 else _complaints(done.stderr)


def _complaints(said: str) -> str:
    """The lines that say what is wrong: errors, or the warnings where there are none, or the last words."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for marks in (("E:", "dpkg: error"), ("W:", "Err:"), ("",)):
        found = [line for line in lines if line.startswith(marks)]
        if found:
            return " ".join(dict.fromkeys(found[-5:]))
    return "it gave no reason"
