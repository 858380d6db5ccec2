# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the MIG planner and module: distance to the optimum, planning time, module runs.

SEED chooses the random transitions, SIZE the GPUs of the fleet that is planned at once; CASES=FILE takes transitions
from a file instead and prints the outcome of each on standard error. FAULTS is the number of transitions in the sweep
of faults, once in any call, and on one GPU of three from any call on.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path

from amounts import amount
from mig_cases import judge, random_cases, read_cases

from ansible_collections.openfleet.gpu.plugins.module_utils.change import planner

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

TRANSITIONS = 10_000
FIGURES = (
    "mig_transitions",
    "mig_destroyed_over_optimum",
    "mig_destroyed_over_recreate_all",
    "mig_busy_destroyed",
    "mig_plan_p99",
    "mig_plan_10000_gpus",
    "mig_module_noop",
    "mig_module_apply",
    "mig_apply_8_gpus",
    "mig_apply_noop",
    "mig_fault_cases",
    "mig_fault_bad_endings",
)
#: Transitions whose every NVML call is made to fail and to die; half a minute for each on one core.
FAULT_TRANSITIONS = 10
#: For each transition, cases in which one GPU of three is sick; a third of a second for each.
SICK_CASES = 40
ROOT_ONLY = "partitioning needs root, also on the simulator"
#: Two layouts of eight H100 that have no instance in common.
RELAYOUTS = (
    [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "2g.20gb", "count": 2}]}],
    [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]}],
)
#: Runs of a whole process per figure; the median is printed.
RUNS = 7


def figures(options):
    """Yield (name, value or None, unit or the reason why there is no value)."""
    if options.get("CASES"):
        cases = list(read_cases(options["CASES"]))
    else:
        cases = list(random_cases(int(options.get("SEED") or 1), amount(options, TRANSITIONS, 100)))
    yield from _transitions(cases, verbose=bool(options.get("CASES")))
    yield "mig_plan_p99", _plan_p99(cases), "ms"
    size = int(options.get("SIZE") or 10_000)
    yield f"mig_plan_{size}_gpus", _plan_fleet(cases, size), "s"
    yield from _module(amount(options, RUNS, 1))
    yield from _command(amount(options, RUNS, 1))
    yield from _faults(
        int(options.get("SEED") or 1), amount(options, FAULT_TRANSITIONS, 1, "FAULTS"), amount(options, 0, 20)
    )


def _transitions(cases, verbose):
    outcomes = [judge(case) for case in cases]
    if verbose:
        for case, found in zip(cases, outcomes):
            print(
                "destroyed %d, of these busy %d: %s" % (found.destroyed, found.busy_destroyed, case.target),
                file=sys.stderr,
            )
    destroyed, least, recreated = (
        sum(getattr(found, field) for found in outcomes) for field in ("destroyed", "least_destroyed", "recreated")
    )
    print(f"destroyed: {destroyed} planned, {least} at the least, {recreated} by re-creating all", file=sys.stderr)
    yield "mig_transitions", len(outcomes), "count"
    yield "mig_destroyed_over_optimum", *_ratio(destroyed, least)
    yield "mig_destroyed_over_recreate_all", *_ratio(destroyed, recreated)
    # Where no arrangement spares a busy instance, the plan is refused before it starts; beyond these it must be none.
    yield "mig_busy_destroyed", sum(found.busy_destroyed - found.least_busy_destroyed for found in outcomes), "count"


def _ratio(part, whole):
    return (part / whole, "ratio") if whole else (None, "nothing had to be destroyed")


def _plan_p99(cases):
    seconds = []
    for case in cases:
        start = time.perf_counter()
        planner.plan_gpu(*case)
        seconds.append(time.perf_counter() - start)
    return statistics.quantiles(seconds, n=100)[98] * 1000 if len(seconds) > 1 else seconds[0] * 1000


def _plan_fleet(cases, size):
    start = time.perf_counter()
    for i in range(size):
        planner.plan_gpu(*cases[i % len(cases)])
    return time.perf_counter() - start


