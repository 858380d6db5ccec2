# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Place items on as few identical cards as possible. Pure and deterministic.

Only a whole group of items can be checked for whether it fits on a card. The search starts with best fit. In each later
round, it empties a few random cards and places their items again (ruin and recreate: Schrimpf et al., Record breaking
optimization results using the ruin and recreate principle, 2000). The number of rounds is limited instead of the time,
so the result is the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Callable, Sequence

Group = tuple[int, ...]


@dataclass(frozen=True)
class Weight:
    """Evaluation of a group of items on one card.

    A group is allowed if `fits` is true. The other values are costs.
    """

    fits: bool
    #: Share of time in which the card's compute is saturated, and probability that its memory is exceeded.
    saturated: float = 0.0
    over: float = 0.0


@dataclass(frozen=True)
class Limits:
    """Limits of a search.

    saturated: maximum of the mean over all cards. over: maximum of each card, also part of `fits`. rounds: number of
    rounds. candidates: number of cards to try for an item. seed: random seed.
    """

    saturated: float
    over: float
    rounds: int
    candidates: int
    seed: int


#: Costs in cards: of a mean saturation above the limit, of saturation, and of exceeded memory.
_BEYOND, _SATURATED, _OVER = 20.0, 0.02, 0.15
#: Weights for the choice of a card: the risk of exceeding the card's memory, and the number of items on the card.
_RISK, _FILLED = 0.05, 0.02
#: Randomness of the choice of a card, and the probability and maximum extra cost of accepting a worse solution.
_NOISE, _FOLLOW, _WORSE = 0.5, 0.1, 0.02
#: Minimum and maximum number of cards to empty in a round.
_RUINED = (2, 4)


class Search:
    """A search for groups of items.

    `weigh` evaluates a sorted group, and its results are cached. `size` has each item's size. `capacity` is a card's
    capacity.
    """

    def __init__(
        self, weigh: Callable[[Group], Weight], size: Sequence[float], capacity: float, limits: Limits
    ) -> None:
        self._weigh, self._size, self._capacity, self._limits = weigh, size, capacity, limits
        self._known: dict[Group, Weight] = {}
        self._random = Random(limits.seed)
        # Avoid division by zero.
        self._allowed = max(limits.saturated, 1e-9)
        self._over = max(limits.over, 1e-12)

    def weight(self, group: Group) -> Weight:
        """Return the cached evaluation of a group."""
        if group not in self._known:
            # A single item always fits, because each one has its own card today.
            self._known[group] = self._weigh(group) if len(group) > 1 else Weight(True)
        return self._known[group]

    def run(self) -> list[Group]:
        """Return the best groups, with each item in one of them.

        All groups fit, and the mean saturation is within its limit.
        """
        order = sorted(range(len(self._size)), key=lambda i: (-self._size[i], i))
        now = best = self._insert([], order, 0.0)
        cost = least = self._cost(now)
        for _round in range(self._limits.rounds if len(best) > 1 else 0):
            ruined = set(self._random.sample(range(len(now)), min(self._random.randint(*_RUINED), len(now))))
            loose = [item for k in sorted(ruined) for item in now[k]]
            self._random.shuffle(loose)
            new = self._insert([group for k, group in enumerate(now) if k not in ruined], loose, _NOISE)
            price = self._cost(new)
            if price <= cost + (_WORSE if self._random.random() < _FOLLOW else 0.0):
                now, cost = new, price
            if price < least:
                best, least = new, price
        return sorted(tuple(sorted(group)) for group in best)

    def _cost(self, groups: Sequence[Group]) -> float:
        weights = [self.weight(group) for group in groups]
        saturated = sum(weight.saturated for weight in weights) / self._allowed
        over = sum(weight.over for weight in weights) / self._over
        count = len(groups)
        beyond = max(0.0, saturated - count)
        return count + _BEYOND * beyond + _SATURATED * saturated / max(count, 1) + _OVER * over

    def _insert(self, groups: list[Group], items: Sequence[int], noise: float) -> list[Group]:
        groups = list(groups)
        filled = [sum(self._size[i] for i in group) for group in groups]
        saturated = sum(self.weight(group).saturated for group in groups)
        for item in items:
            room = self._capacity - self._size[item]
            open_ = [k for k, fill in enumerate(filled) if fill <= room]
            open_.sort(key=lambda k: -filled[k])
            best, fitting = None, 0
            for k in self._chosen(open_, first=not noise):
                group = tuple(sorted((*groups[k], item)))
                new, old = self.weight(group), self.weight(groups[k])
                more = new.saturated - old.saturated
                if not new.fits or saturated + more > self._allowed * len(groups):
                    continue
                fitting += 1
                if fitting > self._limits.candidates:
                    break
                price = more / self._allowed * (1 + noise * self._random.random())
                price += _RISK * (new.over - old.over) / self._over - _FILLED * len(groups[k])
                if best is None or price < best[0]:
                    best = (price, k, group, more)
            if best is None:
                groups.append((item,))
                filled.append(self._size[item])
            else:
                _price, k, group, more = best
                groups[k] = group
                filled[k] += self._size[item]
                saturated += more
        return groups

    def _chosen(self, ordered: list[int], first: bool) -> list[int]:
        """Return the cards to try, the fullest first.

        With many cards, later rounds only try the fullest ones, and a random selection of the others.
        """
        most = self._limits.candidates
        if first or len(ordered) <= most:
            return ordered
        head = ordered[: most // 2]
        return head + self._random.sample(ordered[most // 2 :], most - len(head))
