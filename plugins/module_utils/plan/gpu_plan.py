# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the plan: the desired state of each GPU, and the steps to it.

Check mode, diff, reports and apply use the same object. `change.planner` creates it.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any, Mapping, Sequence

from ..errors import BusyError
from ..frozen import frozen
from ..model import Gpu, GpuInstance, to_data
from .disturbance import Disturbance
from .parts import GpuPart, GpuStep, HostPart, Instances


@frozen
class WantedInstance:
    """A desired GPU instance.

    `start` pins the instance to a placement. `compute_slices` are the sizes of its compute instances, largest first.
    """

    profile: str
    start: int | None = None
    #: None means one compute instance that fills the GPU instance. An empty tuple means no compute instance.
    compute_slices: tuple[int, ...] | None = None

    def __str__(self) -> str:
        split = "" if self.compute_slices is None else _split_text(self.compute_slices)
        return self.profile + ("" if self.start is None else "@%d" % self.start) + split


@frozen
class Target:
    """The desired state of one GPU.

    `where` is the layout entry of the GPU, for messages.
    """

    gpu_uuid: str
    where: str
    sharing: str
    mig_enabled: bool
    instances: tuple[WantedInstance, ...] = ()
    #: "default", "exclusive_process", or None for no change. It is always None with MIG, because the mode is set on the
    #: instances.
    compute_mode: str | None = None
    #: Settings of techniques by name. The value None means no change.
    settings: Mapping[str, str | None] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        if not self.mig_enabled:
            return self.sharing
        return "%s: %s" % (self.sharing, listing([str(instance) for instance in self.instances]))

    def to_data(self) -> dict[str, Any]:
        """Return the target in the format of journals and saved plans.

        Each setting is a top-level key.
        """
        data = to_data(self)
        settings = data.pop("settings")
        return {**data, **settings}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Target:
        """Return the target from data that `to_data` created.

        Raises KeyError, TypeError or ValueError if the data is invalid.
        """
        instances = tuple(map(_wanted_instance, data["instances"]))
        own = {each.name for each in fields(cls)} - {"settings"}
        known = {name: value for name, value in data.items() if name in own}
        settings = {name: value for name, value in data.items() if name not in own}
        return cls(**dict(known, instances=instances, settings=settings))


@frozen
class GpuPlan:
    """The steps for one GPU, and the instances that are kept.

    `instance_steps` change the MIG mode and the instances of the GPU.
    """

    gpu: Gpu
    target: Target
    instance_steps: tuple[GpuStep, ...] = ()
    kept: tuple[GpuInstance, ...] = ()
    disturbs: tuple[Disturbance, ...] = ()
    #: Instances of other owners that have no layout entry. They are not changed.
    left: tuple[GpuInstance, ...] = ()
    #: The part for the compute mode, and then the parts for settings in the registry's order of the techniques.
    parts: tuple[GpuPart, ...] = ()

    @property
    def steps(self) -> tuple[GpuStep, ...]:
        """Return all steps in order.

        If MIG will be enabled, settings are removed before the instance steps. Otherwise settings are set after the
        instance steps.
        """
        of_parts = [step for part in self.parts for step in part.steps]
        return (*of_parts, *self.instance_steps) if self.target.mig_enabled else (*self.instance_steps, *of_parts)

    def __str__(self) -> str:
        return gpu_line(self.gpu, self.words())

    def words(self) -> str:
        """Return the kept instances and the steps as text, without the GPU's name."""
        words = ["keep %s" % instance_text(instance) for instance in self.kept]
        words += ["leave %s" % instance_text(instance) for instance in self.left]
        words += [str(step) for step in self.shown_steps]
        return ", ".join(words) or "nothing to do"

    @property
    def shown_steps(self) -> tuple[GpuStep, ...]:
        """Return the steps, except those that other steps imply."""
        return tuple(step for step in self.steps if not step.implied(self.instance_steps))

    def planned(self) -> tuple[WantedInstance, ...]:
        """Return the kept and the new instances, each pinned to its placement."""
        instances = self._instances(self.kept)
        return tuple(
            WantedInstance(profile, start, tuple(sorted(slices, reverse=True)))
            for start, (profile, slices) in sorted(instances.items())
        )

    def _instances(self, kept: Sequence[GpuInstance]) -> Instances:
        """Return the instances after all steps. `kept` are those that no step removes."""
        instances: Instances = {i.placement.start: (i.profile, _slices(i)) for i in kept}
        starts = {i.id: i.placement.start for i in self.kept}
        for step in self.instance_steps:
            step.change(instances, starts)
        return instances

    def before(self) -> str:
        """Return the observed state of the GPU as text."""
        instances = [
            "%s@%d%s" % (i.profile, i.placement.start, _split_text(_slices(i))) for i in self.gpu.mig.instances
        ]
        return _state(self.gpu.mig.enabled, instances, [part.before for part in self.parts])

    def after(self) -> str:
        """Return the state of the GPU after all steps, in the format of `before`."""
        planned = sorted(self._instances(self.kept + self.left).items())
        instances = ["%s@%d%s" % (profile, start, _split_text(slices)) for start, (profile, slices) in planned]
        return _state(self.target.mig_enabled, instances, [part.after for part in self.parts])


