# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Group errors that differ only in the names of hosts and the IDs of GPUs. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Iterable, Sequence

# Limits: host names that a line shows, characters of an error, and errors of one host.
_NAMED = 5
_MOST_TEXT = 2000
_MOST_ERRORS = 20

# Formats in which messages name a GPU that the driver reports (module_utils/model.py, layout/matching.py). A UUID or address in
# any other format comes from the inventory. Errors with different values from the inventory are different errors.
_UUID = r"GPU-[0-9A-Za-z-]+"
_ADDRESS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
_IDENTITY = r"(?:%s|%s)" % (_UUID, _ADDRESS)
_OWN_GPU = re.compile(
    r"(?P<before>\bgpu \d+ \((?:[^()]*, )?|\bthe GPU at |\b\d+: [^,:]+, )%s(?P<listed>, %s)?" % (_IDENTITY, _ADDRESS)
)


@dataclass
class EqualErrors:
    """An error and the hosts that have it.

    `example` is the text from the first host. `varies` is true if the text from another host differs from it.
    """

    example: str
    hosts: list[str] = field(default_factory=list)
    varies: bool = False

    def __str__(self) -> str:
        note = " (This is the message of %s.)" % self.hosts[0] if self.varies else ""
        return "%s: %s%s" % (shortened(self.hosts), self.example, note)


def group(errors: Iterable[tuple[str, str]]) -> list[EqualErrors]:
    """Group pairs of (host, error text). Groups have the order of their first hosts.

    Each line of a text counts as an error. A line may start with the name of the host.

    Two errors are equal if their texts differ only in the names of the hosts, and in the UUIDs and PCI addresses of the
    hosts' GPUs.
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
    """Return the names of hosts as text.

    If there are too many hosts, the text ends with the number of the others.
    """
    if len(hosts) <= _NAMED:
        return ", ".join(hosts)
    return "%s and %d more hosts" % (", ".join(hosts[:_NAMED]), len(hosts) - _NAMED)


def _anonymous(host: str, line: str) -> str:
    """Return the line with `*` for the name of the host and the IDs of its GPUs."""
    without_gpus = _OWN_GPU.sub(r"\g<before>*", line)
    return re.sub(r"(?<![\w.-])%s(?![\w-]|\.\w)" % re.escape(host), "*", without_gpus)
