# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find an optimal packing with CP-SAT, which counts GPUs by pattern.

The same problem always has the same result.

The goals are the fields of `Score`, in their order. Each one is optimized without making an earlier one worse. OR-Tools
is optional. If it cannot be imported, `MISSING` has the reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Hashable, Mapping, NamedTuple, Sequence

from .answer import squared
from .cells import Cell, Cells
from .geometry import MUST
from .model import Shape

try:
    from ortools.sat.python import cp_model

    MISSING = ""
except ImportError as error:
    cp_model = None
    MISSING = str(error)

#: Maximum number of choices of all cells for which the solver simplifies the model first.
MOST_SIMPLIFIED = 3000


class Solution(NamedTuple):
    """A solution of the exact search.

    `value` has each variable's value. `proven` has, for each aim, whether its value is proven to be optimal. `bound` is
    the lower bound for the number of GPUs, or for the cost or spread if that is the aim, or None.
    """

    value: Any
    proven: dict[str, bool]
    bound: int | None


class Least(NamedTuple):
    """Lower bounds of a problem.

    `left_out`: weight of the workloads that are left out. `gpus`: GPUs in use if exactly this weight is left out.
    """

    left_out: int
    gpus: int


class Search:
    """The CP-SAT model of a case.

    `picks[c, n]`: number of GPUs in cell c that get choice n of the cell.
    `stays[c, owner, shape]`: number of workloads that stay in cell c.
    `takes[kind, shape]`: number of workloads of a kind that get this shape.
    `outs[kind]`: number of workloads of a kind that are left out.
    `puts[workload, gpu, shape]`: 1 if a bound workload gets this shape on this GPU, 0 otherwise.
    `chosen[workload, domain, shape]`: 1 if a bound workload gets this shape on GPUs of this domain, 0 otherwise.
    `near_hosts[word, host]`: 1 if the workloads with this value of `near` are on this host, 0 otherwise.
    `bound_outs[workload]`: 1 if a bound workload is left out, 0 otherwise.
    """

    def __init__(self, cells: Cells) -> None:
        self.cells, self.case = cells, cells.case
        self.model = cp_model.CpModel()
        self.picks: dict[tuple[int, int], Any] = {}
        self.stays: dict[tuple[int, Hashable, Shape], Any] = {}
        self.takes: dict[tuple[tuple, Shape], Any] = {}
        self.outs: dict[tuple, Any] = {}
        self.puts: dict[tuple[str, tuple[str, int], Shape], Any] = {}
        self.chosen: dict[tuple[str, tuple, Shape], Any] = {}
        self.near_hosts: dict[tuple[str, str], Any] = {}
        self.bound_outs: dict[str, Any] = {}
        self._room: dict[Shape, list] = defaultdict(list)
        self._out: list = []
        self._near: dict[str, list] = {}
        self._apart: dict[str, list] = {}
        self._apart_hosts: dict[tuple[str, str], list] = defaultdict(list)
        self._bound_stay: dict[str, list] = defaultdict(list)
        self._on_gpu: dict[tuple[tuple[str, int], Shape], list] = defaultdict(list)
        for workload in cells.bound:
            self._bound_workload(workload)
        self._affinity()
        for number, cell in enumerate(cells.cells):
            self._cell(number, cell)
        self._kinds()
        self._reserve()
        self.aims = self._aims()

    # -- Constraints --------------------------------------------------------------------------------------------------

    def _cell(self, number: int, cell: Cell) -> None:
        model, size = self.model, len(cell.gpus)
        picks = [model.new_int_var(0, size, "") for _unused in cell.choices]
        for n, pick in enumerate(picks):
            self.picks[number, n] = pick
        if cell.pins:
            self._add(sum(picks) == size)
        else:
            self._add(sum(picks) <= size)
        room: dict[Shape, list] = defaultdict(list)
        for pick, (pattern, _settled) in zip(picks, cell.choices):
            for shape, count in Counter(pattern).items():
                room[shape].append(count * pick)
        keep: dict[tuple[Hashable, Shape], list] = defaultdict(list)
        for pick, (_pattern, settled) in zip(picks, cell.choices):
            for pair, count in cell.kept(settled).items():
                if pair[0] != MUST:
                    keep[pair].append(count * pick)
        here: dict[Shape, list] = defaultdict(list)
        for (owner, shape), kept in keep.items():
            most = size * sum(o == owner and s == shape for o, (s, _p) in zip(cell.owners, cell.items))
            stay = model.new_int_var(0, most, "")
            model.add(stay <= sum(kept))
            self.stays[number, owner, shape] = stay
            if isinstance(owner, str):
                model.add(stay <= self.puts.get((owner, cell.gpus[0], shape), 0))
                self._bound_stay[owner].append(stay)
            else:
                here[shape].append(stay)
        pins = Counter(cell.pins)
        for shape in sorted({*room, *pins}):
            self._room[shape] += room[shape]
            taken = [*here[shape], *self._on_gpu.get((cell.gpus[0], shape), ()), pins[shape] * size]
            if len(taken) > 1:
                self._add(sum(taken) <= sum(room[shape]))
        for (key, shape), puts in self._on_gpu.items() if self.cells.detailed else ():
            if key == cell.gpus[0] and shape not in room:
                model.add(sum(puts) == 0)

    def _bound_workload(self, workload) -> None:
        case, model = self.case, self.model
        sets = []
        for place, gpus in case.domains[workload.within].items():
            gpus = [gpu for gpu in gpus if case.allowed(workload, gpu)]
            for shape in sorted(set(workload.options)):
                able = [gpu for gpu in gpus if case.geometry(gpu).can_hold(shape)]
                if len(able) < workload.gpus:
                    continue
                chosen = self.chosen[workload.name, place, shape] = model.new_bool_var("")
                sets.append((place[0], chosen))
                puts = [model.new_bool_var("") for _unused in able]
                model.add(sum(puts) == workload.gpus * chosen)
                for gpu, put in zip(able, puts):
                    self.puts[workload.name, gpu.key, shape] = put
                    self._on_gpu[gpu.key, shape].append(put)
        out = self.bound_outs[workload.name] = model.new_bool_var("")
        self._add(sum(chosen for _host, chosen in sets) + out == 1)
        self._out.append(workload.counts * out)
        if workload.near is not None:
            self._near.setdefault(workload.near, []).append(sets)
        if workload.apart is not None:
            if workload.apart_on == "host":
                for host, chosen in sets:
                    self._apart_hosts[workload.apart, host].append(chosen)
            self._apart.setdefault(workload.apart, []).append(workload)

    def _affinity(self) -> None:
        for word, groups in self._near.items():
            names = dict.fromkeys(host for sets in groups for host, _chosen in sets)
            hosts = {host: self.model.new_bool_var("") for host in names}
            self.near_hosts.update({(word, host): variable for host, variable in hosts.items()})
            self.model.add(sum(hosts.values()) <= 1)
            for sets in groups:
                for host, chosen in sets:
                    self.model.add_implication(chosen, hosts[host])
        for word, members in self._apart.items():
            everywhere = {w.name for w in members}
            by_gpu: dict[tuple[str, int], list] = defaultdict(list)
            for (name, key, _shape), put in self.puts.items():
                if name in everywhere:
                    by_gpu[key].append(put)
            for puts in by_gpu.values():
                self.model.add(sum(puts) <= 1)
            for (group, _host), chosen in self._apart_hosts.items():
                if group == word:
                    self.model.add(sum(chosen) <= 1)

    def _kinds(self) -> None:
        model = self.model
        use: dict[Shape, list] = defaultdict(list)
        for kind, names in self.cells.kinds.items():
            options, counts = kind
            takes = {shape: model.new_int_var(0, len(names), "") for shape in options}
            out = model.new_int_var(0, len(names), "")
            model.add(sum(takes.values()) + out == len(names))
            self._out.append(counts * out)
            self.outs[kind] = out
            for shape, take in takes.items():
                self.takes[kind, shape] = take
                use[shape].append(take)
                stays = [s for (_n, owner, has), s in self.stays.items() if owner == kind and has == shape]
                if stays:
                    model.add(sum(stays) <= take)
        for (_name, _key, shape), put in self.puts.items():
            use[shape].append(put)
        for parts in self.cells.pinned.values():
            for part in parts:
                use[part.shape].append(1)
        for shape, taken in use.items():
            self._add(sum(taken) <= sum(self._room[shape]))

    def _add(self, relation: Any) -> None:
        """Add a constraint.

        Python has already evaluated a comparison of two constants to true or false, which is no constraint.
        """
        if relation is False:
            self.model.add_bool_or([])
        elif relation is not True:
            self.model.add(relation)

    def _reserve(self) -> None:
        for model_key, count in self.case.rules.reserve_gpus.items():
            picks = [p for (n, _c), p in self.picks.items() if self.cells.cells[n].model == model_key]
            if count and picks:
                self.model.add(sum(picks) <= self.case.most_of_model[model_key])

    # -- Goals --------------------------------------------------------------------------------------------------------

    def _aims(self) -> dict[str, Any]:
        rules, cells = self.case.rules, self.cells.cells
        aims = {"unplaced": sum(self._out) + self.cells.left_out}
        if rules.policy == "spread":
            aims["spread"] = sum(
                squared(sum(self.case.geometry_of(cells[c].model).load(shape) for shape in cells[c].choices[n][0]))
                * pick
                for (c, n), pick in self.picks.items()
            )
        if rules.aim == "cost":
            aims["cost"] = sum(cells[c].cost * pick for (c, _n), pick in self.picks.items())
        aims["gpus"] = sum(self.picks.values())
        free = sum(name in self.case.home for names in self.cells.kinds.values() for name in names)
        stays = [stay for (_c, owner, _s), stay in self.stays.items() if not isinstance(owner, str)]
        moved = free - sum(stays) + self.cells.bound_moved
        for workload in self.cells.bound:
            if workload.name in self.case.home:
                whole = self.model.new_bool_var("")
                self.model.add(workload.gpus * whole <= sum(self._bound_stay[workload.name]))
                moved += 1 - whole
        aims["moved"] = moved
        aims["destroyed"] = sum(cell.instances * len(cell.gpus) for cell in cells) - sum(
            (cells[c].instances - cells[c].destroyed(cells[c].choices[n][1])) * pick
            for (c, n), pick in self.picks.items()
        )
        for aim, most in (("moved", rules.most_moved), ("destroyed", rules.most_destroyed)):
            if most is not None:
                self._add(aims[aim] <= most)
        return aims

    # -- The search ---------------------------------------------------------------------------------------------------

    def least_left_out(self, seconds: float) -> int:
        """Return a lower bound of the weight of the workloads that are left out.

        `seconds` limits the search. The bound is 0 if the search does not consider every pattern.
        """
        self.model.minimize(self.aims["unplaced"])
        solver = self._solver(seconds)
        known = solver.solve(self.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        return max(0, round(solver.best_objective_bound)) if known and self.cells.complete else 0

    def solve(self, hint: Mapping[int, int], least: Least, seconds: float, whole: bool = False) -> Solution | None:
        """Return the best solution, or None if none was found.

        Either no solution is within the limits, or the time was too short. `hint` has the variables' initial values by
        index. The search does not need to prove the bounds in `least` again. `seconds` limits the search. `whole`: whether
        the hint is a solution that leaves out no more than `least.left_out`.
        """
        left = seconds
        values: Sequence[int] | None = None
        solver = None
        proven = dict.fromkeys(self.aims, False)
        bound = None
        self._guess(hint)
        self._add(self.aims["unplaced"] >= least.left_out)
        aims = dict(self.aims)
        if whole:
            proven["unplaced"] = True
            self._add(aims.pop("unplaced") <= least.left_out)
            self._add(aims["gpus"] >= least.gpus)
        for number, (name, aim) in enumerate(aims.items()):
            if solver is not None and solver.value(aim) == 0:
                # No aim can be less than 0.
                proven[name] = True
                self._add(aim <= 0)
                continue
            self.model.minimize(aim)
            # Divide the remaining time among the remaining aims, so that no time is lost.
            solver = self._solver(left / (len(aims) - number))
            status = solver.solve(self.model)
            left -= solver.response_proto.deterministic_time
            proven[name] = status == cp_model.OPTIMAL
            if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                break
            if name in ("spread", "cost") or (name == "gpus" and bound is None):
                bound = round(solver.best_objective_bound)
            values = list(solver.response_proto.solution)
            # Later aims must not make this aim worse.
            self._add(aim <= round(solver.objective_value))
            if name == "unplaced" and round(solver.objective_value) == least.left_out:
                self._add(self.aims["gpus"] >= least.gpus)
            self._guess(dict(enumerate(values)))
        if values is None:
            return None
        return Solution(lambda variable: values[variable.index], proven, bound)

    def _guess(self, values: Mapping[int, int]) -> None:
        self.model.clear_hints()
        for index, value in values.items():
            self.model.add_hint(self.model.get_int_var_from_proto_index(index), value)

    def _solver(self, seconds: float) -> Any:
        rules = self.case.rules
        solver = cp_model.CpSolver()
        solver.parameters.random_seed = rules.seed
        solver.parameters.num_workers = rules.workers
        # Let the workers take turns by deterministic time, so that the result does not depend on the machine.
        solver.parameters.interleave_search = rules.workers > 1
        solver.parameters.linearization_level = 2
        # With thousands of choices, simplification takes longer than the search and loses the hint.
        solver.parameters.cp_model_presolve = len(self.picks) < MOST_SIMPLIFIED
        solver.parameters.max_deterministic_time = max(1.0, seconds)
        return solver
