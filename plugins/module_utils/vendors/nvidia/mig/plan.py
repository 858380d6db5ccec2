# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a GPU's MIG mode and instances.

Planning is pure: equal arguments give equal plans.

An existing instance that the new layout needs stays at its place. The planner also chooses the placement of each new
GPU instance, because the driver's choice may leave no room for later instances.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Iterable, Mapping, Sequence

from ....errors import PlanError
from ....layout.profile_name import nearest_profile
from ....model import ComputeInstance, Gpu, GpuInstance, GpuInstanceProfile, Holder, Placement, Process
from ....plan.disturbance import Disturbance
from ....plan.gpu_plan import Target, instance_text, listing
from ....plan.leased import LEASE, Leased
from ....plan.ownership import Ownership
from ....plan.parts import GpuStep
from .divider import MigDivision, MigPart, WantedInstance
from .fit import Capacity, Want, arrange
from .steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    MigStep,
    SetMigMode,
)

#: Possible starts of compute instances: {compute slices of the GPU instance: {slices of the compute instance: starts}}.
#: Sources: the tables of compute instances in NVIDIA's MIG User Guide (supported-mig-profiles), and the mock A100 and
#: H100 of go-nvml. Not verified on hardware.
COMPUTE_STARTS: Mapping[int, Mapping[int, tuple[int, ...]]] = {
    1: {1: (0,)},
    2: {1: (0, 1), 2: (0,)},
    3: {1: (0, 1, 2), 2: (0,), 3: (0,)},
    4: {1: (0, 1, 2, 3), 2: (0, 2), 4: (0,)},
    7: {1: (0, 1, 2, 3, 4, 5, 6), 2: (0, 2, 4), 3: (0, 4), 4: (0,), 7: (0,)},
}

# Boards with display outputs support MIG only in the display mode "compute":
# https://docs.nvidia.com/datacenter/tesla/mig-user-guide/getting-started-with-mig.html
_DISPLAY_BOARD = re.compile(r"RTX PRO [56]000 Blackwell(?!.*Server)")


def plan(gpu: Gpu, target: Target, ownership: Ownership, undivided: Sequence[str] = ()) -> MigPart:
    """Return the MIG part of a GPU's plan.

    `undivided` has the values of `sharing` that need no MIG, for messages. Raises the same errors as `planner.plan`.
    """
    wanted = target.division
    if wanted is not None and not isinstance(wanted, MigDivision):
        raise TypeError("not a division into MIG instances: %r" % (wanted,))
    foreign: tuple[GpuInstance, ...] = ()
    leases = {instance: ownership.lease(gpu, instance) for instance in gpu.mig.instances}
    leased = {instance: lease for instance, lease in leases.items() if lease is not None}
    if ownership.policy != "remove":
        foreign = tuple(i for i in gpu.mig.instances if i not in leased and ownership.foreign(gpu, i))
    if wanted is None:
        _spare(gpu, target, foreign)
        return _ending(gpu, _plan_whole(gpu), leased, leased)
    where = "%s on %s" % (target.where, gpu.label)
    _refuse_without_mig(gpu, where, undivided)
    # For a target from a journal, `leases` is True, because the leases have been checked.
    profiles = getattr(target.leases, "profiles", ())
    _refuse_unknown(Capacity(gpu.mig.profiles), "%s.leases.profiles on %s" % (target.where, gpu.label), profiles)
    instances: Sequence[WantedInstance] = wanted.instances
    left: tuple[GpuInstance, ...] = ()
    if ownership.policy == "keep":
        instances, left = _beside(gpu, wanted.instances, foreign)
    # An error of the layout itself does not name leases.
    made = _plan_mig(gpu, where, instances, left, tuple(leased))
    if target.leases is not None:
        made = _beside_leases(gpu, where, instances, left, leased) or made
    made = _ending(gpu, made, leased, [instance for instance in leased if instance not in made.left])
    if ownership.policy != "keep":
        _spare(gpu, target, [instance for instance in foreign if instance not in made.kept])
    return made


