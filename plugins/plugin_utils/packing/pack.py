# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The way in: a problem to an answer, by the exact search where OR-Tools is there, else by the heuristic."""

from __future__ import annotations

import dataclasses

from . import exact
from .answer import Layouts, answer, within_bounds
from .case import Case
from .cells import Cells
from .greedy import greedy
from .model import WHOLE, Packing, Problem


def pack(problem: Problem, solver: str = "auto") -> Packing:
    """Pack the workloads onto the fleet with least churn against today.

    `solver`: auto, or heuristic to go without the search. Every workload is placed or in `unplaced` with the reason. Raises
    PackingError where the problem contradicts itself, CatalogueError where a GPU's model is not in the catalogue.
    """
    case = Case(problem)
    first, contents = greedy(case)
    notes = () if within_bounds(case, first.score) else ("the heuristic found nothing within the bounds on churn",)
    if solver == "heuristic" or exact.MISSING or not problem.gpus:
        if exact.MISSING and solver != "heuristic":
            notes = (*notes, "OR-Tools is missing (%s): pip install ortools for the optimum" % exact.MISSING)
        return dataclasses.replace(first, notes=notes)
    found = _search(case, contents)
    if found is None:
        notes = (*notes, "the search found nothing in time: raise seconds, or the bounds on churn")
        return dataclasses.replace(first, notes=notes)
    if within_bounds(case, first.score) and first.score.as_tuple() < found.score.as_tuple():
        return dataclasses.replace(first, proven=False, bound=found.bound, notes=notes)
    return found


def _search(case: Case, contents) -> Packing | None:
    from .read import Reader, hint

    cells = Cells(case, contents)
    search = exact.Search(cells)
    found = search.solve(hint(search, contents))
    if found is None:
        return None
    layouts: Layouts = Reader(search, found).layouts()
    made = answer(case, layouts, "cp-sat")
    whole = _is_whole(case, cells, made)
    aims = list(found.proven)
    before = aims[: aims.index("gpus") + 1]
    proven = whole and all(found.proven[aim] for aim in before)
    churn = proven and whole and not cells.pinned and all(found.proven.values())
    return dataclasses.replace(made, proven=proven, proven_churn=churn, bound=found.bound if whole else None)


def _is_whole(case: Case, cells: Cells, made: Packing) -> bool:
    """Return whether the proof of the search holds for the problem: it used every pattern and placed all workloads.

    Bound workloads that stay where the heuristic put them take nothing away from the proof where each takes whole GPUs, all
    GPUs are alike, and none was left out: wherever they stand, they take as many.
    """
    if not cells.complete:
        return False
    bound = [w for w in case.problem.workloads if w.bound]
    if cells.detailed or not bound:
        return True
    alike = len({(gpu.model, case.cost(gpu)) for gpu in case.problem.gpus}) == 1
    return alike and not made.unplaced and all(w.options == (WHOLE,) for w in bound)
