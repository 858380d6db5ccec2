# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Group equal GPUs into cells and equal workloads into kinds for the exact search.

Pure. A pattern is a multiset of shapes that fits on a GPU. A GPU model has only a few maximal patterns. The search
determines how many GPUs of a cell get each pattern, instead of one pattern per GPU. For example, 6,000 empty GPUs of a
model are one cell with a dozen patterns.

A workload is bound if it needs several GPUs, has an affinity, or may only run on certain hosts. With bound workloads,
each GPU is a separate cell, and the search places these workloads. In a large fleet, this would take too long. There,
they stay where the heuristic placed them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Hashable, Iterable, Mapping

from .answer import Part
from .case import Case, shapes_wanted
from .columns import columns
from .geometry import MUST, TAKEN, VACANT, Pattern, Settled
from .model import Shape, Standing, Workload

#: Maximum number of choices of all cells. If there are more, each cell only keeps the choices nearest to its content,
#: and the result is not proven to be optimal.
MOST_CHOICES = 150_000

#: Maximum product of the numbers of bound workloads and GPUs. Above it, the heuristic places the bound workloads.
MOST_DECISIONS = 20_000

#: Maximum number of different shapes for which columns are generated, because more take minutes.
MOST_COLUMN_SHAPES = 400


@dataclass
class Cell:
    """A group of equal GPUs.

    `owners`: for each current item, the kind of workloads or the bound workload that can keep it. `pins`: shapes that
    bound workloads use on each GPU. `choices`: possible patterns, with their placements.
    """

    model: str
    cost: int
    items: tuple[tuple[Shape, int | None], ...]
    owners: tuple[Hashable, ...]
    pins: tuple[Shape, ...]
    gpus: list[tuple[str, int]] = field(default_factory=list)
    choices: list[tuple[Pattern, Settled]] = field(default_factory=list)

    @property
    def instances(self) -> int:
        return sum(shape.kind == "mig" for shape, _start in self.items)

    def destroyed(self, settled: Settled) -> int:
        """Return how many current instances this choice destroys per GPU."""
        return self.instances - sum(
            self.items[n][0].kind == "mig" for n in {*settled.serves, *settled.spare} if n is not None
        )

    def kept(self, settled: Settled) -> Counter:
        """Return how many workloads can stay with this choice, by (owner, shape)."""
        return Counter(
            (self.owners[n], self.items[n][0]) for n in settled.serves if n is not None and self.owners[n] is not None
        )