def _beside_leases(
    gpu: Gpu,
    where: str,
    instances: Sequence[WantedInstance],
    left: tuple[GpuInstance, ...],
    leased: Mapping[GpuInstance, Leased],
) -> MigPart | None:
    """Return a plan that keeps as many leases' instances as possible.

    Instances that a lease uses come first. Returns None if no instance of a lease can stay.
    """
    order = sorted(leased, key=lambda instance: instance.start)
    choices = [part for count in range(len(order)) for part in itertools.combinations(order, count)]
    choices.sort(key=lambda removed: (sum(leased[i].lease is not None for i in removed), len(removed)))
    for removed in choices:
        stay = tuple(instance for instance in order if instance not in removed)
        try:
            return _plan_mig(gpu, where, instances, (*left, *stay), removed)
        except PlanError:
            continue
    return None


def _ending(gpu: Gpu, made: MigPart, leased: Mapping[GpuInstance, Leased], removed: Iterable[GpuInstance]) -> MigPart:
    """Return the plan with a disturbance for each removed instance of a lease.

    A lease holds its instance even without a process in it.
    """
    named = {disturbance.what for disturbance in made.disturbs}
    disturbs = []
    for instance in removed:
        what, lease = "%s: %s" % (gpu.short_label, instance_text(instance)), leased[instance].lease
        if lease is not None and what not in named:
            disturbs.append(Disturbance(what, (Holder(gpu.uuid, instance.id, LEASE, lease),)))
    return dataclasses.replace(made, disturbs=(*made.disturbs, *disturbs))


def _spare(gpu: Gpu, target: Target, doomed: Sequence[GpuInstance]) -> None:
    """Raise PlanError if other owners' instances would be removed."""
    if not doomed:
        return
    names = ", ".join(
        "%s (%s)" % (instance_text(i), ", ".join(str(c.mig_uuid) for c in i.compute_instances) or "no compute instance")
        for i in doomed
    )
    raise PlanError(
        "%s on %s" % (target.where, gpu.label),
        "it has instances that are not in the layout and that this collection did not create: %s" % names,
        "Add them to gpu_layout, or set gpu_layout_unlisted to remove%s."
        % (" or keep" if target.division else ". They cannot stay on a GPU without MIG mode"),
    )


def _beside(
    gpu: Gpu, instances: Sequence[WantedInstance], foreign: Sequence[GpuInstance]
) -> tuple[tuple[WantedInstance, ...], tuple[GpuInstance, ...]]:
    """Return (desired instances, foreign instances that do not change).

    Foreign instances were not created by this collection. If the layout has an instance with the same profile, and the
    collection owns too few of them, a foreign instance is adopted. It is then a desired instance at its placement.
    """
    own = [i.profile for i in gpu.mig.instances if i not in foreign]
    wanted: list[WantedInstance] = list(instances)
    adopted: list[WantedInstance] = []
    left = []
    for instance in foreign:
        profile, start = instance.profile, instance.placement.start
        here = [w for w in wanted if w.profile == profile and w.start == start]
        anywhere = [w for w in wanted if w.profile == profile and w.start is None]
        if not here and len(anywhere) <= own.count(profile):
            left.append(instance)
            continue
        chosen = (here or anywhere)[0]
        wanted.remove(chosen)
        adopted.append(dataclasses.replace(chosen, start=start))
    return (*wanted, *adopted), tuple(left)


def _plan_whole(gpu: Gpu) -> MigPart:
    steps: list[MigStep] = []
    for instance in gpu.mig.instances:
        steps += _destroy(instance)
    if gpu.mig.enabled or gpu.mig.pending:
        # If MIG mode is off with a pending change to on, this step only reverts the pending change.
        steps.append(SetMigMode(False))
    return MigPart(gpu, False, tuple(steps), (), disturbed(gpu, steps))


