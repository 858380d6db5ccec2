# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record which MIG instances the collection owns.

Instances of other owners are not removed. The collection owns an instance if a layout created it, or if a layout names
it and the collection adopted it. The record is a file on the host. It has the MIG UUIDs of each instance. They
distinguish an instance from a later one at the same placement.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, Sequence

from .. import durable
from ..frozen import frozen
from ..model import Device, Part, parts_of, to_data
from .leased import Leased

SCHEMA = 1

#: Policies for instances of other owners that the layout does not name.
POLICIES = ("fail", "remove", "keep")
#: Policies for GPUs that lost their layout entry.
UNNAMED_POLICIES = KEEP, RELEASE = ("keep", "release")


@frozen
class Owned:
    """An owned instance: its placement, and the last known UUIDs of its MIG devices."""

    gpu_uuid: str
    profile: str
    start: int
    mig_uuids: tuple[str, ...]


@frozen
class Ownership:
    """The owned instances, the instances of leases, and the policy for all others."""

    policy: str
    owned: frozenset[Owned] = frozenset()
    leased: frozenset[Leased] = frozenset()

    def foreign(self, gpu: Device, instance: Part) -> bool:
        """Return whether an instance belongs to another owner."""
        uuids = set(instance.uuids)
        for ours in self.owned:
            if (ours.gpu_uuid, ours.profile, ours.start) == (gpu.uuid, instance.profile, instance.start):
                # Without compute instances, there is no UUID to compare, and no process can run in the instance.
                return bool(uuids) and not uuids.intersection(ours.mig_uuids)
        return True

    def lease(self, gpu: Device, instance: Part) -> Leased | None:
        """Return the lease record of an instance, or None for any other instance.

        If the collection owns the instance, it is not an instance of leases.
        """
        record = next((each for each in self.leased if each.matches(gpu, instance)), None)
        return record if record is None or self.foreign(gpu, instance) else None


class Record:
    """The file with the owned instances of a host."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory) / "owned.json"

    def read(self) -> frozenset[Owned]:
        """Return the owned instances.

        Raises ApplyError if this release cannot read the file.
        """
        data = durable.read(self.path, SCHEMA)
        items = [] if data is None else data["instances"]
        return frozenset(Owned(**dict(item, mig_uuids=tuple(item["mig_uuids"]))) for item in items)

    def adopt(self, seen: Iterable[tuple[Device, Sequence[Part]]]) -> None:
        """Record the instances of these GPUs as owned.

        Each GPU comes with the instances of other owners, which are not recorded. Records of all other GPUs are kept.
        """
        seen = list(seen)
        named = {gpu.uuid for gpu, _unused in seen}
        ours = {item for item in self.read() if item.gpu_uuid not in named}
        for gpu, left in seen:
            starts = {instance.start for instance in left}
            ours.update(owned_instance(gpu, i) for i in parts_of(gpu) if i.start not in starts)
        self._write(ours)

    def renew(self, gpus: Iterable[Device]) -> None:
        """Record the new UUIDs of owned instances that were recreated.

        If an instance has no compute instances, its recorded UUIDs are kept, because a failing driver may hide compute
        instances for a while.
        """
        current = {
            (gpu.uuid, i.profile, i.start): owned_instance(gpu, i) for gpu in gpus for i in parts_of(gpu) if i.uuids
        }
        self._write({current.get((item.gpu_uuid, item.profile, item.start), item) for item in self.read()})

    def _write(self, ours: set[Owned]) -> None:
        items = sorted((to_data(item) for item in ours), key=lambda item: (item["gpu_uuid"], item["start"]))
        data = {"schema": SCHEMA, "instances": items}
        known = durable.read(self.path, SCHEMA)
        # If the record is empty, no file is needed.
        if known != data and (items or known is not None):
            durable.write(self.path, data)


def owned_instance(gpu: Device, instance: Part) -> Owned:
    """Return the record of an owned instance."""
    uuids = tuple(sorted(uuid for uuid in instance.uuids if uuid))
    return Owned(gpu.uuid, instance.profile, instance.start, uuids)
