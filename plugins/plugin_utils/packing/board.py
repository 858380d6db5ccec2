# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the content of all GPUs in a form that is quick to change. Pure.

GPUs, workloads and shapes are numbers here. The content of a GPU is a state. GPUs with the same model, cost and content have
the same state. Transitions between states are computed once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Iterable, Mapping, NamedTuple, Sequence

from .answer import Part
from .case import Case
from .geometry import MUST, VACANT, Item
from .model import Shape, Workload

#: No state: the shape does not fit.
FULL = -1


class Choice(NamedTuple):
    """A shape, and the GPUs of one domain that a workload may use."""

    shape: int
    host: int
    gpus: tuple[int, ...]


class Place(NamedTuple):
    """A workload's place: one shape on GPUs of one host."""

    shape: int
    host: int
    gpus: tuple[int, ...]


class States:
    """States of GPUs, and the transitions between them.

    A state is a number. `load`: thousandths of a GPU in use. `used`: whether a workload is on the GPU.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._numbers: dict[tuple[str, int, tuple[Item, ...], tuple[int, ...]], int] = {}
        self._parts: list[tuple[str, int, tuple[Item, ...], tuple[int, ...]]] = []
        self._more: list[dict[int, int]] = []
        self._less: list[dict[int, int]] = []
        self.shapes: list[Shape] = sorted({s for w in case.problem.workloads for s in w.options})
        self.shape_number = {shape: number for number, shape in enumerate(self.shapes)}
        self.load: list[int] = []
        self.used: list[bool] = []

    def of(self, model: str, cost: int, items: tuple[Item, ...], pattern: tuple[int, ...]) -> int:
        """Return the state of a GPU with these items and shapes.

        `pattern`: the shapes in ascending order.
        """
        like = (model, cost, items, pattern)
        number = self._numbers.get(like)
        if number is None:
            number = self._numbers[like] = len(self._parts)
            self._parts.append(like)
            self._more.append({})
            self._less.append({})
            geometry = self._case.geometry_of(model)
            self.load.append(sum(geometry.load(self.shapes[shape]) for shape in pattern))
            self.used.append(bool(pattern))
        return number

    def more(self, state: int, shape: int) -> int:
        """Return the state with another part of this shape, or FULL."""
        known = self._more[state].get(shape)
        if known is None:
            model, cost, items, pattern = self._parts[state]
            longer = tuple(sorted((*pattern, shape)))
            settled = self._case.geometry_of(model).settle(items, tuple(self.shapes[each] for each in longer))
            known = FULL if settled is None else self.of(model, cost, items, longer)
            self._more[state][shape] = known
        return known

    def less(self, state: int, shape: int) -> int:
        """Return the state without one part of this shape."""
        known = self._less[state].get(shape)
        if known is None:
            model, cost, items, pattern = self._parts[state]
            shorter = list(pattern)
            shorter.remove(shape)
            known = self._less[state][shape] = self.of(model, cost, items, tuple(shorter))
        return known


class Board:
    """The GPUs with their states, and the places of the workloads.

    Workloads that stay in their current places are part of the states and do not move.
    `places`: the place of each workload that can move, or None if it is left out.
    """

    def __init__(self, case: Case, contents: Mapping[tuple[str, int], Sequence[Part]]) -> None:
        self.case, self.states = case, States(case)
        self.keys = [gpu.key for gpu in case.problem.gpus]
        self._gpu_number = {key: number for number, key in enumerate(self.keys)}
        hosts = list(dict.fromkeys(gpu.host for gpu in case.problem.gpus))
        self._host_number = {host: number for number, host in enumerate(hosts)}
        self.host_of = [self._host_number[host] for host, _index in self.keys]
        self.cost_of = [case.cost(gpu) for gpu in case.problem.gpus]
        self.model_of = [gpu.model for gpu in case.problem.gpus]
        self._fixed = {part.workload for parts in contents.values() for part in parts if part.stays}
        self.workloads = [w for w in case.problem.workloads if w.name not in self._fixed]
        self._workload_number = {workload.name: number for number, workload in enumerate(self.workloads)}
        self._choices: dict[tuple[object, ...], list[Choice]] = {}
        self.choices = [self._choices_of(workload) for workload in self.workloads]
        self.state = [self._empty(key, contents.get(key, ())) for key in self.keys]
        self.in_use: Counter[str] = Counter(
            model for model, state in zip(self.model_of, self.state) if self.states.used[state]
        )
        self.places: list[Place | None] = [None] * len(self.workloads)
        self.on: list[set[int]] = [set() for _key in self.keys]
        self.near: Counter[tuple[str, int]] = Counter()
        self.apart: Counter[tuple[str, int]] = Counter()
        self.apart_hosts: Counter[tuple[str, int]] = Counter()
        self.near_total: Counter[str] = Counter()
        for key, parts in contents.items():
            for part in parts:
                if part.stays:
                    self._relate(case.workloads[part.workload], self._host_number[key[0]], (self._gpu_number[key],), 1)
        for number, place in self._places_in(contents).items():
            self.put(number, place)

    def _empty(self, key: tuple[str, int], parts: Sequence[Part]) -> int:
        """Return the state of a GPU without the workloads that can move."""
        stay = {part.workload for part in parts if part.stays}
        items = tuple((s.shape, s.start, MUST if s.workload in stay else VACANT) for s in self.case.on.get(key, ()))
        pattern = tuple(sorted(self.states.shape_number[part.shape] for part in parts if part.stays))
        gpu = self.case.gpus[key]
        return self.states.of(gpu.model, self.case.cost(gpu), items, pattern)

    def _choices_of(self, workload: Workload) -> list[Choice]:
        within = workload.within if workload.gpus > 1 else "host"
        like = (workload.options, workload.gpus, within, workload.hosts)
        if like not in self._choices:
            self._choices[like] = [
                Choice(self.states.shape_number[shape], self._host_number[place[0]], able)
                for shape in dict.fromkeys(workload.options)
                for place, gpus in self.case.domains[within].items()
                for able in [
                    tuple(
                        self._gpu_number[gpu.key]
                        for gpu in gpus
                        if self.case.allowed(workload, gpu) and self.case.geometry(gpu).can_hold(shape)
                    )
                ]
                if len(able) >= workload.gpus
            ]
        return self._choices[like]

    def _places_in(self, contents: Mapping[tuple[str, int], Sequence[Part]]) -> dict[int, Place]:
        gpus: dict[tuple[str, Shape], list[int]] = defaultdict(list)
        for key, parts in contents.items():
            for part in parts:
                if not part.stays:
                    gpus[part.workload, part.shape].append(self._gpu_number[key])
        return {
            self._workload_number[name]: Place(self.states.shape_number[shape], self.host_of[here[0]], tuple(here))
            for (name, shape), here in gpus.items()
        }

    def contents(self, start: Mapping[tuple[str, int], Sequence[Part]]) -> dict[tuple[str, int], list[Part]]:
        """Return the workloads on each GPU.

        `start`: the contents that the board was made of.
        """
        made: dict[tuple[str, int], list[Part]] = {key: [] for key in self.keys}
        for key, parts in start.items():
            made[key] += [part for part in parts if part.stays]
        for workload, place in zip(self.workloads, self.places):
            if place is None:
                continue
            for gpu in place.gpus:
                made[self.keys[gpu]].append(Part(self.states.shapes[place.shape], workload.name))
        return {key: parts for key, parts in made.items() if parts}

    def put(self, number: int, place: Place) -> None:
        self.places[number] = place
        for gpu in place.gpus:
            state = self.state[gpu]
            if not self.states.used[state]:
                self.in_use[self.model_of[gpu]] += 1
            self.state[gpu] = self.states.more(state, place.shape)
            self.on[gpu].add(number)
        self._relate(self.workloads[number], place.host, place.gpus, 1)

    def take(self, number: int) -> Place | None:
        """Remove a workload. Return the place where it was."""
        place = self.places[number]
        if place is None:
            return None
        self.places[number] = None
        for gpu in place.gpus:
            self.state[gpu] = state = self.states.less(self.state[gpu], place.shape)
            if not self.states.used[state]:
                self.in_use[self.model_of[gpu]] -= 1
            self.on[gpu].discard(number)
        self._relate(self.workloads[number], place.host, place.gpus, -1)
        return place

    def _relate(self, workload: Workload, host: int, gpus: Iterable[int], sign: int) -> None:
        if workload.near is not None:
            self.near[workload.near, host] += sign
            self.near_total[workload.near] += sign
        if workload.apart is not None:
            if workload.apart_on == "host":
                self.apart_hosts[workload.apart, host] += sign
            for gpu in gpus:
                self.apart[workload.apart, gpu] += sign

    def may_use_host(self, workload: Workload, host: int) -> bool:
        """Return whether the workloads that it is near or apart allow this host."""
        near, apart = workload.near, workload.apart
        if near is not None and self.near_total[near] and not self.near[near, host]:
            return False
        return apart is None or workload.apart_on != "host" or not self.apart_hosts[apart, host]
