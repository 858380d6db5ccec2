# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Solve a packing problem. This module is the package's entry point.

Uses the exact search if OR-Tools is installed, and otherwise the heuristic.
"""

from __future__ import annotations

import dataclasses

from . import exact
from .answer import Layouts, answer, standing_of, within_bounds
from .case import Case
from .cells import MOST_DECISIONS, Cells
from .exact import Least
from .greedy import Contents, greedy
from .model import WHOLE, Packing, Problem
from .read import Reader, hint
from .relaxed import least_of_groups
from .repair import repair
from .volume import least_gpus

#: If the heuristics leave out the fewest workloads and use at most this many GPUs above the bound, the search gets only this
#: share of its time.
NEAR_GPUS, SHORT = 2, 0.1


def pack(problem: Problem, solver: str = "auto") -> Packing:
    """Pack the workloads onto the fleet with the least change to the current layout.

    `solver` is "auto", or "heuristic" to skip the exact search. `unplaced` has each workload that cannot be placed,
    with the reason. Raises PackingError if the problem is contradictory. Raises CatalogueError if the catalogue does
    not contain the model of a GPU.
    """
    case = Case(problem)
    exactly = solver != "heuristic" and not exact.MISSING and bool(problem.gpus)
    first, contents, least = _heuristics(case, exactly)
    notes = () if within_bounds(case, first.score) else ("the heuristic found nothing within the limits of changes",)
    if not exactly:
        if exact.MISSING and solver != "heuristic":
            notes = (*notes, "OR-Tools is missing (%s): run `pip install ortools` to get the optimum" % exact.MISSING)
        return dataclasses.replace(first, notes=notes)
    grouped = any(workload.bound for workload in problem.workloads)
    unchanged = not (first.score.moved or first.score.destroyed)
    if grouped and first.proven and unchanged and within_bounds(case, first.score):
        # Without bound workloads, the search takes little time, and later plans destroy fewer instances of its result.
        return dataclasses.replace(first, proven_churn=True)
    packing = _search(case, first, contents, least)
    if packing is None:
        notes = (*notes, "the search found nothing in time: raise `seconds`%s" % _or_limits(case))
        return dataclasses.replace(first, notes=notes)
    if within_bounds(case, first.score) and first.score.as_tuple() < packing.score.as_tuple():
        bound = max(first.bound or 0, packing.bound or 0) or None
        return dataclasses.replace(first, proven=False, bound=bound, notes=notes)
    return packing


def _heuristics(case: Case, exactly: bool) -> tuple[Packing, Contents, Least]:
    """Return (result of the heuristics, workloads on each GPU, lower bounds).

    `exactly`: whether the exact search may compute lower bounds.
    """
    least = Least(0, least_gpus(case))
    first, contents = greedy(case)
    first = _with_bound(case, first, least)
    bound = sum(workload.bound for workload in case.problem.workloads)
    few = 0 < bound * len(case.problem.gpus) <= MOST_DECISIONS
    if not few or first.proven or case.rules.policy != "binpack" or not within_bounds(case, first.score):
        return first, contents, least
    if exactly:
        relaxed = least_of_groups(case)
        least = relaxed if relaxed.left_out else Least(0, max(least.gpus, relaxed.gpus))
    repaired = repair(case, contents, least)
    made = answer(case, {key: standing_of(case, key, parts) for key, parts in repaired.items()}, "heuristic")
    if made.score.as_tuple() < first.score.as_tuple() and within_bounds(case, made.score):
        first, contents = made, repaired
    return _with_bound(case, first, least), contents, least


def _seconds(case: Case, first: Packing, least: Least) -> float:
    """Return the time for the search.

    The time is short if the result of the heuristics is nearly optimal.
    """
    near = first.score.unplaced == least.left_out and first.score.gpus <= least.gpus + NEAR_GPUS
    fresh = not case.on and any(workload.bound for workload in case.problem.workloads)
    short = near and fresh and (case.rules.policy, case.rules.aim) == ("binpack", "gpus")
    return case.rules.seconds * (SHORT if short else 1)


def _or_limits(case: Case) -> str:
    limits = [name for name in ("most_moved", "most_destroyed") if getattr(case.rules, name) is not None]
    return ", or %s" % " or ".join(limits) if limits else ""


def _with_bound(case: Case, packing: Packing, least: Least) -> Packing:
    """Return the packing with the larger of its bounds for the number of GPUs.

    The bound is valid only if the fewest workloads are left out. If the number of GPUs is equal to it, it is proven.
    """
    if packing.score.unplaced != least.left_out or (case.rules.policy, case.rules.aim) != ("binpack", "gpus"):
        return packing
    bound = max(packing.bound or 0, least.gpus)
    return dataclasses.replace(packing, bound=bound, proven=packing.proven or bound == packing.score.gpus)


def _search(case: Case, first: Packing, contents: Contents, least: Least) -> Packing | None:
    """Return the result of the exact search, or None.

    The search starts from the result of the heuristics, which has these contents.
    """
    cells = Cells(case, contents)
    search = exact.Search(cells)
    if not least.left_out:
        least = Least(0, max(cells.least, least.gpus))
    whole = first.score.unplaced == least.left_out and within_bounds(case, first.score)
    solution = search.solve(hint(search, contents), least, _seconds(case, first, least), whole)
    if solution is None:
        return None
    layouts: Layouts = Reader(search, solution).layouts()
    made = answer(case, layouts, "cp-sat")
    whole = _is_whole(case, cells, made)
    aims = list(solution.proven)
    before = aims[: aims.index("gpus") + 1]
    proven = whole and all(solution.proven[aim] for aim in before)
    bound = solution.bound if whole and solution.proven["unplaced"] else None
    churn = proven and whole and not cells.pinned and all(solution.proven.values())
    made = dataclasses.replace(made, proven=proven, proven_churn=churn, bound=bound)
    return _with_bound(case, made, least)


def _is_whole(case: Case, cells: Cells, made: Packing) -> bool:
    """Return whether the search proves an optimum for the whole problem.

    The search proves it if it considers every pattern and places every workload. The heuristic may still place bound workloads if
    each of them uses whole GPUs, all GPUs are equal, and none was left out, because such workloads need the same number
    of GPUs anywhere.
    """
    if not cells.complete:
        return False
    bound = [w for w in case.problem.workloads if w.bound]
    if cells.detailed or not bound:
        return True
    alike = len({(gpu.model, case.cost(gpu)) for gpu in case.problem.gpus}) == 1
    return alike and not made.unplaced and all(w.options == (WHOLE,) for w in bound)
