# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Improve a packing with bound workloads by local search. Pure.

Each round removes the workloads of a few GPUs and places them again ("ruin and recreate": Schrimpf et al., 2000).
If workloads are left out, a round empties a place of one of them. Those that were left out most often go first (Christiaens and
Vanden Berghe, 2020). The same problem always has the same result.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Iterable, Mapping, NamedTuple, Sequence

from .answer import Part
from .board import FULL, Board, Choice, Place
from .case import Case
from .exact import Least
from .model import Workload

#: Maximum number of GPUs that all rounds together examine.
MOST_EXAMINED = 3_000_000
#: Maximum number of rounds for each workload without a better result.
IDLE_ROUNDS = 40
#: Maximum number of GPUs that a round empties, and of left out workloads that it tries to place.
MOST_EMPTIED, MOST_TRIED = 8, 12
#: Share of the choices that a placement skips, so that results differ.
SKIPPED = 0.03
#: Share of the rounds that empty a place of a workload that is left out, if any.
AIMED = 0.7
#: Losses that a round may accept, in GPUs, at the start and at the end.
WARM, COLD = 0.5, 0.02
#: Value of an uneven load in comparison with a GPU, because a nearly empty GPU is soon free.
UNEVEN = 0.3


class Worth(NamedTuple):
    """The costs of a packing, the most important first."""

    unplaced: int
    cost: int
    gpus: int


def repair(
    case: Case, contents: Mapping[tuple[str, int], Sequence[Part]], least: Least
) -> dict[tuple[str, int], list[Part]]:
    """Return contents that leave out no more workloads and use no more GPUs.

    Workloads that stay in their current places do not move. The search ends when the bounds in `least` are met.
    """
    return _Repair(case, contents, least).run()


class _Solution(NamedTuple):
    """The costs of the current places.

    `out`: the workloads that are left out. `energy`: see _energy.
    """

    worth: Worth
    out: list[int]
    energy: float


