# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which offline workloads fit on the card of an online workload. Pure.

With the policy `colocate`, kernels of online and offline work run one after the other, and offline work uses the card up to
the waterline (docs/vgpu-colocate.md). So the duty must be the share of time in which a kernel runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Collection, Sequence

from ..numerics import np
from .evidence import gather
from .model import Fleet, Policy
from .sharing import Weigher

#: Offline work's share of the time below the waterline (`make bench BENCH=colocate`, target).
_EFFICIENCY = 0.8
#: Minimum share that offline work must get of the GPU time that it has used so far.
LEAST_PROGRESS_RATIO = 0.75


@dataclass(frozen=True)
class Colocated:
    """An online workload and the offline workloads that fit on its card.

    Ratios are shares of time. `left_ratio` is the time that online work leaves below the waterline, `need_ratio` the
    time that the offline workloads used. `memory_bytes` is the highest sum with margins, `quotas_bytes` each workload's
    highest memory.
    """

    online: str
    offline: tuple[str, ...]
    memory_bytes: float
    quotas_bytes: tuple[float, ...]
    left_ratio: float
    need_ratio: float

    @property
    def progress_ratio(self) -> float:
        """Return which share of their GPU time the offline workloads get."""
        return progress(self.left_ratio, self.need_ratio)


def progress(left_ratio: float, need_ratio: float) -> float:
    """Return which share of the needed GPU time offline work gets."""
    return min(1.0, _EFFICIENCY * left_ratio / need_ratio) if need_ratio > 0 else 1.0


def colocate(
    fleet: Fleet, online: Collection[str], card_bytes: float, waterline_ratio: float, policy: Policy
) -> tuple[Colocated, ...]:
    """Return the cards on which offline workloads fit.

    Other workloads keep their own cards. `online` names the fleet's online workloads. All others are offline. Workloads
    with too little evidence are left out. A card's memory must stay below the waterline, above which offline
    allocations are refused.
    """
    known = gather(fleet, policy)
    rows = [i for i in range(len(fleet.names)) if known[i].enough]
    if not rows:
        return ()
    judged = fleet.part(rows)
    weigher = Weigher(judged, [known[i] for i in rows], card_bytes * waterline_ratio, policy)
    serving = [i for i, name in enumerate(judged.names) if name in online]
    need = judged.whole_duty().mean(axis=1) / 100
    left = np.maximum(0.0, waterline_ratio - judged.whole_duty() / 100).mean(axis=1)
    cards: dict[int, list[int]] = {i: [] for i in serving}
    # Place the work with the largest need first, because it has the fewest places.
    for one in sorted(set(range(len(rows))) - set(serving), key=lambda i: (-need[i], judged.names[i])):
        after = {i: float(need[[*cards[i], one]].sum()) for i in serving}
        fits = [
            i
            for i in serving
            if progress(left[i], after[i]) >= LEAST_PROGRESS_RATIO and weigher.memory_fits([i, *cards[i], one])
        ]
        if fits:
            # Choose the card that is then the fullest, so that others keep room for larger work.
            cards[max(fits, key=lambda i: (after[i] / max(left[i], 1e-9), judged.names[i]))].append(one)
    return tuple(_colocated(judged.names, weigher, i, own, left, need) for i, own in cards.items() if own)


def _colocated(
    names: Sequence[str], weigher: Weigher, card: int, own: Sequence[int], left: np.ndarray, need: np.ndarray
) -> Colocated:
    rows = [card, *own]
    return Colocated(
        names[card],
        tuple(names[i] for i in own),
        float(weigher.padded[rows].sum(axis=0).max()),
        tuple(float(value) for value in weigher.padded[rows].max(axis=1)),
        float(left[card]),
        float(need[list(own)].sum()),
    )