def _plan_mig(
    gpu: Gpu,
    where: str,
    instances: Sequence[WantedInstance],
    left: tuple[GpuInstance, ...] = (),
    removed: tuple[GpuInstance, ...] = (),
) -> MigPart:
    """Plan the MIG mode and the instances. Instances in `left` do not change.

    Instances in `removed` are destroyed even if they match a desired one.
    """
    capacity = _capacity(gpu, where, instances)
    present = tuple(i for i in gpu.mig.instances if i not in (*left, *removed)) if gpu.mig.enabled else ()
    placed = _place(gpu, where, instances, capacity, present, left)

    at = {(instance.profile, instance.placement): instance for instance in present}
    kept: list[GpuInstance] = []
    destroy: list[MigStep] = []
    create: list[MigStep] = []
    for wanted, placement in sorted(placed, key=lambda pair: pair[1]):
        instance = at.pop((wanted.profile, placement), None)
        profile = capacity.profiles[wanted.profile]
        slices = _slices(wanted, profile)
        if instance is None:
            new = _split(gpu, profile, slices)
            create.append(CreateGpuInstance(profile.name, profile.profile_id, placement))
        else:
            kept.append(instance)
            gone, new = _replan_compute(instance, slices)
            destroy += [_destroy_compute(instance, compute) for compute in gone]
        create += [
            CreateComputeInstance(profile.name, profile.profile_id, placement.start, n, start) for n, start in new
        ]
    for instance in (*at.values(), *(removed if gpu.mig.enabled else ())):
        destroy += _destroy(instance)

    mode: list[MigStep] = []
    if not (gpu.mig.enabled and gpu.mig.pending):
        mode.append(SetMigMode(True))
    kept.sort(key=lambda instance: instance.placement)
    steps = mode + destroy + create
    return MigPart(gpu, True, tuple(steps), tuple(kept), disturbed(gpu, steps), left)


def disturbed(gpu: Gpu, steps: Iterable[GpuStep]) -> tuple[Disturbance, ...]:
    """Return the holders that these steps would disturb.

    Holders are read from `gpu`, the current observation, even if the steps come from a saved plan.
    """
    steps = list(steps)
    doomed = {step.gpu_instance_id for step in steps if isinstance(step, DestroyGpuInstance)}
    parts = {
        (step.gpu_instance_id, step.compute_instance_id) for step in steps if isinstance(step, DestroyComputeInstance)
    }
    found = []
    for instance in gpu.mig.instances:
        if instance.id in doomed:
            found.append(Disturbance("%s: %s" % (gpu.short_label, instance_text(instance)), _holders(instance)))
            continue
        found += [
            Disturbance("%s: compute instance %d of %s" % (gpu.short_label, c.id, instance_text(instance)), _holders(c))
            for c in instance.compute_instances
            if (instance.id, c.id) in parts
        ]
    found = [disturbance for disturbance in found if disturbance.who]
    switches = any(isinstance(step, SetMigMode) and step.enabled != gpu.mig.enabled for step in steps)
    # An instance's holders also hold the GPU. List the GPU's holders only if no instance was listed.
    if switches and not found and _holders(gpu):
        found.append(Disturbance("%s, whose MIG mode would change," % gpu.short_label, _holders(gpu)))
    return tuple(found)


def _refuse_without_mig(gpu: Gpu, where: str, undivided: Sequence[str]) -> None:
    """Raise PlanError if the GPU has no MIG or reports no profiles."""
    if not gpu.mig.capable and _DISPLAY_BOARD.search(gpu.name):
        raise PlanError(
            where,
            "this board has MIG only in the display mode compute, and it has another mode",
            "Set it with NVIDIA's DisplayModeSelector 1.72 or later (https://developer.nvidia.com/displaymodeselector): "
            "`./displaymodeselector --listgpumodes`, then `./displaymodeselector --gpumode=compute --gpu=N`. Reboot the host and "
            "run again. The board then drives no display. If it has that mode already, update its VBIOS (nvidia-smi "
            "--query-gpu=vbios_version --format=csv).",
        )
    if not gpu.mig.capable:
        raise PlanError(
            where,
            "this GPU has no MIG",
            "Choose another sharing for it (%s)." % " or ".join([", ".join(undivided[:-1]), *undivided[-1:]]),
        )
    if not gpu.mig.profiles:
        raise PlanError(
            where,
            "the driver does not report the MIG profiles of this GPU while its MIG mode is off",
            "Upgrade the driver to 550 or later, or enable MIG mode once by hand (nvidia-smi -i %s -mig 1) and run again."
            % gpu.uuid,
        )


