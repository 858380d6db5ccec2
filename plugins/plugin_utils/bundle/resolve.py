# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the packages to mirror from a repository. Pure.

These are the requested packages and their dependencies in the repository. The distribution must provide other
dependencies. A dependency that both may have is mirrored as well, and the host's package manager chooses.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import defaultdict
from typing import Iterable, Sequence

from ...module_utils.driver import rules as driver_rules
from ...module_utils.packages.model import order
from ...module_utils.toolkit import rules as toolkit_rules
from .model import Ask, BundleError, Candidate, Relation


class Index(ABC):
    """A repository's packages. apt.py and rpm.py implement this class."""

    #: Whether hosts pin the driver's packages to the driver's version.
    pins: bool

    def __init__(self) -> None:
        self._named: dict[str, list[Candidate]] = defaultdict(list)
        self._providers: dict[str, list[Candidate]] = defaultdict(list)

    def add(self, candidate: Candidate) -> None:
        """Add a package of the repository."""
        self._named[candidate.name].append(candidate)
        for provided in candidate.provides:
            self._providers[provided.name].append(candidate)

    def named(self, name: str) -> Sequence[Candidate]:
        """Return the packages with this name."""
        return self._named.get(name, [])

    def providers(self, name: str) -> Sequence[Candidate]:
        """Return the packages that provide this name."""
        return self._providers.get(name, [])

    @abstractmethod
    def requires(self, candidate: Candidate) -> Iterable[tuple[Relation, ...]]:
        """Yield a package's requirements.

        Each requirement is a group of alternatives, of which one must be satisfied.
        """

    @abstractmethod
    def compare(self, one: str, other: str, exact: bool = True) -> int:
        """Compare two versions. Returns a number below, equal to or above 0.

        If `exact` is false, ignores the parts of a version that the other version does not have.
        """


def choose(ask: Ask, index: Index) -> str:
    """Return the version to mirror.

    For the container toolkit, this is its package's version, for the driver the upstream version. Raises BundleError if
    no version matches.
    """
    offered = [candidate.version for candidate in index.named(ask.locked[0])]
    if ask.role == "nvidia_driver":
        offered = [version for version in map(driver_rules.upstream, offered) if version]
        fitting = [version for version in offered if driver_rules.satisfies(version, ask.version)]
    else:
        for name in ask.locked[1:]:
            offered = [version for version in offered if version in {other.version for other in index.named(name)}]
        fitting = [version for version in offered if toolkit_rules.is_version(version, ask.version)]
    if not fitting:
        available = sorted(set(offered), key=order, reverse=True)
        raise BundleError(
            ask.role + "_version",
            "the repository has no %s of version %s for %s" % (ask.locked[0], ask.version, ask.platform),
            "Available: %s." % (", ".join(available[:8]) or "none"),
        )
    return max(fitting, key=order)


def resolve(ask: Ask, index: Index) -> tuple[list[Candidate], list[str]]:
    """Return (packages to mirror, requirements that the repository does not meet).

    Raises BundleError if a requested package or version is missing.
    """
    search = _Search(ask, index)
    for name in ask.locked:
        search.take_locked(name)
    for name in ask.free:
        search.take_free(name)
    search.follow()
    taken = sorted(search.taken.values(), key=lambda candidate: (candidate.name, candidate.version))
    return taken, sorted(search.elsewhere)


class _Search:
    """A search for packages and their dependencies.

    `taken` has the chosen packages, `queue` those whose requirements were not read yet, and `elsewhere` the
    requirements that the repository does not meet.
    """

    def __init__(self, ask: Ask, index: Index) -> None:
        self.ask, self.index, self.chosen = ask, index, choose(ask, index)
        self.newest = functools.cmp_to_key(lambda one, other: index.compare(one.version, other.version))
        self.taken: dict[tuple[str, str], Candidate] = {}
        self.elsewhere: dict[str, None] = {}
        self.queue: list[Candidate] = []

    def take_locked(self, name: str) -> None:
        """Take a package in the chosen version.

        Raises BundleError if the repository lacks it.
        """
        chosen = self._best(candidate for candidate in self.index.named(name) if self._is_chosen(candidate))
        if not chosen:
            raise BundleError(
                name,
                "the repository does not have it in version %s, which the %s needs"
                % (self.chosen, self.ask.role.replace("_", " ")),
                "Choose another version. Available: %s."
                % (", ".join(candidate.version for candidate in self.index.named(name)) or "none"),
            )
        self._take(chosen)

    def take_free(self, name: str) -> None:
        """Take a package in any version.

        If the repository lacks it, record that the distribution must provide it.
        """
        chosen = self._best(self.index.named(name))
        self._take(chosen)
        if not chosen:
            self.elsewhere[name] = None

    def follow(self) -> None:
        """Take the dependencies of the taken packages, recursively."""
        while self.queue:
            for group in self.index.requires(self.queue.pop()):
                if not self._is_satisfied(group) and not any(map(self._take, map(self._providers, group))):
                    self.elsewhere[" | ".join(map(str, group))] = None

    def _is_satisfied(self, group: Iterable[Relation]) -> bool:
        return any(
            _satisfies(candidate, relation, self.index) for candidate in self.taken.values() for relation in group
        )

    def _providers(self, relation: Relation) -> list[Candidate]:
        """Return the packages that satisfy a relation.

        If no package with that name does, returns packages that provide the name.
        """
        for candidates in (self.index.named, self.index.providers):
            best = self._best(
                package for package in candidates(relation.name) if _satisfies(package, relation, self.index)
            )
            if best:
                return best
        return []

    def _take(self, candidates: Sequence[Candidate]) -> bool:
        """Take the candidates. Return False if there are none."""
        for candidate in candidates:
            if (candidate.name, candidate.version) not in self.taken:
                self.taken[candidate.name, candidate.version] = candidate
                self.queue.append(candidate)
        return bool(candidates)

    def _is_chosen(self, candidate: Candidate) -> bool:
        if self.ask.role == "nvidia_driver":
            return driver_rules.upstream(candidate.version) == self.chosen
        return candidate.version == self.chosen

    def _best(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return the packages that a host could choose from these candidates.

        Hosts that pin versions choose driver packages in the driver's version, and other packages in the newest
        version. For hosts that do not pin versions, other dependencies decide between these two versions, so both are
        returned.
        """
        ranked = sorted(candidates, key=self.newest, reverse=True)
        pinned = [
            candidate
            for candidate in ranked
            if self._is_chosen(candidate)
            and any(driver_rules.matches(candidate.name, pattern) for pattern in self.ask.pinned)
        ]
        if self.index.pins:
            return (pinned or ranked)[:1]
        return ranked[:1] + [candidate for candidate in pinned[:1] if candidate != ranked[0]]


def _satisfies(candidate: Candidate, relation: Relation, index: Index) -> bool:
    if candidate.name == relation.name and _in_range(candidate.version, relation, index):
        return True
    return any(
        provided.name == relation.name
        and (not relation.operator or (provided.version and _in_range(provided.version, relation, index)))
        for provided in candidate.provides
    )


def _in_range(version: str, relation: Relation, index: Index) -> bool:
    if not relation.operator:
        return True
    order = index.compare(version, relation.version, exact=False)
    return {
        "<<": order < 0,
        "<=": order <= 0,
        "=": order == 0,
        ">=": order >= 0,
        ">>": order > 0,
    }[relation.operator]
