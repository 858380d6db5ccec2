# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which tenant gets which GPUs: a pure, exact search for a packing that moves as few tenants as can be.

Sizes are those of one host: some GPUs, some dozens of tenants. The search is depth first; what was found to lead nowhere is
remembered, with GPUs that are alike for the tenants to come counted as one.
"""

from __future__ import annotations

import itertools
from typing import Hashable, Iterator, Sequence, Tuple

from ...frozen import frozen
from ...sizes import BYTES_PER_UNIT

_MIB = BYTES_PER_UNIT["MiB"]
#: Choices of one search before it is given up: a second or two.
_MOST_STEPS = 200_000


@frozen
class Bin:
    """A GPU, and what may be promised of it."""

    uuid: str
    memory_bytes: int
    sm_percent: float
    seats: int


@frozen
class Demand:
    """A tenant: what it takes of each of `count` GPUs, the one that it is pinned to, and those where it is now."""

    name: str
    memory_bytes: int
    sm_percent: int
    count: int = 1
    pin: str | None = None
    now: frozenset[str] = frozenset()


class TooHardError(Exception):
    """The search was given up: there may be a packing or not."""


#: (bytes, percent, seats) that are left of each GPU.
Free = Tuple[Tuple[int, float, int], ...]


def pack(bins: Sequence[Bin], demands: Sequence[Demand]) -> dict[str, tuple[str, ...]] | None:
    """By name the GPUs of each tenant, in the order of `bins`; None where they do not fit.

    Of all packings one with the fewest moves (a GPU that a tenant had and loses), and always the same one; where that takes
    too long to find, one with few. Raises TooHardError where not even that is found in time.
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
    """Of tenants that do not fit: the first that does not, beside those before it, and what these leave free.

    Raises TooHardError.
    """
    packed: dict[str, tuple[str, ...]] = {}
    for number, demand in enumerate(demands):
        found = pack(bins, demands[: number + 1])
        if found is None:
            return demand, left(bins, demands[:number], packed)
        packed = found
    raise ValueError("they fit")


def largest(bins: Sequence[Bin], demand: Demand) -> int:
    """Return the most memory, in whole MiB and as bytes, that a tenant of its pin and count can have on empty GPUs."""
    rooms = sorted((each.memory_bytes for each in bins if demand.pin in (None, each.uuid)), reverse=True)
    return rooms[demand.count - 1] // _MIB * _MIB


def left(bins: Sequence[Bin], demands: Sequence[Demand], packed: dict[str, tuple[str, ...]]) -> tuple[Bin, ...]:
    """What a packing leaves of each GPU."""
    found = []
    for each in bins:
        there = [demand for demand in demands if each.uuid in packed[demand.name]]
        found.append(
            Bin(
                each.uuid,
                each.memory_bytes - sum(demand.memory_bytes for demand in there),
                each.sm_percent - sum(demand.sm_percent for demand in there),
                each.seats - len(there),
            )
        )
    return tuple(found)


class _Search:
    def __init__(self, bins: Sequence[Bin], demands: Sequence[Demand]) -> None:
        self._bins = bins
        # Those who have least choice first, then those who are somewhere, then the largest.
        self._demands = sorted(
            demands,
            key=lambda d: (d.pin is None, not d.now, -d.count, -d.memory_bytes, -d.sm_percent, d.name),
        )

    def find(self, moves: int | None) -> dict[str, tuple[str, ...]] | None:
        """A packing with at most so many moves; None: any number."""
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
        """For the tenants from each one on: GPUs that no other can stand for, as one is pinned to them or would lose them."""
        found: list[frozenset[int]] = [frozenset()]
        for demand in reversed(self._demands):
            named = {demand.pin, *(demand.now if with_moves else ())}
            found.append(found[-1] | {n for n, each in enumerate(self._bins) if each.uuid in named})
        found.reverse()
        return found

    def _from(self, number: int, free: Free, moves: int | None) -> tuple[tuple[int, ...], ...] | None:
        """GPUs of each of the tenants from this one on; None where they do not fit."""
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
        """What decides whether the tenants from this one on find room."""
        special = self._special[number]
        named = tuple(free[n] for n in sorted(special))
        return (number, moves, named, tuple(sorted(free[n] for n in range(len(free)) if n not in special)))

    def _choices(self, demand: Demand, free: Free) -> Iterator[tuple[int, ...]]:
        """Sets of GPUs with room for the tenant: those that it has first, then in the order of the GPUs."""
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
