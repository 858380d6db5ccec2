# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the MIG planner, the module and the command on simulated GPUs.

SEED selects the random transitions. SIZE is the number of GPUs in the fleet that the planner plans at once. CASES=FILE
reads transitions from a file and prints each result to standard error. FAULTS is the number of transitions in the fault
sweep, each with a fault in every call and with a failing GPU.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from ansible_collections.openfleet.gpu.plugins.module_utils.change import planner
from tests.benchmark.amounts import amount
from tests.benchmark.mig_cases import judge, random_cases, read_cases

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
#: Number of transitions in the fault sweep. Every NVML call fails once and crashes once, which takes one core half a
#: minute per transition.
FAULT_TRANSITIONS = 10
#: Number of cases per transition in which one GPU of three fails. Each takes a third of a second.
SICK_CASES = 40
ROOT_ONLY = "partitioning needs root, also on the simulator"
#: Two layouts of eight H100 without common instances.
RELAYOUTS = (
    [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "2g.20gb", "count": 2}]}],
    [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]}],
)
#: Number of runs of a whole process. The result is their median.
RUNS = 7


def figures(options):
    """Yield (name, value, unit) or (name, None, reason)."""
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
        int(options.get("SEED") or 1), amount(options, FAULT_TRANSITIONS, 1, "FAULTS"), amount(options, 0, 10)
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
    # Busy instances that the plan destroys although another arrangement spares them. This number must be 0. The module
    # refuses plans that must destroy busy instances before they start.
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


def _faults(seed, count, most):
    """Sweep `count` random transitions.

    Each has all faults, or `most` faults of each kind if `most` is not 0.
    """
    if os.geteuid() != 0:
        yield "mig_fault_cases", None, ROOT_ONLY
        yield "mig_fault_bad_endings", None, ROOT_ONLY
        return
    from tests.integration.fault_sweep import random_transitions
    from tests.integration.simulated_host import SimulatedHost

    transitions = random_transitions(seed, count)
    if most:
        # A small sample only uses transitions with busy instances, so that it covers all parts of a sweep.
        transitions = islice((case for case in random_transitions(seed, 100 * count) if case[2]), count)
    cases = bad = 0
    # Sweeps run in new processes, because each run forks. A fork of this process takes longer after it has planned
    # thousands of GPUs.
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        library = SimulatedHost.build(Path(folder)).library
        sweeps = {
            pool.submit(_sweep, Path(folder) / str(number), library, transition, most): number
            for number, transition in enumerate(transitions, 1)
        }
        for done, sweep in enumerate(as_completed(sweeps), 1):
            endings, wrong = sweep.result()
            cases, bad = cases + endings, bad + len(wrong)
            for ending in wrong:
                print(f"transition {sweeps[sweep]}: {ending}", file=sys.stderr)
            print(f"{done} of {count} transitions: {cases} faults so far, {bad} bad endings", file=sys.stderr)
    yield "mig_fault_cases", cases, "count"
    yield "mig_fault_bad_endings", bad, "count"


def _sweep(folder, library, transition, most):
    """Run a transition with faults.

    Return the number of runs, and the bad endings. `most` is the number of faults of each kind. If `most` is 0, there
    are all faults, and SICK_CASES runs with a failing GPU.
    """
    from tests.integration.fault_sweep import Sweep

    sweep = Sweep(folder, library)
    model, have, _busy, want = transition
    endings = [
        *sweep.transition(*transition, most=most or None),
        *sweep.sick_gpu(model, have, want, most=most or SICK_CASES),
    ]
    return len(endings), [str(ending) for ending in endings if ending.wrong]


def _module(runs):
    """Time the module on eight simulated H100, without Ansible's connection."""
    if os.geteuid() != 0:
        yield "mig_module_noop", None, ROOT_ONLY
        yield "mig_module_apply", None, ROOT_ONLY
        return
    from tests.integration.simulated_host import SimulatedHost

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
    """Time the installed command `gpu-layout apply` on eight simulated H100."""
    if os.geteuid() != 0:
        yield "mig_apply_8_gpus", None, ROOT_ONLY
        yield "mig_apply_noop", None, ROOT_ONLY
        return
    from tests.integration.command_host import CommandHost, build_command
    from tests.integration.simulated_host import SimulatedHost

    with tempfile.TemporaryDirectory() as folder:
        simulated = SimulatedHost.build(Path(folder)).create([{"model": "H100-80GB", "count": 8}])
        host = CommandHost(simulated, build_command(Path(folder) / "gpu-layout"))
        files = [host.layout(layout, f"{number}.json") for number, layout in enumerate(RELAYOUTS)]
        apply, noop = [], []
        # The first run does not count, because it enables MIG mode.
        for run in range(runs + 1):
            for seconds, changed in ((apply, True), (noop, False)):
                start = time.perf_counter()
                done = host("apply", "--layout", files[run % 2], "--json")
                seconds.append(time.perf_counter() - start)
                if json.loads(done.stdout)["changed"] is not changed:
                    raise RuntimeError("the run did not do what it was to measure: %s" % done.stdout)
        yield "mig_apply_8_gpus", statistics.median(apply[1:]), "s"
        yield "mig_apply_noop", statistics.median(noop[1:]), "s"
