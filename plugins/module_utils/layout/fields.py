# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read fields that several techniques' parts have: names, percentages and sizes."""

from __future__ import annotations

import re
from typing import Hashable

from ..frozen import frozen
from ..sizes import SizeError, parse_size_bytes
from .reader import Node, is_integer, number, quoted
from .types import Selector

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
#: Group names that systemd accepts in strict mode (https://systemd.io/USER_NAMES/), and dots, because many sites use
#: them.
_GROUP = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")


def claim(taken: dict[Hashable, str], key: Hashable, node: Node, what: str, cure: str) -> None:
    """Reserve a key for a node, or report an error if the key is already reserved."""
    if key in taken:
        node.report("%s is already named by %s" % (what, taken[key]), cure)
    else:
        taken[key] = node.where


def percent(node: Node) -> int | None:
    """Return a percentage from 1 to 100, or None after reporting an error."""
    if isinstance(node.value, str) and node.value.endswith("%"):
        node.report("percentages are numbers", "Write it like `%s`, without quotes and sign." % node.example)
        return None
    return node.integer(1, 100)


def size_bytes(node: Node) -> int | None:
    """Return a size in bytes, or None after reporting an error."""
    if is_integer(node.value):
        node.report(
            "the bare number %s has no unit" % number(node.value), "Write it like `%s`, in MiB or GiB." % node.example
        )
        return None
    text = node.text()
    try:
        return None if text is None else parse_size_bytes(text)
    except SizeError as error:
        node.report(error.problem, error.cure)
        return None


def word(node: Node, pattern: re.Pattern[str], kind: str, cure: str) -> str | None:
    """Return a text that matches the whole pattern.

    Returns None after reporting an error.
    """
    text = node.text()
    if text is not None and not pattern.fullmatch(text):
        node.report("%s cannot be %s" % (quoted(text), kind), cure)
        return None
    return text


def read_name(node: Node) -> str | None:
    """Return a name, or None after reporting an error. The name need not be unique."""
    cure = "Write up to 63 letters, digits, _ . and -, and start with a letter or digit. Units, files and labels use the name."
    return word(node, _NAME, "a name", cure)


def group_name(node: Node) -> str | None:
    """Return the name of a Unix group, or None after reporting an error."""
    cure = "Use a Unix group of the host: up to 32 letters, digits, _ . and -, starting with a letter or _."
    return word(node, _GROUP, "the name of a group", cure)


class Names:
    """The current and earlier names in a layout. Current names are unique per kind."""

    def __init__(self) -> None:
        self._taken: dict[str, dict[Hashable, str]] = {}
        self._former: dict[str, dict[str, Node]] = {}

    def read(self, node: Node, kind: str) -> str | None:
        """Return a name that is unique for its kind.

        Returns None after reporting an error.
        """
        name = read_name(node)
        if name is not None:
            claim(
                self._taken.setdefault(kind, {}),
                name,
                node,
                "the %s %s" % (kind, name),
                "Give each one a different name on a host.",
            )
        return name

    def read_former(self, node: Node, kind: str) -> str | None:
        """Return an earlier name of an object, or None after reporting an error."""
        name = read_name(node)
        if name is not None:
            first = self._former.setdefault(kind, {}).setdefault(name, node)
            if first is not node:
                node.report(
                    "%s is already the earlier name of %s" % (quoted(name), _owner(first.where)),
                    "An earlier name belongs to one %s: remove one of the two." % kind,
                )
        return name

    def check_former(self) -> None:
        """Report earlier names that are also current names.

        Call this after all parts were read, when all names are known.
        """
        for kind, former in self._former.items():
            for name, node in former.items():
                declared = self._taken.get(kind, {}).get(name)
                if declared is not None:
                    _report_former(node, name, kind, _owner(declared))


def _owner(where: str) -> str:
    return where.rpartition(".")[0]


def _report_former(node: Node, name: str, kind: str, owner: str) -> None:
    key = node.where.rpartition(".")[2]
    if owner == _owner(node.where):
        node.report(
            "the %s already has the name %s" % (kind, quoted(name)), "Give its previous name, or remove %s." % key
        )
    else:
        node.report(
            "%s is the name of another %s, %s" % (quoted(name), kind, owner),
            "Remove %s, or rename that %s first, in an earlier run." % (key, kind),
        )


@frozen
class PartContext:
    """The names in the layout, and the GPUs of the entry (None if unreadable).

    Forms use them to read a technique's part.
    """

    names: Names
    selectors: tuple[Selector | None, ...] = ()
    inside_mig: bool = False
    #: Whether the entry has leases.
    leases: bool = False
    #: Whether its leases have the key `online`.
    online_leases: bool = False
