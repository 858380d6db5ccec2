# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fill empty GPUs pattern by pattern, and improve the result by local search.

Pure. Best fit places one workload at a time, so it leaves gaps that no workload can use. Here, a GPU gets the most
valuable pattern of workloads without a place. In each round, shapes on badly filled GPUs become more valuable, so the
next round places them first (weight annealing: Loh, Golden and Wasil, 2008).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Mapping, NamedTuple, Sequence

from .case import Case
from .geometry import Geometry, Pattern
from .model import Shape, Workload

#: Rounds of the local search for each model.
MOST_ROUNDS = 30
#: Maximum number of patterns that all rounds compare. With many patterns, there are fewer rounds.
MOST_COMPARED = 400_000
#: Maximum number of different quotas that are combined without a list of patterns. The time grows with the square of
#: this number.
MOST_QUOTAS = 1500
#: Increase of the value of a shape whose GPUs are otherwise empty. It is proportional to the empty room.
RAISE = 0.5


class Filled(NamedTuple):
    """GPUs of a model, and each GPU's workloads by shape."""

    model: str
    gpus: tuple[tuple[tuple[Shape, str], ...], ...]


def fill(case: Case, workloads: Sequence[Workload], room: Mapping[str, int]) -> list[Filled]:
    """Return contents for empty GPUs, the GPUs with the highest weight first.

    `workloads` are unbound. Only those with one option are used. `room` has each model's number of empty GPUs.
    """
    names: dict[Shape, list[Workload]] = defaultdict(list)
    for workload in sorted(workloads, key=lambda w: (w.counts, w.name), reverse=True):
        if len(set(workload.options)) == 1:
            names[workload.options[0]].append(workload)
    filled = []
    for model in sorted(room, key=lambda key: (_cost(case, key), -case.geometry_of(key).memory_mib, key)):
        need = Counter({s: len(them) for s, them in names.items() if them and case.geometry_of(model).can_hold(s)})
        waiting = {shape: iter(names[shape]) for shape in need}
        gpus = [
            tuple((shape, next(waiting[shape])) for shape in pattern)
            for pattern in _planned(case.geometry_of(model), need, room[model], names)
        ]
        gpus.sort(key=lambda content: -sum(workload.counts for _shape, workload in content))
        del gpus[room[model] :]
        placed = {workload.name for content in gpus for _shape, workload in content}
        for shape in need:
            names[shape] = [workload for workload in names[shape] if workload.name not in placed]
        filled.append(Filled(model, tuple(tuple((s, w.name) for s, w in content) for content in gpus)))
    return filled


def _cost(case: Case, model: str) -> int:
    return min(case.cost(gpu) for gpu in case.problem.gpus if gpu.model == model)


def _planned(
    geometry: Geometry, need: Counter[Shape], room: int, names: Mapping[Shape, Sequence[Workload]]
) -> list[Pattern]:
    """Return the fewest patterns found that hold all these shapes."""
    patterns, complete = geometry.patterns(dict(need))
    listed = sorted({shape for pattern in patterns for shape in pattern})
    result: list[Pattern] = []
    if not complete:
        for kind in sorted({shape.kind for shape in need.keys() - set(listed)}):
            result += _combined(
                geometry, Counter({s: n for s, n in need.items() if s.kind == kind and s not in listed})
            )
    weights = {shape: sum(w.counts for w in names[shape]) / len(names[shape]) for shape in listed}
    value = {shape: float(sum(geometry.shares(shape)[:2])) for shape in listed}
    size = dict(value)
    counted = [Counter(pattern) for pattern in patterns]
    best: list[Pattern] = []
    key: tuple[float, int] | None = None
    budget = MOST_COMPARED
    for _round in range(MOST_ROUNDS if listed else 0):
        made, compared = _greedy(counted, Counter({s: need[s] for s in listed}), value)
        kept = sorted((sum(weights[shape] for shape in pattern) for pattern in made), reverse=True)
        rank = (-sum(kept[:room]), len(made))
        if key is None or rank < key:
            key, best = rank, made
        budget -= compared
        if budget < 0:
            break
        worst: dict[Shape, float] = defaultdict(float)
        times = Counter(made)
        for pattern, count in times.items():
            slack = max(0.0, 1 - sum(size[shape] for shape in pattern) / 2)
            for shape in pattern:
                worst[shape] += slack * count / need[shape]
        for shape in listed:
            value[shape] *= 1 + RAISE * worst[shape]
    return result + best


def _greedy(
    patterns: Sequence[Counter[Shape]], left: Counter[Shape], value: Mapping[Shape, float]
) -> tuple[list[Pattern], int]:
    """Return (patterns that hold all shapes, number of compared patterns).

    Patterns of the most valuable parts come first.
    """
    made: list[Pattern] = []
    compared = 0
    able = [(pattern, sum(value[s] * n for s, n in pattern.items())) for pattern in patterns]
    able.sort(key=lambda each: -each[1])
    while left:
        chosen, most = None, 0.0
        for pattern, worth in able:
            if worth <= most:
                # The patterns are sorted, so no later one has a higher value.
                break
            compared += 1
            here = sum(value[s] * min(n, left[s]) for s, n in pattern.items())
            if here > most:
                chosen, most = pattern, here
        if chosen is None:
            break
        part = Counter({s: min(n, left[s]) for s, n in chosen.items() if left[s]})
        times = min(left[s] // n for s, n in part.items())
        made += [tuple(sorted(part.elements()))] * times
        for shape, count in part.items():
            left[shape] -= count * times
            if not left[shape]:
                del left[shape]
    return made, compared


def _combined(geometry: Geometry, left: Counter[Shape]) -> list[Pattern]:
    """Return patterns of quotas if there are too many to list.

    Each GPU starts with the largest quota. Each next quota has the largest dot product with the free room (Panigrahy et
    al., 2011).
    """
    if len(left) > MOST_QUOTAS or any(shape.technique is None or shape.technique.equal_parts for shape in left):
        return []
    sizes = {s: (s.memory_mib / geometry.memory_mib, s.sm_percent / geometry.sm_percent) for s in left}
    order = sorted(left, key=lambda s: (-max(sizes[s]), -sum(sizes[s]), s))
    made: list[Pattern] = []
    scale = geometry.memory_mib / geometry.sm_percent
    while order:
        chosen: list[Shape] = []
        memory, sms = geometry.memory_mib, geometry.sm_percent
        most = geometry.most_parts(order[0].kind) or sum(left.values())
        take: Shape | None = order[0]
        while take is not None and len(chosen) < most:
            chosen.append(take)
            memory, sms = memory - take.memory_mib, sms - take.sm_percent
            left[take] -= 1
            if not left[take]:
                order.remove(take)
            able = [shape for shape in order if shape.memory_mib <= memory and shape.sm_percent <= sms]
            take = max(able, key=lambda s: sizes[s][0] * memory + sizes[s][1] * sms * scale, default=None)
        made.append(tuple(sorted(chosen)))
    return made
