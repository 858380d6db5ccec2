# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read `gpu_owners`, and find a workload's team. Pure."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace
from typing import Any, Mapping, Sequence

from ...module_utils.errors import FleetError
from .workload_model import Workload

_GLOBS = ("accounts", "namespaces", "units")
_TEXTS = ("team", "contact")
_EXAMPLE = 'Write {team: vision, contact: vision@example.org, accounts: ["alice", "vision-*"]}.'
#: Maximum length of a text that fits into a row of a page.
_MOST = 200


class OwnerError(FleetError):
    """An entry of gpu_owners is invalid."""


@dataclass(frozen=True)
class Owner:
    """An entry of `gpu_owners`: a team, its contact, and globs for its workloads.

    `accounts` are compared with Unix accounts, Slurm users and Slurm accounts, `namespaces` with Kubernetes namespaces,
    and `units` with units (with or without `.service`), containers and tenants.
    """

    team: str
    contact: str = ""
    accounts: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    units: tuple[str, ...] = ()

    def matches(self, workload: Workload) -> bool:
        """Return whether the workload belongs to the team."""
        return any(
            fnmatch.fnmatchcase(name, glob)
            for globs, names in (
                (self.accounts, (workload.user, workload.account)),
                (self.namespaces, (workload.namespace,)),
                (self.units, workload.unit_names),
            )
            for name in names
            if name
            for glob in globs
        )


def owners(rows: Sequence[Any]) -> tuple[Owner, ...]:
    """Return the entries of `gpu_owners`. Raises OwnerError."""
    if not isinstance(rows, (list, tuple)):
        raise OwnerError("gpu_owners", "it is not a list", _EXAMPLE)
    return tuple(_owner("gpu_owners[%d]" % number, row) for number, row in enumerate(rows))


def with_team(workload: Workload, entries: Sequence[Owner]) -> Workload:
    """Return the workload with the team and contact of the first matching entry."""
    for entry in entries:
        if entry.matches(workload):
            return replace(workload, team=entry.team, contact=entry.contact)
    return workload


def _owner(where: str, row: Any) -> Owner:
    if not isinstance(row, Mapping):
        raise OwnerError(where, "it is not a mapping", _EXAMPLE)
    for name in row:
        if name not in (*_TEXTS, *_GLOBS):
            known = ", ".join((*_TEXTS, *_GLOBS))
            raise OwnerError("%s.%s" % (where, name), "unknown key", "Known keys: %s." % known)
    texts = {name: _text("%s.%s" % (where, name), row[name]) for name in _TEXTS if name in row}
    if not texts.get("team"):
        raise OwnerError("%s.team" % where, "the team is missing", _EXAMPLE)
    globs = {name: _list("%s.%s" % (where, name), row[name]) for name in _GLOBS if name in row}
    if not any(globs.values()):
        raise OwnerError(where, "the team %s has no workloads" % texts["team"], "Set %s." % " or ".join(_GLOBS))
    return Owner(
        texts["team"],
        texts.get("contact", ""),
        globs.get("accounts", ()),
        globs.get("namespaces", ()),
        globs.get("units", ()),
    )


def _list(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise OwnerError(where, "it is not a list", "Write it as [name, other-*].")
    globs = tuple(_text("%s[%d]" % (where, number), one) for number, one in enumerate(value))
    if "" in globs:
        raise OwnerError("%s[%d]" % (where, globs.index("")), "the name is empty", "Write a name, or remove it.")
    return globs


def _text(where: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise OwnerError(where, "it is not text", "Write one line of text.")
    text = str(value).strip()
    if not text.isprintable() or len(text) > _MOST:
        cure = "Write one line of at most %d characters." % _MOST
        raise OwnerError(where, "it is too long or has a control character", cure)
    return text
