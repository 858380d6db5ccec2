# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Use the host's package manager to read versions, predict and make changes."""

from __future__ import annotations

import re
from typing import NamedTuple

from ...packages import dnf_changes
from ...packages.family import package_manager
from ...packages.host_files import read_text
from ...processes.command import Run, run_to_end
from ..files import InstallError
from .host import output, refuse, run


class Plan(NamedTuple):
    """The predicted changes, by package name."""

    new: list[str]
    changed: list[str]
    removed: list[str]

    def others(self, own) -> str:
        """Return the changes and removals of other packages as text.

        `own` returns whether a package is one of the role's.
        """
        parts = ["change the version of %s" % name for name in self.changed if not own(name)]
        parts += ["remove %s" % name for name in self.removed if not own(name)]
        return ", ".join(parts)


class Apt:
    SIMULATED = re.compile(r"^(Inst|Remv|Purg) (\S+)(?: \[([^\]]*)\])?(?: \((\S+))?", re.MULTILINE)
    OPTIONS = ("-q", "-y", "-o", "APT::Get::AutomaticRemove=false", "-o", "Dpkg::Options::=--force-confold")

    def installed_version(self, package: str) -> str:
        """Return the installed version of a package, or ""."""
        form = "--showformat=${db:Status-Abbrev}${Version}"
        status, text = output(["dpkg-query", "--show", form, package])
        # A dpkg status of "hi" means that the package is installed and on hold.
        return text[2:].strip() if status == 0 and text[1:2] == "i" else ""

    def asked(self, package: str, version: str) -> str:
        return package + ("=%s%s" % (version, "" if "-" in version else "-*") if version else "")

    def refresh(self, own: str) -> None:
        run(["apt-get", "update", "-q"])

    def install(self, asked: list[str], version: str) -> list[str]:
        downgrades = ["--allow-downgrades"] if version else []
        return ["apt-get", "install", *self.OPTIONS, "--no-install-recommends", *downgrades, *asked]

    def remove(self, packages: list[str]) -> list[str]:
        return ["apt-get", "remove", *self.OPTIONS, *packages]

    def plan(self, command: list[str]) -> Plan:
        plan = Plan([], [], [])
        for verb, name, old, new in self.SIMULATED.findall(run([*command, "--simulate"])):
            if verb != "Inst":
                plan.removed.append(name)
            elif not old:
                plan.new.append(name)
            elif old != new:
                plan.changed.append(name)
        return plan

    def change(self, command: list[str]) -> None:
        run(command)

    def forget(self, own: str) -> None:
        """Do nothing: `apt-get update` deletes the lists of removed sources."""

    def torn(self, packages: list[str]) -> list[str]:
        """Return an empty list: APT itself completes an interrupted change."""
        return []


class Dnf:
    """Use DNF. Administrators' locks (versionlock) apply. A failed change is undone."""

    def __init__(self, call: Run = run_to_end) -> None:
        self._dnf = dnf_changes.DnfChanges("openfleet-dcgm", "the exporter", call)

    def installed_version(self, package: str) -> str:
        return max(self._versions(package), default="")

    def _versions(self, package: str) -> list[str]:
        done = self._dnf.call(["rpm", "--query", "--queryformat=%{VERSION}-%{RELEASE}\n", package])
        return done.stdout.split() if done.returncode == 0 else []

    def torn(self, packages: list[str]) -> list[str]:
        """Return packages that an interrupted DNF left installed in two versions."""
        return [package for package in packages if len(self._versions(package)) > 1]

    def repair(self) -> None:
        problem = self._dnf.repair()
        if problem:
            refuse("an interrupted change of the packages cannot be completed: %s" % problem)

    def asked(self, package: str, version: str) -> str:
        return package + ("-" + version if version else "")

    def refresh(self, own: str) -> None:
        """Fetch the metadata of the role's repository.

        At the first fetch, DNF asks whether to trust the repository's key. A prediction of changes cannot answer.
        """
        if own:
            # Require this repository. With skip_if_unavailable (dnf.conf(5)), DNF would otherwise use another
            # repository if this one fails.
            strict = "--setopt=%s.skip_if_unavailable=0" % own
            self._must(self._dnf.change(strict, "makecache", "--repo=" + own), "the repository cannot be used")

    def forget(self, own: str) -> None:
        """Delete DNF's cache of a removed repository."""
        dnf_changes.forget_cache(own)

    def install(self, asked: list[str], version: str) -> list[str]:
        return ["install", *asked]

    def remove(self, packages: list[str]) -> list[str]:
        return ["remove", *packages]

    def plan(self, command: list[str]) -> Plan:
        plan = Plan([], [], [])
        locked = dnf_changes.locked(read_text(dnf_changes.VERSIONLOCK) or "")
        for action, name, _version in self._dnf.simulate(*command):
            old = self.installed_version(name)
            kind = plan.removed if action == "remove" else plan.changed if old else plan.new
            kind.append(name)
            if name in locked and old:
                refuse(
                    "nothing was changed: %s %s is locked by versionlock. Remove its lock (dnf versionlock delete %s), or ask "
                    "for another version." % (name, old, name)
                )
        return plan

    def change(self, command: list[str]) -> None:
        mark = self._dnf.mark()
        problem = self._dnf.change(self._dnf.comment, *command)
        if problem:
            left = self._dnf.put_back((), (), mark)
            state = "and could not be undone: %s" % left if left else "and was undone"
            self._must(problem, "the packages could not be changed (dnf %s), %s" % (" ".join(command), state))

    @staticmethod
    def _must(problem: str, what: str) -> None:
        if problem:
            raise InstallError("packages", "%s: %s" % (what, problem), "See /var/log/dnf.log, and run again.")


def manager():
    """Return the package manager of the host's distribution.

    The other package manager may be installed too.
    """
    return Apt() if package_manager() == "apt" else Dnf()
