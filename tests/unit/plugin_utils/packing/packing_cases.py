# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generate small random packing problems, and solve them by brute force."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import load_models
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.model import (
    WHOLE,
    FleetGpu,
    Problem,
    Rules,
    Standing,
    Workload,
    mig,
    share,
)
from tests.unit.mig_rules import legal

MODELS = load_models()
#: Models whose MIG grid has eight, four or twelve units, and a model without MIG.
MIXED = ("A100-40GB", "A30-24GB", "RTXPRO6000-96GB", "L40S-48GB")
SHARES = [share("vgpu", 8192, 30), share("vgpu", 20480, 20), share("vgpu", 1024, 60), share("mps", 4096, 50)]


def fleet(*models, per_host=2):
    return tuple(
        FleetGpu("host%d" % (n // per_host), n % per_host, model, numa_node=n % per_host // 2, link_group=0)
        for n, model in enumerate(models)
    )


def shapes_of(models):
    found = [mig(profile.name) for model in models for profile in MODELS[model].profiles]
    return sorted({*found, *SHARES, WHOLE})


@st.composite
def problems(draw, gpus=5, workloads=7, bound=True, rules=True):
    """Generate a fleet and workloads, without a current layout.

    Not all workloads need to fit.
    """
    models = draw(st.lists(st.sampled_from(MIXED), min_size=1, max_size=gpus))
    shapes = st.sampled_from(shapes_of(models))
    hosts = sorted({gpu.host for gpu in fleet(*models)})

    def workload(number):
        options = tuple(draw(st.lists(shapes, min_size=1, max_size=2)))
        if not bound or draw(st.integers(0, 2)):
            return Workload("w%d" % number, options)
        several = all(shape.kind != "mps" for shape in options) and draw(st.booleans())
        return Workload(
            "w%d" % number,
            options,
            gpus=2 if several else 1,
            within=draw(st.sampled_from(["host", "numa", "link"])),
            near=draw(st.sampled_from([None, None, "n"])),
            apart=draw(st.sampled_from([None, None, "a"])),
            apart_on=draw(st.sampled_from(["gpu", "host"])),
            hosts=draw(st.sampled_from([None, None, frozenset(hosts[:1])])),
        )

    wanted = tuple(workload(number) for number in range(draw(st.integers(0, workloads))))
    chosen = Rules(
        policy=draw(st.sampled_from(["binpack", "spread"])),
        headroom_memory_percent=draw(st.sampled_from([0, 20])),
        seconds=60,
    )
    return Problem(fleet(*models), wanted, (), chosen if rules else Rules(seconds=60))


@st.composite
def days_later(draw, packing, problem):
    """Generate the problem of a later day from a packing.

    The packing is the current layout, and some workloads have changed.
    """
    shapes = st.sampled_from(shapes_of([gpu.model for gpu in problem.gpus]))
    workloads = []
    for workload in problem.workloads:
        fate = draw(st.sampled_from(["stays", "stays", "stays", "goes", "changes"]))
        if fate == "changes":
            workload = Workload(workload.name, (draw(shapes),))
        if fate != "goes":
            workloads.append(workload)
    workloads += [Workload("new%d" % n, (draw(shapes),)) for n in range(draw(st.integers(0, 2)))]
    today = tuple(Standing(s.host, s.index, s.shape, s.start, s.workload) for s in packing.standing)
    return Problem(problem.gpus, tuple(workloads), today, problem.rules)


def fewest(models, profiles, allowed=lambda choice: True):
    """Return the smallest number of workloads left out, and of GPUs used in that case.

    Tries all assignments. All workloads are single-GPU MIG workloads. `allowed` takes the GPU number of each workload
    (-1: left out), and returns whether rules other than space permit the choice. Geometry comes from mig_rules, which
    shares no code with the planner.
    """
    best = None
    for choice in itertools.product(range(-1, len(models)), repeat=len(profiles)):
        held = [[p for p, at in zip(profiles, choice) if at == n] for n in range(len(models))]
        score = (sum(at < 0 for at in choice), sum(map(bool, held)))
        if (
            (best is None or score < best)
            and allowed(choice)
            and all(possible(m, names) for m, names in zip(models, held))
        ):
            best = score
    return best


def possible(model, names):
    return not names or any(True for _ in ways(model, names))


def ways(model, names):
    """Yield all ways to place these profiles on an empty GPU.

    A way is a list of (profile, Placement).
    """
    (gpu,) = assumed_gpus([model], MODELS)
    at = {profile.name: profile.placements for profile in gpu.mig.profiles}
    for placed in itertools.product(*(at.get(name, ()) for name in names)):
        pairs = list(zip(names, placed))
        if legal(gpu, pairs):
            yield pairs


def least_churn(model, count, today, wanted):
    """Return the minimum (GPUs in use, moved, destroyed), with all workloads placed.

    All GPUs have one model. `today` is a list per GPU of (profile, start, workload or None). `wanted` maps workloads to
    profiles. Tries every assignment and every placement. A used GPU keeps the current instances that block no
    placement.
    """
    home = {name: (n, profile, start) for n, here in enumerate(today) for profile, start, name in here if name}
    best = None
    for choice in itertools.product(range(count), repeat=len(wanted)):
        held = [[name for name, at in zip(wanted, choice) if at == n] for n in range(count)]
        total = (0, 0, 0)
        for n, names in enumerate(held):
            one = _gpu_churn(model, n, today[n], names, wanted, home)
            if one is None:
                break
            total = tuple(a + b for a, b in zip(total, one))
        else:
            gone = sum(name in wanted and wanted[name] == profile for name, (_n, profile, _s) in home.items())
            total = (total[0], gone - total[1], total[2])
            best = total if best is None else min(best, total)
    return best


def _gpu_churn(model, number, here, names, wanted, home):
    """Return (1 if in use, unmoved workloads, destroyed instances) for one GPU.

    The numbers are those of the best placement of these workloads. Returns None if there is no placement.
    """
    if not names:
        return (0, 0, len(here))
    (gpu,) = assumed_gpus([model], MODELS)
    best = None
    for pairs in ways(model, [wanted[name] for name in names]):
        stay = sum(home.get(name) == (number, profile, p.start) for name, (profile, p) in zip(names, pairs))
        placed = {(profile, p.start) for profile, p in pairs}
        rest = [(profile, start) for profile, start, _name in here if (profile, start) not in placed]
        for keep in range(len(rest), -1, -1):
            if any(
                legal(gpu, [*pairs, *((p, _placement(gpu, p, s)) for p, s in kept)])
                for kept in itertools.combinations(rest, keep)
            ):
                score = (-stay, len(rest) - keep)
                best = score if best is None else min(best, score)
                break
    return None if best is None else (1, -best[0], best[1])


def _placement(gpu, profile, start):
    return next(p for each in gpu.mig.profiles if each.name == profile for p in each.placements if p.start == start)
