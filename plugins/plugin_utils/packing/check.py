# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verify a result against its problem and against the planners that apply it.

Uses no code of the search.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from typing import Iterator, Sequence

from ansible_collections.openfleet.gpu.plugins.module_utils import catalogue
from ansible_collections.openfleet.gpu.plugins.module_utils.change import planner
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import ComputeInstance, Gpu, GpuInstance, Placement
from ansible_collections.openfleet.gpu.plugins.module_utils.plan import gpu_plan
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig import steps as mig_steps
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.divider import (
    MigDivision,
    WantedInstance,
)

from ..techniques.protocol import Size
from .model import FleetGpu, Packing, Problem, Standing, Workload


def problems(problem: Problem, packing: Packing) -> list[str]:
    """Return all errors in a result, or an empty list."""
    return list(_problems(problem, packing))


class Planner:
    """Runs the MIG planner on a result. Each model of the catalogue is read once."""

    def __init__(self) -> None:
        self._models = catalogue.load_models()

    def observed(self, gpu: FleetGpu, today: Sequence[Standing]) -> Gpu:
        """Return a GPU as NVML would report it with its current layout."""
        (empty,) = assumed_gpus([gpu.model], self._models)
        profiles = {profile.name: profile for profile in empty.mig.profiles}
        instances = []
        for number, standing in enumerate(s for s in today if s.shape.kind == "mig"):
            profile = profiles[standing.shape.profile]
            compute = ComputeInstance(0, profile.compute_slices, Placement(0, profile.compute_slices))
            place = Placement(standing.start or 0, profile.units)
            instances.append(GpuInstance(number + 1, profile.name, place, (compute,)))
        mig = dataclasses.replace(
            empty.mig, enabled=bool(instances), pending=bool(instances), instances=tuple(instances)
        )
        return dataclasses.replace(empty, index=gpu.index, mig=mig)

    def destroyed(self, gpu: FleetGpu, today: Sequence[Standing], then: Sequence[Standing], pinned: bool = True) -> int:
        """Return how many GPU instances the planner destroys.

        Raises PlanError if the planner refuses the layout.
        """
        wanted = tuple(
            WantedInstance(s.shape.profile, s.start if pinned else None) for s in then if s.shape.kind == "mig"
        )
        observed = self.observed(gpu, today)
        division = MigDivision(wanted) if wanted else None
        target = gpu_plan.Target(observed.uuid, "packing", "mig" if wanted else "shared", division)
        plan = planner.plan_gpu(observed, target)
        return sum(isinstance(step, mig_steps.DestroyGpuInstance) for step in plan.steps)


def by_gpu(standing: Sequence[Standing]) -> dict[tuple[str, int], list[Standing]]:
    groups: dict[tuple[str, int], list[Standing]] = defaultdict(list)
    for part in standing:
        groups[part.key].append(part)
    return groups


def destroyed(problem: Problem, packing: Packing) -> int:
    """Return how many GPU instances are destroyed when the packing is applied.

    The MIG planner determines this for each GPU.
    """
    planner, today, then = Planner(), by_gpu(problem.today), by_gpu(packing.standing)
    return sum(planner.destroyed(gpu, today.get(gpu.key, ()), then.get(gpu.key, ())) for gpu in problem.gpus)


def _problems(problem: Problem, packing: Packing) -> Iterator[str]:
    gpus = {gpu.key: gpu for gpu in problem.gpus}
    workloads = {workload.name: workload for workload in problem.workloads}
    then = by_gpu(packing.standing)
    yield from (f"{key}: no such GPU" for key in then if key not in gpus)
    placed: dict[str, list[Standing]] = defaultdict(list)
    for standing in packing.standing:
        if standing.workload is not None:
            placed[standing.workload].append(standing)
    yield from (f"{name}: no such workload" for name in placed if name not in workloads)
    for workload in problem.workloads:
        yield from _workload(workload, placed.get(workload.name, []), gpus, packing)
    yield from _groups(problem, placed)
    planner, today, ends = Planner(), by_gpu(problem.today), 0
    for gpu in problem.gpus:
        yield from _gpu(problem, gpu, then.get(gpu.key, []))
        try:
            ends += planner.destroyed(gpu, today.get(gpu.key, ()), then.get(gpu.key, ()))
        except PlanError as error:
            yield "%s: the planner refuses it: %s" % (gpu.label, error)
    yield from _counts(problem, packing, then, gpus, ends)