def _capacity(gpu: Gpu, where: str, instances: Sequence[WantedInstance]) -> Capacity:
    """Return the GPU's capacity.

    Raises PlanError if the GPU lacks a profile of the desired instances.
    """
    capacity = Capacity(gpu.mig.profiles)
    _refuse_unknown(capacity, where, [wanted.profile for wanted in instances])
    for wanted in instances:
        profile = capacity.profiles[wanted.profile]
        if wanted.start is not None and all(p.start != wanted.start for p in profile.placements):
            starts = ", ".join(str(p.start) for p in profile.placements)
            raise PlanError(
                where,
                "%s cannot start at placement %d" % (wanted.profile, wanted.start),
                "It can start at: %s." % starts,
            )
        slices = _slices(wanted, profile)
        if _arrange_split(gpu, profile, slices) is None:
            sizes = ", ".join("%dc" % size for size in sorted(_compute_placements(gpu, profile)))
            raise PlanError(
                where,
                "a %s cannot be split into compute instances of %s slices"
                % (wanted.profile, " + ".join(map(str, slices))),
                "It has %d compute slices, for compute instances of %s." % (profile.compute_slices, sizes),
            )
    return capacity


def _refuse_unknown(capacity: Capacity, where: str, profiles: Iterable[str]) -> None:
    """Raise PlanError if the GPU lacks one of the profiles."""
    unknown = sorted(set(profiles) - set(capacity.profiles))
    if unknown:
        near = dict.fromkeys(filter(None, (nearest_profile(name, capacity.profiles) for name in unknown)))
        meant = "Did you mean %s? " % " and ".join(near) if near else ""
        raise PlanError(
            where,
            "there is no profile %s" % " or ".join(unknown),
            "%sThis GPU has: %s." % (meant, ", ".join(sorted(capacity.profiles))),
        )


def _place(
    gpu: Gpu,
    where: str,
    instances: Sequence[WantedInstance],
    capacity: Capacity,
    present: Sequence[GpuInstance],
    left: Sequence[GpuInstance],
) -> list[tuple[WantedInstance, Placement]]:
    """Return a placement for each desired instance.

    As many busy instances as possible stay. Among equal solutions, the most instances stay, and then the fewest compute
    instances are removed.
    """
    at = {(instance.profile, instance.placement): instance for instance in present}

    def open_to(wanted: WantedInstance) -> tuple[Placement, ...]:
        return tuple(p for p in capacity.profiles[wanted.profile].placements if wanted.start in (None, p.start))

    def gain(want: Want, placement: Placement) -> tuple[int, ...]:
        wanted = want.kind
        instance = at.get((wanted.profile, placement))
        if instance is None:
            return (0, 0, 0)
        slices = _slices(wanted, capacity.profiles[wanted.profile])
        gone, _new = _replan_compute(instance, slices)
        spared = bool(_holders(instance)) and not any(_holders(compute) for compute in gone)
        return (int(spared), 1, -len(gone))

    names = [wanted.profile for wanted in instances]
    shortage = capacity.shortage(names + [instance.profile for instance in left])
    # The `kind` is the desired instance itself: equal instances are interchangeable.
    wants = [Want(wanted, open_to(wanted)) for wanted in instances]
    fixed = [Want(WantedInstance(i.profile, i.placement.start), (i.placement,)) for i in left]
    found = None if shortage else arrange(wants + fixed, gain, capacity.outlook)
    if found is None:
        if left and capacity.fits(names):
            raise PlanError(
                where,
                "%s do not fit beside instances that are not in the layout: %s"
                % (listing(names), ", ".join(map(instance_text, left))),
                "Add these instances to gpu_layout, or set gpu_layout_unlisted to remove.",
            )
        pinned = any(wanted.start is not None for wanted in instances)
        part = capacity.largest_part(names)
        if shortage is None:
            shortage = "their placements overlap"
            if pinned and capacity.fits(names):
                raise PlanError(
                    where,
                    "%s do not fit with these placements" % listing(names),
                    "Without `placement` they would fit.",
                )
        raise PlanError(
            where,
            "%s do not fit together: %s" % (listing(names), shortage),
            "The largest part that fits is: %s." % listing(part),
        )
    return list(zip(instances, found))


