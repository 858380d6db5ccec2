# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Query and change the driver's packages with DNF. Same interface as apt.py."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, Sequence

from ..errors import ApplyError, PlanError
from ..packages import dnf
from ..packages.host_files import read_text
from ..processes.command import Run, run_to_end
from . import files, rules
from .model import Host, Request, Transaction, Wanted


class Dnf(dnf.DnfBase):
    """Manage the driver's packages with the host's DNF."""

    def __init__(self, call: Run = run_to_end) -> None:
        super().__init__(rules.OWNER, call)

    def open(self, url: str, key: bytes) -> None:
        if url:
            self.ask_also(url, key, files.VERIFIED)

    def versions(self, name: str) -> list[str]:
        return _newest_first(self.offered([name])[name])

    def resolve(
        self, host: Host, request: Request, names: Wanted, pinned: Sequence[str], prefer: str = ""
    ) -> Transaction:
        """Return the changes of an installation.

        The version is the preferred one, or else the newest that matches the request. Raises PlanError.
        """
        anchor = names.locked[0]
        # Installed parts of the driver that were not requested change too. Otherwise they would stay in another
        # version.
        more = [
            package.name
            for package in host.packages
            if rules.of_the_driver(package, pinned) and rules.upstream(package.version)
            and package.name not in (*names.locked, *names.free, *names.unwanted)
        ]  # fmt: skip
        offered = self.offered([*names.locked, *more])
        candidates = _newest_first(offered[anchor])
        modules = self._modules(names, candidates)
        if names.precompiled:
            candidates = self._with_modules(names, request, candidates, modules)
        chosen = rules.choose(candidates, request, anchor, prefer)
        exact, lacking = [], []
        for _kernel, pattern in names.precompiled:
            name = pattern.format(version=chosen)
            exact += ["%s-%s" % (name, modules[name][0])] if modules[name] else []
            lacking += [] if modules[name] else [name]
        stale = rules.stale_modules(host, names, chosen)
        for name in (*names.locked, *(name for name in more if name not in stale)):
            found = [version for version in offered[name] if rules.upstream(version) == chosen]
            if found:
                exact.append("%s-%s" % (name, found[0]))
            elif name in names.locked:
                raise PlanError(
                    name,
                    "the sources have no %s, which belongs to the driver and must have its version" % chosen,
                    "Request another version. Nothing was changed.",
                )
        following = [
            (name, asked) for name, asked in names.next_kernel if not host.package(name) and asked not in names.free
        ]
        missing = (*lacking, *(asked for name, asked in following if not self._is_offered(name, asked)))
        # An unwanted package that requires the old version would otherwise be upgraded with the rest.
        excluded = ["--exclude=%s" % name for name in names.unwanted if host.package(name)] if names.precompiled else []
        arguments = (*excluded, *exact, *names.free, *(asked for _name, asked in following if asked not in missing))
        rows = self.simulate("--allowerasing", "install", *arguments)
        gone = [name for action, name, _version in rows if action == "remove"]
        others = [name for name in names.unwanted if host.package(name)] + stale
        rest = [name for name in dict.fromkeys(others) if name not in gone]
        # The removal is not simulated alone. Such a simulation would also remove the parts that require modules,
        # although this transaction installs new modules for them.
        needing = [name for name in self.dependents(rest) if not _is_part(host, name, pinned)] if rest else []
        rows += [("remove", name, _installed(host, name)) for name in (*rest, *needing)]
        return self._transaction(chosen, rows, host, pinned, arguments, missing)

    def _modules(self, names: Wanted, versions: Iterable[str]) -> dict[str, list[str]]:
        """Return the offered versions of the precompiled modules, by package name."""
        asked = [
            pattern.format(version=rules.upstream(version))
            for version in versions
            for _kernel, pattern in names.precompiled
        ]
        return self.offered(list(dict.fromkeys(asked))) if asked else {}

    @staticmethod
    def _with_modules(
        names: Wanted, request: Request, versions: Sequence[str], modules: dict[str, list[str]]
    ) -> list[str]:
        """Return the versions that have modules for the running kernel.

        Raises PlanError if none of them matches the request.
        """
        kernel, pattern = names.precompiled[0]
        found = [version for version in versions if modules[pattern.format(version=rules.upstream(version))]]
        if not any(rules.satisfies(rules.upstream(version), request.version) for version in found):
            raise PlanError(
                "nvidia_driver_precompiled",
                "no source has modules of %s for kernel %s (%s)"
                % (request.version, kernel, pattern.format(version=request.version)),
                "Versions with such modules: %s. Boot another kernel, ask for another version or for other "
                "nvidia_driver_kernel_modules, or say false: DKMS builds the modules. Nothing was changed."
                % (", ".join(dict.fromkeys(map(rules.upstream, found))) or "none"),
            )
        return found

    def _is_offered(self, name: str, asked: str) -> bool:
        """Return whether a repository offers a package.

        If the request has a version and an architecture, these must match.
        """
        architecture = asked.rpartition(".")[2]
        offered = self.offered(list(dict.fromkeys([asked, name])))
        exact = ["%s-%s.%s" % (name, version, architecture) for version in offered[name]]
        return bool(offered[asked]) or asked in exact

    def resolve_removal(self, host: Host, patterns: Sequence[str], foreign: Sequence[str] = ()) -> Transaction:
        """Return the changes of a removal, including other packages that it removes.

        Raises PlanError.
        """
        names = [
            package.name
            for package in host.packages
            if rules.of_the_driver(package, patterns) or package.name in foreign
        ]
        if not names:
            return Transaction("")
        rows = self.simulate("remove", *dict.fromkeys(names))
        return self._transaction("", rows, host, patterns, (), ())

    @staticmethod
    def _transaction(
        version: str,
        rows: Sequence[tuple[str, str, str]],
        host: Host,
        patterns: Sequence[str],
        arguments: tuple[str, ...],
        missing: tuple[str, ...],
    ) -> Transaction:
        """Return the transaction for these rows.

        Raises PlanError if it changes a package that an administrator has locked.
        """
        locked = dnf.locked(read_text(dnf.VERSIONLOCK) or "")
        for _action, name, _version in rows:
            package = host.package(name)
            if package and (package.held or name in locked) and not rules.of_the_driver(package, patterns):
                raise PlanError(
                    "packages",
                    "this would change %s %s, which versionlock keeps" % (name, package.version),
                    "Remove its lock (dnf versionlock delete %s), or request another version. Nothing was changed."
                    % name,
                )
        installs = {(name, _installed(host, name), new) for action, name, new in rows if action == "install"}
        removals = {(name, old) for action, name, old in rows if action == "remove"}
        changes = tuple(sorted(change for change in installs if change[1] != change[2]))
        return Transaction(version, changes, tuple(sorted(removals)), arguments, missing)

    def refresh(self) -> None:
        """Fetch the index of the repository in the written file.

        Its first use asks a question that an unattended DNF does not answer.
        """
        if Path(files.REPO).exists():
            self.call([*dnf.DNF, "makecache", "--repo=%s" % self.owner.name])

    def download(self, transaction: Transaction) -> None:
        problem = self.change("--allowerasing", "install", "--downloadonly", *transaction.arguments)
        if problem:
            raise ApplyError(
                "packages",
                "not all of them could be downloaded: %s" % problem,
                "Check that the repository is reachable, then run again.",
                outcome="old",
            )

    def keep(self, packages: Iterable[tuple[str, str]], folder: Path) -> list[str]:
        """Save nothing, because a rollback uses the history of DNF."""
        return []

    def install(self, transaction: Transaction) -> str:
        problem = self.change(self.comment, "--allowerasing", "install", *transaction.arguments)
        # Packages that conflict with nothing stay installed until they are removed.
        rest = [name for name, _old in transaction.removals if self._has(name)]
        problem = problem or (self.change(self.comment, "remove", *rest) if rest else "")
        return problem or self._release_removed([name for name, _old in transaction.removals])

    def remove(self, transaction: Transaction) -> str:
        names = [name for name, _old in transaction.removals]
        problem = self.change(self.comment, "remove", *names)
        return problem or self._release_removed(names)

    def _release_removed(self, names: Sequence[str]) -> str:
        """Delete the locks of removed packages. They would remain otherwise."""
        return self.release(names) if dnf.locked(read_text(dnf.VERSIONLOCK) or "") & set(names) else ""

    def reinstall(self, names: Sequence[str]) -> str:
        return self.change(self.comment, "reinstall", *names)

    def _has(self, name: str) -> bool:
        return self.call(["rpm", "--query", "--quiet", name]).returncode == 0

    def put_back(self, packages: Sequence[str], added: Sequence[str], mark: str) -> str:
        """Restore the old packages with the history of DNF."""
        return self.undo(mark)


def _newest_first(versions: Iterable[str]) -> list[str]:
    return sorted(versions, key=rules.order, reverse=True)


def _is_part(host: Host, name: str, patterns: Sequence[str]) -> bool:
    package = host.package(name)
    return bool(package and rules.of_the_driver(package, patterns))


def _installed(host: Host, name: str) -> str:
    package = host.package(name)
    return package.version if package else ""
