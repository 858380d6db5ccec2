# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what GPUs are to what they shall be: a pure function (observed, wanted) -> Plan.

No I/O, no clock, no randomness, no NVML, no Ansible: the same two arguments always give the same plan. Check mode,
diff, the fleet report and the tests read the same object that is then carried out.

The planner keeps every instance that the new layout can use where it stands, and names a placement for every GPU
instance that it creates: left to itself the driver may place instances so that later ones no longer fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Optional, Sequence, Tuple, Union

from .errors import PlanError
from .mig_fit import Capacity, Want, arrange
from .model import Gpu, GpuInstance, Placement, Process

DEFAULT, EXCLUSIVE_PROCESS = "default", "exclusive_process"


@dataclass(frozen=True)
class WantedInstance:
    """One GPU instance that shall exist. `start` pins it; `compute_slices` lists its compute instances, largest first."""

    profile: str
    start: Optional[int] = None
    #: Empty: one compute instance over the whole GPU instance.
    compute_slices: Tuple[int, ...] = ()


@dataclass(frozen=True)
class Target:
    """What one GPU shall become. `where` is the layout entry that says so, for messages."""

    gpu_uuid: str
    where: str
    sharing: str
    mig_enabled: bool
    instances: Tuple[WantedInstance, ...] = ()
    #: default or exclusive_process; None leaves it, as with MIG on, where it belongs to the instances.
    compute_mode: Optional[str] = None

    def __str__(self) -> str:
        if not self.mig_enabled:
            return self.sharing
        return "%s: %s" % (self.sharing, _listing([i.profile + ("" if i.start is None else "@%d" % i.start) for i in self.instances]))


@dataclass(frozen=True)
class SetMigMode:
    """Turn MIG mode on or off. Where the GPU needs a reset for it, the executor sees to that."""

    enabled: bool

    def __str__(self) -> str:
        return "%s MIG mode" % ("enable" if self.enabled else "disable")


@dataclass(frozen=True)
class SetComputeMode:
    mode: str

    def __str__(self) -> str:
        return "set compute mode %s" % self.mode


@dataclass(frozen=True)
class DestroyComputeInstance:
    profile: str
    gpu_instance_id: int
    compute_instance_id: int
    compute_slices: int
    start: int

    def __str__(self) -> str:
        return "destroy %dc of %s (instance %d)" % (self.compute_slices, self.profile, self.gpu_instance_id)


@dataclass(frozen=True)
class DestroyGpuInstance:
    profile: str
    gpu_instance_id: int
    placement: Placement

    def __str__(self) -> str:
        return "destroy %s@%d" % (self.profile, self.placement.start)


@dataclass(frozen=True)
class CreateGpuInstance:
    profile: str
    profile_id: int
    placement: Placement

    def __str__(self) -> str:
        return "create %s@%d" % (self.profile, self.placement.start)


@dataclass(frozen=True)
class CreateComputeInstance:
    """Create a compute instance in the GPU instance that sits at `gpu_instance_start`: its id is not known before it exists.

    `start` is None in a GPU instance that is new: there the driver's own first fit, largest first, is right.
    """

    profile: str
    profile_id: int
    gpu_instance_start: int
    compute_slices: int
    start: Optional[int] = None

    def __str__(self) -> str:
        return "create %dc in %s@%d" % (self.compute_slices, self.profile, self.gpu_instance_start)


Step = Union[
    SetMigMode, SetComputeMode, DestroyComputeInstance, DestroyGpuInstance, CreateGpuInstance, CreateComputeInstance
]


@dataclass(frozen=True)
class Disturbance:
    """Something that runs and that the plan would end: `what` it runs in, and who it is."""

    what: str
    processes: Tuple[Process, ...]

    def __str__(self) -> str:
        who = ", ".join("pid %d%s" % (p.pid, " (%s)" % p.name if p.name else "") for p in self.processes)
        return "%s is in use by %s" % (self.what, who)


