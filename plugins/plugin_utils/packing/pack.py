# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Solve a packing problem. This module is the package's entry point.

Uses the exact search if OR-Tools is installed, and otherwise the heuristic.
"""

from __future__ import annotations

import dataclasses

from . import exact
from .answer import Layouts, answer, within_bounds
from .case import Case
from .cells import Cells
from .greedy import greedy
from .model import WHOLE, Packing, Problem
from .read import Reader, hint
from .volume import least_gpus


def pack(problem: Problem, solver: str = "auto") -> Packing:
    """Pack the workloads onto the fleet with the least change to the current layout.

    `solver` is "auto", or "heuristic" to skip the exact search. `unplaced` has each workload that cannot be placed,
    with the reason. Raises PackingError if the problem is contradictory. Raises CatalogueError if the catalogue does
    not contain the model of a GPU.
    """
    case = Case(problem)
    first, contents = greedy(case)
    first = _with_bound(case, first, least_gpus(case))
    notes = () if within_bounds(case, first.score) else ("the heuristic found nothing within the limits of changes",)
    if solver == "heuristic" or exact.MISSING or not problem.gpus:
        if exact.MISSING and solver != "heuristic":
            notes = (*notes, "OR-Tools is missing (%s): run `pip install ortools` to get the optimum" % exact.MISSING)
        return dataclasses.replace(first, notes=notes)
    packing = _search(case, contents)
    if packing is None:
        notes = (*notes, "the search found nothing in time: raise `seconds`%s" % _or_limits(case))
        return dataclasses.replace(first, notes=notes)
    if within_bounds(case, first.score) and first.score.as_tuple() < packing.score.as_tuple():
        bound = max(first.bound or 0, packing.bound or 0) or None
        return dataclasses.replace(first, proven=False, bound=bound, notes=notes)
    return packing


def _or_limits(case: Case) -> str:
    limits = [name for name in ("most_moved", "most_destroyed") if getattr(case.rules, name) is not None]
    return ", or %s" % " or ".join(limits) if limits else ""


def _with_bound(case: Case, packing: Packing, *bounds: int | None) -> Packing:
    """Return the packing with the largest of these bounds for the number of GPUs.

    A bound is valid only if all workloads have a place. A number of GPUs that equals the bound is proven.
    """
    if packing.unplaced or (case.rules.policy, case.rules.aim) != ("binpack", "gpus"):
        return packing
    bound = max(packing.bound or 0, *(bound or 0 for bound in bounds))
    return dataclasses.replace(packing, bound=bound, proven=packing.proven or bound == packing.score.gpus)


def _search(case: Case, contents) -> Packing | None:
    cells = Cells(case, contents)
    search = exact.Search(cells)
    least = max(cells.least, least_gpus(case))
    solution = search.solve(hint(search, contents), least)
    if solution is None:
        return None
    layouts: Layouts = Reader(search, solution).layouts()
    made = answer(case, layouts, "cp-sat")
    whole = _is_whole(case, cells, made)
    aims = list(solution.proven)
    before = aims[: aims.index("gpus") + 1]
    proven = whole and all(solution.proven[aim] for aim in before)
    churn = proven and whole and not cells.pinned and all(solution.proven.values())
    made = dataclasses.replace(made, proven=proven, proven_churn=churn, bound=solution.bound if whole else None)
    return _with_bound(case, made, least)


def _is_whole(case: Case, cells: Cells, made: Packing) -> bool:
    """Return whether the search proves an optimum for the whole problem.

    It does if it considers every pattern and places every workload. The heuristic may still place bound workloads if
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
