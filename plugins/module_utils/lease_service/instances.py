# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the instances of leases and update their records, with pure functions."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Sequence

from ..change import planner
from ..layout.types import MigInstance
from ..leases.model import Place, Shape, Use
from ..model import Device, Host, Part, parts_of
from ..plan.gpu_plan import GpuPlan
from ..plan.leased import Leased
from ..plan.ownership import Ownership
from ..vendors.lease_cards import CARDS
from ..vendors.registry import divider_of


def card(gpu: Device, profiles: Sequence[str], ownership: Ownership) -> Any:
    """Return a GPU's card. `profiles` are the profiles that can be leased."""
    fixed, idle = [], []
    for instance in parts_of(gpu):
        record = ownership.lease(gpu, instance)
        if record is None:
            fixed.append(instance)
        elif record.lease is None:
            idle.append(instance)
    return CARDS[gpu.divider].of(gpu, profiles, fixed, idle)


def uses(gpu: Device, ownership: Ownership, without: str) -> list[Use]:
    """Return the instances of all leases on a GPU, except one.

    `without` is that lease's text.
    """
    records = ((instance, ownership.lease(gpu, instance)) for instance in parts_of(gpu))
    return [
        Use(Shape(profile=instance.profile), instance.start)
        for instance, record in records
        if record is not None and record.lease not in (None, without)
    ]


def plan(gpu: Device, shape: Shape, place: Place, removed: Iterable[Part], where: str) -> GpuPlan:
    """Plan a lease's instance, and keep the GPU's other instances.

    Instances in `removed` are destroyed. An instance that already exists in the place stays.
    """
    divider, before = divider_of(gpu), planner.target_of(gpu)
    division: Any = before.division
    gone = {(instance.profile, instance.start) for instance in removed}
    kept = [each for each in division.instances if (each.profile, each.start) not in gone]
    if (shape.profile, place.start) not in {(each.profile, each.start) for each in kept}:
        wanted: Any = divider.wanted([MigInstance(shape.profile or "", placement=place.start)])
        kept += wanted.instances
    after = dataclasses.replace(division, instances=tuple(kept))
    return planner.plan_gpu(gpu, dataclasses.replace(before, where=where, division=after))


def taken(records: Iterable[Leased], shape: Shape, places: Sequence[Place], lease: str) -> set[Leased]:
    """Return the records, with an instance of the lease in each place."""
    wanted = [(place.gpu_uuid, shape.profile or "", place.start) for place in places]
    known = {(each.gpu_uuid, each.profile, each.start): each for each in records}
    made = {key: Leased(*key, mig_uuids=known[key].mig_uuids if key in known else (), lease=lease) for key in wanted}
    return set({**known, **made}.values())


def released(records: Iterable[Leased], lease: str) -> set[Leased]:
    """Return the records, with the lease's instances as idle ones."""
    return {dataclasses.replace(each, lease=None) if each.lease == lease else each for each in records}


def settled(records: Iterable[Leased], host: Host) -> set[Leased]:
    """Return the records, updated with the instances that exist.

    Missing UUIDs are added. Records of idle instances that no longer exist are removed. Records of a lease stay until
    it is given back. Records on lost GPUs do not change.
    """
    gpus = {gpu.uuid: gpu for gpu in host.gpus}
    found = set()
    for record in records:
        gpu = gpus.get(record.gpu_uuid)
        instance = None if gpu is None else instance_of(record, gpu)
        if instance is not None and not record.mig_uuids:
            record = dataclasses.replace(record, mig_uuids=tuple(sorted(filter(None, instance.uuids))))
        if gpu is None or instance is not None or record.lease is not None:
            found.add(record)
    return found


def instance_of(record: Leased, gpu: Device) -> Part | None:
    """Return the instance of a record, or None if it no longer exists."""
    return next((instance for instance in parts_of(gpu) if record.matches(gpu, instance)), None)
