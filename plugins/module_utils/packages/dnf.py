# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The same as apt.py by DNF (version 4, of RHEL 8 to 10). Tested by its arguments; no Red Hat host was to be had.

What is only asked is asked with a repository of the command line, not of /etc/yum.repos.d.
"""

from __future__ import annotations

from typing import Sequence

from ..command import Done
from .manager import Manager

VERSIONLOCK = "/etc/dnf/plugins/versionlock.list"
_LOCK_PLUGIN = "python3-dnf-plugin-versionlock"
DNF = ("dnf", "--assumeyes", "--quiet", "--setopt=install_weak_deps=False")


class DnfBase(Manager):
    """The host's DNF."""

    manager = "dnf"
    command = DNF

    def ask_also(self, url: str, key: bytes, settings: Sequence[str]) -> None:
        """Ask this repository besides the host's own from now on. Raises PlanError where it cannot be used."""
        keyring = self.make_private() / "key"
        keyring.write_bytes(key)
        # Under a name of its own while it is only asked: its file may be there already, or be another's.
        asked = self.owner.name + "-asked"
        self._options = (
            "--repofrompath=%s,%s" % (asked, url),
            *("--setopt=%s.%s" % (asked, option) for option in (*settings, "gpgkey=file://%s" % keyring, "retries=1")),
        )
        done = self.call([*DNF, *self._options, "makecache", "--repo=%s" % asked])
        if done.returncode != 0:
            raise self.refused(url, complaints(done.stderr))

    def offered(self, names: Sequence[str]) -> dict[str, list[str]]:
        """The versions that the repositories have of each package."""
        found: dict[str, list[str]] = {name: [] for name in names}
        form = "%{name}\\t%{version}-%{release}\\n"
        done = self.call([*DNF, *self._options, "repoquery", "--showduplicates", "--qf", form, *names])
        for line in done.stdout.splitlines():
            name, _, version = line.partition("\t")
            if version and version not in found.get(name, [version]):
                found[name].append(version)
        return found

    # -- Doing: empty, or what went wrong ------------------------------------------------------------------------------

    @staticmethod
    def problem_of(done: Done) -> str:
        return "" if done.returncode == 0 else complaints(done.stderr)

    def hold(self, names: Sequence[str]) -> str:
        problem = ""
        if self.call(["rpm", "--query", "--quiet", _LOCK_PLUGIN]).returncode != 0:
            problem = self.problem_of(self.call([*DNF, "install", _LOCK_PLUGIN]))
        return problem or self.problem_of(self.call(["dnf", "--quiet", "versionlock", "add", *names]))

    def release(self, names: Sequence[str]) -> str:
        return self.problem_of(self.call(["dnf", "--quiet", "versionlock", "delete", *names]))


def locked(text: str) -> set[str]:
    """Names in a versionlock.list, a line each: NAME-EPOCH:VERSION-RELEASE.*"""
    lines = (line.strip() for line in text.splitlines())
    return {line.partition(":")[0].rpartition("-")[0] for line in lines if ":" in line and line[:1] not in "#!"}


def complaints(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    found = [line for line in lines if line.lower().startswith("error")] or lines[-3:]
    return " ".join(found) or "it gave no reason"
