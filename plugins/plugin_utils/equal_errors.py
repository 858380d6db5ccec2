# Copyright: (c) openfleet.gpu contributors
# Return the number with the noun in singular or plural: `1 GPU`, `2 GPUs`.
#
# By default, the plural is the noun with an `s`.
# SPDX-License-Identifier: GPL-3.0-or-later
"""Group errors that differ only in host names and GPU IDs. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Iterable, Sequence

# Maximum number of host names in a line, of characters in an error, and of errors of a host.
_NAMED = 5
_MOST_TEXT = 2000
_MOST_ERRORS = 20

# Formats in which messages name a GPU that the driver reports (module_utils/model.py, layout/matching.py). A UUID or
# address in another format comes from the inventory. Such values are part of the error.
_UUID = r"GPU-[0-9A-Za-z-]+"
_ADDRESS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
_IDENTITY = r"(?:%s|%s)" % (_UUID, _ADDRESS)
_OWN_GPU = re.compile(
    r"(?P<before>\bgpu \d+ \((?:[^()]*, )?|\bthe GPU at |\b\d+: [^,:]+, )%s(?P<listed>, %s)?" % (_IDENTITY, _ADDRESS)
)


@dataclass
class EqualErrors:
    """An error, and the hosts that have it.

    `example` is the first host's text. `varies` is true if another host's text differs from it.
    """

    example: str
    hosts: list[str] = field(default_factory=list)
    varies: bool = False

    def __str__(self) -> str:
        note = " (This is the message of %s.)" % self.hosts[0] if self.varies else ""
        return "%s: %s%s" % (shortened(self.hosts), self.example, note)


def group(errors: Iterable[tuple[str, str]]) -> list[EqualErrors]:
    """Group pairs of (host, error text), in the order of each group's first host.

    Each line of a text is an error, and may start with the host's name. Two errors are equal if they differ only in the
    hosts' names, and in the UUIDs and PCI addresses of the hosts' GPUs.
    """
    groups: dict[str, EqualErrors] = {}
    for host, message in errors:
        for line in message.splitlines()[:_MOST_ERRORS]:
            line = (line[len(host) + 2 :] if line.startswith(host + ": ") else line)[:_MOST_TEXT]
            if not line.strip():
                continue
            equal = groups.setdefault(_anonymous(host, line), EqualErrors(line))
            if host not in equal.hosts[-1:]:
                equal.hosts.append(host)
            equal.varies = equal.varies or line != equal.example
    return list(groups.values())


def shortened(hosts: Sequence[str]) -> str:
    """Return host names as text.

    If there are too many, the text ends with the number of the others.
    """
    if len(hosts) <= _NAMED:
        return ", ".join(hosts)
    return "%s and %d more hosts" % (", ".join(hosts[:_NAMED]), len(hosts) - _NAMED)


def _anonymous(host: str, line: str) -> str:
    """Return the line with `*` in place of the host's name and its GPUs' IDs."""
    without_gpus = _OWN_GPU.sub(r"\g<before>*", line)
    return re.sub(r"(?<![\w.-])%s(?![\w-]|\.\w)" % re.escape(host), "*", without_gpus)
