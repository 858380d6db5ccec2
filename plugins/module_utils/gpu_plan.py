# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the plan: the desired state of each GPU, with steps and texts.

Check mode, diff, reports and apply use the same object. `change.planner` makes it.
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
    """A desired GPU instance.

    `start` pins it. `compute_slices` are its compute instances, largest first.
    """

    profile: str
    start: int | None = None
    #: None: one compute instance that fills the GPU instance. Empty: no compute instance.
    compute_slices: tuple[int, ...] | None = None

    def __str__(self) -> str:
        split = "" if self.compute_slices is None else _split_text(self.compute_slices)
        return self.profile + ("" if self.start is None else "@%d" % self.start) + split


@frozen
class Target:
    """The desired state of one GPU. `where` is its layout entry, for messages."""

    gpu_uuid: str
    where: str
    sharing: str
    mig_enabled: bool
    instances: tuple[WantedInstance, ...] = ()
    #: default, exclusive_process, or None for no change. With MIG it is None, since instances have the mode.
    compute_mode: str | None = None
    #: Settings of techniques by name. None means no change.
    settings: Mapping[str, str | None] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        if not self.mig_enabled:
            return self.sharing
        return "%s: %s" % (self.sharing, listing([str(instance) for instance in self.instances]))

    def to_data(self) -> dict[str, Any]:
        """Return the target as journals and saved plans have it.

        Each setting is a top-level key.
        """
        data = to_data(self)
        settings = data.pop("settings")
        return {**data, **settings}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Target:
        """Parse a result of `to_data`.

        Raises KeyError, TypeError or ValueError if it is invalid.
        """
        instances = tuple(map(_wanted_instance, data["instances"]))
        own = {each.name for each in fields(cls)} - {"settings"}
        known = {name: value for name, value in data.items() if name in own}
        settings = {name: value for name, value in data.items() if name not in own}
        return cls(**dict(known, instances=instances, settings=settings))


@frozen
class GpuPlan:
    """The steps for one GPU, and the instances that it keeps.

    `instance_steps` change its MIG mode and instances.
    """

    gpu: Gpu
    target: Target
    instance_steps: tuple[GpuStep, ...] = ()
    kept: tuple[GpuInstance, ...] = ()
    disturbs: tuple[Disturbance, ...] = ()
    #: Foreign instances without a layout entry, which are not changed.
    left: tuple[GpuInstance, ...] = ()
    #: The part of the compute mode, then those of settings in the order of the registry of techniques.
    parts: tuple[GpuPart, ...] = ()

    @property
    def steps(self) -> tuple[GpuStep, ...]:
        """Return all steps in order.

        Settings are removed before MIG is enabled, and set after it is disabled.
        """
        of_parts = [step for part in self.parts for step in part.steps]
        return (*of_parts, *self.instance_steps) if self.target.mig_enabled else (*self.instance_steps, *of_parts)

    def __str__(self) -> str:
        return gpu_line(self.gpu, self.words())

    def words(self) -> str:
        """Return the kept instances and the steps in words, without the GPU's name."""
        words = ["keep %s" % instance_text(instance) for instance in self.kept]
        words += ["leave %s" % instance_text(instance) for instance in self.left]
        words += [str(step) for step in self.shown_steps]
        return ", ".join(words) or "nothing to do"

    @property
    def shown_steps(self) -> tuple[GpuStep, ...]:
        """Return the steps without those that other steps imply."""
        return tuple(step for step in self.steps if not step.implied(self.instance_steps))

    def planned(self) -> tuple[WantedInstance, ...]:
        """Return the kept and created instances, each pinned to its placement."""
        instances = self._instances(self.kept)
        return tuple(
            WantedInstance(profile, start, tuple(sorted(slices, reverse=True)))
            for start, (profile, slices) in sorted(instances.items())
        )

    def _instances(self, kept: Sequence[GpuInstance]) -> Instances:
        """Return the instances after all steps, given those that are kept."""
        instances: Instances = {i.placement.start: (i.profile, _slices(i)) for i in kept}
        starts = {i.id: i.placement.start for i in self.kept}
        for step in self.instance_steps:
            step.change(instances, starts)
        return instances

    def before(self) -> str:
        """Return the GPU's state as observed."""
        instances = [
            "%s@%d%s" % (i.profile, i.placement.start, _split_text(_slices(i))) for i in self.gpu.mig.instances
        ]
        return _state(self.gpu.mig.enabled, instances, [part.before for part in self.parts])

    def after(self) -> str:
        """Return the GPU's state after all steps, in the words of `before`."""
        planned = sorted(self._instances(self.kept + self.left).items())
        instances = ["%s@%d%s" % (profile, start, _split_text(slices)) for start, (profile, slices) in planned]
        return _state(self.target.mig_enabled, instances, [part.after for part in self.parts])


