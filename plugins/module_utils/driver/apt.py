# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""APT: which versions there are, what would happen, and the doing of it.

Whatever is only asked happens in a directory of its own, with its own package lists, sources and pins: the host's
package manager, its lists and its configuration stay as they are. So a dry run knows exact versions on a bare host, and a
repository with a wrong signature, or one that does not answer, is found out before a single file is written.
"""

from __future__ import annotations

import glob
import re
import shutil
import tempfile
from pathlib import Path
from typing import Iterable, Sequence

from ..errors import ApplyError, PlanError
from . import files, rules
from .model import Host, Request, Transaction, Wanted
from .observe import Run, run

_LISTS = "/var/lib/apt/lists"
_ARCHIVES = "/var/cache/apt/archives"
_INST = re.compile(r"^Inst ([^\s:]+)(?::\S+)?(?: \[([^\]]+)\])? \((\S+) ")
_REMV = re.compile(r"^(?:Remv|Purg) ([^\s:]+)(?::\S+)?(?: \[([^\]]+)\])?")
#: A mirror that hangs must not hang the run: apt's own default is two minutes a try.
_NETWORK = ("-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=30", "-o", "Acquire::https::Timeout=30")
_CHANGE = (
    "apt-get", "--yes", "--quiet", "--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages",
    "-o", "Dpkg::Use-Pty=0", "-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold",
    "-o", "DPkg::Lock::Timeout=120",
)  # fmt: skip


class Apt:
    """The host's APT. `key` is the content of the repository's key ring, already verified; empty without a repository."""

    manager = "apt"

    def __init__(self, call: Run = run) -> None:
        self.call = call
        self._private: Path | None = None
        self._options: list[str] = []

    # -- asking ------------------------------------------------------------------------------------------------------

    def open_private(self, url: str, key: bytes) -> None:
        """Set up the directory in which things are asked, and fetch the repository's lists into it. Raises PlanError."""
        self.close()
        private = Path(tempfile.mkdtemp(prefix="openfleet-nvidia-driver-"))
        # apt fetches as a user of its own, who must be able to walk through.
        private.chmod(0o755)
        self._private = private
        for name in ("lists/partial", "sources", "preferences", "ours"):
            (private / name).mkdir(parents=True)
        for kind, folder in (("sources", "/etc/apt/sources.list.d"), ("preferences", "/etc/apt/preferences.d")):
            for path in Path(folder).glob("*"):
                if files.NAME not in path.name and path.is_file():
                    (private / kind / path.name).symlink_to(path)
        for path in Path(_LISTS).glob("*"):
            if path.is_file() and path.name != "lock":
                (private / "lists" / path.name).symlink_to(path)
        self._options = [
            "-o", "Dir::Etc::sourceparts=%s" % (private / "sources"),
            "-o", "Dir::Etc::preferencesparts=%s" % (private / "preferences"),
            "-o", "Dir::State::lists=%s" % (private / "lists"),
            "-o", "Dir::Cache=%s" % private,
            # What is fetched stays for the change, which may come a drain later.
            "-o", "Dir::Cache::archives=%s" % _ARCHIVES,
            "-o", "APT::Get::List-Cleanup=0",
            *_NETWORK,
        ]  # fmt: skip
        if url:
            (private / "key.gpg").write_bytes(key)
            text = files.sources(url, str(private / "key.gpg"))
            for name in ("ours", "sources"):
                (private / name / Path(files.SOURCES).name).write_text(text)
            self._update(
                ["-o", "Dir::Etc::sourcelist=/dev/null", "-o", "Dir::Etc::sourceparts=%s" % (private / "ours")], url
            )

    def close(self) -> None:
        if self._private:
            shutil.rmtree(str(self._private), ignore_errors=True)
            self._private = None

    def _update(self, options: Sequence[str], url: str) -> None:
        done = self.call(["apt-get", "update", "--quiet", "--error-on=any", *self._options, *options])
        if done.returncode != 0:
            raise PlanError(
                url,
                "the repository cannot be used: %s" % _complaints(done.stderr),
                "See that the address is right and answers, and that it is signed with the key of "
                "nvidia_driver_repository_fingerprints. Nothing was changed.",
            )

    def _refresh_all(self) -> None:
        """The distribution's lists may be old, or missing as on a host just installed. A source that does not answer counts
        only if it does not go without it."""
        self.call(["apt-get", "update", "--quiet", *self._options])

    def versions(self, name: str) -> list[str]:
        """The versions that the sources have, the newest first."""
        done = self.call(["apt-cache", *self._options, "madison", name])
        rows = (line.split("|") for line in done.stdout.splitlines())
        found = {row[1].strip() for row in rows if len(row) == 3}
        return sorted(found, key=rules.order, reverse=True)

    def resolve(
        self, host: Host, request: Request, names: Wanted, pinned: Sequence[str], prefer: str = ""
    ) -> Transaction:
        """What installing would do, in the version to prefer or else the newest of what was asked for. Raises PlanError."""
        anchor = names.locked[0]
        if not self.versions(anchor):
            self._refresh_all()
        offered = [upstream for upstream in map(rules.upstream, self.versions(anchor)) if upstream]
        fitting = [found for found in offered if rules.satisfies(found, request.version)]
        if not fitting:
            raise PlanError(
                "nvidia_driver_version",
                "%s is not to be had as %s from %s" % (request.version, anchor, request.source),
                "There is: %s. Nothing was changed." % (", ".join(dict.fromkeys(offered)) or "none"),
            )
        chosen = prefer if prefer in fitting else fitting[0]
        assert self._private
        (self._private / "preferences" / files.NAME).write_text(files.preferences(chosen, list(pinned)))
        arguments = [self._exactly(name, chosen) for name in names.locked] + list(names.free)
        # Parts that are there beyond what is asked for come along; else they would stay behind in another version.
        for package in host.packages:
            if package.name not in names.locked and rules.of_the_driver(package, pinned):
                there = [found for found in self.versions(package.name) if rules.upstream(found) == chosen]
                arguments += ["%s=%s" % (package.name, there[0])] if there else []
        arguments += ["%s-" % name for name in names.unwanted if host.package(name)]
        return self._simulate(chosen, "install", arguments, retry=True)

    def resolve_removal(self, host: Host, patterns: Sequence[str]) -> Transaction:
        names = [package.name for package in host.packages if rules.of_the_driver(package, patterns)]
        return self._simulate("", "purge", names, retry=False) if names else Transaction("")

    def _exactly(self, name: str, version: str) -> str:
        found = [offered for offered in self.versions(name) if rules.upstream(offered) == version]
        if not found:
            raise PlanError(
                name,
                "the sources have no %s, which belongs to the driver and must be of its version" % version,
                "Ask for another version: %s has %s. Nothing was changed."
                % (name, ", ".join(self.versions(name)) or "none"),
            )
        return "%s=%s" % (name, found[0])

    def _simulate(self, version: str, action: str, arguments: Sequence[str], retry: bool) -> Transaction:
        command = [*_CHANGE, "--simulate", *self._options, action, *arguments]
        done = self.call(command)
        if done.returncode != 0 and retry:
            self._refresh_all()
            done = self.call(command)
        if done.returncode != 0:
            raise PlanError(
                "packages",
                "apt finds no way to install the driver: %s" % _complaints(done.stdout + done.stderr),
                "Give the host the sources that it lacks, or ask for another version. Nothing was changed.",
            )
        return parse(version, done.stdout, tuple(arguments))

    # -- doing -------------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Take the lists that were asked over into the host's own, so that both are of one state."""
        assert self._private
        for path in sorted((self._private / "lists").glob("*")):
            if path.is_file() and not path.is_symlink() and path.name != "lock":
                new = Path(_LISTS, path.name + ".openfleet")
                shutil.copyfile(str(path), str(new))
                new.replace(Path(_LISTS, path.name))

    def download(self, transaction: Transaction) -> None:
        """Fetch everything, verified, before anything is changed. Raises ApplyError."""
        done = self.call([*_CHANGE, *self._options, "install", "--download-only", *transaction.arguments])
        if done.returncode != 0:
            raise ApplyError(
                "packages",
                "not all of them could be fetched: %s" % _complaints(done.stdout + done.stderr),
                "See that the repository answers, and run again.",
                outcome="old",
            )

    def keep(self, packages: Iterable[tuple[str, str]], folder: Path) -> list[str]:
        """Fetch these (name, version) into `folder`; gives the names of those that cannot be had any more."""
        folder.mkdir(parents=True, exist_ok=True)
        missing = []
        for name, version in packages:
            download = ["apt-get", "--quiet", *self._options, "download", "%s=%s" % (name, version)]
            done = self.call(["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(folder), *download])
            if done.returncode != 0:
                missing.append(name)
        return missing

    def install(self, transaction: Transaction) -> str:
        """Empty, or what went wrong. What was fetched for it is deleted again, once it is installed."""
        # From what was fetched, with the lists, sources and pins that were asked: nothing can have moved in between.
        done = self.call([*_CHANGE, *self._options, "install", "--no-download", *transaction.arguments])
        if done.returncode != 0:
            return _complaints(done.stdout + done.stderr)
        for name, _old, new in transaction.installs:
            # As apt names them: without the epoch's colon.
            for path in Path(_ARCHIVES).glob("%s_%s_*.deb" % (name, new.replace(":", "%3a"))):
                path.unlink()
        return ""

    def remove(self, transaction: Transaction) -> str:
        done = self.call([*_CHANGE, "purge", *(name for name, _old in transaction.removals)])
        return "" if done.returncode == 0 else _complaints(done.stdout + done.stderr)

    def put_back(self, packages: Sequence[str], added: Sequence[str]) -> str:
        """Install package files as they were, and take away what came with them. Without apt, which would resolve anew."""
        said = []
        if added:
            said.append(self.call(["dpkg", "--force-depends", "--force-remove-reinstreq", "--purge", *added]))
        if packages:
            options = ["--force-downgrade", "--force-depends", "--force-confold"]
            said.append(self.call(["dpkg", *options, "--install", *packages]))
        said += [self.call(["dpkg", "--configure", "--pending"]), self.call(["apt-get", "check", "--quiet"])]
        return "; ".join(_complaints(done.stderr) for done in said if done.returncode != 0)

    def repair(self) -> str:
        """Finish what was begun. Empty, or what went wrong."""
        self.call(["dpkg", "--configure", "--pending", "--force-confdef", "--force-confold"])
        done = self.call([*_CHANGE, "--fix-broken", "install"])
        audit = self.call(["dpkg", "--audit"])
        return _complaints(done.stderr) if done.returncode != 0 or audit.stdout.strip() else ""

    def hold(self, names: Sequence[str]) -> str:
        done = self.call(["apt-mark", "hold", *names])
        return "" if done.returncode == 0 else _complaints(done.stderr)

    def release(self, names: Sequence[str]) -> str:
        done = self.call(["apt-mark", "unhold", *names])
        return "" if done.returncode == 0 else _complaints(done.stderr)

    def forget(self, sources: str) -> None:
        """Delete the lists of a source that is gone, as the next `apt-get update` would."""
        for line in sources.splitlines():
            if line.startswith("URIs: "):
                # As apt names them: without the scheme, a slash as an underscore, and an underscore quoted.
                name = line.partition("://")[2].replace("_", "%5f").replace("/", "_")
                for path in Path(_LISTS).glob(glob.escape(name) + "*"):
                    path.unlink()


def parse(version: str, simulated: str, arguments: tuple[str, ...]) -> Transaction:
    """What `apt-get --simulate` printed: one line a package, Inst NAME [OLD] (NEW ...) or Remv NAME [OLD]."""
    installs, removals = [], []
    for line in simulated.splitlines():
        found = _INST.match(line)
        if found and found[2] != found[3]:
            installs.append((found[1], found[2] or "", found[3]))
        found = _REMV.match(line)
        if found:
            removals.append((found[1], found[2] or ""))
    return Transaction(version, tuple(sorted(set(installs))), tuple(sorted(set(removals))), arguments)


def _complaints(said: str) -> str:
    """The lines that say what is wrong: errors, or the warnings where there are none, or the last words."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for marks in (("E:", "dpkg: error", "Error!", "Consult "), ("W:", "Err:"), ("",)):
        found = [line for line in lines if line.startswith(marks)]
        if found:
            return " ".join(dict.fromkeys(found[-6:]))
    return "it gave no reason"