@dataclass(frozen=True)
class GpuPlan:
    """The steps for one GPU, in order, and what stays."""

    gpu: Gpu
    target: Target
    steps: Tuple[Step, ...] = ()
    kept: Tuple[GpuInstance, ...] = ()
    disturbs: Tuple[Disturbance, ...] = ()

    def __str__(self) -> str:
        words = ["keep %s" % _standing(instance) for instance in self.kept]
        words += [str(step) for step in self.steps if not self._implied(step)]
        return "gpu %d: %s" % (self.gpu.index, ", ".join(words) or "nothing to do")

    def before(self) -> str:
        """The GPU as observed, in one line."""
        instances = ["%s@%d%s" % (i.profile, i.placement.start, _split(i)) for i in self.gpu.mig.instances]
        return self._state(self.gpu.mig.enabled, instances, self.gpu.compute_mode)

    def after(self) -> str:
        """The GPU as it will be when every step is done, in the words of `before`."""
        slices: Dict[int, List[int]] = {i.placement.start: [c.compute_slices for c in i.compute_instances] for i in self.kept}
        named = {i.placement.start: i.profile for i in self.kept}
        for step in self.steps:
            if isinstance(step, CreateGpuInstance):
                named[step.placement.start], slices[step.placement.start] = step.profile, []
            elif isinstance(step, CreateComputeInstance):
                slices[step.gpu_instance_start].append(step.compute_slices)
            elif isinstance(step, DestroyComputeInstance) and step.gpu_instance_id in {i.id for i in self.kept}:
                start = next(i.placement.start for i in self.kept if i.id == step.gpu_instance_id)
                slices[start].remove(step.compute_slices)
        instances = ["%s@%d%s" % (named[start], start, _split_text(slices[start])) for start in sorted(named)]
        mode = self.gpu.compute_mode if self.target.compute_mode is None else self.target.compute_mode
        return self._state(self.target.mig_enabled, instances, mode)

    def _state(self, mig_enabled: bool, instances: Sequence[str], compute_mode: Optional[str]) -> str:
        if mig_enabled:
            what = "MIG on: %s" % (", ".join(instances) or "no instances")
        else:
            what = "MIG off, compute mode %s" % (compute_mode or "unknown")
        return "gpu %d: %s" % (self.gpu.index, what)

    def _implied(self, step: Step) -> bool:
        # The one compute instance of a whole new or doomed GPU instance goes without saying.
        if isinstance(step, CreateComputeInstance):
            made = [s for s in self.steps if isinstance(s, CreateGpuInstance) and s.placement.start == step.gpu_instance_start]
            siblings = [s for s in self.steps if isinstance(s, CreateComputeInstance) and s.gpu_instance_start == step.gpu_instance_start]
            return bool(made) and len(siblings) == 1
        if isinstance(step, DestroyComputeInstance):
            return any(isinstance(s, DestroyGpuInstance) and s.gpu_instance_id == step.gpu_instance_id for s in self.steps)
        return False


@dataclass(frozen=True)
class Plan:
    """What a host needs, GPU by GPU in index order. GPUs that the layout does not name are not in it."""

    gpus: Tuple[GpuPlan, ...] = field(default=())

    @property
    def changes(self) -> bool:
        return any(gpu.steps for gpu in self.gpus)

    @property
    def disturbs(self) -> Tuple[Disturbance, ...]:
        return tuple(found for gpu in self.gpus for found in gpu.disturbs)

    def lines(self) -> List[str]:
        """The plan for people, one line a GPU."""
        return [str(gpu) for gpu in self.gpus]

    def counts(self) -> Dict[str, int]:
        """GPU instances to create, to destroy and kept, and GPUs that change."""
        steps = [step for gpu in self.gpus for step in gpu.steps]
        return {
            "create": sum(isinstance(step, CreateGpuInstance) for step in steps),
            "destroy": sum(isinstance(step, DestroyGpuInstance) for step in steps),
            "keep": sum(len(gpu.kept) for gpu in self.gpus),
            "gpus_changed": sum(bool(gpu.steps) for gpu in self.gpus),
        }


