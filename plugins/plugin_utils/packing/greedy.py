# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pack workloads with a heuristic. Pure.

Workloads keep their current places if possible. The others are placed by best fit, the largest first. A second attempt
fills empty GPUs with patterns (fill.py), and the better result is used. Then the least loaded GPUs are emptied. The
result obeys every rule, but is not always optimal.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from typing import Dict, Iterable, List, Sequence

from .answer import Part, answer, standing_of, within_bounds
from .case import Case
from .fill import fill
from .geometry import MUST, VACANT, Item
from .model import FleetGpu, Packing, Shape, Workload

#: Workloads on each GPU.
Contents = Dict["tuple[str, int]", List[Part]]


class Bins:
    """The GPUs and their planned content.

    GPUs with the same model, cost and content are equal. Only one of several equal GPUs is examined.
    """

    def __init__(self, case: Case, frugal: bool = False) -> None:
        self.case = case
        #: Whether all current instances must stay.
        self.frugal = frugal
        self.parts: dict[tuple[str, int], list[Part]] = {gpu.key: [] for gpu in case.problem.gpus}
        self.used: Counter[str] = Counter()
        self._order = {gpu.key: number for number, gpu in enumerate(case.problem.gpus)}
        self._names: dict[tuple[str, int], dict[str, int]] = {}
        self._likes: dict[tuple[str, int], tuple] = {}
        self._alike: dict[tuple, dict[tuple[str, int], None]] = defaultdict(dict)
        self.hosts_apart: Counter[tuple[str, str]] = Counter()
        self.gpus_apart: Counter[tuple[str, tuple[str, int]]] = Counter()
        self.near: dict[str, list[str]] = defaultdict(list)
        self.loads: Counter[tuple[str, int]] = Counter()
        self.on_host: Counter[str] = Counter()
        #: The host of each GPU whose content changed, in the order of changes.
        self.touched: list[str] = []
        self.index = DomainIndex(self)
        for gpu in case.problem.gpus:
            self._file(gpu.key)

    def _like(self, key: tuple[str, int]) -> tuple:
        gpu = self.case.gpus[key]
        return (gpu.model, self.case.cost(gpu), self.items(key), self.pattern(key))

    def _file(self, key: tuple[str, int]) -> None:
        old = self._likes.get(key)
        if old is not None:
            del self._alike[old][key]
            if not self._alike[old]:
                del self._alike[old]
        self._likes[key] = like = self._like(key)
        self._alike[like][key] = None

    def items(self, key: tuple[str, int]) -> tuple[Item, ...]:
        stay = {part.workload for part in self.parts[key] if part.stays}
        return tuple((s.shape, s.start, MUST if s.workload in stay else VACANT) for s in self.case.on.get(key, ()))

    def pattern(self, key: tuple[str, int]) -> tuple[Shape, ...]:
        return tuple(sorted(part.shape for part in self.parts[key]))

    def room(self, key: tuple[str, int], shape: Shape) -> bool:
        """Return whether the GPU has room for another part of this shape."""
        gpu = self.case.gpus[key]
        if not self.parts[key] and self.used[gpu.model] >= self.case.most_of_model[gpu.model]:
            return False
        items = self.items(key)
        placed = self.case.geometry(gpu).settle(items, tuple(sorted((*self.pattern(key), shape))))
        if placed is None or not self.frugal:
            return placed is not None
        kept = {*placed.serves, *placed.spare}
        return all(number in kept for number, item in enumerate(items) if item[0].kind == "mig")

    def put(self, key: tuple[str, int], part: Part) -> None:
        gpu, workload = self.case.gpus[key], self.case.workloads[part.workload]
        if not self.parts[key]:
            self.used[gpu.model] += 1
        self.parts[key].append(part)
        self._count(gpu, workload, part, 1)
        self._file(key)

    def take(self, key: tuple[str, int], part: Part) -> None:
        gpu, workload = self.case.gpus[key], self.case.workloads[part.workload]
        self.parts[key].remove(part)
        if not self.parts[key]:
            self.used[gpu.model] -= 1
        self._count(gpu, workload, part, -1)
        self._file(key)

    def _count(self, gpu: FleetGpu, workload: Workload, part: Part, sign: int) -> None:
        self.touched.append(gpu.host)
        load = sign * self.case.geometry(gpu).load(part.shape)
        self.loads[gpu.key] += load
        self.on_host[gpu.host] += load
        if workload.apart is not None:
            self.hosts_apart[(workload.apart, gpu.host)] += sign if workload.apart_on == "host" else 0
            self.gpus_apart[(workload.apart, gpu.key)] += sign
        if workload.near is not None:
            (self.near[workload.near].append if sign > 0 else self.near[workload.near].remove)(gpu.host)

    def may(self, workload: Workload, gpu: FleetGpu) -> bool:
        """Return whether the rules allow the workload on this GPU, apart from room."""
        if not self.case.allowed(workload, gpu):
            return False
        if workload.apart is not None:
            if self.gpus_apart[(workload.apart, gpu.key)]:
                return False
            if workload.apart_on == "host" and self.hosts_apart[(workload.apart, gpu.host)]:
                return False
        return workload.near is None or all(host == gpu.host for host in self.near[workload.near])

    def best(self, shape: Shape, avoid: tuple[str, int] | None = None, only_used: bool = False) -> tuple | None:
        """Return the GPU on which another part of this shape fits best.

        Returns None if no GPU of the fleet has room.
        """
        spread = self.case.rules.policy == "spread"
        chosen, rank = None, None
        for like, keys in self._alike.items():
            model, cost, items, pattern = like
            if (only_used and not pattern) or not self.case.geometry_of(model).can_hold(shape):
                continue
            key = next((key for key in keys if key != avoid), None)
            if key is None or not self.room(key, shape):
                continue
            reuse = any(item == (shape, item[1], VACANT) for item in items)
            load = self.loads[key]
            here = (load, not reuse) if spread else (not pattern, cost if not pattern else 0, not reuse, -load)
            here = (*here, self._order[key])
            if rank is None or here < rank:
                chosen, rank = key, here
        if chosen is not None and spread:
            # Take the equal GPU on the least loaded host.
            chosen = min(self._alike[self._likes[chosen]], key=lambda k: (self.on_host[k[0]], self._order[k]))
        return chosen

    def best_of(self, shape: Shape, gpus: Iterable[FleetGpu], workload: Workload, count: int) -> list | None:
        """Return the best `count` of these GPUs, or None if too few have room."""
        room = [gpu for gpu in gpus if self.may(workload, gpu) and self.room(gpu.key, shape)]
        sign = 1 if self.case.rules.policy == "spread" else -1
        room.sort(key=lambda g: (len(self.case.on.get(g.key, ())), sign * self.loads[g.key], self._order[g.key]))
        chosen: list[FleetGpu] = []
        fresh: Counter[str] = Counter()
        for gpu in room:
            if len(chosen) == count:
                break
            if not self.parts[gpu.key]:
                if self.used[gpu.model] + fresh[gpu.model] >= self.case.most_of_model[gpu.model]:
                    continue
                fresh[gpu.model] += 1
            chosen.append(gpu)
        return [gpu.key for gpu in chosen] if len(chosen) == count else None


