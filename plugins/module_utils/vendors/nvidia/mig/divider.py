# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Combine the files of this folder into a divider, and define desired instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, ClassVar, Iterable, Mapping, Sequence

from ....frozen import frozen
from ....layout.types import MigInstance
from ....model import ComputeInstance, Gpu, GpuInstance, Placement, to_data
from ....plan.gpu_plan import listing

if TYPE_CHECKING:
    from ....plan.disturbance import Disturbance
    from ....plan.gpu_plan import GpuPlan, Target
    from ....plan.ownership import Ownership
    from ....plan.parts import GpuStep
    from ..nvml.bounded_session import BoundedSession
    from .steps import Instances, MigStep


@frozen
class WantedInstance:
    """A desired GPU instance.

    `start` pins it to a placement. `compute_slices` has the sizes of its compute instances, largest first.
    """

    profile: str
    start: int | None = None
    #: Sizes of the compute instances. None means one compute instance that fills the GPU instance. An empty tuple means
    #: none.
    compute_slices: tuple[int, ...] | None = None

    def __str__(self) -> str:
        split = "" if self.compute_slices is None else _split_text(self.compute_slices)
        return self.profile + ("" if self.start is None else "@%d" % self.start) + split


@frozen
class MigDivision:
    """The desired instances of a GPU in MIG mode."""

    divider: ClassVar[str] = Gpu.divider
    instances: tuple[WantedInstance, ...] = ()

    def __str__(self) -> str:
        return listing([str(instance) for instance in self.instances])


@frozen
class MigPart:
    """The steps for a GPU's MIG mode and instances.

    `parts.DivisionPart` documents the members.
    """

    gpu: Gpu
    enabled: bool
    steps: tuple[MigStep, ...] = ()
    kept: tuple[GpuInstance, ...] = ()
    disturbs: tuple[Disturbance, ...] = ()
    left: tuple[GpuInstance, ...] = ()

    def kept_uuids(self) -> list[str]:
        """Return the UUIDs of the MIG devices that no step removes."""
        # Use getattr, so that the step classes are not loaded for a GPU without MIG. Only one of them has the id of a
        # compute instance.
        gone = {(getattr(s, "gpu_instance_id", None), getattr(s, "compute_instance_id", None)) for s in self.steps}
        return [
            part.mig_uuid
            for instance in (*self.kept, *self.left)
            for part in instance.compute_instances
            if part.mig_uuid and (instance.id, part.id) not in gone
        ]

    def planned(self) -> tuple[WantedInstance, ...]:
        """Return the kept and the new instances, each pinned to its placement."""
        return tuple(
            WantedInstance(profile, start, tuple(sorted(slices, reverse=True)))
            for start, (profile, slices) in sorted(self._instances(self.kept).items())
        )

    def before(self) -> str:
        """Return the observed mode and instances as text."""
        instances = [
            "%s@%d%s" % (i.profile, i.placement.start, _split_text(_slices(i))) for i in self.gpu.mig.instances
        ]
        return _state(self.gpu.mig.enabled, instances)

    def after(self) -> str:
        """Return the mode and the instances after all steps as text."""
        planned = sorted(self._instances(self.kept + self.left).items())
        return _state(self.enabled, ["%s@%d%s" % (profile, at, _split_text(n)) for at, (profile, n) in planned])

    def _instances(self, kept: Sequence[GpuInstance]) -> Instances:
        """Return the instances after all steps.

        `kept` has the instances that the steps do not remove.
        """
        instances: Instances = {i.placement.start: (i.profile, _slices(i)) for i in kept}
        starts = {i.id: i.placement.start for i in self.kept}
        for step in self.steps:
            step.change(instances, starts)
        return instances