@frozen
class Plan:
    """The changes of a host.

    `gpus` are in index order, without those that have no layout entry.
    """

    gpus: tuple[GpuPlan, ...] = ()
    #: Changes of services, in the order of the registry of techniques.
    parts: tuple[HostPart, ...] = ()

    @property
    def changes(self) -> bool:
        """Return whether the plan has any step."""
        return any(each.steps for each in (*self.gpus, *self.parts))

    @property
    def changes_devices(self) -> bool:
        """Return whether devices are created or destroyed."""
        return any(step.changes_devices for gpu in self.gpus for step in gpu.steps)

    @property
    def disturbs(self) -> tuple[Disturbance, ...]:
        """Return everything that the steps would interrupt, with its holders."""
        return tuple(disturbance for each in (*self.gpus, *self.parts) for disturbance in each.disturbs)

    def refuse_disturbance(self) -> None:
        """Raise BusyError, naming the holders, if the plan would interrupt any."""
        if self.disturbs:
            raise BusyError(
                self.disturbs,
                "the plan would end these workloads, and nothing was changed",
                "Stop them, or change gpu_layout to keep this instance. gpu_layout_on_busy can wait for them, drain or end them.",
            )

    def lines(self) -> list[str]:
        """Return the plan for people: one line per GPU, and one per change of a service."""
        return [*map(str, self.gpus), *(line for part in self.parts for line in part.lines())]

    def lines_data(self) -> list[dict[str, Any]]:
        """Return `lines` as data. Lines of GPUs have index and UUID as separate keys."""
        of_gpus = [{"index": each.gpu.index, "uuid": each.gpu.uuid, "text": each.words()} for each in self.gpus]
        return [*of_gpus, *({"text": line} for part in self.parts for line in part.lines())]

    def changed(self, gpu: GpuPlan) -> bool:
        """Return whether a GPU or one of its services changes."""
        return bool(gpu.steps) or any(gpu.gpu.uuid in part.gpus_changed() for part in self.parts)

    def before(self, gpu: GpuPlan) -> str:
        """Return the observed state of a GPU and its services."""
        return ", ".join(filter(None, [gpu.before(), *(part.before(gpu.gpu.uuid) for part in self.parts)]))

    def after(self, gpu: GpuPlan) -> str:
        """Return the planned state of a GPU and its services, in the words of `before`."""
        return ", ".join(filter(None, [gpu.after(), *(part.after(gpu.gpu.uuid) for part in self.parts)]))

    def counts(self) -> dict[str, int]:
        """Count GPU instances to create, to destroy and to keep, and GPUs that change."""
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
    """Return a line of a plan about a GPU."""
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
    """Return the compute instances in words, or "" if one fills the GPU instance."""
    if len(slices) == 1:
        return ""
    return " [%s]" % ", ".join("%dc" % n for n in sorted(slices, reverse=True))


def listing(names: Sequence[str]) -> str:
    """Return names in words, with counts instead of repetitions."""
    kinds = sorted(set(names), key=list(names).index)
    return ", ".join("%dx %s" % (list(names).count(kind), kind) for kind in kinds) or "nothing"
