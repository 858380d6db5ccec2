# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure packing: the gap to the optimum, a large fleet, and changes.

See docs/packing.md. PODS=FILE has requests and NODES=FILE has hosts, in the format of Alibaba's cluster-trace-gpu-v2023
(CSV, may be gzipped). The benchmark reads the lists of FGD's table from the folder of PODS. SEED selects the samples.
SIZE is the number of workloads of the large fleet (10,000, with 6 GPUs for every 10 workloads). Every layout must solve
its problem, and the MIG planner must accept it. Otherwise, the benchmark aborts.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import multiprocessing
import random
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Iterable, NamedTuple

from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing import check, exact
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.case import Case
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.geometry import geometry
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.model import (
    WHOLE,
    FleetGpu,
    Packing,
    Problem,
    Rules,
    Shape,
    Standing,
    Workload,
    mig,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.pack import pack
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.relaxed import least_of_groups
from tests.benchmark import fgd, group_cases
from tests.benchmark.amounts import amount

#: Request lists from FGD's published table. The result is the mean over these seeds.
FGD_LISTS, FGD_SEEDS = ("default", "gpushare40"), range(42, 52)
FIGURES = (
    "packing_gap_to_optimum",
    "packing_heuristic_gap_percent",
    "packing_groups_seconds",
    "packing_groups_unproven_gpus",
    "packing_groups_unproven_left_out",
    "packing_seconds",
    "packing_peak_memory",
    "replan_destroyed_over_fresh",
    *("packing_fgd_%s_%s" % (name, end) for name in FGD_LISTS for end in ("percent", "bound_percent")),
)
#: Lists in the folder of PODS that the heuristic and the search pack.
MOST_LISTS = 100
#: Random problems with groups and workloads with several GPUs.
GROUP_SEEDS = range(1, 26)
#: Part of an optimum's GPUs, so that a packing has to leave workloads out.
SHORT = 0.9
#: All GPUs have this model, because the trace's models have no MIG or no name.
MODEL = "A100-40GB"
WORKLOADS, GPUS_PER_WORKLOAD = 10_000, 0.6
REPLANS, CHANGED = 10, 0.05
#: GPUs per NUMA node. All GPUs of a host are one NVLink group.
NODE_GPUS = 4


class Request(NamedTuple):
    name: str
    gpus: int
    thousandths: int


def figures(options):
    """Yield (name, value, unit) or (name, None, reason)."""
    reason = None
    if not options.get("PODS") or not options.get("NODES"):
        reason = "needs PODS=FILE and NODES=FILE, as docs/packing.md says"
    elif exact.MISSING:
        reason = "OR-Tools is not installed"
    if reason is not None:
        yield from ((name, None, reason) for name in FIGURES)
        return
    requests, hosts = read_requests(options["PODS"]), read_hosts(options["NODES"])
    seed = int(options.get("SEED") or 1)
    parts = [request for request in requests if request.gpus == 1 and request.thousandths < 1000]
    fleet = fleet_of(hosts, len(parts))
    first = checked(Problem(fleet, as_workloads(parts)), "%d requests for a part of a GPU" % len(parts))
    if first.bound:
        yield "packing_gap_to_optimum", 100 * (first.score.gpus - first.bound) / first.bound, "percent"
    else:
        yield "packing_gap_to_optimum", None, "nothing was proven of the optimum"
    yield _heuristic_gap(options["PODS"], hosts, amount(options, MOST_LISTS, 1))
    yield from _groups(GROUP_SEEDS[: amount(options, len(GROUP_SEEDS), 1)])
    yield from _large(requests, hosts, amount(options, WORKLOADS, 20, "SIZE"), seed)
    yield _replans(parts, fleet, first, seed, amount(options, REPLANS, 2))
    for name in FGD_LISTS:
        yield from _online(name, options, FGD_SEEDS[: amount(options, len(FGD_SEEDS), 1)])


# -- Input --


def _rows(path: str, columns: Iterable[str]) -> list[dict[str, str]]:
    try:
        raw = Path(path).read_bytes()
        text = (gzip.decompress(raw) if path.endswith(".gz") else raw).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise SystemExit("bench: %s cannot be read: %s" % (path, error)) from error
    rows = list(csv.DictReader(text.splitlines()))
    missing = [column for column in columns if not rows or column not in rows[0]]
    if missing:
        raise SystemExit("bench: %s has no rows with a column %s" % (path, missing[0]))
    return rows


def _number(path: str, line: int, row: dict[str, str], column: str) -> int:
    try:
        return int(float(row[column] or 0))
    except ValueError as error:
        raise SystemExit("bench: %s:%d: %s is %r, not a number" % (path, line, column, row[column])) from error


def read_requests(path: str) -> list[Request]:
    """Return the requests that ask for GPUs."""
    rows = enumerate(_rows(path, ("name", "num_gpu", "gpu_milli")), 2)
    found = [
        Request(row["name"], _number(path, line, row, "num_gpu"), _number(path, line, row, "gpu_milli"))
        for line, row in rows
    ]
    return [request for request in found if request.gpus and request.thousandths]


def read_hosts(path: str) -> list[tuple[str, int]]:
    rows = enumerate(_rows(path, ("sn", "gpu")), 2)
    return [(row["sn"], _number(path, line, row, "gpu")) for line, row in rows]


def nearest(thousandths: int) -> Shape:
    """Return the plain MIG profile with the nearest share of compute slices.

    If two are equally near, return the profile with less memory.
    """
    capacity = geometry(MODEL).capacity
    plain = [profile for profile in capacity.profiles.values() if profile.name.endswith("gb")]
    return mig(
        min(plain, key=lambda p: (abs(p.compute_slices / capacity.compute_slices - thousandths / 1000), p.units)).name
    )


def shape_of(request: Request) -> Shape:
    return WHOLE if request.gpus > 1 or request.thousandths >= 1000 else nearest(request.thousandths)


def as_workloads(requests: list[Request]) -> tuple[Workload, ...]:
    return tuple(Workload(request.name, (shape_of(request),), request.gpus) for request in requests)


def fleet_of(hosts: list[tuple[str, int]], most: int) -> tuple[FleetGpu, ...]:
    """Return the hosts' first GPUs.

    If there are too few, repeat the hosts with other names.
    """
    if not any(count for _name, count in hosts):
        raise SystemExit("bench: the hosts have no GPUs")
    found: list[FleetGpu] = []
    turn = 0
    while len(found) < most:
        for name, count in hosts:
            host = name if not turn else "%s-%d" % (name, turn)
            found += [FleetGpu(host, n, MODEL, n // NODE_GPUS, 0) for n in range(count)]
        turn += 1
    return tuple(found[:most])


def sample(requests: list[Request], count: int, rng: random.Random) -> list[Request]:
    """Return a sample of requests.

    If there are too few, repeat some.
    """
    chosen = rng.sample(requests, count) if len(requests) >= count else rng.choices(requests, k=count)
    return [request._replace(name="w%05d" % n) for n, request in enumerate(chosen)]


# -- Measurements --


def checked(problem: Problem, what: str, solver: str = "auto") -> Packing:
    packing = pack(problem, solver)
    wrong = check.problems(problem, packing)
    if wrong:
        raise SystemExit("bench: %s: the packing is wrong: %s" % (what, wrong[0]))
    _say(what, packing)
    return packing


def _say(what: str, packing: Packing, more: str = "") -> None:
    score = packing.score
    print(
        "%s: %d GPUs (at least %s), %d left out, %d moved, %d instances destroyed; %s, %s%s"
        % (
            what,
            score.gpus,
            "not known" if packing.bound is None else packing.bound,
            len(packing.unplaced),
            score.moved,
            score.destroyed,
            packing.by,
            "proven" if packing.proven else "not proven",
            more,
        ),
        file=sys.stderr,
    )


def _large(requests: list[Request], hosts: list[tuple[str, int]], size: int, seed: int):
    """Pack two sets of requests on a large fleet.

    One set has the file's mix of requests and exceeds the fleet. The other set has no requests for one whole GPU.
    """
    rng = random.Random(seed)
    several = [request for request in requests if request.gpus > 1]
    parts = [r for r in requests if r.gpus == 1 and geometry(MODEL).load(shape_of(r)) < 1000]
    count = round(size * len(several) / len(requests))
    mixes = {"as mixed": sample(requests, size, rng)}
    if parts:
        fitting = (sample(several, count, rng) if several else []) + sample(parts, size - count, rng)
        mixes["without requests for one whole GPU"] = [r._replace(name="w%05d" % n) for n, r in enumerate(fitting)]
    fleet = fleet_of(hosts, int(size * GPUS_PER_WORKLOAD))
    seconds, peaks = [], []
    for name, mix in mixes.items():
        problem = Problem(fleet, as_workloads(mix))
        # Each packing runs in its own process, so that the process's peak memory belongs to one packing alone.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            packing, took, peak = pool.submit(timed, problem).result()
        wrong = check.problems(problem, packing)
        if wrong:
            raise SystemExit("bench: %d workloads %s: the packing is wrong: %s" % (size, name, wrong[0]))
        what = "%d workloads %s on %d GPUs" % (size, name, len(fleet))
        _say(what, packing, "; %.1f s, %.0f MiB" % (took, peak))
        seconds.append(took)
        peaks.append(peak)
    yield "packing_seconds", max(seconds), "s"
    yield "packing_peak_memory", max(peaks), "MiB"


def timed(problem: Problem) -> tuple[Packing, float, float]:
    """Return (packing, seconds, the process's peak memory in MiB)."""
    start = time.perf_counter()
    packing = pack(problem)
    return packing, time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _heuristic_gap(path: str, hosts: list[tuple[str, int]], most: int) -> tuple[str, float, str]:
    """Return the largest gap between the heuristic's and the search's results.

    The function packs each list in the file's folder three times: its requests for parts of GPUs on enough GPUs and on
    too few, and all requests on the hosts. The gap is how many more GPUs the heuristic uses, or how many more workloads
    it leaves out, in percent of the search's number.
    """
    whole = fleet_of(hosts, sum(count for _host, count in hosts))
    largest = 0.0
    for file in sorted(Path(path).parent.glob("*pod-list-*.csv*"))[:most] or [Path(path)]:
        requests = read_requests(str(file))
        parts = as_workloads([r for r in requests if r.gpus == 1 and r.thousandths < 1000])
        fleet = fleet_of(hosts, len(parts))
        enough, gap = _gap(Problem(fleet, parts), "%s, parts" % file.name)
        problems = {
            "parts on too few GPUs": Problem(fleet[: int(SHORT * enough)], parts),
            "all": Problem(whole, as_workloads(requests)),
        }
        gaps = [gap, *(_gap(problem, "%s, %s" % (file.name, what))[1] for what, problem in problems.items())]
        largest = max(largest, *gaps)
    return "packing_heuristic_gap_percent", largest, "percent"


def _gap(problem: Problem, what: str) -> tuple[int, float]:
    """Return the search's number of GPUs, and the heuristic's gap in percent."""
    found, best = checked(problem, "%s, heuristic" % what, "heuristic"), checked(problem, "%s, search" % what)
    pairs = (len(found.unplaced), len(best.unplaced)), (found.score.gpus, best.score.gpus)
    return best.score.gpus, max(100 * (mine - least) / max(least, 1) for mine, least in pairs)


def _groups(seeds: Iterable[int]):
    """Yield the results for 60 workloads with `near`, `apart` and several GPUs each.

    The seconds are CPU time. The other results are the largest differences from the proven bounds.
    """
    seconds, gpus, left_out = 0.0, 0, 0
    for seed in seeds:
        problem = group_cases.groups(seed)
        start = time.process_time()
        packing = checked(problem, "groups of seed %d" % seed)
        seconds = max(seconds, time.process_time() - start)
        fewest = least_of_groups(Case(problem))
        left_out = max(left_out, 0 if packing.proven else packing.score.unplaced - fewest.left_out)
        if packing.score.unplaced == fewest.left_out:
            gpus = max(gpus, packing.score.gpus - max(fewest.gpus, packing.bound or 0))
    yield "packing_groups_seconds", seconds, "s"
    yield "packing_groups_unproven_gpus", gpus, "count"
    yield "packing_groups_unproven_left_out", left_out, "count"


def _online(name: str, options, seeds: Iterable[int]):
    """Yield the allocated share of all GPUs for a list, and the share's bound."""
    figure, bound = ("packing_fgd_%s_%s" % (name, end) for end in ("percent", "bound_percent"))
    path = next(Path(options["PODS"]).parent.glob("*pod-list-%s.csv*" % name), None)
    if path is None:
        yield from ((each, None, "the folder of PODS has no list %s" % name) for each in (figure, bound))
        return
    columns = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
    demands = [fgd.demand_of(row) for row in _rows(str(path), columns)]
    hosts = fgd.hosts_of(_rows(options["NODES"], ("sn", "cpu_milli", "memory_mib", "gpu", "model")))
    outcomes = [fgd.run(hosts, demands, seed) for seed in seeds]
    print(
        "list %s: %s" % (name, ", ".join("%.2f of at most %.2f %%" % outcome for outcome in outcomes)), file=sys.stderr
    )
    yield figure, statistics.mean(outcome.allocated for outcome in outcomes), "percent"
    yield bound, statistics.mean(outcome.bound for outcome in outcomes), "percent"


def _replans(parts: list[Request], fleet: tuple[FleetGpu, ...], first: Packing, seed: int, replans: int):
    """Return the number of instances that replans destroy.

    The number is divided by the number for packing from scratch. Before each replan, 5 % of the workloads change. A
    changed workload gets the request of a random workload from the file.
    """
    today = tuple(Standing(s.host, s.index, s.shape, s.start, s.workload) for s in first.standing)
    mine = fresh = 0
    for number in range(replans):
        rng = random.Random(seed * 1000 + number)
        workloads = list(as_workloads(parts))
        for n in rng.sample(range(len(parts)), round(CHANGED * len(parts))):
            workloads[n] = dataclasses.replace(workloads[n], options=(shape_of(rng.choice(parts)),))
        problem = Problem(fleet, tuple(workloads), today, Rules())
        replan = checked(problem, "replan %d" % (number + 1))
        afresh = pack(dataclasses.replace(problem, today=()))
        if replan.score.gpus != afresh.score.gpus:
            counts = (number + 1, replan.score.gpus, afresh.score.gpus)
            print("replan %d takes %d GPUs, planning afresh %d: left out" % counts, file=sys.stderr)
            continue
        ends = check.destroyed(problem, afresh)
        there = {(s.key, s.shape, s.start, s.workload) for s in afresh.standing}
        home = {s.workload: s for s in today}
        moved = sum(
            (s.key, s.shape, s.start, s.workload) not in there
            for w in workloads
            for s in [home.get(w.name)]
            if s is not None and s.shape in w.options
        )
        print("afresh: %d moved, %d instances destroyed" % (moved, ends), file=sys.stderr)
        mine, fresh = mine + replan.score.destroyed, fresh + ends
    if not fresh:
        return "replan_destroyed_over_fresh", None, "planning afresh destroyed nothing"
    return "replan_destroyed_over_fresh", mine / fresh, "ratio"