class MigDivider:
    """Divide a GPU into MIG instances. `protocol.Divider` documents the members.

    If a GPU neither has nor needs MIG, the planner is not loaded.
    """

    key = Gpu.divider
    target_keys = ("mig_enabled", "instances")

    def wanted(self, part: Sequence[MigInstance]) -> MigDivision:
        """Return the desired instances of a layout entry."""
        wanted: list[WantedInstance] = []
        for each in part:
            slices = tuple(sorted(each.compute_slices, reverse=True)) or None
            wanted += [WantedInstance(each.profile, each.placement, slices)] * each.count
        return MigDivision(tuple(wanted))

    def current(self, gpu: Gpu) -> MigDivision | None:
        """Return the observed instances with pinned placements."""
        if not gpu.mig.enabled:
            return None
        return MigDivision(
            tuple(
                WantedInstance(i.profile, i.placement.start, tuple(sorted(_slices(i), reverse=True)))
                for i in gpu.mig.instances
            )
        )

    def plan(self, gpu: Gpu, target: Target, ownership: Ownership, undivided: Sequence[str] = ()) -> MigPart:
        """Return the steps for the GPU's MIG mode and instances."""
        mig = gpu.mig
        if not (target.division or mig.enabled or mig.pending or mig.instances):
            return MigPart(gpu, False)
        from .plan import plan

        return plan(gpu, target, ownership, undivided)

    def disturbed(self, gpu: Gpu, steps: Iterable[GpuStep]) -> tuple[Disturbance, ...]:
        """Return the GPU's holders that the steps would disturb."""
        from .plan import disturbed

        return disturbed(gpu, steps)

    def largest_part(self, gpu: Gpu, profiles: Sequence[str]) -> list[str]:
        """Return the largest subset of these profiles that fits on the empty GPU."""
        from .fit import largest_part

        return largest_part(gpu, profiles)

    def apply(self, session: BoundedSession, gpu_uuid: str, steps: Sequence[Any], done: Callable[[Any], None]) -> None:
        """Apply steps."""
        from .apply import apply

        apply(session, gpu_uuid, steps, done)

    def reload(self, session: BoundedSession) -> None:
        """Raise NotImplementedError: no MIG step needs a reload of the driver."""
        raise NotImplementedError

    def leave_pending(self, session: BoundedSession, plans: Sequence[GpuPlan]) -> None:
        """Set the changed MIG modes and leave them pending."""
        from .apply import leave_pending

        leave_pending(session, plans)

    def reboot_line(self, gpu: Gpu) -> str:
        """Return a sentence if the change of the MIG mode may need a reboot."""
        from ....holders.kernel import foreseen

        return foreseen(gpu) or ""

    def untouched(self, gpu: Gpu, wanted: MigDivision | None) -> bool:
        """Return whether the GPU has the wanted instances, or no instances."""
        has = sorted((i.profile, i.start) for i in gpu.mig.instances)
        return not has or has == sorted((i.profile, i.start or 0) for i in (wanted.instances if wanted else ()))

    def only(self, gpu: Gpu, parts: Sequence[GpuInstance]) -> Gpu:
        """Return the GPU with these instances only."""
        return gpu.with_instances(tuple(parts), gpu.mig.enabled)

    def with_planned(self, gpu: Gpu, part: MigPart, division: MigDivision | None) -> Gpu:
        """Return the GPU with the planned instances.

        Instances that belong to other owners are left out.
        """
        instances = tuple(
            GpuInstance(
                number,
                each.profile,
                Placement(each.start or 0, 0),
                tuple(ComputeInstance(n, size, Placement(0, size)) for n, size in enumerate(each.compute_slices or ())),
            )
            for number, each in enumerate(part.planned() if division else ())
        )
        return gpu.with_instances(instances, division is not None)

    def report(self, planned: Gpu, gpu: Gpu) -> dict[str, Any]:
        """Return the instances of a GPU, and the number of its placement units."""
        ends = (p.start + p.size for profile in planned.mig.profiles for p in profile.placements)
        instances = [
            {"profile": i.profile, "placement": to_data(i.placement), "mig_uuids": list(i.uuids)}
            for i in gpu.mig.instances
        ]
        return {"placement_units": max(ends, default=0), "instances": instances}

    def target_data(self, division: MigDivision | None) -> dict[str, Any]:
        """Return the MIG mode and the instances for journals and saved plans."""
        return {"mig_enabled": division is not None, "instances": to_data(division.instances if division else ())}

    def from_target_data(self, data: Mapping[str, Any]) -> MigDivision | None:
        """Return the desired instances from `target_data`."""
        instances = tuple(_wanted_instance(item) for item in data["instances"])
        return MigDivision(instances) if data["mig_enabled"] else None

    def pinned(self, division: MigDivision | None, planned: Any) -> MigDivision | None:
        """Return the desired instances with the placements of a saved plan."""
        instances = tuple(_wanted_instance(item) for item in planned)
        return None if division is None else MigDivision(instances)

    def observed_data(self, gpu: Gpu) -> dict[str, Any]:
        """Return the MIG mode and the instances for saved plans."""
        return {
            "mig_enabled": gpu.mig.enabled,
            "mig_pending": gpu.mig.pending,
            "instances": [
                {
                    "id": instance.id,
                    "profile": instance.profile,
                    "start": instance.placement.start,
                    "compute_instances": [
                        {"id": c.id, "compute_slices": c.compute_slices, "start": c.placement.start}
                        for c in instance.compute_instances
                    ],
                }
                for instance in gpu.mig.instances
            ],
        }

    def differences(self, then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Return (differences of the MIG mode, differences of the instances)."""
        from .differences import differences

        return differences(then, now)


def _wanted_instance(data: Mapping[str, Any]) -> WantedInstance:
    slices = data["compute_slices"]
    return WantedInstance(data["profile"], data["start"], None if slices is None else tuple(slices))


def _state(enabled: bool, instances: Sequence[str]) -> str:
    return "MIG on: %s" % (", ".join(instances) or "no instances") if enabled else "MIG off"


def _slices(instance: GpuInstance) -> list[int]:
    return [compute.compute_slices for compute in instance.compute_instances]


def _split_text(slices: Sequence[int]) -> str:
    """Return the compute instances as text, or "" if there is only one."""
    if len(slices) == 1:
        return ""
    return " [%s]" % ", ".join("%dc" % n for n in sorted(slices, reverse=True))
