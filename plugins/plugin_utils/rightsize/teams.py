# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Group workloads that can take turns on a card by time slicing. Pure.

Such workloads can wait and trust each other, and their combined histories fit on a card. With quotas, all workloads'
peaks must fit on the card together. With time slicing, they only need to be at different hours, which the combined
histories show (docs/sizing.md).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Mapping, Sequence

from ..packing.geometry import geometry
from ..packing.model import WHOLE
from ..sizing.margin import odds
from ..sizing.model import Fleet, Policy
from ..sizing.sharing import Card, share
from ..techniques.registry import technique_of
from .model import Decision, GpuToday

#: Maximum number of workloads in a search. A larger search would take minutes and save few cards.
_MOST = 60
_MIB = 1 << 20


@dataclass(frozen=True)
class Teams:
    """Teams of workloads that share a card.

    `members` has the workload names of each team. By workload name, `reasons` says why it shares a card, and `stays`
    why it does not.
    """

    members: tuple[tuple[str, ...], ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    stays: Mapping[str, str] = field(default_factory=dict)
    #: A sentence about how often a plan with such teams may fail. Empty without teams.
    promise: str = ""


def teams(
    fleet: Fleet | None, gpus: Sequence[GpuToday], decisions: Mapping[str, Decision], reach: str, policy: Policy
) -> Teams:
    """Group workloads into teams that share a card.

    A member has a whole GPU, the decision for time slicing, and a known history. A team's members have the same GPU
    model, and the same host if `reach` is "host".
    """
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    rows = {} if fleet is None else {name: row for row, name in enumerate(fleet.names)}
    for gpu in gpus:
        for one in gpu.occupants:
            decision, wish = decisions.get(one.name), one.wish
            configured = wish.forces or wish.memory_bytes is not None or wish.sm_percent is not None
            technique = technique_of(decision.mode) if decision else None
            turns = technique is not None and technique.takes_turns and one.shape == WHOLE
            if turns and not configured and not gpu.left and one.name in rows:
                groups[(gpu.model, gpu.host) if reach == "host" else (gpu.model,)].append(one.name)
    members: list[tuple[str, ...]] = []
    reasons: dict[str, str] = {}
    stays: dict[str, str] = {}
    for key in sorted(groups):
        names = sorted(groups[key])
        for at in range(0, len(names), _MOST):
            part = names[at : at + _MOST]
            found = share(fleet.part([rows[name] for name in part]), geometry(key[0]).memory_mib * _MIB, policy)
            stays.update(dict(found.left_alone))
            for card in found.cards:
                if len(card.names) > 1:
                    members.append(card.names)
                    reasons.update((name, _reason(name, card)) for name in card.names)
                else:
                    stays[card.names[0]] = "No other workload fits on its card." if found.worth_it else found.reason
    promise = "At most %s plans like this will see a workload exceed the memory of a time-sliced GPU (docs/sizing.md)."
    return Teams(tuple(members), reasons, stays, promise % odds(policy.confidence) if members else "")


def _reason(name: str, card: Card) -> str:
    neighbours = [neighbour for neighbour in card.names if neighbour != name]
    busy = 100 * card.saturated_ratio
    return "It takes turns with %s: together at most %.1f GiB, and %s." % (
        ", ".join(neighbours),
        card.memory_bytes / 2**30,
        "the GPU is saturated for %.1f %% of the time" % busy if busy >= 0.05 else "the GPU is not saturated",
    )
