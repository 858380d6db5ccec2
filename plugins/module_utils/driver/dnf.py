# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""DNF (version 4, of RHEL 8 to 10): the same as apt.py. Rendered and tested without a Red Hat host so far."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Iterable, Sequence

from ..errors import ApplyError, PlanError
from . import files, rules
from .model import Host, Request, Transaction, Wanted
from .observe import Run, run

#: The repository under a name of its own while it is only asked: its file may be there already, or be another's.
_ASKED = files.NAME + "-asked"
_LOCK_PLUGIN = "python3-dnf-plugin-versionlock"
_CHANGE = ("dnf", "--assumeyes", "--quiet", "--setopt=install_weak_deps=False", "--allowerasing")


class Dnf:
    """The host's DNF. What is only asked is asked with a repository of the command line, not of /etc/yum.repos.d."""

    manager = "dnf"

    def __init__(self, call: Run = run) -> None:
        self.call = call
        self._private: Path | None = None
        self._options: list[str] = []

    def open_private(self, url: str, key: bytes) -> None:
        self.close()
        self._private = Path(tempfile.mkdtemp(prefix="openfleet-nvidia-driver-"))
        if not url:
            return
        keyring = self._private / "key"
        keyring.write_bytes(key)
        options = ("gpgcheck=1", "repo_gpgcheck=1", "gpgkey=file://%s" % keyring, "module_hotfixes=1", "retries=1")
        self._options = [
            "--repofrompath=%s,%s" % (_ASKED, url),
            *("--setopt=%s.%s" % (_ASKED, option) for option in options),
        ]  # fmt: skip
        done = self.call(["dnf", "--quiet", *self._options, "makecache", "--repo=%s" % _ASKED])
        if done.returncode != 0:
            raise PlanError(
                url,
                "the repository cannot be used: %s" % _complaints(done.stderr),
                "See that the address is right and answers. Nothing was changed.",
            )

    def close(self) -> None:
        if self._private:
            shutil.rmtree(str(self._private), ignore_errors=True)
            self._private = None
            self._options = []

    def versions(self, name: str) -> list[str]:
        query = ["repoquery", "--showduplicates", "--qf", "%{version}-%{release}", name]
        done = self.call(["dnf", "--quiet", *self._options, *query])
        return sorted(set(done.stdout.split()), key=rules.order, reverse=True)

    def resolve(
        self, host: Host, request: Request, names: Wanted, pinned: Sequence[str], prefer: str = ""
    ) -> Transaction:
        anchor = names.locked[0]
        offered = [upstream for upstream in map(rules.upstream, self.versions(anchor)) if upstream]
        fitting = [found for found in offered if rules.satisfies(found, request.version)]
        if not fitting:
            raise PlanError(
                "nvidia_driver_version",
                "%s is not to be had as %s from %s" % (request.version, anchor, request.source),
                "There is: %s. Nothing was changed." % (", ".join(dict.fromkeys(offered)) or "none"),
            )
        chosen = prefer if prefer in fitting else fitting[0]
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
        arguments = ["%s-%s" % pair for pair in exact] + list(names.free)
        changes = tuple(change for change in installs if change[1] != change[2] or not change[2])
        return Transaction(chosen, changes, tuple(removals), tuple(arguments))

    def resolve_removal(self, host: Host, patterns: Sequence[str]) -> Transaction:
        found = [package for package in host.packages if rules.of_the_driver(package, patterns)]
        return Transaction("", (), tuple((package.name, package.version) for package in found))

    def refresh(self) -> None:
        """DNF fetches for itself when it next needs to."""

    def download(self, transaction: Transaction) -> None:
        done = self.call([*_CHANGE, *self._options, "install", "--downloadonly", *transaction.arguments])
        if done.returncode != 0:
            raise ApplyError(
                "packages",
                "not all of them could be fetched: %s" % _complaints(done.stderr),
                "See that the repository answers, and run again.",
                outcome="old",
            )

    def keep(self, packages: Iterable[tuple[str, str]], folder: Path) -> list[str]:
        """The history of DNF is the way back: nothing to keep."""
        return []

    def install(self, transaction: Transaction) -> str:
        done = self.call([*_CHANGE, *self._options, "install", *transaction.arguments])
        return "" if done.returncode == 0 else _complaints(done.stderr)

    def remove(self, transaction: Transaction) -> str:
        done = self.call([*_CHANGE, "remove", *(name for name, _old in transaction.removals)])
        return "" if done.returncode == 0 else _complaints(done.stderr)

    def put_back(self, packages: Sequence[str], added: Sequence[str]) -> str:
        done = self.call([*_CHANGE, *self._options, "history", "undo", "last"])
        return "" if done.returncode == 0 else _complaints(done.stderr)

    def repair(self) -> str:
        done = self.call(["dnf", "--quiet", "check"])
        return "" if done.returncode == 0 else _complaints(done.stdout + done.stderr)

    def hold(self, names: Sequence[str]) -> str:
        if self.call(["rpm", "--query", "--quiet", _LOCK_PLUGIN]).returncode != 0:
            done = self.call([*_CHANGE, "install", _LOCK_PLUGIN])
            if done.returncode != 0:
                return _complaints(done.stderr)
        done = self.call(["dnf", "--quiet", "versionlock", "add", *names])
        return "" if done.returncode == 0 else _complaints(done.stderr)

    def release(self, names: Sequence[str]) -> str:
        done = self.call(["dnf", "--quiet", "versionlock", "delete", *names])
        return "" if done.returncode == 0 else _complaints(done.stderr)

    def forget(self, sources: str) -> None:
        """DNF keeps nothing of a repository that would be in anybody's way."""


def _installed(host: Host, name: str) -> str:
    package = host.package(name)
    return package.version if package else ""


def _complaints(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    found = [line for line in lines if line.lower().startswith("error")] or lines[-3:]
    return " ".join(found) or "it gave no reason"
