# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Figures of the MIG planner and of the module: planning alone, and whole module runs on the simulator.

Options (dictionary of strings): SEED for the random transitions, SIZE for the number of GPUs of the fleet-size figure,
CASES for the number of transitions.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit"))

from mig_rules import legal, with_instances

from ansible_collections.openfleet.gpu.plugins.module_utils import mig_plan, mig_steps
from ansible_collections.openfleet.gpu.plugins.module_utils.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import load_models

#: Runs of a whole process per figure; the median is printed.
RUNS = 7
LATER = "belongs to a later release"


def figures(options):
    """Yield (name, value or None, unit or the reason why there is no value)."""
    rng = random.Random(int(options.get("SEED") or 1))
    cases = [_transition(rng) for _ in range(int(options.get("CASES") or 2000))]
    yield ("mig_plan_p99", *_plan_p99(cases))
    size = int(options.get("SIZE") or 10000)
    yield (f"mig_plan_{size}_gpus", *_plan_fleet(cases, size))
    yield from _module()
    for name in (
        "mig_transitions",
        "mig_destroyed_over_optimum",
        "mig_destroyed_over_recreate_all",
        "mig_busy_destroyed",
        "mig_apply_8_gpus",
        "mig_apply_noop",
        "mig_fault_cases",
        "mig_fault_bad_endings",
    ):
        yield name, None, LATER


def _transition(rng):
    """(a GPU in a random legal state, a target of random profiles that fit it), over all models with MIG."""
    models = load_models() if not hasattr(_transition, "models") else _transition.models
    _transition.models = models
    key = rng.choice([k for k, m in models.items() if m.mig_capable])
    gpu = assumed_gpus([key], models)[0]
    pairs = [(p.name, placement) for p in gpu.mig.profiles for placement in p.placements]

    def some():
        chosen = []
        for pair in rng.sample(pairs, rng.randint(0, min(8, len(pairs)))):
            if legal(gpu, [*chosen, pair]):
                chosen.append(pair)
        return chosen

    have = some()
    gpu = with_instances(gpu, have, {p.start for _, p in have if rng.random() < 0.3})
    wanted = tuple(mig_steps.WantedInstance(name) for name, _ in some())
    return gpu, mig_steps.Target(gpu.uuid, "gpu_layout[0]", "mig", True, wanted)


def _plan_p99(cases):
    seconds = []
    for gpu, target in cases:
        start = time.perf_counter()
        mig_plan.plan_gpu(gpu, target)
        seconds.append(time.perf_counter() - start)
    return statistics.quantiles(seconds, n=100)[98] * 1000, "ms"


def _plan_fleet(cases, size):
    start = time.perf_counter()
    for i in range(size):
        gpu, target = cases[i % len(cases)]
        mig_plan.plan_gpu(gpu, target)
    return time.perf_counter() - start, "s"


def _module():
    """Whole runs of the module's process on eight simulated H100, without Ansible's connection."""
    if os.geteuid() != 0:
        yield "mig_module_noop", None, "partitioning needs root, also on the simulator"
        yield "mig_module_apply", None, "partitioning needs root, also on the simulator"
        return
    sys.path.insert(0, str(ROOT / "tests" / "integration"))
    from simulated_host import SimulatedHost

    with tempfile.TemporaryDirectory() as folder:
        host = SimulatedHost.build(Path(folder)).create([{"model": "H100-80GB", "count": 8}])
        layouts = [
            [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "2g.20gb", "count": 2}]}],
            [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]}],
        ]
        apply, noop = [], []
        for run in range(RUNS):
            for seconds, changed in ((apply, True), (noop, False)):
                start = time.perf_counter()
                result = host.module("mig", layout=layouts[run % 2])
                seconds.append(time.perf_counter() - start)
                if result["changed"] is not changed:
                    raise RuntimeError("the benchmark's run did not do what it was to measure: %s" % json.dumps(result))
        yield "mig_module_noop", statistics.median(noop), "s"
        yield "mig_module_apply", statistics.median(apply), "s"
