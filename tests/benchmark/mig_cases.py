# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create one GPU's random transitions between layouts, or read them from a file."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Iterator, NamedTuple

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import load_models
from ansible_collections.openfleet.gpu.plugins.module_utils.change import planner
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Gpu
from ansible_collections.openfleet.gpu.plugins.module_utils.plan import gpu_plan
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig import steps as mig_steps
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.divider import (
    MigDivision,
    WantedInstance,
)
from tests.unit.mig_rules import least_destroyed, legal, with_instances

MODELS = load_models()
MIG_MODELS = sorted(key for key, model in MODELS.items() if model.mig_capable)


class Case(NamedTuple):
    """A GPU with instances, some of them busy, and its target."""

    gpu: Gpu
    target: gpu_plan.Target


class Outcome(NamedTuple):
    """How many instances are destroyed: planned, minimum, and with full recreation.

    Busy instances also have their own counts.
    """

    destroyed: int
    busy_destroyed: int
    least_destroyed: int
    least_busy_destroyed: int
    recreated: int


def random_cases(seed: int, count: int) -> Iterator[Case]:
    """Yield random valid states with random layouts that fit, for all MIG models.

    The same seed gives the same cases.
    """
    rng = random.Random(seed)
    for _ in range(count):
        gpu = assumed_gpus([rng.choice(MIG_MODELS)], MODELS)[0]
        pairs = [(p.name, placement) for p in gpu.mig.profiles for placement in p.placements]
        have, want = _some(rng, gpu, pairs), _some(rng, gpu, pairs)
        busy = {placement.start for _, placement in have if rng.random() < 0.3}
        yield _case(gpu, have, busy, [name for name, _ in want])


def _some(rng, gpu, pairs):
    chosen = []
    for pair in rng.sample(pairs, rng.randint(0, min(8, len(pairs)))):
        if legal(gpu, [*chosen, pair]):
            chosen.append(pair)
    return chosen


def read_cases(path: str) -> Iterator[Case]:
    """Yield cases from a file with one JSON object per line.

    {"model": key, "have": [[profile, start], ...], "busy": [[profile, start], ...], "want": [profile, ...]}
    """
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            gpu = assumed_gpus([data["model"]], MODELS)[0]
            at = {(p.name, placement.start): placement for p in gpu.mig.profiles for placement in p.placements}
            have = [(name, at[name, start]) for name, start in data["have"]]
            yield _case(gpu, have, {start for _, start in data.get("busy", [])}, data["want"])
        except FleetError as error:
            raise SystemExit(f"{path}:{number}: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"{path}:{number}: not a case ({error!r})") from error


def _case(gpu, have, busy, names):
    wanted = tuple(WantedInstance(name) for name in names)
    return Case(with_instances(gpu, have, busy), gpu_plan.Target(gpu.uuid, "gpu_layout[0]", "mig", MigDivision(wanted)))


def judge(case: Case) -> Outcome:
    """Plan the case and compare the plan with the best arrangement."""
    plan = planner.plan_gpu(*case)
    destroyed = sum(isinstance(step, mig_steps.DestroyGpuInstance) for step in plan.steps)
    least_busy, least = least_destroyed(case.gpu, [wanted.profile for wanted in case.target.division.instances])
    return Outcome(destroyed, len(plan.disturbs), least, least_busy, len(case.gpu.mig.instances) if plan.steps else 0)
