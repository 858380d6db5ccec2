# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find placements of instances with an exact search.

All functions are pure. They use neither the driver nor the layout syntax.

Two kinds of resources decide whether a set of profiles fits a GPU:

* Counted resources are compute slices and media engines. Whether they suffice depends only on the set of profiles.
* Memory units depend on the placements, so they need a search. Each profile has a short list of possible
placements.

A GPU has at most 12 memory units and 7 instances. The search is a dynamic program over (next instance, used units). It
has at most a few thousand states and finds the optimum.
"""

from __future__ import annotations

import itertools
from collections import Counter
from functools import lru_cache
from typing import Any, Callable, Iterable, Sequence, Tuple

from ....frozen import frozen
from ....model import Gpu, GpuInstanceProfile, Placement

#: A placement's score. Greater is better. A search adds its scores, which have the same length, element by element.
Score = Tuple[int, ...]


@frozen
class Want:
    """An instance to place, and its possible `placements` in ascending order.

    Instances of the same `kind` are interchangeable.
    """

    kind: Any
    placements: tuple[Placement, ...]


def arrange(
    wants: Sequence[Want],
    gain: Callable[[Want, Placement], Score],
    outlook: Callable[[int], tuple[int, ...]] = lambda taken: (),
) -> tuple[Placement, ...] | None:
    """Choose a placement for each want, so that placements do not overlap.

    Returns the placements in the order of `wants`, or None without a solution.

    The best solution has the greatest sum of `gain(want, placement)`. For equal sums, the greatest `outlook(used
    units)` decides, and then the lowest placements. Scores are compared as tuples.
    """
    # Put interchangeable wants next to each other, with ascending placements only, so that each set of placements is
    # tried once.
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
    """Return the largest subset of these profiles that fits on the empty GPU.

    Unknown profiles are ignored.
    """
    capacity = Capacity(gpu.mig.profiles)
    return list(capacity.largest_part([name for name in profiles if name in capacity.profiles]))


class Capacity:
    """A GPU's resources, derived from the MIG profiles that it reports.

    No table of GPU models is needed.
    """

    def __init__(self, profiles: Iterable[GpuInstanceProfile]) -> None:
        self.profiles: dict[str, GpuInstanceProfile] = {profile.name: profile for profile in profiles}
        every = self.profiles.values()
        self.compute_slices = max((p.compute_slices for p in every), default=0)
        # The total of each media engine is the greatest product of a profile's engines and its maximum number of
        # instances, because the whole-GPU profile does not always include every engine. Example: a 7g on an A100-40GB
        # has 5 decoders, the total of all other instances.
        self.engines = {
            kind: max((getattr(p, kind) * p.max_instances for p in every), default=0)
            for kind in GpuInstanceProfile.ENGINES
        }
        self._largest_first = sorted(every, key=lambda p: (-p.compute_slices, -p.units, p.name))

    def shortage(self, names: Sequence[str]) -> str | None:
        """Return why these profiles cannot coexist in any placement.

        Returns None if the counted resources suffice.
        """
        chosen = [self.profiles[name] for name in names]
        slices = sum(p.compute_slices for p in chosen)
        if slices > self.compute_slices:
            return "they need %d compute slices, and the GPU has %d" % (slices, self.compute_slices)
        for kind in GpuInstanceProfile.ENGINES:
            asked = sum(getattr(p, kind) for p in chosen)
            if asked > self.engines[kind]:
                return "they need %d media engines (%s), and the GPU has %d" % (asked, kind, self.engines[kind])
        return None

    def outlook(self, taken: int) -> tuple[int, ...]:
        """Return how many more instances of each profile fit next to the used units.

        The result has one number per profile, with the largest profile first.
        """
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
        """Return whether these profiles fit on an empty GPU."""
        return (
            self.shortage(names) is None and arrange([self.want(name) for name in names], lambda w, p: ()) is not None
        )

    def want(self, name: str) -> Want:
        return Want(name, self.profiles[name].placements)

    def largest_part(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the largest subset of these profiles that fits on an empty GPU.

        This is the subset with the most compute slices, then memory units, then instances.
        """
        counts = Counter(names)
        kinds = sorted(counts, key=list(names).index)
        limits = [min(counts[kind], len(self.profiles[kind].placements)) for kind in kinds]
        best: tuple[tuple[int, int, int], tuple[str, ...]] = ((0, 0, 0), ())
        for taken in itertools.product(*(range(limit, -1, -1) for limit in limits)):
            part = tuple(kind for kind, count in zip(kinds, taken) for _unused in range(count))
            members = [self.profiles[name] for name in part]
            size = (sum(p.compute_slices for p in members), sum(p.units for p in members), len(part))
            if size > best[0] and self.fits(part):
                best = (size, part)
        return best[1]