def _slices(wanted: WantedInstance, profile: GpuInstanceProfile) -> tuple[int, ...]:
    """Return the slices of the desired compute instances.

    The default is one compute instance that spans the GPU instance.
    """
    return (profile.compute_slices,) if wanted.compute_slices is None else wanted.compute_slices


def _compute_placements(gpu: Gpu, profile: GpuInstanceProfile) -> dict[int, tuple[Placement, ...]]:
    """Return the possible placements of compute instances in a new GPU instance.

    The result maps compute slices to placements. NVML reports placements only for existing GPU instances. If the GPU
    has an instance with the same profile, its placements are returned, otherwise those in COMPUTE_STARTS.
    """
    for instance in gpu.mig.instances:
        if instance.profile == profile.name and instance.compute_placements:
            return dict(instance.compute_placements)
    whole: Mapping[int, tuple[int, ...]] = {profile.compute_slices: (0,)}
    starts = COMPUTE_STARTS.get(profile.compute_slices, whole)
    return {size: tuple(Placement(start, size) for start in at) for size, at in starts.items()}


def _arrange_split(gpu: Gpu, profile: GpuInstanceProfile, slices: Sequence[int]) -> tuple[Placement, ...] | None:
    places = _compute_placements(gpu, profile)
    return arrange([Want(size, places.get(size, ())) for size in slices], lambda want, placement: ())


def _split(gpu: Gpu, profile: GpuInstanceProfile, slices: Sequence[int]) -> list[tuple[int, int | None]]:
    """Return (slices, start) of each compute instance of a new GPU instance."""
    if tuple(slices) == (profile.compute_slices,):
        return [(profile.compute_slices, None)]
    placements = _arrange_split(gpu, profile, slices) or ()
    return [(size, placement.start) for size, placement in zip(slices, placements)]


def _replan_compute(
    instance: GpuInstance, slices: Sequence[int]
) -> tuple[tuple[ComputeInstance, ...], list[tuple[int, int | None]]]:
    """Return the changes to the compute instances of a kept GPU instance.

    Returns the compute instances to remove, and (slices, start) of each compute instance to create.
    """
    places = dict(instance.compute_placements)
    at = {(c.compute_slices, c.placement.start): c for c in instance.compute_instances}

    def gain(want: Want, placement: Placement) -> tuple[int, ...]:
        compute = at.get((want.kind, placement.start))
        return (0, 0) if compute is None else (int(bool(_holders(compute))), 1)

    found = arrange([Want(n, places.get(n, ())) for n in slices], gain)
    if found is None:
        # The GPU instance reports no suitable placements. Keep its compute instances if they have the desired sizes.
        # Otherwise recreate them all.
        have = sorted(c.compute_slices for c in instance.compute_instances)
        if have == sorted(slices):
            return (), []
        return instance.compute_instances, [(n, None) for n in sorted(slices, reverse=True)]
    new: list[tuple[int, int | None]] = []
    for n, placement in zip(slices, found):
        if at.pop((n, placement.start), None) is None:
            new.append((n, placement.start))
    return tuple(at.values()), new


def _destroy(instance: GpuInstance) -> list[MigStep]:
    """Return the steps that remove a GPU instance, after its compute instances."""
    steps: list[MigStep] = [_destroy_compute(instance, compute) for compute in instance.compute_instances]
    return [*steps, DestroyGpuInstance(instance.profile, instance.id, instance.placement)]


def _destroy_compute(instance: GpuInstance, compute: ComputeInstance) -> DestroyComputeInstance:
    return DestroyComputeInstance(
        instance.profile, instance.id, compute.id, compute.compute_slices, compute.placement.start
    )


def _holders(thing: Gpu | GpuInstance | ComputeInstance) -> tuple[Holder | Process, ...]:
    """Return the holders of a GPU or an instance.

    Without holders, returns the processes that NVML reports.
    """
    return thing.held_by or thing.processes
