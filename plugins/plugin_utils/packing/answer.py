# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build a result from the workloads on each GPU. Pure.

Instances are placed so that current ones stay if possible. Then the result's costs are counted.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence

from .case import Case
from .geometry import MUST, VACANT, Item, Settled
from .model import Packing, Score, Shape, Standing


class Part(NamedTuple):
    """A workload on one GPU.

    `stays` is true if it keeps its current instance or quota.
    """

    shape: Shape
    workload: str
    stays: bool = False


#: New content of each GPU. A GPU that is missing here loses its current content.
Layouts = Mapping["tuple[str, int]", Sequence[Standing]]


def settled(case: Case, key: tuple[str, int], parts: Sequence[Part]) -> tuple[tuple[Shape, ...], Settled | None]:
    """Return (pattern of the parts, placement of the pattern on the GPU).

    The placement keeps current content if possible. It is None if the pattern does not fit.
    """
    stay = {part.workload for part in parts if part.stays}
    items: tuple[Item, ...] = tuple(
        (s.shape, s.start, MUST if s.workload in stay else VACANT) for s in case.on.get(key, ())
    )
    pattern = tuple(sorted(part.shape for part in parts))
    return pattern, case.geometry(case.gpus[key]).settle(items, pattern)


def standing_of(case: Case, key: tuple[str, int], parts: Sequence[Part]) -> list[Standing]:
    """Return the new content of a GPU."""
    pattern, placed = settled(case, key, parts)
    if placed is None:
        raise AssertionError("%s cannot hold %s" % (case.gpus[key].label, ", ".join(map(str, pattern))))
    today = case.on.get(key, ())
    stay = {part.workload for part in parts if part.stays}
    come: dict[Shape, list[str]] = {}
    for part in sorted(parts, reverse=True):
        if not part.stays:
            come.setdefault(part.shape, []).append(part.workload)
    made = []
    for shape, start, serves in zip(pattern, placed.starts, placed.serves):
        owner = today[serves].workload if serves is not None else None
        name = owner if owner in stay else come[shape].pop()
        # A quota belongs to one tenant, and must be recreated for another one. An instance can be reused.
        new = serves is None if shape.kind == "mig" else owner != name
        made.append(Standing(*key, shape, start, name, new))
    made += [Standing(*key, today[n].shape, today[n].start) for n in placed.spare]
    return sorted(made, key=lambda s: (s.start or 0, s.workload or ""))


def answer(
    case: Case, layouts: Layouts, by: str, proven: bool = False, churn: bool = False, bound: int | None = None
) -> Packing:
    """Return the Packing for these layouts, with its score."""
    keys = [gpu.key for gpu in case.problem.gpus if gpu.key in layouts]
    standing = tuple(part for key in keys for part in layouts[key])
    placed = {part.workload for part in standing if part.workload}
    occupied = frozenset(part.key for part in standing if part.workload)
    unplaced = {w.name: case.why_not(w, occupied) for w in case.problem.workloads if w.name not in placed}
    placed_parts = {(s.key, s.shape, s.start, s.workload) for s in standing}
    moved = tuple(
        name
        for name, homes in case.home.items()
        if any((home.key, home.shape, home.start, name) not in placed_parts for home in homes)
    )
    instances = {(s.key, s.shape, s.start) for s in standing}
    destroyed = sum(s.shape.kind == "mig" and (s.key, s.shape, s.start) not in instances for s in case.problem.today)
    spread = 0
    if case.rules.policy == "spread":
        spread = sum(squared(load_of(case, key, layouts[key])) for key in keys)
    score = Score(
        unplaced=sum(case.workloads[name].counts for name in unplaced),
        spread=spread,
        cost=sum(case.cost(case.gpus[key]) for key in keys),
        gpus=len(keys),
        moved=len(moved),
        destroyed=destroyed,
    )
    return Packing(standing, unplaced, moved, score, by, proven, churn, bound)


def load_of(case: Case, key: tuple[str, int], standing: Sequence[Standing]) -> int:
    """Return the share of a GPU that workloads use, in thousandths."""
    geometry = case.geometry(case.gpus[key])
    return sum(geometry.load(part.shape) for part in standing if part.workload)


def squared(load: int) -> int:
    """Return the square of a load in percent.

    The sum over the fleet is smallest if the load is spread evenly.
    """
    return (load // 10) ** 2


def within_bounds(case: Case, score: Score) -> bool:
    """Return whether a result respects the limits for moves and destroyed instances."""
    rules = case.rules
    return (rules.most_moved is None or score.moved <= rules.most_moved) and (
        rules.most_destroyed is None or score.destroyed <= rules.most_destroyed
    )