class _Repair:
    def __init__(self, case: Case, contents: Mapping[tuple[str, int], Sequence[Part]], least: Least) -> None:
        self.case, self.least = case, least
        self.board = board = Board(case, contents)
        self._start = contents
        self._random = random.Random(case.rules.seed)
        self._absent = [0] * len(board.workloads)
        self._size = [
            workload.gpus * max(map(self._load, choices), default=0)
            for workload, choices in zip(board.workloads, board.choices)
        ]
        self._most_cost = max([1, *board.cost_of])
        self._examined = 0

    def _load(self, choice: Choice) -> int:
        geometry = self.case.geometry_of(self.board.model_of[choice.gpus[0]])
        return geometry.load(self.board.states.shapes[choice.shape])

    def run(self) -> dict[tuple[str, int], list[Part]]:
        board = self.board
        now = self._solution()
        best, places = now.worth, list(board.places)
        idle, most_idle = 0, IDLE_ROUNDS * len(board.workloads)
        while self._examined < MOST_EXAMINED and idle < most_idle and not self._is_least(best):
            idle += 1
            before = self._round(now.out)
            then = self._solution()
            for number in then.out:
                self._absent[number] += 1
            if self._accepts(now, then):
                now = then
                if now.worth < best:
                    best, places, idle = now.worth, list(board.places), 0
            else:
                self._restore(before)
        self._restore(dict(enumerate(places)))
        return board.contents(self._start)

    # -- Costs --------------------------------------------------------------------------------------------------------

    def _solution(self) -> _Solution:
        board = self.board
        self._examined += len(board.state) // 4
        out = [number for number, place in enumerate(board.places) if place is None]
        used = [gpu for gpu, state in enumerate(board.state) if board.states.used[state]]
        unplaced = sum(board.workloads[number].counts for number in out)
        return _Solution(Worth(unplaced, sum(board.cost_of[gpu] for gpu in used), len(used)), out, self._energy())

    def _energy(self) -> float:
        """Return the number of GPUs or the cost, lower if the loads are uneven."""
        board, states = self.board, self.board.states
        total = 0.0
        for state, cost in zip(board.state, board.cost_of):
            if states.used[state]:
                load = states.load[state] / 1000
                total += 1 + cost / self._most_cost * len(board.state) - UNEVEN * load * load
        return total

    def _is_least(self, worth: Worth) -> bool:
        least = self.least
        return worth.unplaced <= least.left_out and self.case.rules.aim == "gpus" and worth.gpus <= least.gpus

    def _accepts(self, now: _Solution, then: _Solution) -> bool:
        """Return whether the search continues with the solution `then`."""
        if now.worth.unplaced != then.worth.unplaced:
            missed = [sum(self._absent[number] for number in solution.out) for solution in (now, then)]
            return then.worth.unplaced < now.worth.unplaced or missed[1] < missed[0]
        part = self._examined / MOST_EXAMINED
        warmth: float = WARM * (COLD / WARM) ** part
        return then.energy < now.energy - warmth * math.log(1 - self._random.random())

    # -- Rounds -------------------------------------------------------------------------------------------------------

    def _round(self, out: Sequence[int]) -> dict[int, Place | None]:
        """Remove some workloads, and place them again.

        Returns the former places of these workloads.
        """
        target = self._target(out)
        removed = self._around(target) if target is not None else self._neighbors()
        tried = list(out) if len(out) <= MOST_TRIED else self._random.sample(list(out), MOST_TRIED)
        before: dict[int, Place | None] = dict.fromkeys(tried)
        for number in sorted(removed):
            before[number] = self.board.take(number)
        for number in self._ordered(before, target):
            place = self._best(number)
            if place is not None:
                self.board.put(number, place)
        return before

    def _restore(self, places: Mapping[int, Place | None]) -> None:
        for number in places:
            self.board.take(number)
        for number, place in places.items():
            if place is not None:
                self.board.put(number, place)

    def _target(self, out: Sequence[int]) -> int | None:
        able = [number for number in out if self.board.choices[number]]
        if not able or self._random.random() >= AIMED:
            return None
        pair = (self._random.choice(able), self._random.choice(able))
        return max(pair, key=lambda number: self._absent[number])

    def _around(self, number: int) -> set[int]:
        """Return the workloads that keep a workload from a random place."""
        board, rng = self.board, self._random
        workload = board.workloads[number]
        choices = board.choices[number]
        open_hosts = [choice for choice in choices if board.may_use_host(workload, choice.host)]
        choice = rng.choice(open_hosts if open_hosts and rng.random() < 0.7 else choices)
        count = min(len(choice.gpus), workload.gpus + rng.randrange(4))
        removed = set()
        for gpu in rng.sample(choice.gpus, count):
            removed |= board.on[gpu]
        for other, place in enumerate(board.places):
            if place is None:
                continue
            peer = board.workloads[other]
            if workload.near is not None and peer.near == workload.near and place.host != choice.host:
                removed.add(other)
            if workload.apart is not None and peer.apart == workload.apart and place.host == choice.host:
                removed.add(other)
        return removed

    def _neighbors(self) -> set[int]:
        """Return the workloads of a few GPUs.

        Sometimes, all workloads of a `near` group are added.
        """
        board, rng = self.board, self._random
        used = [gpu for gpu, here in enumerate(board.on) if here]
        if not used:
            return set()
        seed = min(rng.sample(used, min(2, len(used))), key=lambda gpu: board.states.load[board.state[gpu]])
        count = rng.randint(1, MOST_EMPTIED)
        same = [gpu for gpu in used if board.host_of[gpu] == board.host_of[seed]]
        pool = same if rng.random() < 0.4 else used
        gpus = {seed, *rng.sample(pool, min(count, len(pool)))}
        removed = set().union(*(board.on[gpu] for gpu in gpus))
        if rng.random() < 0.3:
            words = sorted({board.workloads[number].near or "" for number in removed} - {""})
            if words:
                word = rng.choice(words)
                removed |= {n for n, w in enumerate(board.workloads) if w.near == word and board.places[n]}
        return removed

    def _ordered(self, numbers: Iterable[int], target: int | None) -> list[int]:
        """Return the workloads in the order in which they are placed."""
        rng, board = self._random, self.board
        way = rng.randrange(4)
        noise = {number: rng.random() for number in numbers}

        def rank(number: int) -> tuple[bool, int, int, float]:
            workload, size = board.workloads[number], -self._size[number]
            first, second = [
                (-workload.gpus, size),
                (int(workload.near is None), size),
                (-self._absent[number], 0),
                (0, 0),
            ][way]
            return number != target, first, second, noise[number]

        return sorted(noise, key=rank)

    # -- Placing ------------------------------------------------------------------------------------------------------

    def _best(self, number: int) -> Place | None:
        """Return the place that fits best, or None if no place has room.

        Some places are skipped at random.
        """
        board, rng = self.board, self._random
        workload = board.workloads[number]
        roomy = workload.near is not None and not board.near_total[workload.near] and rng.random() < 0.5
        best, rank = None, math.inf
        for choice in board.choices[number]:
            if rng.random() < SKIPPED or not board.may_use_host(workload, choice.host):
                continue
            ranked = self._ranked(choice, workload, roomy)
            if ranked is not None and ranked[0] < rank:
                rank, best = ranked[0], Place(choice.shape, choice.host, ranked[1])
        return best

    def _ranked(self, choice: Choice, workload: Workload, roomy: bool) -> tuple[float, tuple[int, ...]] | None:
        """Return (rank, GPUs) of the best GPUs of a choice, or None if it has no room."""
        board, states = self.board, self.board.states
        used, load, shape, apart = states.used, states.load, choice.shape, workload.apart
        self._examined += len(choice.gpus)
        ranks = []
        empty = 0
        for gpu in choice.gpus:
            state = board.state[gpu]
            then = states.more(state, shape)
            if not used[state]:
                empty += 1
            if then == FULL or (apart is not None and board.apart[apart, gpu]):
                continue
            opens = 0 if used[state] else 2 + board.cost_of[gpu] / self._most_cost * len(board.state)
            ranks.append((opens - load[then] / 1000, gpu))
        if len(ranks) < workload.gpus:
            return None
        ranks.sort()
        chosen = tuple(gpu for _rank, gpu in ranks[: workload.gpus])
        fresh = Counter(board.model_of[gpu] for gpu in chosen if not used[board.state[gpu]])
        if any(board.in_use[model] + count > self.case.most_of_model[model] for model, count in fresh.items()):
            return None
        total = sum(rank for rank, _gpu in ranks[: workload.gpus])
        return (-empty if roomy else total + 0.01 * empty), chosen
