# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find useful patterns if there are too many to list, and a lower bound.

Pure, but needs OR-Tools.

A fleet with 1,000 different quotas has more patterns than any list can hold. Column generation (Gilmore and Gomory,
1961) finds the patterns that matter. It solves a linear program in which a fraction of a GPU may have a pattern. The
program's prices say how much of a GPU each shape is worth. Patterns that are worth more than a GPU are added until none
is left.

The prices also prove a lower bound for the number of GPUs: if no pattern is worth more than t GPUs, the workloads need
at least the sum of their prices divided by t.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Iterable, Mapping, NamedTuple

from ..techniques.registry import technique_of
from .case import Case, shapes_wanted
from .geometry import Geometry, Pattern
from .model import WHOLE, Shape

if TYPE_CHECKING:
    pywraplp: Any
    cp_model: Any
else:
    try:
        from ortools.linear_solver import pywraplp
        from ortools.sat.python import cp_model
    except ImportError:
        # exact.MISSING has the reason, and `columns` is then not called.
        pywraplp = cp_model = None

#: Maximum number of rounds. A round adds the patterns that the previous round's prices make useful.
MOST_ROUNDS = 300
#: Maximum number of rounds with an exact search for the most valuable pattern.
MOST_SEARCHES = 40
#: Maximum number of patterns to return per model.
MOST_USEFUL = 1500
#: Deterministic seconds per model and round for the search for the most valuable pattern.
SECONDS = 0.2
#: Prices are multiplied by this factor and rounded up, because the search for a pattern counts in integers.
SCALE = 1_000_000
#: Cost in GPUs of a part without a place. It exceeds the part's share of any GPU.
LEFT_OUT = 10.0
#: A pattern is added if it is worth more than a GPU by at least this amount.
GAIN = 1e-6


class Columns(NamedTuple):
    """Patterns by model, and a lower bound for the number of GPUs."""

    patterns: dict[str, list[Pattern]]
    bound: int


class _Best(NamedTuple):
    """The result of a search for valuable patterns.

    `patterns` has the best one last. No pattern has a higher value than `bound`.
    """

    patterns: tuple[Pattern, ...]
    bound: float


def columns(case: Case, known: Mapping[str, Iterable[Pattern]]) -> Columns:
    """Return useful patterns and a lower bound.

    `known` has the initial patterns by model. The bound ignores all restrictions except size, so it is also valid for
    workloads with several GPUs or affinities.
    """
    program = _Program(case)
    for model, patterns in known.items():
        for pattern in patterns:
            program.add(model, pattern)
    best, center, searches = 0.0, None, 0
    for _round in range(MOST_ROUNDS):
        value = program.solve()
        if _up(best) >= _up(value):
            break
        prices = program.prices()
        if program.add_quick(prices):
            continue
        # Prices differ much from round to round. Prices between the new ones and the best ones so far prove better
        # bounds (Wentges, 1997).
        if searches >= MOST_SEARCHES:
            break
        searches += 1
        trials = [prices] if center is None else [_between(prices, center), prices]
        for trial in trials:
            added, bound = program.add_best(trial, prices)
            if bound > best:
                best, center = bound, trial
            if added:
                break
        else:
            break
    return Columns(program.nearest(), _up(best))


def _between(prices: Mapping[Shape, float], others: Mapping[Shape, float]) -> dict[Shape, float]:
    return {shape: (price + others[shape]) / 2 for shape, price in prices.items()}


def _up(value: float) -> int:
    return math.ceil(value - 1e-6)


