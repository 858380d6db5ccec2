# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan as an object: what a GPU shall become, the steps to it, and how both read.

Check mode, diff, reports and the executor use the same object. Nothing here decides anything: `mig_plan` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Mapping, Sequence, Union

from .disturbance import Disturbance
from .model import Gpu, GpuInstance, Placement, to_data
from .plan_parts import GpuPart, HostPart, PartStep

DEFAULT, EXCLUSIVE_PROCESS = "default", "exclusive_process"


@dataclass(frozen=True)
class WantedInstance:
    """One GPU instance that shall exist. `start` pins it; `compute_slices` are its compute instances, largest first."""

    profile: str
    start: int | None = None
    #: None: one compute instance over the whole GPU instance. Empty: no compute instance.
    compute_slices: tuple[int, ...] | None = None

    def __str__(self) -> str:
        split = "" if self.compute_slices is None else _split_text(self.compute_slices)
        return self.profile + ("" if self.start is None else "@%d" % self.start) + split


@dataclass(frozen=True)
class Target:
    """What one GPU shall become. `where` is the layout entry that says so, for messages."""

    gpu_uuid: str
    where: str
    sharing: str
    mig_enabled: bool
    instances: tuple[WantedInstance, ...] = ()
    #: default or exclusive_process; None leaves it, as with MIG on, where it belongs to the instances.
    compute_mode: str | None = None
    #: Settings of techniques by name; None leaves one as it is.
    settings: Mapping[str, str | None] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        if not self.mig_enabled:
            return self.sharing
        return "%s: %s" % (self.sharing, listing([str(instance) for instance in self.instances]))

    def to_data(self) -> dict[str, Any]:
        """Return the target as journals and saved plans have it: each setting is a key beside the others."""
        data = to_data(self)
        settings = data.pop("settings")
        return {**data, **settings}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Target:
        """Return the target whose data this is. Raises KeyError, TypeError or ValueError if it is none."""
        instances = tuple(map(_wanted_instance, data["instances"]))
        own = {each.name for each in fields(cls)} - {"settings"}
        known = {name: value for name, value in data.items() if name in own}
        settings = {name: value for name, value in data.items() if name not in own}
        return cls(**dict(known, instances=instances, settings=settings))


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
    """Create a compute instance in the GPU instance at `gpu_instance_start`, whose id is not known before it exists.

    `start` is None where it spans a GPU instance that is new.
    """

    profile: str
    profile_id: int
    gpu_instance_start: int
    compute_slices: int
    start: int | None = None

    def __str__(self) -> str:
        return "create %dc in %s@%d" % (self.compute_slices, self.profile, self.gpu_instance_start)


Step = Union[
    SetMigMode,
    SetComputeMode,
    DestroyComputeInstance,
    DestroyGpuInstance,
    CreateGpuInstance,
    CreateComputeInstance,
]