def _faults(seed, count, at_most):
    """Sweep `count` transitions, each with `at_most` faults, all if that is 0."""
    if os.geteuid() != 0:
        yield "mig_fault_cases", None, ROOT_ONLY
        yield "mig_fault_bad_endings", None, ROOT_ONLY
        return
    from fault_sweep import random_transitions
    from simulated_host import SimulatedHost

    cases = bad = 0
    # Processes of their own: each run is a fork, and one of this process, which has planned for thousands of GPUs, takes longer.
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        library = SimulatedHost.build(Path(folder)).library
        sweeps = {
            pool.submit(_sweep, Path(folder) / str(number), library, transition, at_most): number
            for number, transition in enumerate(random_transitions(seed, count), 1)
        }
        for done, sweep in enumerate(as_completed(sweeps), 1):
            endings, wrong = sweep.result()
            cases, bad = cases + endings, bad + len(wrong)
            for ending in wrong:
                print(f"transition {sweeps[sweep]}: {ending}", file=sys.stderr)
            print(f"{done} of {count} transitions: {cases} faults so far, {bad} bad endings", file=sys.stderr)
    yield "mig_fault_cases", cases, "count"
    yield "mig_fault_bad_endings", bad, "count"


def _sweep(folder, library, transition, at_most):
    """Return how many runs with a fault there were, and those that ended badly."""
    from fault_sweep import Sweep

    sweep = Sweep(folder, library)
    model, have, _busy, want = transition
    cases = chain(sweep.transition(*transition), sweep.sick_gpu(model, have, want, most=SICK_CASES))
    endings = list(islice(cases, at_most or None))
    return len(endings), [str(ending) for ending in endings if ending.wrong]


def _module(runs):
    """Whole runs of the module's process on eight simulated H100, without Ansible's connection."""
    if os.geteuid() != 0:
        yield "mig_module_noop", None, ROOT_ONLY
        yield "mig_module_apply", None, ROOT_ONLY
        return
    from simulated_host import SimulatedHost

    with tempfile.TemporaryDirectory() as folder:
        host = SimulatedHost.build(Path(folder)).create([{"model": "H100-80GB", "count": 8}])
        apply, noop = [], []
        for run in range(runs):
            for seconds, changed in ((apply, True), (noop, False)):
                start = time.perf_counter()
                result = host.module("mig", layout=RELAYOUTS[run % 2])
                seconds.append(time.perf_counter() - start)
                if result["changed"] is not changed:
                    raise RuntimeError("the run did not do what it was to measure: %s" % json.dumps(result))
        yield "mig_module_noop", statistics.median(noop), "s"
        yield "mig_module_apply", statistics.median(apply), "s"


def _command(runs):
    """Whole runs of `gpu-layout apply`, as it is installed, on eight simulated H100."""
    if os.geteuid() != 0:
        yield "mig_apply_8_gpus", None, ROOT_ONLY
        yield "mig_apply_noop", None, ROOT_ONLY
        return
    from command_host import CommandHost, build_command
    from simulated_host import SimulatedHost

    with tempfile.TemporaryDirectory() as folder:
        simulated = SimulatedHost.build(Path(folder)).create([{"model": "H100-80GB", "count": 8}])
        host = CommandHost(simulated, build_command(Path(folder) / "gpu-layout"))
        files = [host.layout(layout, f"{number}.json") for number, layout in enumerate(RELAYOUTS)]
        apply, noop = [], []
        # One run more than is measured: the first one turns MIG mode on.
        for run in range(runs + 1):
            for seconds, changed in ((apply, True), (noop, False)):
                start = time.perf_counter()
                done = host("apply", "--layout", files[run % 2], "--json")
                seconds.append(time.perf_counter() - start)
                if json.loads(done.stdout)["changed"] is not changed:
                    raise RuntimeError("the run did not do what it was to measure: %s" % done.stdout)
        yield "mig_apply_8_gpus", statistics.median(apply[1:]), "s"
        yield "mig_apply_noop", statistics.median(noop[1:]), "s"
