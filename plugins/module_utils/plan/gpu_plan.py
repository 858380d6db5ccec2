# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the plan: the desired state of each GPU, and the steps to it.

Check mode, diff, reports and apply use the same object. `change.planner` creates it.
"""

# `frozen` makes dataclasses.
# pylint: disable=invalid-field-call
from __future__ import annotations

from dataclasses import field
from typing import Any, Mapping, Sequence

from ..errors import BusyError
from ..frozen import frozen
from ..model import Device, Division
from .disturbance import Disturbance
from .parts import DivisionPart, GpuPart, GpuStep, HostPart


@frozen
class Target:
    """The desired state of one GPU.

    `where` is its layout entry, for messages.
    """

    gpu_uuid: str
    where: str
    sharing: str
    #: The desired division, or None for a whole GPU.
    division: Division | None = None
    #: Desired settings of the vendor and of techniques, by name. None means no change.
    settings: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    #: The entry's leases, as `layout.leases.Leases`, or None. Journals and saved plans do not have them.
    leases: Any = None

    def __str__(self) -> str:
        return self.sharing if self.division is None else "%s: %s" % (self.sharing, self.division)


@frozen
class GpuPlan:
    """The steps for one GPU, and its parts that stay."""

    gpu: Device
    target: Target
    #: The divider's steps on the GPU.
    division: DivisionPart
    #: Parts for the vendor's settings, then those for techniques' settings in the registry's order.
    parts: tuple[GpuPart, ...] = ()

    @property
    def steps(self) -> tuple[GpuStep, ...]:
        """Return all steps in order.

        For a GPU that will be divided, settings are removed before the divider's steps. Otherwise settings are set
        after them.
        """
        of_parts = [step for part in self.parts for step in part.steps]
        of_division = self.division.steps
        return (*of_division, *of_parts) if self.target.division is None else (*of_parts, *of_division)

    @property
    def disturbs(self) -> tuple[Disturbance, ...]:
        """Return everything on the GPU that the steps would interrupt."""
        return self.division.disturbs

    @property
    def left(self) -> Sequence[Any]:
        """Return other owners' parts without a layout entry, which are not changed."""
        return self.division.left

    def needs(self, *effects: str) -> bool:
        """Return whether a step of the divider needs one of these effects."""
        return any(step.needs in effects for step in self.division.steps)

    def __str__(self) -> str:
        return gpu_line(self.gpu, self.words())

    def words(self) -> str:
        """Return the kept parts and the steps as text, without the GPU's name."""
        words = ["keep %s" % instance_text(instance) for instance in self.division.kept]
        words += ["leave %s" % instance_text(instance) for instance in self.left]
        words += [str(step) for step in self.shown_steps]
        return ", ".join(words) or "nothing to do"

    @property
    def shown_steps(self) -> tuple[GpuStep, ...]:
        """Return the steps, except those that other steps imply."""
        return tuple(step for step in self.steps if not step.implied(self.division.steps))

    def planned(self) -> Sequence[Any]:
        """Return the kept and the new parts, each with its position."""
        return self.division.planned()

    def before(self) -> str:
        """Return the observed state of the GPU as text."""
        return ", ".join(filter(None, [self.division.before(), *(part.before for part in self.parts)]))

    def after(self) -> str:
        """Return the GPU's state after all steps, in the format of `before`."""
        return ", ".join(filter(None, [self.division.after(), *(part.after for part in self.parts)]))


@frozen
class Plan:
    """The changes to a host.

    `gpus` has the GPUs with a layout entry, in the order of their index.
    """

    gpus: tuple[GpuPlan, ...] = ()
    #: Changes of services, in the order of the registry of techniques.
    parts: tuple[HostPart, ...] = ()
    #: Everything on all of the host's GPUs that a reload of the driver would interrupt.
    reload_disturbs: tuple[Disturbance, ...] = ()

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
        of_parts = (disturbance for each in (*self.gpus, *self.parts) for disturbance in each.disturbs)
        return (*of_parts, *self.reload_disturbs)

    def refuse_disturbance(self) -> None:
        """Raise BusyError with the holders that the plan would interrupt."""
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

        A GPU's line has its index and UUID as separate keys.
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

        The format is the same as for `before`.
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
            "keep": sum(len(gpu.division.kept) for gpu in self.gpus),
            "gpus_changed": sum(self.changed(gpu) for gpu in self.gpus),
        }


def gpu_line(gpu: Device, text: str) -> str:
    """Return the line for a GPU in a plan."""
    return "gpu %d: %s" % (gpu.index, text)


def instance_text(instance: Any) -> str:
    """Return a part of a GPU as text, with the number of processes in it."""
    count = len(instance.processes)
    return "%s@%d%s" % (
        instance.profile,
        instance.start,
        " (%d process%s)" % (count, "" if count == 1 else "es") if count else "",
    )


def listing(names: Sequence[str]) -> str:
    """Return the names as text. A repeated name has a count."""
    kinds = sorted(set(names), key=list(names).index)
    return ", ".join("%dx %s" % (list(names).count(kind), kind) for kind in kinds) or "nothing"