def _workload(workload: Workload, standing: Sequence[Standing], gpus: dict, packing: Packing) -> Iterator[str]:
    if not standing:
        if not packing.unplaced.get(workload.name):
            yield "%s: neither placed nor left out with a reason" % workload.name
        return
    if workload.name in packing.unplaced:
        yield "%s: both placed and left out" % workload.name
    keys = [s.key for s in standing]
    if len(keys) != workload.gpus or len(set(keys)) != workload.gpus:
        yield "%s: on %s instead of %d GPUs" % (workload.name, keys, workload.gpus)
    if len({s.shape for s in standing}) != 1 or standing[0].shape not in workload.options:
        yield "%s: in a shape that is not one of its options" % workload.name
    if len({gpus[key].domain(workload.within) for key in keys}) != 1:
        yield "%s: not within one %s" % (workload.name, workload.within)
    if workload.hosts is not None and any(host not in workload.hosts for host, _index in keys):
        yield "%s: on a host that is not allowed" % workload.name


def _groups(problem: Problem, placed: dict[str, list[Standing]]) -> Iterator[str]:
    near: dict[str, set] = defaultdict(set)
    apart: Counter = Counter()
    for workload in problem.workloads:
        keys = {s.key for s in placed.get(workload.name, ())}
        hosts = {host for host, _index in keys}
        if workload.near is not None:
            near[workload.near] |= hosts
        if workload.apart is not None:
            apart.update((workload.apart, place) for place in (hosts if workload.apart_on == "host" else keys))
    yield from (f"near {word}: on {sorted(hosts)}" for word, hosts in near.items() if len(hosts) > 1)
    yield from (f"apart {word}: {count} on {place}" for (word, place), count in apart.items() if count > 1)


def _gpu(problem: Problem, gpu: FleetGpu, standing: Sequence[Standing]) -> Iterator[str]:
    kinds = {s.shape.kind for s in standing}
    if len(kinds) > 1 or ("whole" in kinds and len(standing) > 1):
        yield "%s: %s at once" % (gpu.label, " and ".join(sorted(kinds)))
    if len([s.workload for s in standing if s.workload]) != len({s.workload for s in standing if s.workload}):
        yield "%s: a workload twice" % gpu.label
    technique = next((s.shape.technique for s in standing if s.shape.technique), None)
    if technique is not None:
        rules, total = problem.rules, catalogue.find_model(gpu.model).memory_total_mib
        size = Size(total * (100 - rules.headroom_memory_percent) // 100, 100 - rules.headroom_sm_percent)
        # If this technique has parts of equal size, count each part with the largest part's size.
        largest = Size(max(s.shape.memory_mib for s in standing), max(s.shape.sm_percent for s in standing))
        parts = [largest if technique.equal_parts else Size(s.shape.memory_mib, s.shape.sm_percent) for s in standing]
        if not technique.holds(size, parts):
            yield "%s: over capacity" % gpu.label


def _counts(problem: Problem, packing: Packing, then: dict, gpus: dict, ends: int) -> Iterator[str]:
    rules, score = problem.rules, packing.score
    today = {(s.key, s.shape, s.start) for s in problem.today}
    for standing in packing.standing:
        if not standing.new and (standing.key, standing.shape, standing.start) not in today:
            yield "%s: the current layout has no %s on it, but it is not marked as new" % (
                gpus[standing.key].label,
                standing.shape,
            )
    if ends != score.destroyed:
        yield "the planner destroys %d instances, but the score has %d" % (ends, score.destroyed)
    if len(then) != score.gpus:
        yield "%d GPUs are in use, but the score has %d" % (len(then), score.gpus)
    for name, most in (("moved", rules.most_moved), ("destroyed", rules.most_destroyed)):
        if most is not None and getattr(score, name) > most and not packing.notes:
            yield "%d %s, above the limit of %d" % (getattr(score, name), name, most)
    have = Counter(gpu.model for gpu in problem.gpus)
    used = Counter(gpus[key].model for key in then)
    for model, count in rules.reserve_gpus.items():
        if have[model] - used[model] < count:
            yield "%d %s are in use, but %d of %d are reserved" % (used[model], model, count, have[model])
