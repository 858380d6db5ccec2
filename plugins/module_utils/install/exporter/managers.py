# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's package manager: installed versions, predicted changes and commands."""

from __future__ import annotations

import re
from typing import NamedTuple

from ...packages.family import package_manager
from .host import output, refuse, run


class Plan(NamedTuple):
    """Predicted changes, by package name."""

    new: list[str]
    changed: list[str]
    removed: list[str]

    def others(self, own) -> str:
        """Return the changes and removals of packages that are not `own`, as text."""
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
        # "hi" is a held package.
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


class Dnf:
    """DNF 4 or 5. Its table has a heading for each kind of change, and an indented line for each package."""

    def installed_version(self, package: str) -> str:
        status, text = output(["rpm", "--query", "--queryformat=%{VERSION}-%{RELEASE}", package])
        return text.strip() if status == 0 else ""

    def asked(self, package: str, version: str) -> str:
        return package + ("-" + version if version else "")

    def refresh(self, own: str) -> None:
        """Fetch metadata of the role's repository. DNF asks whether to trust its key, which a plan cannot answer."""
        if own:
            run(["dnf", "makecache", "-y", "--repo=" + own])

    def install(self, asked: list[str], version: str) -> list[str]:
        return ["dnf", "install", "-y", "--setopt=install_weak_deps=False", *asked]

    def remove(self, packages: list[str]) -> list[str]:
        # Not dnf, which would also remove dependents.
        return ["rpm", "--erase", *packages]

    def plan(self, command: list[str]) -> Plan:
        if command[0] == "rpm":
            run([*command, "--test"])
            return Plan([], [], [])
        # It exits with status 1, because its question was not answered.
        text = output([word if word != "-y" else "--assumeno" for word in command])[1]
        plan, heading = Plan([], [], []), ""
        for line in text.splitlines():
            words = line.split()
            if line[:1].strip():
                heading = line.strip().lower()
            elif not words or not heading.endswith(":"):
                continue
            elif line.startswith("  ") and words[0] != "replacing":
                # Continuation line of a long name.
                continue
            elif words[0] == "replacing":
                plan.removed.append(words[1].rpartition(".")[0] or words[1])
            elif heading.startswith("installing"):
                plan.new.append(words[0])
            elif heading.startswith("removing"):
                plan.removed.append(words[0])
            elif heading.startswith(("upgrading", "downgrading")):
                plan.changed.append(words[0])
        if not any(plan) and "nothing to do" not in text.lower():
            refuse("%s does not list its changes:\n%s" % (" ".join(command), text))
        return plan


def manager():
    """Return the package manager of the host's distribution. The other one may be installed too."""
    return Apt() if package_manager() == "apt" else Dnf()
