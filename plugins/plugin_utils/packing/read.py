# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert solutions between the exact search and the heuristic. Pure.

A solution of the exact search becomes places on GPUs. The heuristic's result becomes a starting point of the exact
search.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Iterator, Mapping, Sequence

from .answer import Layouts, Part
from .cells import Cell
from .exact import Search, Solution
from .geometry import MUST, Pattern, Settled
from .model import Shape, Standing


@dataclass
class _Place:
    """A place on a GPU.

    `current` is its current content, or None for a new place. `stays` is true if the current workload keeps it.
    """

    key: tuple[str, int]
    shape: Shape
    start: int | None
    current: Standing | None = None
    workload: str | None = None
    stays: bool = False

    def standing(self) -> Standing:
        # A quota belongs to one tenant and must be recreated for another one. An instance can be reused.
        new = self.current is None if self.shape.kind == "mig" else not self.stays
        return Standing(*self.key, self.shape, self.start, self.workload, new)


class Reader:
    """Converts a solution to layouts."""

    def __init__(self, search: Search, solution: Solution) -> None:
        self.search, self.cells, self.case, self.solution = search, search.cells, search.cells.case, solution
        self.places: dict[tuple[str, int], list[_Place]] = {}
        self.spare: dict[tuple[str, int], list[Standing]] = {}
        self.placed: set[str] = set()

    def layouts(self) -> Layouts:
        for number, cell in enumerate(self.cells.cells):
            self._cell(number, cell)
        for key, parts in self.cells.pinned.items():
            for part in parts:
                if not part.stays:
                    self._put(key, part.shape, part.workload)
        for (name, key, shape), put in self.search.puts.items():
            if self.solution.value(put) and not any(p.workload == name for p in self.places[key]):
                self._put(key, shape, name)
        self._fill(self._pools())
        return dict(self._standing())

    def _cell(self, number: int, cell: Cell) -> None:
        stays = {
            (owner, shape): self.solution.value(stay)
            for (c, owner, shape), stay in self.search.stays.items()
            if c == number
        }
        gpus = iter(cell.gpus)
        for n, (pattern, settled) in enumerate(cell.choices):
            for _unused in range(self.solution.value(self.search.picks[number, n])):
                self._gpu(next(gpus), cell, pattern, settled, stays)

    def _gpu(self, key: tuple[str, int], cell: Cell, pattern: Pattern, settled: Settled, stays: dict) -> None:
        today = self.cells.today(key)
        self.places[key] = []
        for shape, start, serves in zip(pattern, settled.starts, settled.serves):
            place = _Place(key, shape, start)
            if serves is not None:
                owner, place.current = cell.owners[serves], today[serves]
                if owner == MUST or stays.get((owner, shape), 0) > 0:
                    place.workload, place.stays = place.current.workload, True
                    self.placed.add(place.current.workload)
                    if owner != MUST:
                        stays[owner, shape] -= 1
            self.places[key].append(place)
        self.spare[key] = [Standing(*key, today[n].shape, today[n].start) for n in settled.spare]

    def _put(self, key: tuple[str, int], shape: Shape, name: str) -> None:
        free = [place for place in self.places[key] if place.shape == shape and place.workload is None]
        # Use the GPU's current parts before new ones.
        min(free, key=lambda place: place.current is None).workload = name
        self.placed.add(name)

    def _pools(self) -> dict[Shape, list[str]]:
        """Return the workloads without a place, by the shape that they get."""
        pools: dict[Shape, list[str]] = defaultdict(list)
        for kind, names in self.cells.kinds.items():
            rest = iter([name for name in names if name not in self.placed])
            here = Counter(
                place.shape
                for places in self.places.values()
                for place in places
                if place.stays and self.cells.owner_kind(place.workload) == kind
            )
            for shape in kind[0]:
                for _unused in range(self.solution.value(self.search.takes[kind, shape]) - here[shape]):
                    pools[shape].append(next(rest))
        return pools

    def _fill(self, pools: Mapping[Shape, Sequence[str]]) -> None:
        waiting = {shape: list(reversed(names)) for shape, names in pools.items()}
        for made in (False, True):
            for gpu in self.case.problem.gpus:
                for place in self.places.get(gpu.key, ()):
                    if place.workload is None and (place.current is None) == made and waiting.get(place.shape):
                        place.workload = waiting[place.shape].pop()
        left = sum(map(len, waiting.values()))
        if left:
            raise AssertionError("the solution has no places for %d workloads that it places" % left)

    def _standing(self) -> Iterator[tuple[tuple[str, int], list[Standing]]]:
        keep = self.case.rules.most_destroyed is not None
        for key, places in self.places.items():
            standing = [p.standing() for p in places if p.workload is not None]
            idle = [p.standing() for p in places if p.workload is None and p.current and p.shape.kind == "mig"]
            if standing or (keep and (idle or self.spare[key])):
                yield key, sorted([*standing, *idle, *self.spare[key]], key=lambda s: (s.start or 0, s.workload or ""))


