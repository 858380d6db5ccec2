# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where instances can sit: an exact search over placements. Pure; knows no driver and no layout syntax.

Two things decide whether a set of profiles fits a GPU, and only the second one needs a search:

* what is counted - compute slices and media engines - depends on the set alone, not on where its members sit;
* what has a place - memory units - depends on placements, of which every profile has a short list.

A GPU has at most 12 units and 7 instances, so the search is a dynamic programme over (next demand, units taken):
a few thousand states at worst, and its answer is the optimum, not a heuristic's.
"""

from __future__ import annotations

import itertools
from collections import Counter
from functools import lru_cache
from typing import Any, Callable, Iterable, Sequence, Tuple

from ...frozen import frozen
from ...model import Gpu, GpuInstanceProfile, Placement

#: A score; greater is better. All scores of one search have the same length, and add up member by member.
Score = Tuple[int, ...]


@frozen
class Want:
    """One instance to place, at one of `placements` (ascending). Wants with equal `kind` are interchangeable."""

    kind: Any
    placements: tuple[Placement, ...]


def arrange(
    wants: Sequence[Want],
    gain: Callable[[Want, Placement], Score],
    outlook: Callable[[int], tuple[int, ...]] = lambda taken: (),
) -> tuple[Placement, ...] | None:
    """Choose a placement for every want so that none overlap, or return None where that cannot be done.

    Of all arrangements it returns one with the greatest sum of `gain(want, placement)`; among these one with the
    greatest `outlook(units taken)`; among these the one whose placements come first. Both compare as tuples.
    The result is in the order of `wants`.
    """
    # Interchangeable wants stand side by side and take ascending placements: each set of placements is tried once.
    order = sorted(
        range(len(wants)), key=lambda i: (-_width(wants[i]), len(wants[i].placements), repr(wants[i].kind), i)
    )
    queue = [wants[i] for i in order]

    @lru_cache(maxsize=None)
    def best(position: int, taken: int, floor: int) -> tuple[Score, tuple[int, ...], tuple[Placement, ...]] | None:
        if position == len(queue):
            return (), outlook(taken), ()
        want = queue[position]
        twin_next = position + 1 < len(queue) and queue[position + 1].kind == want.kind
        found = None
        for placement in want.placements:
            if placement.start < floor or placement.mask & taken:
                continue
            rest = best(position + 1, taken | placement.mask, placement.start + 1 if twin_next else 0)
            if rest is None:
                continue
            here = gain(want, placement)
            total = tuple(a + b for a, b in itertools.zip_longest(here, rest[0], fillvalue=0))
            if found is None or (total, rest[1]) > (found[0], found[1]):
                found = (total, rest[1], (placement,) + rest[2])
        return found

    answer = best(0, 0, 0)
    if answer is None:
        return None
    placed: list[Placement | None] = [None] * len(wants)
    for i, placement in zip(order, answer[2]):
        placed[i] = placement
    return tuple(placed)  # type: ignore[arg-type]


def _width(want: Want) -> int:
    return want.placements[0].size if want.placements else 0


def largest_part(gpu: Gpu, profiles: Sequence[str]) -> list[str]:
    """Return the largest part of these profiles that fits on the empty GPU, without those that it does not have."""
    capacity = Capacity(gpu.mig.profiles)
    return list(capacity.largest_part([name for name in profiles if name in capacity.profiles]))


class Capacity:
    """What a GPU has to give, derived from the profiles that it reports: nothing here is a table of models."""

    def __init__(self, profiles: Iterable[GpuInstanceProfile]) -> None:
        self.profiles: dict[str, GpuInstanceProfile] = {profile.name: profile for profile in profiles}
        every = self.profiles.values()
        self.compute_slices = max((p.compute_slices for p in every), default=0)
        # The whole-GPU profile does not always own every engine (a 7g of an A100-40GB has 5 decoders, as many as all
        # others together may hold), so the total is the most that instances of any one profile hold at once.
        self.engines = {
            kind: max((getattr(p, kind) * p.max_instances for p in every), default=0)
            for kind in GpuInstanceProfile.ENGINES
        }
        self._largest_first = sorted(every, key=lambda p: (-p.compute_slices, -p.units, p.name))

    def shortage(self, names: Sequence[str]) -> str | None:
        """Why these profiles cannot be together wherever they sit; None where counting does not forbid it."""
        chosen = [self.profiles[name] for name in names]
        slices = sum(p.compute_slices for p in chosen)
        if slices > self.compute_slices:
            return "%d compute slices are asked for and the GPU has %d" % (slices, self.compute_slices)
        for kind in GpuInstanceProfile.ENGINES:
            asked = sum(getattr(p, kind) for p in chosen)
            if asked > self.engines[kind]:
                return "%d media engines (%s) are asked for and the GPU has %d" % (asked, kind, self.engines[kind])
        return None

    def outlook(self, taken: int) -> tuple[int, ...]:
        """How many more instances of each profile, largest first, have room beside the units in `taken`."""
        counts = []
        for profile in self._largest_first:
            room, blocked = 0, taken
            for placement in profile.placements:
                if not placement.mask & blocked:
                    blocked |= placement.mask
                    room += 1
            counts.append(room)
        return tuple(counts)

    def fits(self, names: Sequence[str]) -> bool:
        """Whether an empty GPU can hold these profiles at once."""
        return (
            self.shortage(names) is None and arrange([self.want(name) for name in names], lambda w, p: ()) is not None
        )

    def want(self, name: str) -> Want:
        return Want(name, self.profiles[name].placements)

    def largest_part(self, names: Sequence[str]) -> tuple[str, ...]:
        """The largest part of these profiles that fits: most compute slices, then memory units, then instances."""
        counts = Counter(names)
        kinds = sorted(counts, key=list(names).index)
        limits = [min(counts[kind], len(self.profiles[kind].placements)) for kind in kinds]
        best: tuple[tuple[int, int, int], tuple[str, ...]] = ((0, 0, 0), ())
        for taken in itertools.product(*(range(limit, -1, -1) for limit in limits)):
            part = tuple(kind for kind, count in zip(kinds, taken) for _ in range(count))
            members = [self.profiles[name] for name in part]
            size = (sum(p.compute_slices for p in members), sum(p.units for p in members), len(part))
            if size > best[0] and self.fits(part):
                best = (size, part)
        return best[1]