@dataclass(frozen=True)
class GpuPlan:
    """The steps for one GPU, in order, and what stays. `gpu_steps` are those of its instances and its modes."""

    gpu: Gpu
    target: Target
    gpu_steps: tuple[Step, ...] = ()
    kept: tuple[GpuInstance, ...] = ()
    disturbs: tuple[Disturbance, ...] = ()
    #: Instances that are not the collection's and that no layout names, left where they are.
    left: tuple[GpuInstance, ...] = ()
    #: In the order of the registry of techniques.
    parts: tuple[GpuPart, ...] = ()

    @property
    def steps(self) -> tuple[Step | PartStep, ...]:
        """All steps in their order: a GPU loses its settings before it goes into MIG mode, and gets them after it came out."""
        of_parts = [step for part in self.parts for step in part.steps]
        return (*of_parts, *self.gpu_steps) if self.target.mig_enabled else (*self.gpu_steps, *of_parts)

    def __str__(self) -> str:
        return of_gpu(self.gpu, self.words())

    def words(self) -> str:
        """Return the steps and what stays, without the GPU's name."""
        words = ["keep %s" % standing(instance) for instance in self.kept]
        words += ["leave %s" % standing(instance) for instance in self.left]
        words += [str(step) for step in self.told_steps]
        return ", ".join(words) or "nothing to do"

    @property
    def told_steps(self) -> tuple[Step | PartStep, ...]:
        """The steps, less those that go without saying."""
        return tuple(step for step in self.steps if not self._implied(step))

    def planned(self) -> tuple[WantedInstance, ...]:
        """The instances that the plan keeps and creates, each pinned where it will be."""
        profiles = {i.placement.start: i.profile for i in self.kept}
        slices = {i.placement.start: [c.compute_slices for c in i.compute_instances] for i in self.kept}
        starts = {i.id: i.placement.start for i in self.kept}
        for step in self.gpu_steps:
            if isinstance(step, CreateGpuInstance):
                profiles[step.placement.start], slices[step.placement.start] = step.profile, []
            elif isinstance(step, CreateComputeInstance):
                slices[step.gpu_instance_start].append(step.compute_slices)
            elif isinstance(step, DestroyComputeInstance) and step.gpu_instance_id in starts:
                slices[starts[step.gpu_instance_id]].remove(step.compute_slices)
        return tuple(
            WantedInstance(profiles[start], start, tuple(sorted(slices[start], reverse=True)))
            for start in sorted(profiles)
        )

    def before(self) -> str:
        """Return the GPU's state as observed."""
        instances = ["%s@%d%s" % (i.profile, i.placement.start, _split(i)) for i in self.gpu.mig.instances]
        settings = [part.before for part in self.parts]
        return self._state(self.gpu.mig.enabled, instances, self.gpu.compute_mode, settings)

    def after(self) -> str:
        """Return the GPU's state when every step is done, in the words of `before`."""
        staying = self.kept + self.left
        slices = {i.placement.start: [c.compute_slices for c in i.compute_instances] for i in staying}
        named = {i.placement.start: i.profile for i in staying}
        for step in self.gpu_steps:
            if isinstance(step, CreateGpuInstance):
                named[step.placement.start], slices[step.placement.start] = step.profile, []
            elif isinstance(step, CreateComputeInstance):
                slices[step.gpu_instance_start].append(step.compute_slices)
            elif isinstance(step, DestroyComputeInstance) and step.gpu_instance_id in {i.id for i in self.kept}:
                start = next(i.placement.start for i in self.kept if i.id == step.gpu_instance_id)
                slices[start].remove(step.compute_slices)
        instances = ["%s@%d%s" % (named[start], start, _split_text(slices[start])) for start in sorted(named)]
        mode = self.gpu.compute_mode if self.target.compute_mode is None else self.target.compute_mode
        return self._state(self.target.mig_enabled, instances, mode, [part.after for part in self.parts])

    def _state(
        self, mig_enabled: bool, instances: Sequence[str], compute_mode: str | None, settings: Sequence[str]
    ) -> str:
        if mig_enabled:
            what = "MIG on: %s" % (", ".join(instances) or "no instances")
        else:
            what = "MIG off, compute mode %s" % (compute_mode or "unknown")
        return ", ".join([what, *filter(None, settings)])

    def _implied(self, step: Step | PartStep) -> bool:
        # The one compute instance of a whole new or doomed GPU instance goes without saying.
        if isinstance(step, CreateComputeInstance):
            made = [
                s
                for s in self.gpu_steps
                if isinstance(s, CreateGpuInstance) and s.placement.start == step.gpu_instance_start
            ]
            siblings = [
                s
                for s in self.gpu_steps
                if isinstance(s, CreateComputeInstance) and s.gpu_instance_start == step.gpu_instance_start
            ]
            return bool(made) and len(siblings) == 1
        if isinstance(step, DestroyComputeInstance):
            return any(
                isinstance(s, DestroyGpuInstance) and s.gpu_instance_id == step.gpu_instance_id for s in self.gpu_steps
            )
        return False


