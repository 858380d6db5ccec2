# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read fields that parts of several techniques have: names, percentages, sizes."""

from __future__ import annotations

import re
from typing import Hashable

from .layout_reader import Node, is_integer, number, quoted
from .sizes import SizeError, parse_size_bytes

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def claim(taken: dict[Hashable, str], key: Hashable, node: Node, what: str, cure: str) -> None:
    """Take a key for a node; report the second node that takes it."""
    if key in taken:
        node.report("%s is already named by %s" % (what, taken[key]), cure)
    else:
        taken[key] = node.where


def percent(node: Node) -> int | None:
    """Return a percentage from 1 to 100; None after reporting why it is none."""
    if isinstance(node.value, str) and node.value.endswith("%"):
        node.report("percentages are numbers", "Write it like `%s`, without quotes and sign." % node.example)
        return None
    return node.integer(1, 100)


def size_bytes(node: Node) -> int | None:
    """Return a size in bytes; None after reporting why it is none."""
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


def read_name(node: Node) -> str | None:
    """Return a name, which others may have too; None after reporting why it is none."""
    name = node.text()
    if name is not None and not _NAME.fullmatch(name):
        node.report(
            "%s cannot be a name" % quoted(name),
            "Names become unit, file and label names: up to 63 letters, digits, _ . and -, a letter or digit first.",
        )
        return None
    return name


class Names:
    """The names that a layout gives, each once for its kind of thing."""

    def __init__(self) -> None:
        self._taken: dict[str, dict[Hashable, str]] = {}

    def read(self, node: Node, kind: str) -> str | None:
        """Return a name that nothing else of the kind has; None after reporting why it is none."""
        name = read_name(node)
        if name is not None:
            claim(
                self._taken.setdefault(kind, {}),
                name,
                node,
                "the %s %s" % (kind, name),
                "Give each one its own name on a host.",
            )
        return name

    def declared(self, name: str, kind: str) -> str | None:
        """Return where the name of something of the kind was read; None where it was not."""
        return self._taken.get(kind, {}).get(name)
