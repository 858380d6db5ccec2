# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Repeat the experiment of FGD's published table with online placement.

Source: Weng et al., USENIX ATC 2023. Requests arrive one by one. Each gets a place at once or fails for good, and
nothing moves. The experiment shuffles the list, and appends random requests from it. The result is the allocated share
of all GPUs when the arrived requests together ask for as many GPUs as the fleet has.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Iterable, NamedTuple

from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.online import WHOLE, Demand, Host, Online

try:
    from ortools.linear_solver import pywraplp
except ImportError:
    # The benchmark then prints n/a, and does not call `run`.
    pywraplp = None

#: The experiment draws arrivals until they ask for this multiple of the fleet's GPUs.
ARRIVALS = 1.3


class Outcome(NamedTuple):
    """The allocated share of all GPUs, and its upper bound, both in percent."""

    allocated: float
    bound: float


def demand_of(row: dict[str, str]) -> Demand:
    """Return the demand in a pod list's row."""
    cpu, memory, gpus = (int(float(row[column] or 0)) for column in ("cpu_milli", "memory_mib", "num_gpu"))
    share = int(float(row["gpu_milli"] or 0)) if gpus else 0
    models = tuple(sorted(set(filter(None, (row.get("gpu_spec") or "").split("|")))))
    return Demand(cpu, memory, gpus if share else 0, share or WHOLE, models)


def hosts_of(rows: Iterable[dict[str, str]]) -> list[Host]:
    return [
        Host(row["sn"], row["model"], int(row["cpu_milli"]), int(row["memory_mib"]), (WHOLE,) * int(row["gpu"]))
        for row in rows
    ]


def run(hosts: list[Host], demands: list[Demand], seed: int) -> Outcome:
    """Place a seed's arrivals."""
    capacity = sum(map(len, (host.gpus for host in hosts))) * WHOLE
    online, arrived, allocated = Online(hosts, Counter(demands)), 0, 0
    came: Counter[Demand] = Counter()
    for demand in _arrivals(demands, capacity, seed):
        size = demand.gpus * demand.thousandths
        if arrived + size > capacity:
            break
        arrived += size
        came[demand] += 1
        allocated += size if online.place(demand) is not None else 0
    return Outcome(100 * allocated / capacity, 100 * _most(hosts, came) / capacity)


def _arrivals(demands: list[Demand], capacity: int, seed: int) -> list[Demand]:
    rng = random.Random(seed)
    arrivals = sorted(demands)
    rng.shuffle(arrivals)
    size = sum(demand.gpus * demand.thousandths for demand in demands)
    while 0 < size < ARRIVALS * capacity:
        arrivals.append(rng.choice(demands))
        size += arrivals[-1].gpus * arrivals[-1].thousandths
    return arrivals


def _most(hosts: list[Host], demands: Counter[Demand]) -> float:
    """Return an upper bound of the allocated GPU share, in thousandths.

    The bound treats hosts of a type as one large host, and may split a request.
    """
    types = Counter((host.model, host.cpu_milli, host.memory_mib, len(host.gpus)) for host in hosts)
    solver = pywraplp.Solver.CreateSolver("GLOP")
    most = solver.infinity()
    limits = {
        kind: [solver.Constraint(-most, count * amount) for amount in (*kind[1:3], kind[3] * WHOLE)]
        for kind, count in types.items()
    }
    objective = solver.Objective()
    objective.SetMaximization()
    for demand, count in demands.items():
        row = solver.Constraint(-most, count)
        size = demand.gpus * demand.thousandths
        for kind, (cpu, memory, gpus) in limits.items():
            if (demand.models and kind[0] not in demand.models) or demand.gpus > kind[3]:
                continue
            if demand.cpu_milli > kind[1] or demand.memory_mib > kind[2]:
                continue
            placed = solver.NumVar(0, most, "")
            row.SetCoefficient(placed, 1)
            objective.SetCoefficient(placed, size)
            cpu.SetCoefficient(placed, demand.cpu_milli)
            memory.SetCoefficient(placed, demand.memory_mib)
            gpus.SetCoefficient(placed, size)
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        raise SystemExit("bench: the program of the bound has no solution")
    return float(objective.Value())