@dataclass(frozen=True)
class Plan:
    """What a host needs, GPU by GPU in index order. GPUs that the layout does not name are not in it."""

    gpus: tuple[GpuPlan, ...] = ()
    #: What changes beside the GPUs, in the order of the registry of techniques.
    parts: tuple[HostPart, ...] = ()

    @property
    def changes(self) -> bool:
        return any(each.steps for each in (*self.gpus, *self.parts))

    @property
    def changes_devices(self) -> bool:
        """Whether devices come or go: any step of a GPU's own but to set a compute mode."""
        return any(not isinstance(step, SetComputeMode) for gpu in self.gpus for step in gpu.gpu_steps)

    @property
    def disturbs(self) -> tuple[Disturbance, ...]:
        return tuple(found for each in (*self.gpus, *self.parts) for found in each.disturbs)

    def lines(self) -> list[str]:
        """Return the plan for people: one line a GPU, and one for each thing beside the GPUs that changes."""
        return [*map(str, self.gpus), *(line for part in self.parts for line in part.lines())]

    def lines_data(self) -> list[dict[str, Any]]:
        """Return the lines as data: those of GPUs with index and UUID and without them in the text, others with their text."""
        of_gpus = [{"index": each.gpu.index, "uuid": each.gpu.uuid, "text": each.words()} for each in self.gpus]
        return [*of_gpus, *({"text": line} for part in self.parts for line in part.lines())]

    def changed(self, gpu: GpuPlan) -> bool:
        """Return whether the GPU changes, or what is beside it."""
        return bool(gpu.steps) or any(gpu.gpu.uuid in part.gpus_changed() for part in self.parts)

    def before(self, gpu: GpuPlan) -> str:
        """Return the state of the GPU, and of what is beside it, as observed."""
        return ", ".join(filter(None, [gpu.before(), *(part.before(gpu.gpu.uuid) for part in self.parts)]))

    def after(self, gpu: GpuPlan) -> str:
        """Return the state of the GPU, and of what is beside it, when the plan is done, in the words of `before`."""
        return ", ".join(filter(None, [gpu.after(), *(part.after(gpu.gpu.uuid) for part in self.parts)]))

    def counts(self) -> dict[str, int]:
        """GPU instances to create, to destroy and kept, and GPUs that change."""
        steps = [step for gpu in self.gpus for step in gpu.steps]
        return {
            "create": sum(isinstance(step, CreateGpuInstance) for step in steps),
            "destroy": sum(isinstance(step, DestroyGpuInstance) for step in steps),
            "keep": sum(len(gpu.kept) for gpu in self.gpus),
            "gpus_changed": sum(self.changed(gpu) for gpu in self.gpus),
        }


def _wanted_instance(data: Mapping[str, Any]) -> WantedInstance:
    slices = data["compute_slices"]
    return WantedInstance(data["profile"], data["start"], None if slices is None else tuple(slices))


def of_gpu(gpu: Gpu, text: str) -> str:
    """Return the line of a plan about this GPU."""
    return "gpu %d: %s" % (gpu.index, text)


def standing(instance: GpuInstance) -> str:
    count = len(instance.processes)
    return "%s@%d%s" % (
        instance.profile,
        instance.placement.start,
        " (%d process%s)" % (count, "" if count == 1 else "es") if count else "",
    )


def _split(instance: GpuInstance) -> str:
    return _split_text([compute.compute_slices for compute in instance.compute_instances])


def _split_text(slices: Sequence[int]) -> str:
    """Empty for the usual case, one compute instance over the whole GPU instance."""
    if len(slices) == 1:
        return ""
    return " [%s]" % ", ".join("%dc" % n for n in sorted(slices, reverse=True))


def listing(names: Sequence[str]) -> str:
    kinds = sorted(set(names), key=list(names).index)
    return ", ".join("%dx %s" % (list(names).count(kind), kind) for kind in kinds) or "nothing"
