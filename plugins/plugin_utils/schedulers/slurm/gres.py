# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse and format the GRES of a node.

The format is the same as for `Gres=` in slurm.conf and in `scontrol show node`:

https://slurm.schedmd.com/slurm.conf.html (Gres) and https://slurm.schedmd.com/gres.html.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable

from ....module_utils.errors import FleetError

# `quota` counts units of leases, and has no device files.
GPU, SHARD, MPS, QUOTA = NAMES = ("gpu", "shard", "mps", "quota")
# Suffix of the type of a GPU whose jobs use an MPS daemon, as in gpu:h100_mps.
SERVED = "_mps"
# scontrol appends sockets and positions in parentheses, as in gpu:h100:8(S:0-1).
_DETAILS = re.compile(r"\([^()]*\)")
_COUNT = re.compile(r"[0-9]{1,9}")
# A count at the end of a GRES. It must be all the text between two colons, because types such as 3g.40gb also start
# with a digit.
_LIKE_COUNT = re.compile(r"[0-9]+[KMGTP]?", re.IGNORECASE)


class GresError(FleetError):
    """One of the node's GRES cannot be parsed."""


@dataclass(frozen=True)
class Gres:
    """A number of GRES with one name and type. `type` may be empty."""

    name: str
    type: str
    count: int

    @property
    def kind(self) -> str:
        """Return the name with the type, as jobs request it."""
        return "%s:%s" % (self.name, self.type) if self.type else self.name

    def __str__(self) -> str:
        return "%s:%d" % (self.kind, self.count)


def parse(text: str, where: str) -> tuple[tuple[Gres, ...], tuple[str, ...]]:
    """Return the GRES for GPUs, and all other GRES as text.

    scontrol shows shards and gres/mps for each GPU type, as in shard:h100:4. Slurm ignores these types, so the counts
    are added. `where` names the node for messages. Raises GresError if a GRES for GPUs has no valid count.
    """
    gpus: dict[tuple[str, str], int] = {}
    others = []
    for part in _DETAILS.sub("", text).split(","):
        name, *rest = part.strip().split(":")
        if name not in NAMES:
            others.append(part.strip())
            continue
        # A count is optional. Its default is 1.
        count = rest.pop() if rest and _LIKE_COUNT.fullmatch(rest[-1]) else "1"
        if len(rest) > 1 or not _COUNT.fullmatch(count):
            raise GresError(
                where,
                "its GRES %.60r is not NAME[:TYPE][:COUNT]" % part,
                "Correct Gres= of the node in slurm.conf.",
            )
        key = (name, "".join(rest) if name == GPU else "")
        gpus[key] = gpus.get(key, 0) + int(count)
    found = tuple(Gres(name, kind, number) for (name, kind), number in gpus.items() if number)
    return found, tuple(other for other in others if other not in ("", "(null)", "null"))


def totals(gres: Iterable[Gres]) -> dict[str, int]:
    """Return the total number of each GRES by name."""
    found: dict[str, int] = {}
    for each in gres:
        found[each.name] = found.get(each.name, 0) + each.count
    return found


def joined(gres: Iterable[Gres | str]) -> str:
    """Return GRES as the value of `Gres=`."""
    return ",".join(map(str, gres))
