# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The same as apt.py by DNF (version 4, of RHEL 8 to 10). Tested by its arguments; no Red Hat host was to be had."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Callable, Sequence

from ..errors import PlanError
from . import files, rules
from .model import Package

_VERSIONLOCK = "/etc/dnf/plugins/versionlock.list"
_DNF = ("dnf", "--assumeyes", "--quiet", "--setopt=install_weak_deps=False")


class Dnf:
    """The host's DNF."""

    manager = "dnf"

    def __init__(self, call: Callable[..., Any], versionlock: str = _VERSIONLOCK) -> None:
        self.call = call
        self._versionlock = Path(versionlock)
        self._private: Path | None = None
        self._options: tuple[str, ...] = ()

    def packages(self) -> tuple[Package, ...]:
        form = "%{NAME}\\t%{VERSION}-%{RELEASE}\\n"
        done = self.call(["rpm", "-q", "--qf", form, *rules.PACKAGES])
        locked = self._versionlock.read_text() if self._versionlock.exists() else ""
        rows = (line.split("\t") for line in done.stdout.splitlines() if "\t" in line)
        return tuple(Package(name, version, held="%s-0:" % name in locked) for name, version in rows)

    def open(self, url: str, key: bytes) -> None:
        self.close()
        self._private = Path(tempfile.mkdtemp(prefix="openfleet-container-toolkit-"))
        keyring = self._private / "key"
        keyring.write_bytes(key)
        # As files.sources has it: the metadata is signed, and has the packages' checksums.
        settings = ("repo_gpgcheck=1", "gpgcheck=0", "gpgkey=file://%s" % keyring, "retries=1")
        self._options = (
            "--repofrompath=%s,%s" % (files.NAME, url),
            *("--setopt=%s.%s" % (files.NAME, setting) for setting in settings),
        )
        done = self.call([*_DNF, *self._options, "makecache", "--repo=%s" % files.NAME])
        if done.returncode != 0:
            raise PlanError(
                url,
                "the repository cannot be used: %s" % _complaints(done.stderr),
                "See that the address is right and answers, and that it is signed with the key of "
                "container_toolkit_repository_fingerprints. Nothing was changed.",
            )

    def close(self) -> None:
        if self._private:
            shutil.rmtree(str(self._private), ignore_errors=True)
        self._private, self._options = None, ()

    def choose(self, asked: str) -> str:
        form = "%{name}\\t%{version}-%{release}\\n"
        query = ["repoquery", "--showduplicates", "--qf", form, *rules.PACKAGES]
        done = self.call([*_DNF, *self._options, *query])
        found: dict[str, set[str]] = {name: set() for name in rules.PACKAGES}
        for line in done.stdout.splitlines():
            name, _, version = line.partition("\t")
            found.get(name, set()).add(version)
        common = set.intersection(*found.values())
        fitting = sorted((version for version in common if rules.is_version(version, asked)), key=rules.numbers)
        if not fitting:
            there = sorted(common, key=rules.numbers, reverse=True)
            raise PlanError(
                "container_toolkit_version",
                "the sources do not have all packages of the toolkit in version %s" % asked,
                "There is: %s. Nothing was changed." % (", ".join(there[:8]) or "none"),
            )
        return fitting[-1]

    def removals(self, version: str, paths: Sequence[str] = ()) -> list[str]:
        """DNF removes nothing to install something, unless told to."""
        return []

    def removals_of_removing(self, names: Sequence[str]) -> list[str]:
        done = self.call(["rpm", "-e", "--test", *names])
        # "needed by (installed) NAME-VERSION": rpm says who would be left without.
        needed = [
            line.rpartition("(installed) ")[2].strip() for line in done.stderr.splitlines() if "(installed)" in line
        ]
        return [name.rsplit("-", 2)[0] for name in needed]

    def version_of(self, path: str) -> tuple[str, str]:
        done = self.call(["rpm", "-qp", "--qf", "%{NAME}\\t%{VERSION}-%{RELEASE}", path])
        name, _, version = done.stdout.partition("\t")
        return (name, version) if done.returncode == 0 else ("", "")

    def refresh(self) -> str:
        self.close()
        return ""

    def download(self, version: str, paths: Sequence[str] = ()) -> str:
        return self._run("install", "--downloadonly", *self._arguments(version, paths))

    def install(self, version: str, paths: Sequence[str] = ()) -> str:
        there = {package.name: package.version for package in self.packages()}
        older = any(rules.numbers(there.get(name, "0")) > rules.numbers(version) for name in rules.PACKAGES)
        return self._run("downgrade" if older else "install", *self._arguments(version, paths))

    @staticmethod
    def _arguments(version: str, paths: Sequence[str]) -> list[str]:
        return list(paths) or ["%s-%s" % (name, version) for name in rules.PACKAGES]

    def remove(self, names: Sequence[str]) -> str:
        return self._run("remove", *names)

    def repair(self) -> str:
        return self._run("distro-sync", *rules.PACKAGES)

    def hold(self, names: Sequence[str]) -> str:
        problem = self._run("install", "python3-dnf-plugin-versionlock")
        return problem or self._run("versionlock", "add", *names)

    def release(self, names: Sequence[str]) -> str:
        return self._run("versionlock", "delete", *names)

    def _run(self, *arguments: str) -> str:
        done = self.call([*_DNF, *arguments])
        return "" if done.returncode == 0 else _complaints(done.stderr)


def _complaints(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    found = [line for line in lines if line.lower().startswith("error")] or lines[-3:]
    return " ".join(found) or "it gave no reason"