def greedy(case: Case) -> tuple[Packing, Contents]:
    """Return (result that obeys every rule, workloads on each GPU)."""
    bins = Bins(case)
    _fill(case, bins)
    best, contents = _as_answer(case, bins)
    if case.rules.policy == "binpack" and any(not w.bound for w in case.problem.workloads):
        filled = Bins(case)
        _fill(case, filled, by_pattern=True)
        other, other_contents = _as_answer(case, filled)
        if other.score.as_tuple() < best.score.as_tuple():
            bins, best, contents = filled, other, other_contents
    if not within_bounds(case, best.score):
        bins = Bins(case, frugal=True)
        _fill(case, bins)
        best, contents = _as_answer(case, bins)
    elif case.home and case.rules.policy == "binpack":
        _empty(bins)
        better, emptied = _as_answer(case, bins)
        if within_bounds(case, better.score) and better.score.as_tuple() < best.score.as_tuple():
            best, contents = better, emptied
    return best, contents


def _as_answer(case: Case, bins: Bins) -> tuple[Packing, Contents]:
    contents = {key: list(parts) for key, parts in bins.parts.items() if parts}
    if bins.frugal:
        # A freed GPU keeps its instances, too.
        for key, standing in case.on.items():
            if any(part.shape.kind == "mig" for part in standing):
                contents.setdefault(key, [])
    layouts = {key: standing_of(case, key, parts) for key, parts in contents.items()}
    return answer(case, layouts, "heuristic"), contents