class _Program:
    """The linear program: how many GPUs of each model get each pattern."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.patterns: dict[str, list[Pattern]] = {model: [] for model in case.models()}
        #: Value that a useful pattern exceeds, by model: one GPU, or more if the model's GPUs are scarce.
        self._least: dict[str, float] = {}
        self._most = shapes_wanted(case)
        self._pricing = {model: _Pricing(case.geometry_of(model), self._most) for model in case.models()}
        able = {s for s in self._most if any(case.geometry_of(model).can_hold(s) for model in case.models())}
        self._kinds: Counter[tuple[Shape, ...]] = Counter()
        for workload in case.problem.workloads:
            options = tuple(sorted(able.intersection(workload.options)))
            if options:
                self._kinds[options] += workload.gpus
        self._solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        solver = self._solver
        infinity = solver.infinity()
        self._shapes = {shape: solver.Constraint(0, infinity) for shape in sorted(able)}
        self._models = {model: solver.Constraint(-infinity, case.most_of_model[model]) for model in case.models()}
        objective = solver.Objective()
        objective.SetMinimization()
        for options, count in self._kinds.items():
            kind = solver.Constraint(count, infinity)
            for shape in options:
                takes = solver.NumVar(0, infinity, "")
                kind.SetCoefficient(takes, 1)
                self._shapes[shape].SetCoefficient(takes, -1)
            out = solver.NumVar(0, infinity, "")
            kind.SetCoefficient(out, 1)
            objective.SetCoefficient(out, LEFT_OUT)

    def add(self, model: str, pattern: Pattern) -> bool:
        """Add a pattern of a model. Return False if the program already has it."""
        counts = Counter(shape for shape in pattern if shape in self._shapes)
        if not counts or pattern in self._pricing[model].known:
            return False
        self._pricing[model].known.add(pattern)
        self.patterns[model].append(pattern)
        gpus = self._solver.NumVar(0, self._solver.infinity(), "")
        self._solver.Objective().SetCoefficient(gpus, 1)
        self._models[model].SetCoefficient(gpus, 1)
        for shape, count in counts.items():
            self._shapes[shape].SetCoefficient(gpus, count)
        return True

    def solve(self) -> float:
        """Return the least number of GPUs, in fractions of GPUs."""
        if self._solver.Solve() != pywraplp.Solver.OPTIMAL:
            raise AssertionError("a program with a place for everything has no solution")
        return float(self._solver.Objective().Value())

    def prices(self) -> dict[Shape, float]:
        """Return the price of each shape, in GPUs."""
        self._least = {model: 1 - min(0.0, row.dual_value()) for model, row in self._models.items()}
        return {shape: max(0.0, row.dual_value()) for shape, row in self._shapes.items()}

    def add_quick(self, prices: Mapping[Shape, float]) -> int:
        """Add useful patterns from a quick search. Return their number."""
        return sum(
            self._add_if_useful(model, pattern, prices)
            for model, pricing in self._pricing.items()
            for pattern in pricing.quick(prices)
        )

    def add_best(self, trial: Mapping[Shape, float], prices: Mapping[Shape, float]) -> tuple[int, float]:
        """Search for patterns at the prices `trial`. Add those useful at `prices`.

        Returns (number of added patterns, the lower bound that `trial` proves).
        """
        added, worth = 0, 1.0
        for model, pricing in self._pricing.items():
            for kind in pricing.kinds:
                best = pricing.best(trial, kind)
                worth = max(worth, best.bound)
                added += sum(self._add_if_useful(model, pattern, prices) for pattern in best.patterns)
        least = sum(count * min(trial[shape] for shape in options) for options, count in self._kinds.items())
        return added, least / worth

    def _add_if_useful(self, model: str, pattern: Pattern, prices: Mapping[Shape, float]) -> bool:
        return self._value(pattern, prices) > self._least[model] + GAIN and self.add(model, pattern)

    @staticmethod
    def _value(pattern: Pattern, prices: Mapping[Shape, float]) -> float:
        return sum(prices.get(shape, 0) for shape in pattern)

    def nearest(self) -> dict[str, list[Pattern]]:
        """Return the most useful patterns, with the highest value first."""
        self.solve()
        prices = self.prices()
        return {
            model: sorted(patterns, key=lambda p: (self._least[model] - self._value(p, prices), p))[:MOST_USEFUL]
            for model, patterns in self.patterns.items()
        }


class _Pricing:
    """Finds valuable patterns of a GPU model."""

    def __init__(self, geometry: Geometry, most: Mapping[Shape, int]) -> None:
        self.known: set[Pattern] = set()
        self._geometry = geometry
        self._most = {shape: count for shape, count in most.items() if geometry.can_hold(shape)}
        self.kinds = sorted({shape.kind for shape in self._most})
        slices = {shape: count for shape, count in self._most.items() if shape.kind == "mig"}
        #: Patterns of MIG instances are few, so list them all.
        self._slices = geometry.patterns(slices)[0] if slices else []

    def _of(self, kind: str, prices: Mapping[Shape, float]) -> list[Shape]:
        return [shape for shape in sorted(self._most) if shape.kind == kind and prices.get(shape, 0) > 0]

    def quick(self, prices: Mapping[Shape, float]) -> list[Pattern]:
        """Return patterns filled with the shapes of the highest price per load.

        Each pattern starts with another shape.
        """
        found: list[Pattern] = []
        for kind in self.kinds:
            technique = technique_of(kind)
            if technique is None or technique.equal_parts:
                found += self.best(prices, kind).patterns
                continue
            shapes = self._of(kind, prices)
            shapes.sort(key=lambda s: (-prices[s] / max(1, self._load(s)), s))
            missing = set(shapes)
            for first in shapes:
                if first in missing:
                    pattern = self._filled(first, shapes)
                    missing.difference_update(pattern)
                    found.append(pattern)
        return found

    def _load(self, shape: Shape) -> int:
        """Return the sum of a quota's shares of memory and SMs, in thousandths."""
        return 1000 * shape.memory_mib // self._geometry.memory_mib + 10 * shape.sm_percent

    def _filled(self, first: Shape, shapes: Iterable[Shape]) -> Pattern:
        """Return a pattern with `first`, and as many of the shapes as fit, in order."""
        memory = self._geometry.memory_mib - first.memory_mib
        sms = self._geometry.sm_percent - first.sm_percent
        limit = self._geometry.most_parts(first.kind)
        parts = sys.maxsize if limit is None else limit - 1
        pattern = [first]
        for shape in shapes:
            if shape.memory_mib > memory or shape.sm_percent > sms:
                continue
            count = min(self._most[shape] - (shape == first), parts)
            if shape.memory_mib:
                count = min(count, memory // shape.memory_mib)
            if shape.sm_percent:
                count = min(count, sms // shape.sm_percent)
            pattern += [shape] * count
            parts -= count
            memory -= count * shape.memory_mib
            sms -= count * shape.sm_percent
        return tuple(sorted(pattern))

    def best(self, prices: Mapping[Shape, float], kind: str) -> _Best:
        """Return the most valuable pattern of a kind of sharing."""
        shapes = self._of(kind, prices)
        if not shapes:
            return _Best((), 0.0)
        if kind == "whole":
            return _Best(((WHOLE,),), prices[WHOLE])
        if kind == "mig":
            value, pattern = max((sum(prices.get(shape, 0) for shape in each), each) for each in self._slices)
            return _Best((pattern,), value)
        technique = shapes[0].technique
        if technique is None:
            raise AssertionError("a shared GPU without a technique")
        return self._best_equal(prices, shapes) if technique.equal_parts else self._best_sum(prices, shapes)

    def _best_equal(self, prices: Mapping[Shape, float], shapes: list[Shape]) -> _Best:
        """Return the most valuable pattern of parts with equal limits.

        Each part counts with the size of the largest one. With n parts, each may have 1/n of the GPU, so the n fitting
        parts with the highest prices are taken.
        """
        geometry, found = self._geometry, _Best((), 0.0)
        limit = geometry.most_parts(shapes[0].kind) or sum(self._most[shape] for shape in shapes)
        for parts in range(1, limit + 1):
            able = [
                shape
                for shape in shapes
                if parts * shape.memory_mib <= geometry.memory_mib and parts * shape.sm_percent <= geometry.sm_percent
            ]
            if not able:
                break
            able.sort(key=lambda s: (-prices[s], s))
            pattern = [shape for shape in able for _unused in range(min(parts, self._most[shape]))][:parts]
            value = sum(prices[shape] for shape in pattern)
            if value > found.bound:
                found = _Best((tuple(sorted(pattern)),), value)
            if len(pattern) < parts:
                break
        return found

    def _best_sum(self, prices: Mapping[Shape, float], shapes: list[Shape]) -> _Best:
        """Return the most valuable pattern if the parts' sizes add up."""
        geometry = self._geometry
        model = cp_model.CpModel()
        limit = geometry.most_parts(shapes[0].kind)
        counts = {
            shape: model.new_int_var(0, min(self._most[shape], limit or self._most[shape]), "") for shape in shapes
        }
        model.add(sum(shape.memory_mib * count for shape, count in counts.items()) <= geometry.memory_mib)
        model.add(sum(shape.sm_percent * count for shape, count in counts.items()) <= geometry.sm_percent)
        if limit is not None:
            model.add(sum(counts.values()) <= limit)
        model.maximize(sum(math.ceil(prices[shape] * SCALE) * count for shape, count in counts.items()))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 1
        solver.parameters.max_deterministic_time = SECONDS
        steps = _Steps(counts)
        if solver.solve(model, steps) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            raise AssertionError("an empty GPU is no solution")
        return _Best(tuple(steps.patterns), solver.best_objective_bound / SCALE)


def _steps_class() -> Any:
    if cp_model is None:
        return None

    class Steps(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]  # OR-Tools is optional
        """Keeps every solution, because most of them are useful patterns."""

        def __init__(self, counts: Mapping[Shape, Any]) -> None:
            super().__init__()
            self._counts = counts
            self.patterns: list[Pattern] = []

        def on_solution_callback(self) -> None:
            parts = (shape for shape, count in self._counts.items() for _unused in range(self.value(count)))
            self.patterns.append(tuple(sorted(parts)))

    return Steps


_Steps = _steps_class()
