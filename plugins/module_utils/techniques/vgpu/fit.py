# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Assign tenants to GPUs: find a packing with the fewest moves.

The functions are pure. The search is exact, and designed for one host with some GPUs and some dozens of tenants. This
depth-first search remembers states without a packing. States that differ only in the order of interchangeable GPUs
count as one state.
"""

from __future__ import annotations

import itertools
from typing import Hashable, Iterator, Sequence, Tuple

from ...frozen import frozen
from ...sizes import BYTES_PER_UNIT

_MIB = BYTES_PER_UNIT["MiB"]
#: Maximum number of choices in one search, which takes one or two seconds.
_MOST_STEPS = 200_000


@frozen
class Bin:
    """A GPU and its capacity."""

    uuid: str
    memory_bytes: int
    sm_percent: float
    seats: int


@frozen
class Demand:
    """A tenant's request.

    The tenant needs `memory_bytes` and `sm_percent` on each of `count` GPUs. `pin` is the UUID of the GPU that the
    layout requires, or None. `now` has its current GPUs' UUIDs.
    """

    name: str
    memory_bytes: int
    sm_percent: int
    count: int = 1
    pin: str | None = None
    now: frozenset[str] = frozenset()


class TooHardError(Exception):
    """The search reached its limit, so it is unknown whether a packing exists."""


#: Free (bytes, percent, seats) of each GPU.
Free = Tuple[Tuple[int, float, int], ...]


def pack(bins: Sequence[Bin], demands: Sequence[Demand]) -> dict[str, tuple[str, ...]] | None:
    """Return a mapping from tenant name to the tenant's GPUs.

    The GPUs are in the order of `bins`. Returns None if the tenants do not fit.

    The result has the fewest moves: tenants keep as many of their current GPUs as possible. If the search for fewer moves
    takes too long, the best packing found so far is returned. The result is deterministic. Raises TooHardError if no
    packing is found within the limit.
    """
    search = _Search(bins, demands)
    found = search.find(moves=None)
    if found is None:
        return None
    for moves in range(sum(len(demand.now.difference(found[demand.name])) for demand in demands)):
        try:
            better = search.find(moves)
        except TooHardError:
            break
        if better is not None:
            return better
    return found


def first_misfit(bins: Sequence[Bin], demands: Sequence[Demand]) -> tuple[Demand, tuple[Bin, ...]]:
    """Return the first tenant that does not fit after those before it.

    Also returns the capacity that those tenants leave free. Raises TooHardError if the search reaches its limit, and
    ValueError if all tenants fit.
    """
    packed: dict[str, tuple[str, ...]] = {}
    for number, demand in enumerate(demands):
        found = pack(bins, demands[: number + 1])
        if found is None:
            return demand, left(bins, demands[:number], packed)
        packed = found
    raise ValueError("they fit")


def largest(bins: Sequence[Bin], demand: Demand) -> int:
    """Return the largest memory size in bytes that fits on empty GPUs.

    The size is a multiple of 1 MiB, for a tenant with the pin and number of GPUs in `demand`.
    """
    rooms = sorted((each.memory_bytes for each in bins if demand.pin in (None, each.uuid)), reverse=True)
    return rooms[demand.count - 1] // _MIB * _MIB


def left(bins: Sequence[Bin], demands: Sequence[Demand], packed: dict[str, tuple[str, ...]]) -> tuple[Bin, ...]:
    """Return the capacity that the tenants leave free on each GPU."""
    free = []
    for each in bins:
        packed_here = [demand for demand in demands if each.uuid in packed[demand.name]]
        free.append(
            Bin(
                each.uuid,
                each.memory_bytes - sum(demand.memory_bytes for demand in packed_here),
                each.sm_percent - sum(demand.sm_percent for demand in packed_here),
                each.seats - len(packed_here),
            )
        )
    return tuple(free)


class _Search:
    def __init__(self, bins: Sequence[Bin], demands: Sequence[Demand]) -> None:
        self._bins = bins
        # Place pinned tenants first, then tenants that already have GPUs, then the others. Within each group, place
        # larger tenants first.
        self._demands = sorted(
            demands,
            key=lambda d: (d.pin is None, not d.now, -d.count, -d.memory_bytes, -d.sm_percent, d.name),
        )

    def find(self, moves: int | None) -> dict[str, tuple[str, ...]] | None:
        """Return a packing with at most `moves` moves, or None if none exists.

        The number of moves is unlimited if `moves` is None.
        """
        self._steps = 0
        self._dead: set[Hashable] = set()
        self._special = self._unlike_others(moves is not None)
        free = tuple((each.memory_bytes, each.sm_percent, each.seats) for each in self._bins)
        try:
            chosen = self._from(0, free, moves)
        except RecursionError:
            raise TooHardError from None
        if chosen is None:
            return None
        return {
            demand.name: tuple(self._bins[n].uuid for n in numbers) for demand, numbers in zip(self._demands, chosen)
        }

    def _unlike_others(self, with_moves: bool) -> list[frozenset[int]]:
        """Return the GPUs that are not interchangeable, for each step of the search.

        These are the GPUs to which the tenant of this or a later step is pinned. With `with_moves`, they also include
        these tenants' current GPUs.
        """
        found: list[frozenset[int]] = [frozenset()]
        for demand in reversed(self._demands):
            named = {demand.pin, *(demand.now if with_moves else ())}
            found.append(found[-1] | {n for n, each in enumerate(self._bins) if each.uuid in named})
        found.reverse()
        return found

    def _from(self, number: int, free: Free, moves: int | None) -> tuple[tuple[int, ...], ...] | None:
        """Return the GPUs of the tenant at `number` and of all later tenants.

        Returns None if these tenants do not fit.
        """
        if number == len(self._demands):
            return ()
        state = self._state(number, free, moves)
        if state in self._dead:
            return None
        demand = self._demands[number]
        for numbers in self._choices(demand, free):
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise TooHardError
            kept = demand.now.intersection(self._bins[n].uuid for n in numbers)
            rest = None if moves is None else moves - len(demand.now) + len(kept)
            if rest is not None and rest < 0:
                continue
            found = self._from(number + 1, _taken(free, numbers, demand), rest)
            if found is not None:
                return (numbers, *found)
        self._dead.add(state)
        return None

    def _state(self, number: int, free: Free, moves: int | None) -> Hashable:
        """Return a key of the search state.

        States with the same key have the same result from the tenant at `number` on.
        """
        special = self._special[number]
        named = tuple(free[n] for n in sorted(special))
        return (number, moves, named, tuple(sorted(free[n] for n in range(len(free)) if n not in special)))

    def _choices(self, demand: Demand, free: Free) -> Iterator[tuple[int, ...]]:
        """Yield the sets of GPUs that have room for the tenant.

        Sets with more of the tenant's current GPUs come first.
        """
        room = [
            n
            for n, (memory, percent, seats) in enumerate(free)
            if memory >= demand.memory_bytes
            and percent >= demand.sm_percent
            and seats > 0
            and demand.pin in (None, self._bins[n].uuid)
        ]
        sets = itertools.combinations(room, demand.count)
        has = {n for n in room if self._bins[n].uuid in demand.now}
        return iter(sorted(sets, key=lambda numbers: -len(has.intersection(numbers)))) if has else sets


def _taken(free: Free, numbers: tuple[int, ...], demand: Demand) -> Free:
    after = list(free)
    for n in numbers:
        memory, percent, seats = after[n]
        after[n] = (memory - demand.memory_bytes, percent - demand.sm_percent, seats - 1)
    return tuple(after)
