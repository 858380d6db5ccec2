# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan as an object: what a GPU shall become, the steps to it, and how both read.

Check mode, diff, reports and the executor use the same object. Nothing here decides anything: `planner` does.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any, Mapping, Sequence

from .disturbance import Disturbance
from .errors import BusyError
from .frozen import frozen
from .model import Gpu, GpuInstance, to_data
from .plan_parts import GpuPart, GpuStep, HostPart, Instances


@frozen
class WantedInstance:
    """One GPU instance that shall exist. `start` pins it; `compute_slices` are its compute instances, largest first."""

    profile: str
    start: int | None = None
    #: None: one compute instance over the whole GPU instance. Empty: no compute instance.
    compute_slices: tuple[int, ...] | None = None

    def __str__(self) -> str:
        split = "" if self.compute_slices is None else _split_text(self.compute_slices)
        return self.profile + ("" if self.start is None else "@%d" % self.start) + split


@frozen
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


@frozen
class GpuPlan:
    """The steps for one GPU, and what stays. `instance_steps` are those of its MIG mode and its instances."""

    gpu: Gpu
    target: Target
    instance_steps: tuple[GpuStep, ...] = ()
    kept: tuple[GpuInstance, ...] = ()
    disturbs: tuple[Disturbance, ...] = ()
    #: Instances that are not the collection's and that no layout names, left where they are.
    left: tuple[GpuInstance, ...] = ()
    #: That of the compute mode, and those of settings in the order of the registry of techniques.
    parts: tuple[GpuPart, ...] = ()

    @property
    def steps(self) -> tuple[GpuStep, ...]:
        """All steps in their order: a GPU loses its settings before it goes into MIG mode, and gets them after it came out."""
        of_parts = [step for part in self.parts for step in part.steps]
        return (*of_parts, *self.instance_steps) if self.target.mig_enabled else (*self.instance_steps, *of_parts)

    def __str__(self) -> str:
        return gpu_line(self.gpu, self.words())

    def words(self) -> str:
        """Return the steps and what stays, without the GPU's name."""
        words = ["keep %s" % instance_text(instance) for instance in self.kept]
        words += ["leave %s" % instance_text(instance) for instance in self.left]
        words += [str(step) for step in self.shown_steps]
        return ", ".join(words) or "nothing to do"

    @property
    def shown_steps(self) -> tuple[GpuStep, ...]:
        """The steps, less those that go without saying."""
        return tuple(step for step in self.steps if not step.implied(self.instance_steps))

    def planned(self) -> tuple[WantedInstance, ...]:
        """The instances that the plan keeps and creates, each pinned where it will be."""
        coming = self._instances(self.kept)
        return tuple(
            WantedInstance(profile, start, tuple(sorted(slices, reverse=True)))
            for start, (profile, slices) in sorted(coming.items())
        )

    def _instances(self, staying: Sequence[GpuInstance]) -> Instances:
        """Return the instances that are there when every step is done, given those that stay."""
        found: Instances = {i.placement.start: (i.profile, _slices(i)) for i in staying}
        starts = {i.id: i.placement.start for i in self.kept}
        for step in self.instance_steps:
            step.change(found, starts)
        return found

    def before(self) -> str:
        """Return the GPU's state as observed."""
        instances = [
            "%s@%d%s" % (i.profile, i.placement.start, _split_text(_slices(i))) for i in self.gpu.mig.instances
        ]
        return _state(self.gpu.mig.enabled, instances, [part.before for part in self.parts])

    def after(self) -> str:
        """Return the GPU's state when every step is done, in the words of `before`."""
        coming = sorted(self._instances(self.kept + self.left).items())
        instances = ["%s@%d%s" % (profile, start, _split_text(slices)) for start, (profile, slices) in coming]
        return _state(self.target.mig_enabled, instances, [part.after for part in self.parts])


@frozen
class Plan:
    """What a host needs, GPU by GPU in index order. GPUs that the layout does not name are not in it."""

    gpus: tuple[GpuPlan, ...] = ()
    #: What changes beside the GPUs, in the order of the registry of techniques.
    parts: tuple[HostPart, ...] = ()

    @property
    def changes(self) -> bool:
        """Return whether there is anything to do."""
        return any(each.steps for each in (*self.gpus, *self.parts))

    @property
    def changes_devices(self) -> bool:
        """Return whether devices come or go."""
        return any(step.changes_devices for gpu in self.gpus for step in gpu.steps)

    @property
    def disturbs(self) -> tuple[Disturbance, ...]:
        """Return whom the steps would disturb."""
        return tuple(found for each in (*self.gpus, *self.parts) for found in each.disturbs)

    def refuse_disturbance(self) -> None:
        """Raise BusyError, naming who, where the plan would end something that runs."""
        if self.disturbs:
            raise BusyError(
                self.disturbs,
                "the plan would end what runs there, and nothing was changed",
                "Stop it, or change gpu_layout so that this instance stays; gpu_layout_on_busy can wait for it, drain or end it.",
            )

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
        counted = [step.counted for gpu in self.gpus for step in gpu.steps]
        return {
            "create": counted.count("create"),
            "destroy": counted.count("destroy"),
            "keep": sum(len(gpu.kept) for gpu in self.gpus),
            "gpus_changed": sum(self.changed(gpu) for gpu in self.gpus),
        }


def _wanted_instance(data: Mapping[str, Any]) -> WantedInstance:
    slices = data["compute_slices"]
    return WantedInstance(data["profile"], data["start"], None if slices is None else tuple(slices))


def gpu_line(gpu: Gpu, text: str) -> str:
    """Return the line of a plan about this GPU."""
    return "gpu %d: %s" % (gpu.index, text)


def instance_text(instance: GpuInstance) -> str:
    """Return an instance in words, with the number of processes in it."""
    count = len(instance.processes)
    return "%s@%d%s" % (
        instance.profile,
        instance.placement.start,
        " (%d process%s)" % (count, "" if count == 1 else "es") if count else "",
    )


def _state(mig_enabled: bool, instances: Sequence[str], parts: Sequence[str]) -> str:
    mode = "MIG on: %s" % (", ".join(instances) or "no instances") if mig_enabled else "MIG off"
    return ", ".join([mode, *filter(None, parts)])


def _slices(instance: GpuInstance) -> list[int]:
    return [compute.compute_slices for compute in instance.compute_instances]


def _split_text(slices: Sequence[int]) -> str:
    """Empty for the usual case, one compute instance over the whole GPU instance."""
    if len(slices) == 1:
        return ""
    return " [%s]" % ", ".join("%dc" % n for n in sorted(slices, reverse=True))


def listing(names: Sequence[str]) -> str:
    """Return names in words, equal ones counted."""
    kinds = sorted(set(names), key=list(names).index)
    return ", ".join("%dx %s" % (list(names).count(kind), kind) for kind in kinds) or "nothing"
