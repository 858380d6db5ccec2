# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute lower bounds for a problem with bound workloads from smaller problems.

Each group of workloads that are near each other is packed onto each kind of host alone. The weight that does not fit there must
be left out. A group of workloads on different hosts has at most one member for each host. Then the number of GPUs is minimized
as if all GPUs were on one host.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Mapping, Tuple

from . import exact
from .case import Case, shapes_wanted
from .cells import Cells
from .exact import Least
from .geometry import Pattern
from .model import FleetGpu, Problem, Rules, Shape, Workload

if TYPE_CHECKING:
    # OR-Tools is optional: the module is typed by hand.
    cp_model: Any
else:
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        # exact.MISSING has the reason. The module is not used then.
        cp_model = None

#: Time for one smaller problem, in deterministic seconds.
SECONDS = 1.0
#: A kind of group ("near", "apart" or "") and its word.
Group = Tuple[str, str]
#: Maximum number of pairs of a group and a kind of hosts that are packed.
MOST_PAIRS = 50


def least_of_groups(case: Case) -> Least:
    """Return lower bounds.

    The bounds are 0 if OR-Tools is missing or if the problem is too large.
    """
    if exact.MISSING or not case.problem.gpus:
        return Least(0, 0)
    groups: dict[Group, list[Workload]] = defaultdict(list)
    for workload in case.problem.workloads:
        groups[_group(workload)].append(workload)
    hosts = _kinds_of_hosts(case)
    if len(groups) * len(hosts) > MOST_PAIRS:
        return Least(0, 0)
    left_out = dict.fromkeys(groups, 0)
    for (kind, word), members in groups.items():
        if kind == "near":
            left_out[kind, word] = min(_left_out(case, gpus, members) for gpus in hosts)
        elif kind == "apart":
            excess = len(members) - len({gpu.host for gpu in case.problem.gpus})
            left_out[kind, word] = sum(sorted(workload.counts for workload in members)[: max(0, excess)])
    return Least(sum(left_out.values()), _gpus(case, left_out))


def _group(workload: Workload) -> Group:
    """Return the group that counts the workload. Only one group counts it."""
    if workload.near is not None:
        return ("near", workload.near)
    return ("apart", workload.apart) if workload.apart is not None and workload.apart_on == "host" else ("", "")


def _kinds_of_hosts(case: Case) -> list[tuple[FleetGpu, ...]]:
    """Return the GPUs of one host of each kind."""
    by_host: dict[str, list[FleetGpu]] = defaultdict(list)
    for gpu in case.problem.gpus:
        by_host[gpu.host].append(gpu)
    kinds = {tuple((gpu.model, gpu.numa_node, gpu.link_group) for gpu in gpus): gpus for gpus in by_host.values()}
    return [tuple(gpus) for gpus in kinds.values()]


def _left_out(case: Case, gpus: tuple[FleetGpu, ...], group: list[Workload]) -> int:
    """Return a lower bound of the weight of this group that such a host leaves out."""
    alone = tuple(dataclasses.replace(workload, near=None, hosts=None) for workload in group)
    rules = Rules(
        headroom_memory_percent=case.rules.headroom_memory_percent, headroom_sm_percent=case.rules.headroom_sm_percent
    )
    return exact.Search(Cells(Case(Problem(gpus, alone, (), rules)), {})).least_left_out(SECONDS)


def _gpus(case: Case, left_out: Mapping[Group, int]) -> int:
    """Return a lower bound of the number of GPUs.

    `left_out`: the weight that each group leaves out. All other workloads are placed.
    """
    wanted = shapes_wanted(case)
    patterns: list[tuple[str, Pattern]] = []
    for key in case.models():
        listed, complete = case.geometry_of(key).patterns(wanted)
        if not complete:
            return 0
        patterns += [(key, pattern) for pattern in listed]
    model = cp_model.CpModel()
    picks = [model.new_int_var(0, max(0, case.most_of_model[key]), "") for key, _pattern in patterns]
    for key in case.models():
        model.add(sum(p for p, (each, _pattern) in zip(picks, patterns) if each == key) <= case.most_of_model[key])
    room: dict[Shape, list[Any]] = defaultdict(list)
    for pick, (_key, pattern) in zip(picks, patterns):
        for shape, count in Counter(pattern).items():
            room[shape].append(count * pick)
    kinds = Counter((tuple(sorted(set(w.options))), w.gpus, w.counts, _group(w)) for w in case.problem.workloads)
    use: dict[Shape, list[Any]] = defaultdict(list)
    outs: dict[Group, list[Any]] = defaultdict(list)
    for (options, gpus, weight, group), count in kinds.items():
        out = model.new_int_var(0, count, "")
        takes = [model.new_int_var(0, count, "") for _option in options]
        model.add(sum(takes) + out == count)
        outs[group].append(weight * out)
        for shape, take in zip(options, takes):
            use[shape].append(gpus * take)
    for shape, taken in use.items():
        model.add(sum(taken) <= sum(room[shape]))
    for group, weights in outs.items():
        model.add(sum(weights) == left_out[group])
    model.minimize(sum(picks))
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = case.rules.seed
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = SECONDS
    known = solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return round(solver.best_objective_bound) if known else 0