def hint(search: Search, contents: Mapping[tuple[str, int], Sequence[Part]]) -> dict[int, int]:
    """Return the heuristic's result as a start of the search.

    The result has the variables' values by index.
    """
    cells = search.cells
    values: Counter[int] = Counter()
    for variable in (*search.picks.values(), *search.stays.values(), *search.takes.values()):
        values[variable.index] = 0
    takes: Counter[tuple] = Counter()
    for number, cell in enumerate(cells.cells):
        holds = [(Counter(pattern), cell.kept(settled)) for pattern, settled in cell.choices]
        known: dict[tuple, int | None] = {}
        for key in cell.gpus:
            parts = contents.get(key, ())
            takes.update((cells.owner_kind(part.workload), part.shape) for part in parts)
            stay = Counter((cells.owner(key, part.workload), part.shape) for part in parts if part.stays)
            like = (tuple(sorted(part.shape for part in parts)), frozenset(stay.items()))
            if like not in known:
                known[like] = _nearest(holds, Counter(like[0]), stay) if parts else None
            chosen = known[like]
            if chosen is None:
                continue
            values[search.picks[number, chosen].index] += 1
            for (owner, shape), count in (stay & holds[chosen][1]).items():
                if (number, owner, shape) in search.stays:
                    values[search.stays[number, owner, shape].index] += count
    for kind, names in cells.kinds.items():
        for shape in kind[0]:
            values[search.takes[kind, shape].index] = takes[kind, shape]
        values[search.outs[kind].index] = len(names) - sum(takes[kind, shape] for shape in kind[0])
    values.update(_bound_hint(search, contents))
    return dict(values)


def _bound_hint(search: Search, contents: Mapping[tuple[str, int], Sequence[Part]]) -> dict[int, int]:
    """Return values of the variables of bound workloads."""
    case = search.case
    puts = {(part.workload, key, part.shape) for key, parts in contents.items() for part in parts}
    chosen = {(name, case.gpus[key].domain(case.workloads[name].within), shape) for name, key, shape in puts}
    near = {(case.workloads[name].near, place[0]) for name, place, _shape in chosen}
    placed = {name for name, _place, _shape in chosen}
    values = {variable.index: int(each in puts) for each, variable in search.puts.items()}
    values.update({variable.index: int(each in chosen) for each, variable in search.chosen.items()})
    values.update({variable.index: int(each in near) for each, variable in search.near_hosts.items()})
    values.update({variable.index: int(name not in placed) for name, variable in search.bound_outs.items()})
    return values


def _nearest(holds: Sequence[tuple[Counter, Counter]], need: Counter, stay: Counter) -> int | None:
    """Return the best choice that contains the needed shapes, or None.

    With the best choice, the most workloads keep their places.
    """
    able = [n for n, (count, _kept) in enumerate(holds) if not need - count]
    return max(able, key=lambda n: (sum((stay & holds[n][1]).values()), -n), default=None)