class Cells:
    """A case's cells and kinds of workloads.

    `kinds` has the unbound workloads by kind, those with a current place first.
    """

    def __init__(self, case: Case, pinned: dict[tuple[str, int], list[Part]]) -> None:
        self.case = case
        bound = [w for w in case.problem.workloads if w.bound]
        self._binds = bool(bound)
        #: Whether the search places bound workloads. If not, they stay where the heuristic placed them.
        self.detailed = bool(bound) and len(bound) * len(case.problem.gpus) <= MOST_DECISIONS
        self.bound: list[Workload] = bound if self.detailed else []
        self.pinned: dict[tuple[str, int], list[Part]] = {}
        if bound and not self.detailed:
            names = {w.name for w in bound}
            for key, parts in pinned.items():
                mine = [part for part in parts if part.workload in names]
                if mine:
                    self.pinned[key] = mine
        placed = {part.workload for parts in self.pinned.values() for part in parts}
        # Costs of the bound workloads that the heuristic left out, and of those that it moved.
        self.left_out = sum(w.counts for w in bound if w.name not in placed) if not self.detailed else 0
        staying = {(key, part.workload) for key, parts in self.pinned.items() for part in parts if part.stays}
        self.bound_moved = (
            sum(any((home.key, w.name) not in staying for home in case.home.get(w.name, ())) for w in bound)
            if not self.detailed
            else 0
        )
        self.kinds: dict[tuple, list[str]] = defaultdict(list)
        for workload in case.problem.workloads:
            if not workload.bound:
                self.kinds[self.kind(workload)].append(workload.name)
        for names in self.kinds.values():
            names.sort(key=lambda name: name not in case.home)
        self.cells = self._cells()
        #: Whether the search considers every pattern.
        self.complete = True
        #: Lower bound for the number of GPUs that hold all workloads, or 0 if it was not needed.
        self.least = 0
        self.wanted = shapes_wanted(case)
        self._contents = pinned
        for cell, patterns in self._with_patterns():
            self._choose(cell, patterns)

    @staticmethod
    def kind(workload: Workload) -> tuple:
        return (tuple(sorted(set(workload.options))), workload.counts)

    def owner_kind(self, name: str | None) -> tuple | None:
        """Return an unbound workload's kind, or None for a bound or unknown one."""
        workload = self.case.workloads.get(name or "")
        return None if workload is None or workload.bound else self.kind(workload)

    def owner(self, key: tuple[str, int], name: str | None) -> Hashable:
        """Return a current part's owner, or None if no workload can keep it.

        The owner is the kind of an unbound workload, the name of a bound one, or MUST for a pinned one.
        """
        if name is None or self.case.at_home(name, key) is None:
            return None
        workload = self.case.workloads[name]
        if not workload.bound:
            return self.kind(workload)
        if self.detailed:
            return name
        return MUST if any(p.workload == name and p.stays for p in self.pinned.get(key, ())) else None

    def today(self, key: tuple[str, int]) -> list[Standing]:
        """Return a GPU's current content, in the order of its cell's items."""
        return sorted(
            self.case.on.get(key, ()), key=lambda s: (s.shape, s.start or 0, repr(self.owner(key, s.workload)))
        )

    def _cells(self) -> list[Cell]:
        cells: dict[tuple, Cell] = {}
        order = list(self.case.problem.gpus)
        if self.case.rules.policy == "spread":
            # Alternate between hosts, to use equal GPUs evenly.
            rank: Counter[str] = Counter()
            turns = {}
            for gpu in order:
                turns[gpu.key] = rank[gpu.host]
                rank[gpu.host] += 1
            order.sort(key=lambda gpu: turns[gpu.key])
        for gpu in order:
            state = [(s.shape, s.start, self.owner(gpu.key, s.workload)) for s in self.today(gpu.key)]
            parts = self.pinned.get(gpu.key, [])
            pins = tuple(sorted(part.shape for part in parts))
            # This GPU is a separate cell, because a bound workload that moves to a GPU in use needs a place on exactly
            # this GPU.
            alone = gpu.key if self.detailed or (state and any(not part.stays for part in parts)) else None
            cost = self.case.cost(gpu)
            like = (gpu.model, cost, tuple(state), pins, alone)
            if like not in cells:
                items = tuple((shape, start) for shape, start, _owner in state)
                cells[like] = Cell(gpu.model, cost, items, tuple(owner for _s, _p, owner in state), pins)
            cells[like].gpus.append(gpu.key)
        return list(cells.values())

    def _with_patterns(self):
        """Yield each cell with the patterns that its GPUs can have."""
        listed = {model: self._listed(model) for model in self.case.models()}
        self.complete = all(complete for _fullest, _every, complete in listed.values())
        useful: Mapping[str, Iterable[Pattern]] = self._known()
        few = len(self.wanted) <= MOST_COLUMN_SHAPES
        if few and self.case.rules.policy == "binpack" and not (self.complete and not self._binds):
            useful, self.least = columns(self.case, useful)
        for model, (fullest, every, _complete) in listed.items():
            more = [] if self.complete else useful.get(model, ())
            for cell in self.cells:
                if cell.model == model:
                    yield cell, list(dict.fromkeys([*(every if cell.items else fullest), *more]))

    def _known(self) -> dict[str, set[Pattern]]:
        """Return the patterns in the heuristic's result and in use now, by model."""
        known: dict[str, set[Pattern]] = defaultdict(set)
        for key, parts in self._contents.items():
            known[self.case.gpus[key].model].add(tuple(sorted(part.shape for part in parts)))
        for cell in self.cells:
            known[cell.model].add(tuple(sorted(shape for shape, _start in cell.items)))
        return {
            model: {tuple(shape for shape in pattern if shape in self.wanted) for pattern in patterns} - {()}
            for model, patterns in known.items()
        }

    def _listed(self, model: str) -> tuple[list[Pattern], list[Pattern], bool]:
        """Return (maximal patterns, patterns for GPUs in use, whether complete)."""
        spread = self.case.rules.policy == "spread"
        cells = [cell for cell in self.cells if cell.model == model]
        most = Counter(self.wanted)
        for shape in {s for cell in cells for s, _start in cell.items if s.kind == "mig"}:
            most[shape] += max(sum(s == shape for s, _start in cell.items) for cell in cells)
        geometry = self.case.geometry_of(model)
        fullest, complete = geometry.patterns(dict(most), spread)
        every = fullest
        if not spread and any(shape.kind == "mig" for cell in cells for shape, _start in cell.items):
            # Next to kept instances, a smaller pattern may fit when no maximal pattern does.
            plain = [pattern for pattern in fullest if pattern[0].kind != "mig"]
            slices, all_slices = geometry.patterns({s: n for s, n in most.items() if s.kind == "mig"}, True)
            every, complete = plain + slices, complete and all_slices
        return fullest, every, complete

    def _choose(self, cell: Cell, patterns: list[Pattern]) -> None:
        geometry = self.case.geometry_of(cell.model)
        strength = {None: VACANT, MUST: MUST}
        items = tuple(
            (shape, start, strength.get(owner, TAKEN)) for (shape, start), owner in zip(cell.items, cell.owners)
        )
        need = Counter(cell.pins)
        choices = []
        share = max(20, MOST_CHOICES // len(self.cells))
        if len(patterns) > share:
            self.complete = False
            patterns = _nearest(cell, patterns, share)
        for pattern in patterns:
            if need and need - Counter(pattern):
                continue
            settled = geometry.settle(items, pattern)
            if settled is not None:
                choices.append((pattern, settled))
        if self.case.rules.policy == "binpack" and cell.items:
            # Quota patterns are all maximal, so keep them.
            slices = [choice for choice in choices if choice[0][0].kind == "mig"]
            choices = [choice for choice in choices if choice[0][0].kind != "mig"] + _best(cell, slices)
        cell.choices = choices


def _nearest(cell: Cell, patterns: list[Pattern], count: int) -> list[Pattern]:
    """Return the `count` patterns nearest to the current content.

    All contain the pinned shapes. Among equally near patterns, one with fewer parts is first.
    """
    need, here = Counter(cell.pins), Counter(shape for shape, _start in cell.items)
    able = [pattern for pattern in patterns if not need - Counter(pattern)]
    able.sort(key=lambda pattern: (-sum((Counter(pattern) & here).values()), len(pattern)))
    return able[:count]


def _best(cell: Cell, choices: list[tuple[Pattern, Settled]]) -> list[tuple[Pattern, Settled]]:
    """Drop choices that are not better than another one.

    A choice is at least as good as another if it has no fewer parts of any shape, keeps no fewer workloads, and
    destroys no more instances.
    """
    shapes = sorted({shape for pattern, _settled in choices for shape in pattern})
    owners = sorted({pair for _pattern, settled in choices for pair in cell.kept(settled)}, key=repr)
    worth = []
    for pattern, settled in choices:
        count, kept = Counter(pattern), cell.kept(settled)
        worth.append((*(count[s] for s in shapes), *(kept[pair] for pair in owners), -cell.destroyed(settled)))
    best: list[int] = []
    for number in sorted(range(len(choices)), key=lambda n: (-sum(worth[n]), n)):
        if not any(all(a >= b for a, b in zip(worth[other], worth[number])) for other in best):
            best.append(number)
    return [choices[number] for number in sorted(best)]