def _fill(case: Case, bins: Bins, by_pattern: bool = False) -> None:
    """Place all workloads.

    If `by_pattern` is true, empty GPUs are filled with patterns before unbound workloads are placed one by one.
    """
    staying = _stay(case, bins)
    come = [w for w in case.problem.workloads if w.name not in staying]
    come.sort(key=lambda w: (not w.bound, -w.gpus, -_size(case, w), w.options, w.name))
    for workload in come:
        if workload.bound:
            place(case, bins, workload)
    placed = _fill_empty(case, bins, [w for w in come if not w.bound]) if by_pattern else set()
    for workload in come:
        if not workload.bound and workload.name not in placed:
            place(case, bins, workload)


def _fill_empty(case: Case, bins: Bins, come: Sequence[Workload]) -> set[str]:
    """Fill empty GPUs by patterns. Return the names of the placed workloads."""
    empty: dict[str, list[FleetGpu]] = defaultdict(list)
    for gpu in sorted(case.problem.gpus, key=case.cost):
        if not bins.parts[gpu.key] and not case.on.get(gpu.key):
            empty[gpu.model].append(gpu)
    room = {m: min(len(gpus), case.most_of_model[m] - bins.used[m]) for m, gpus in empty.items()}
    placed: set[str] = set()
    for filled in fill(case, come, room):
        for gpu, content in zip(empty[filled.model], filled.gpus):
            for shape, name in content:
                bins.put(gpu.key, Part(shape, name))
                placed.add(name)
    return placed


def _stay(case: Case, bins: Bins) -> set[str]:
    """Keep all workloads that may stay in their places. Return their names."""
    staying = set()
    for name, homes in case.home.items():
        workload = case.workloads[name]
        if all(bins.may(workload, case.gpus[home.key]) and _open(case, bins, home.key) for home in homes):
            for home in homes:
                bins.put(home.key, Part(home.shape, name, True))
            staying.add(name)
    return staying


def _open(case: Case, bins: Bins, key: tuple[str, int]) -> bool:
    model = case.gpus[key].model
    return bool(bins.parts[key]) or bins.used[model] < case.most_of_model[model]


def _size(case: Case, workload: Workload) -> int:
    return max(
        (
            case.geometry_of(m).load(s)
            for s in workload.options
            for m in case.models()
            if case.geometry_of(m).can_hold(s)
        ),
        default=0,
    )


def place(case: Case, bins: Bins, workload: Workload) -> bool:
    """Place the workload where it fits best. Return False if it fits nowhere."""
    for shape in workload.options:
        keys = _keys(case, bins, workload, shape)
        if keys is not None:
            for key in keys:
                bins.put(key, Part(shape, workload.name))
            return True
    return False


def _keys(case: Case, bins: Bins, workload: Workload, shape: Shape) -> Sequence[tuple[str, int]] | None:
    if not workload.bound:
        key = bins.best(shape)
        return None if key is None else [key]
    if (workload.near, workload.apart, workload.hosts) == (None, None, None):
        return bins.index.best(workload, shape)
    best, rank = None, None
    for gpus in case.domains[workload.within].values():
        ranked = rank_domain(bins, gpus, workload, shape)
        if ranked is not None and (rank is None or ranked[0] < rank):
            rank, best = ranked
    return best


def rank_domain(
    bins: Bins, gpus: Sequence[FleetGpu], workload: Workload, shape: Shape
) -> tuple[tuple, Sequence[tuple[str, int]]] | None:
    """Return (rank of the domain, GPUs for the workload).

    Returns None if the domain has too little room. The lowest rank is the best.
    """
    case = bins.case
    if len(gpus) < workload.gpus:
        return None
    keys = bins.best_of(shape, gpus, workload, workload.gpus)
    if keys is None:
        return None
    # Prefer small domains, so that large ones stay free for workloads that need them. Avoid GPUs in use.
    free = sum(not bins.parts[gpu.key] for gpu in gpus)
    rank: tuple = (sum(not bins.parts[key] for key in keys), sum(len(case.on.get(key, ())) for key in keys), free)
    if workload.near is not None and not bins.near[workload.near]:
        # Place the first workload of a `near` group on the host with the most free GPUs, so that the others fit there.
        rank = (-free, *rank[1:])
    if case.rules.policy == "spread":
        rank = (bins.on_host[gpus[0].host],)
    return rank, keys