def plan(gpus: Sequence[Gpu], targets: Iterable[Target]) -> Plan:
    """Plan every target on the GPUs observed.

    Raises PlanError, naming the GPU and the entry, where a target cannot be had. A plan that would end something that
    runs is returned, not refused: `Plan.disturbs` names it, and whoever carries plans out decides.
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    plans = [plan_gpu(by_uuid[target.gpu_uuid], target) for target in targets]
    return Plan(tuple(sorted(plans, key=lambda p: p.gpu.index)))


def plan_gpu(gpu: Gpu, target: Target) -> GpuPlan:
    """Plan one GPU; see `plan`."""
    return _plan_mig(gpu, target) if target.mig_enabled else _plan_whole(gpu, target)


def target_of(gpu: Gpu) -> Target:
    """The target that describes what a GPU is just now, every instance pinned where it stands: the way back to it."""
    return Target(
        gpu_uuid=gpu.uuid,
        where="the state before this run",
        sharing="mig" if gpu.mig.enabled else "as before",
        mig_enabled=gpu.mig.enabled,
        instances=tuple(
            WantedInstance(i.profile, i.placement.start, tuple(sorted((c.compute_slices for c in i.compute_instances), reverse=True)))
            for i in gpu.mig.instances
        ),
        compute_mode=None if gpu.mig.enabled else gpu.compute_mode,
    )


def _plan_whole(gpu: Gpu, target: Target) -> GpuPlan:
    steps: List[Step] = []
    disturbs: List[Disturbance] = []
    for instance in gpu.mig.instances:
        steps += _destroy(instance)
        disturbs += _in_use(gpu, instance)
    if gpu.mig.enabled or gpu.mig.pending:
        # Where MIG mode is off but pending, this only takes the pending change back.
        steps.append(SetMigMode(False))
    if target.compute_mode is not None and (gpu.mig.enabled or gpu.compute_mode != target.compute_mode):
        # With MIG on the GPU's own compute mode cannot be read, so it is set rather than assumed.
        steps.append(SetComputeMode(target.compute_mode))
    return GpuPlan(gpu, target, tuple(steps), (), tuple(disturbs))


def _plan_mig(gpu: Gpu, target: Target) -> GpuPlan:
    capacity = _capacity(gpu, target)
    standing = gpu.mig.instances if gpu.mig.enabled else ()
    placed = _place(gpu, target, capacity, standing)

    at = {(instance.profile, instance.placement): instance for instance in standing}
    kept: List[GpuInstance] = []
    destroy: List[Step] = []
    create: List[Step] = []
    disturbs: List[Disturbance] = []
    for wanted, placement in sorted(placed, key=lambda pair: pair[1]):
        instance = at.pop((wanted.profile, placement), None)
        profile = capacity.profiles[wanted.profile]
        slices = wanted.compute_slices or (profile.compute_slices,)
        if instance is None:
            new = [(n, None) for n in sorted(slices, reverse=True)]
            create.append(CreateGpuInstance(profile.name, profile.profile_id, placement))
        else:
            kept.append(instance)
            gone, new = _replan_compute(instance, slices)
            destroy += [_destroy_compute(instance, compute) for compute in gone]
            disturbs += [
                Disturbance("gpu %d: compute instance %d of %s" % (gpu.index, c.id, _standing(instance)), c.processes)
                for c in gone if c.processes
            ]
        create += [CreateComputeInstance(profile.name, profile.profile_id, placement.start, n, start) for n, start in new]
    for instance in at.values():
        destroy += _destroy(instance)
        disturbs += _in_use(gpu, instance)

    mode: List[Step] = []
    if not (gpu.mig.enabled and gpu.mig.pending):
        mode.append(SetMigMode(True))
    if not gpu.mig.enabled:
        if gpu.compute_mode not in (None, DEFAULT):
            mode.insert(0, SetComputeMode(DEFAULT))
        if gpu.processes:
            disturbs.append(Disturbance("gpu %d (its MIG mode would change)" % gpu.index, gpu.processes))
    return GpuPlan(gpu, target, tuple(mode + destroy + create), tuple(sorted(kept, key=lambda i: i.placement)), tuple(disturbs))


def _capacity(gpu: Gpu, target: Target) -> Capacity:
    where = "%s on %s" % (target.where, gpu.label)
    if not gpu.mig.capable:
        raise PlanError(where, "this GPU has no MIG", "Choose another sharing for it (exclusive, shared, mps, time_slicing or vgpu).")
    if not gpu.mig.profiles:
        raise PlanError(
            where, "the driver does not tell the MIG profiles of this GPU while its MIG mode is off",
            "Upgrade the driver to 550 or later, or enable MIG mode once by hand (nvidia-smi -i %s -mig 1) and run again." % gpu.uuid,
        )
    capacity = Capacity(gpu.mig.profiles)
    unknown = sorted({wanted.profile for wanted in target.instances} - set(capacity.profiles))
    if unknown:
        raise PlanError(where, "there is no profile %s" % " or ".join(unknown), "This GPU has: %s." % ", ".join(sorted(capacity.profiles)))
    for wanted in target.instances:
        profile = capacity.profiles[wanted.profile]
        if wanted.start is not None and all(p.start != wanted.start for p in profile.placements):
            starts = ", ".join(str(p.start) for p in profile.placements)
            raise PlanError(where, "%s cannot start at placement %d" % (wanted.profile, wanted.start), "It can start at: %s." % starts)
        if sum(wanted.compute_slices) > profile.compute_slices:
            raise PlanError(
                where, "compute instances of %d slices are asked for in a %s" % (sum(wanted.compute_slices), wanted.profile),
                "It has %d compute slices." % profile.compute_slices,
            )
    return capacity


def _place(
    gpu: Gpu, target: Target, capacity: Capacity, standing: Sequence[GpuInstance]
) -> List[Tuple[WantedInstance, Placement]]:
    """Placements for all wanted instances. What runs is kept before what is idle, and what is kept whole before the rest."""
    at = {(instance.profile, instance.placement): instance for instance in standing}

    def open_to(wanted: WantedInstance) -> Tuple[Placement, ...]:
        return tuple(p for p in capacity.profiles[wanted.profile].placements if wanted.start in (None, p.start))

    def gain(want: Want, placement: Placement) -> Tuple[int, ...]:
        wanted = want.kind
        instance = at.get((wanted.profile, placement))
        if instance is None:
            return (0, 0, 0)
        slices = wanted.compute_slices or (capacity.profiles[wanted.profile].compute_slices,)
        gone, _new = _replan_compute(instance, slices)
        spared = bool(instance.processes) and not any(compute.processes for compute in gone)
        return (int(spared), 1, -len(gone))

    names = [wanted.profile for wanted in target.instances]
    shortage = capacity.shortage(names)
    # Equal wants are interchangeable, so the wanted instance itself is the kind.
    found = None if shortage else arrange([Want(w, open_to(w)) for w in target.instances], gain, capacity.outlook)
    if found is None:
        pinned = any(wanted.start is not None for wanted in target.instances)
        part = capacity.largest_part(names)
        if shortage is None:
            shortage = "their placements overlap"
            if pinned and capacity.fits(names):
                raise PlanError(
                    "%s on %s" % (target.where, gpu.label), "%s do not fit with the placements given" % _listing(names),
                    "Without `placement` they would fit.",
                )
        raise PlanError(
            "%s on %s" % (target.where, gpu.label), "%s do not fit together: %s" % (_listing(names), shortage),
            "The largest part that fits is: %s." % _listing(part),
        )
    return list(zip(target.instances, found))


def _replan_compute(instance: GpuInstance, slices: Sequence[int]):
    """Which compute instances of a GPU instance that stays must go, and which must come: (gone, [(slices, start)])."""
    places = dict(instance.compute_placements)
    at = {(c.compute_slices, c.placement.start): c for c in instance.compute_instances}

    def gain(want: Want, placement: Placement) -> Tuple[int, ...]:
        compute = at.get((want.kind, placement.start))
        return (0, 0) if compute is None else (int(bool(compute.processes)), 1)

    found = arrange([Want(n, places.get(n, ())) for n in slices], gain)
    if found is None:
        # The instance did not say where compute instances may start. Same set: nothing to do; else make all anew.
        have = sorted(c.compute_slices for c in instance.compute_instances)
        if have == sorted(slices):
            return (), []
        return instance.compute_instances, [(n, None) for n in sorted(slices, reverse=True)]
    new = []
    for n, placement in zip(slices, found):
        if at.pop((n, placement.start), None) is None:
            new.append((n, placement.start))
    return tuple(at.values()), new


def _destroy(instance: GpuInstance) -> List[Step]:
    """Compute instances go before their GPU instance."""
    steps: List[Step] = [_destroy_compute(instance, compute) for compute in instance.compute_instances]
    return steps + [DestroyGpuInstance(instance.profile, instance.id, instance.placement)]


def _destroy_compute(instance: GpuInstance, compute) -> DestroyComputeInstance:
    return DestroyComputeInstance(instance.profile, instance.id, compute.id, compute.compute_slices, compute.placement.start)


def _in_use(gpu: Gpu, instance: GpuInstance) -> List[Disturbance]:
    if not instance.processes:
        return []
    return [Disturbance("gpu %d: %s" % (gpu.index, _standing(instance)), instance.processes)]


def _standing(instance: GpuInstance) -> str:
    count = len(instance.processes)
    return "%s@%d%s" % (instance.profile, instance.placement.start, " (%d process%s)" % (count, "" if count == 1 else "es") if count else "")


def _split(instance: GpuInstance) -> str:
    return _split_text([compute.compute_slices for compute in instance.compute_instances])


def _split_text(slices: Sequence[int]) -> str:
    """Empty for the usual case, one compute instance over the whole GPU instance."""
    if len(slices) == 1:
        return ""
    return " [%s]" % ", ".join("%dc" % n for n in sorted(slices, reverse=True))


def _listing(names: Sequence[str]) -> str:
    kinds = sorted(set(names), key=list(names).index)
    return ", ".join("%dx %s" % (list(names).count(kind), kind) for kind in kinds) or "nothing"
