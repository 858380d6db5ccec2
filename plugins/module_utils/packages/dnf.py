# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run DNF for all packages that this collection installs.

This is DNF 4, on RHEL 8 to 10. Queries use a repository on the command line, not one in /etc/yum.repos.d. Changes
ignore version locks, because the collection's own locks would hide the requested version. Plans that change a package
that an administrator has locked are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, Sequence

from ..errors import PlanError
from ..processes.command import Run, run_to_end
from .dnf_changes import DNF, VERSIONLOCK, DnfChanges, complaints, forget_cache, locked
from .host_files import read_text
from .manager import Manager
from .model import IsPart, Owner, Package, Transaction, order

_REPOSITORIES = "/etc/yum.repos.d"
_LOCK_PLUGIN = "python3-dnf-plugin-versionlock"


class Dnf(DnfChanges, Manager):
    """DNF on this host."""

    manager = "dnf"
    exactly = "%s-%s"

    def __init__(self, owner: Owner, call: Run = run_to_end) -> None:
        Manager.__init__(self, owner, call)
        DnfChanges.__init__(self, owner.name, owner.what, call)

    # -- Queries --------------------------------------------------------------------------------------------------------

    def installed(self, names: Sequence[str] = ()) -> tuple[Package, ...]:
        done = self.call(["rpm", "-q" if names else "-qa", "--qf", "%{NAME}\\t%{VERSION}-%{RELEASE}\\n", *names])
        if done.returncode != 0 and not names:
            raise PlanError(
                "rpm", done.stderr.strip() or "it does not answer", "Repair the package database, then run again."
            )
        locks = read_text(VERSIONLOCK) or ""
        has_lock = locked(locks)
        versions: dict[str, list[str]] = {}
        for line in done.stdout.splitlines():
            name, tab, version = line.partition("\t")
            if tab:
                versions.setdefault(name, []).append(version)
        packages = []
        for name, found in versions.items():
            # A killed transaction leaves a package installed in two versions. Only kernels have several versions on
            # purpose.
            torn = len(found) > 1 and self.owner.vendor in name
            packages += [
                Package(name, version, name in has_lock and is_held(name, version, locks), torn)
                for version in ([max(found, key=order)] if torn else found)
            ]
        return tuple(packages)

    def open(self, url: str, key: bytes) -> None:
        if not url:
            return
        keyring = self.make_private() / "key"
        keyring.write_bytes(key)
        asked = self._asked
        self._options = (
            "--repofrompath=%s,%s" % (asked, url),
            # Require this repository, because the host may be configured to skip failing ones (skip_if_unavailable in
            # dnf.conf(5)).
            *(
                "--setopt=%s.%s" % (asked, option)
                for option in (*self.owner.settings, "gpgkey=file://%s" % keyring, "retries=1", "skip_if_unavailable=0")
            ),
        )
        done = self.call([*DNF, *self._options, "makecache", "--refresh", "--repo=%s" % asked])
        if done.returncode != 0:
            raise self.refused(url, complaints(done.stderr))
        if Path(_REPOSITORIES, self.owner.name + ".repo").exists():
            # Disable an earlier run's repository file, which may have another address.
            self._options += ("--disablerepo=%s" % self.owner.name,)

    @property
    def _asked(self) -> str:
        """Return the name of the repository for queries.

        It differs from the usual name, because a file with that name may exist already.
        """
        return self.owner.name + "-asked"

    def close(self) -> None:
        """Remove the private directory with its downloads."""
        super().close()
        forget_cache(self._asked)

    def offered(self, names: Sequence[str], needed: Iterable[str] = ()) -> dict[str, list[str]]:
        """Return the versions as VERSION-RELEASE. DNF renews old lists itself."""
        found: dict[str, list[str]] = {name: [] for name in names}
        form = "%{name}\\t%{version}-%{release}\\n"
        done = self.call([*DNF, *self._options, "repoquery", "--showduplicates", "--qf", form, *names])
        for line in done.stdout.splitlines():
            name, _unused, version = line.partition("\t")
            if version and version not in found.get(name, [version]):
                found[name].append(version)
        return found

    def dependents(self, names: Sequence[str]) -> list[str]:
        """Return the installed packages that directly need one of these packages."""
        done = self.call(["rpm", "-e", "--test", *names])
        # If a package would break, rpm prints "needed by (installed) NAME-VERSION".
        needed = [
            line.rpartition("(installed) ")[2].strip() for line in done.stderr.splitlines() if "(installed)" in line
        ]
        return list(dict.fromkeys(name.rsplit("-", 2)[0] for name in needed))

    def excluding(self, names: Sequence[str]) -> list[str]:
        return ["--exclude=%s" % name for name in names]

    def plan_install(
        self,
        packages: Sequence[Package],
        arguments: Sequence[str],
        is_part: IsPart,
        unwanted: Sequence[str] = (),
        pins: str = "",
    ) -> Transaction:
        rows = self.simulate("--allowerasing", "install", *arguments)
        gone = [name for action, name, _version in rows if action == "remove"]
        rest = [name for name in dict.fromkeys(unwanted) if name not in gone]
        parts = {package.name for package in packages if is_part(package)}
        # Do not simulate the removal separately. That would also remove the vendor's packages that require the unwanted
        # packages, although this transaction installs replacements.
        needing = [name for name in self.dependents(rest) if name not in parts] if rest else []
        rows += [("remove", name, "") for name in (*rest, *needing)]
        return _transaction(rows, packages, is_part, arguments)

    def plan_removal(self, packages: Sequence[Package], names: Sequence[str], is_part: IsPart) -> Transaction:
        return _transaction(self.simulate("remove", *names), packages, is_part)

    def version_of(self, path: str) -> tuple[str, str]:
        done = self.call(["rpm", "-qp", "--qf", "%{NAME}\\t%{VERSION}-%{RELEASE}", path])
        name, _unused, version = done.stdout.partition("\t")
        return (name, version) if done.returncode == 0 else ("", "")

    # -- Changes: each method returns "" or the error ------------------------------------------------------------------

    def download(self, transaction: Transaction) -> str:
        return self.change("--allowerasing", "install", "--downloadonly", *transaction.arguments)

    def refresh(self) -> None:
        """Fetch the index of the repository in the written file.

        At the first fetch, DNF asks a question, which a later unattended DNF would not answer.
        """
        if Path(self.owner.sources["dnf"]).exists():
            self.call([*DNF, "makecache", "--repo=%s" % self.owner.name])

    def install(self, transaction: Transaction) -> str:
        problem = self.change(self.comment, "--allowerasing", "install", *transaction.arguments)
        # Packages without a conflict stay installed until they are removed explicitly.
        rest = [name for name in transaction.removed if self.call(["rpm", "-q", "--quiet", name]).returncode == 0]
        problem = problem or (self.change(self.comment, "remove", *rest) if rest else "")
        return problem or self._release_removed(transaction)

    def remove(self, transaction: Transaction) -> str:
        return self.change(self.comment, "remove", *transaction.removed) or self._release_removed(transaction)

    def reinstall(self, names: Sequence[str]) -> str:
        return self.change(self.comment, "reinstall", *names)

    def _release_removed(self, transaction: Transaction) -> str:
        """Delete the locks of removed packages, which would otherwise remain."""
        has_lock = locked(read_text(VERSIONLOCK) or "")
        return self.release(transaction.removed) if has_lock.intersection(transaction.removed) else ""

    def hold(self, names: Sequence[str]) -> str:
        """Lock the packages to their installed versions, in place of older locks."""
        if self.call(["rpm", "--query", "--quiet", _LOCK_PLUGIN]).returncode != 0:
            problem = self.change("install", _LOCK_PLUGIN)
            if problem:
                return problem
        form = "%{NAME}-%{EPOCHNUM}:%{VERSION}-%{RELEASE}.*\\n"
        installed = self.call(["rpm", "--query", "--queryformat", form, *names]).stdout.split()
        current = (read_text(VERSIONLOCK) or "").split()
        locks = {name: [line for line in current if locked(line) == {name}] for name in names}
        names = [name for name in names if len(locks[name]) != 1 or locks[name][0] not in installed]
        if not names:
            return ""
        # Delete old locks first. Otherwise, both the old and the new version would be permitted.
        self.call(["dnf", "--quiet", "versionlock", "delete", *names])
        return self.problem_of(self.call(["dnf", "--quiet", "versionlock", "add", *names]))

    def release(self, names: Sequence[str]) -> str:
        return self.problem_of(self.call(["dnf", "--quiet", "versionlock", "delete", *names]))

    def forget_lists(self, sources: str) -> None:
        """Delete DNF's data about the owner's repository."""
        forget_cache(self.owner.name)