class DomainIndex:
    """Finds the best domain for workloads without affinities.

    Keeps all domains' ranks by demand, and updates a rank only after a GPU on the domain's host has changed.
    """

    def __init__(self, bins: Bins) -> None:
        self._bins = bins
        self._by_host: dict[str, dict[str, list[tuple]]] = {}
        for within, places in bins.case.domains.items():
            self._by_host[within] = defaultdict(list)
            for place in places:
                self._by_host[within][place[0]].append(place)
        self._order = {within: {p: n for n, p in enumerate(places)} for within, places in bins.case.domains.items()}
        self._ranks: dict[tuple[str, Shape, int], _Ranks] = {}

    def best(self, workload: Workload, shape: Shape) -> Sequence[tuple[str, int]] | None:
        """Return GPUs of the best domain, or None if no domain has room."""
        demand = (workload.within, shape, workload.gpus)
        domains, hosts = self._bins.case.domains[workload.within], self._by_host[workload.within]
        ranks = self._ranks.get(demand)
        if ranks is None:
            ranks = self._ranks[demand] = _Ranks()
            stale: Iterable[str] = hosts
        else:
            stale = dict.fromkeys(self._bins.touched[ranks.seen :])
        ranks.seen = len(self._bins.touched)
        order = self._order[workload.within]
        for place in (place for host in stale for place in hosts[host]):
            ranked = rank_domain(self._bins, domains[place], workload, shape)
            ranks.set(order[place], place, None if ranked is None else ranked[0])
        while (place := ranks.lowest()) is not None:
            # The fleet's number of unused GPUs is limited, so a domain can lose its room although its GPUs have not
            # changed.
            ranked = rank_domain(self._bins, domains[place], workload, shape)
            if ranked is not None:
                return ranked[1]
            ranks.set(order[place], place, None)
        return None


class _Ranks:
    """The ranks of domains, the lowest first.

    `seen` is the number of GPU changes that the ranks include.
    """

    def __init__(self) -> None:
        self.seen = 0
        self._now: dict[tuple, tuple] = {}
        self._heap: list[tuple[tuple, int, tuple]] = []

    def set(self, order: int, place: tuple, rank: tuple | None) -> None:
        """Set a domain's rank, or remove a domain without room.

        `order` decides between equal ranks.
        """
        if rank is None:
            self._now.pop(place, None)
        elif self._now.get(place) != rank:
            self._now[place] = rank
            heapq.heappush(self._heap, (rank, order, place))

    def lowest(self) -> tuple | None:
        """Return the domain with the lowest rank, or None if no domain has room."""
        while self._heap:
            rank, _order, place = self._heap[0]
            if self._now.get(place) == rank:
                return place
            heapq.heappop(self._heap)
        return None


def _empty(bins: Bins) -> None:
    """Move workloads from the least loaded GPUs to other GPUs in use.

    Stops at the first GPU that cannot be emptied.
    """
    case = bins.case
    used = sorted((key for key, parts in bins.parts.items() if parts), key=lambda key: (bins.loads[key], key))
    moved = 0
    for key in used:
        parts = list(bins.parts[key])
        if any(case.workloads[part.workload].bound for part in parts):
            continue
        moved += sum(part.stays for part in parts)
        if case.rules.most_moved is not None and moved > case.rules.most_moved:
            return
        done: list[tuple[tuple[str, int], Part]] = []
        for part in parts:
            bins.take(key, part)
            target = bins.best(part.shape, avoid=key, only_used=True)
            if target is None:
                bins.put(key, part)
                break
            bins.put(target, Part(part.shape, part.workload))
            done.append((target, part))
        if len(done) < len(parts):
            for target, part in done:
                bins.take(target, Part(part.shape, part.workload))
                bins.put(key, part)
            return
