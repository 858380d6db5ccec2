# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages of a repository it takes: those asked for, with what they depend on inside of it. Pure.

What nothing in the repository provides is the distribution's. Where a repository could provide something that the distribution
may have too, it is taken along: which one a host takes is its package manager's choice, and both are there then.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Callable, Iterable, Protocol, Sequence

from ...module_utils.driver import rules as driver_rules
from ...module_utils.toolkit import rules as toolkit_rules
from .model import Ask, BundleError, Candidate, Relation


class Index(Protocol):
    """What a repository has; apt.py and rpm.py make one.

    `pins`: whether hosts take the driver's parts in its version wherever they may choose.
    """

    pins: bool

    def named(self, name: str) -> Sequence[Candidate]: ...

    def providers(self, name: str) -> Sequence[Candidate]: ...

    def requires(self, candidate: Candidate) -> Iterable[tuple[Relation, ...]]:
        """Groups of alternatives, one of each of which must be there."""

    def compare(self, one: str, other: str, exact: bool = True) -> int:
        """Negative, 0 or positive. Not `exact`: a part that one of them leaves out does not count."""


def choose(ask: Ask, index: Index) -> str:
    """The version to take: exact for the toolkit's packages, the driver's own number for the driver's. Raises BundleError."""
    offered = [candidate.version for candidate in index.named(ask.locked[0])]
    if ask.role == "nvidia_driver":
        offered = [version for version in map(driver_rules.upstream, offered) if version]
        fitting = [version for version in offered if driver_rules.satisfies(version, ask.version)]
        order: Callable[[str], Any] = driver_rules.order
    else:
        for name in ask.locked[1:]:
            offered = [version for version in offered if version in {found.version for found in index.named(name)}]
        fitting = [version for version in offered if toolkit_rules.is_version(version, ask.version)]
        order = toolkit_rules.numbers
    if not fitting:
        there = sorted(set(offered), key=order, reverse=True)
        raise BundleError(
            ask.role + "_version",
            "%s is not to be had as %s for %s" % (ask.version, ask.locked[0], ask.platform),
            "There is: %s." % (", ".join(there[:8]) or "none"),
        )
    return max(fitting, key=order)


def resolve(ask: Ask, index: Index) -> tuple[list[Candidate], list[str]]:
    """Packages to take, and what must come from elsewhere, in words. Raises BundleError."""
    chosen = choose(ask, index)
    newest = functools.cmp_to_key(lambda one, other: index.compare(one.version, other.version))

    def is_chosen(candidate: Candidate) -> bool:
        if ask.role == "nvidia_driver":
            return driver_rules.upstream(candidate.version) == chosen
        return candidate.version == chosen

    def best(candidates: Iterable[Candidate]) -> list[Candidate]:
        """As the role pins: a name of the driver's in the driver's version, whatever else there is. The newest else, and
        both where there is no pin, since another dependency may decide between them."""
        ranked = sorted(candidates, key=newest, reverse=True)
        pinned = [
            candidate
            for candidate in ranked
            if is_chosen(candidate) and any(_matches(candidate.name, pattern) for pattern in ask.pinned)
        ]
        if index.pins:
            return (pinned or ranked)[:1]
        return ranked[:1] + [candidate for candidate in pinned[:1] if candidate != ranked[0]]

    taken: dict[tuple[str, str], Candidate] = {}
    elsewhere: dict[str, None] = {}
    queue: list[Candidate] = []

    def take(candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            if (candidate.name, candidate.version) not in taken:
                taken[candidate.name, candidate.version] = candidate
                queue.append(candidate)

    for name in ask.locked:
        found = best(candidate for candidate in index.named(name) if is_chosen(candidate))
        if not found:
            raise BundleError(
                name,
                "the repository has no %s, which belongs to the %s and must be of its version"
                % (chosen, ask.role.replace("_", " ")),
                "Ask for another version: there is %s."
                % (", ".join(candidate.version for candidate in index.named(name)) or "none"),
            )
        take(found)
    for name in ask.free:
        found = best(index.named(name))
        take(found)
        if not found:
            elsewhere[name] = None
    while queue:
        for group in index.requires(queue.pop()):
            if any(_satisfies(candidate, relation, index) for candidate in taken.values() for relation in group):
                continue
            for relation in group:
                found = best(
                    candidate for candidate in index.named(relation.name) if _satisfies(candidate, relation, index)
                ) or best(
                    candidate for candidate in index.providers(relation.name) if _satisfies(candidate, relation, index)
                )
                if found:
                    take(found)
                    break
            else:
                elsewhere[" | ".join(map(str, group))] = None
    return sorted(taken.values(), key=lambda candidate: (candidate.name, candidate.version)), sorted(elsewhere)


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


def _matches(name: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) is not None