def _transaction(
    rows: Sequence[tuple[str, str, str]], packages: Sequence[Package], is_part: IsPart, arguments: Sequence[str] = ()
) -> Transaction:
    """Return the transaction for these rows.

    Raises PlanError if it changes a package that an administrator has locked.
    """
    has_lock = locked(read_text(VERSIONLOCK) or "")
    known = {package.name: package for package in reversed(packages)}
    installs, removals = set(), set()
    for action, name, version in rows:
        package = known.get(name, Package(name, ""))
        if package.version and (package.held or name in has_lock) and not is_part(package):
            raise PlanError(
                "packages",
                "this would change %s %s, which versionlock keeps" % (name, package.version),
                "Remove its lock (dnf versionlock delete %s), or request another version. Nothing was changed." % name,
            )
        if action == "install" and version != package.version:
            installs.add((name, package.version, version))
        # `repair` removes the old one of a package's two installed versions.
        if action == "remove" and not (package.broken and version not in ("", package.version)):
            removals.add((name, version or package.version))
    return Transaction("", tuple(sorted(installs)), tuple(sorted(removals)), tuple(arguments))


def is_held(name: str, version: str, text: str) -> bool:
    """Return whether a versionlock.list locks a package to this VERSION-RELEASE.

    A lock whose version has a wildcard applies to all versions. A lock on another version is a leftover: DNF was
    killed, or the package was changed despite the lock.
    """
    lines = [line.strip() for line in text.splitlines() if locked(line) == {name}]
    versions = [line.partition(":")[2] for line in lines]
    return bool(versions) and all(found == version + ".*" or "*" in found[:-2] for found in versions)