@frozen
class Plan:
    """The changes to a host.

    `gpus` are in the order of their indexes. GPUs without a layout entry are not included.
    """

    gpus: tuple[GpuPlan, ...] = ()
    #: The changes to services, in the registry's order of the techniques.
    parts: tuple[HostPart, ...] = ()

    @property
    def changes(self) -> bool:
        """Return whether the plan has any steps."""
        return any(each.steps for each in (*self.gpus, *self.parts))

    @property
    def changes_devices(self) -> bool:
        """Return whether the plan creates or destroys devices."""
        return any(step.changes_devices for gpu in self.gpus for step in gpu.steps)

    @property
    def disturbs(self) -> tuple[Disturbance, ...]:
        """Return everything that the steps would interrupt, with the holders."""
        return tuple(disturbance for each in (*self.gpus, *self.parts) for disturbance in each.disturbs)

    def refuse_disturbance(self) -> None:
        """Raise BusyError with the holders if the plan would interrupt any."""
        if self.disturbs:
            raise BusyError(
                self.disturbs,
                "the plan would end these workloads, and nothing was changed",
                "Stop them, or change gpu_layout to keep this instance. gpu_layout_on_busy can wait for them, drain or end them.",
            )

    def lines(self) -> list[str]:
        """Return the plan as text.

        It has one line for each GPU and one line for each change to a service.
        """
        return [*map(str, self.gpus), *(line for part in self.parts for line in part.lines())]

    def lines_data(self) -> list[dict[str, Any]]:
        """Return the lines from `lines` as data.

        The line of a GPU has its index and UUID as separate keys.
        """
        of_gpus = [{"index": each.gpu.index, "uuid": each.gpu.uuid, "text": each.words()} for each in self.gpus]
        return [*of_gpus, *({"text": line} for part in self.parts for line in part.lines())]

    def changed(self, gpu: GpuPlan) -> bool:
        """Return whether the plan changes a GPU or one of its services."""
        return bool(gpu.steps) or any(gpu.gpu.uuid in part.gpus_changed() for part in self.parts)

    def before(self, gpu: GpuPlan) -> str:
        """Return the observed state of a GPU and its services as text."""
        return ", ".join(filter(None, [gpu.before(), *(part.before(gpu.gpu.uuid) for part in self.parts)]))

    def after(self, gpu: GpuPlan) -> str:
        """Return the planned state of a GPU and its services.

        The format is that of `before`.
        """
        return ", ".join(filter(None, [gpu.after(), *(part.after(gpu.gpu.uuid) for part in self.parts)]))

    def counts(self) -> dict[str, int]:
        """Count the GPU instances by action, and the GPUs that change.

        The actions are create, destroy and keep.
        """
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
    """Return the line for a GPU in a plan."""
    return "gpu %d: %s" % (gpu.index, text)


def instance_text(instance: GpuInstance) -> str:
    """Return an instance as text, with the number of processes in it."""
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
    """Return the compute instances as text, or "" if there is only one."""
    if len(slices) == 1:
        return ""
    return " [%s]" % ", ".join("%dc" % n for n in sorted(slices, reverse=True))


def listing(names: Sequence[str]) -> str:
    """Return names as text, with a count for each different name."""
    kinds = sorted(set(names), key=list(names).index)
    return ", ".join("%dx %s" % (list(names).count(kind), kind) for kind in kinds) or "nothing"
