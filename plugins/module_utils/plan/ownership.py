# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record which MIG instances the collection owns.

Instances of other owners are not removed. The collection owns an instance if a layout created it, or if a layout names
an existing instance. The record is a file on the host. It has each instance's MIG UUIDs, which a later instance at the
same placement does not have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, Sequence

from .. import durable
from ..frozen import frozen
from ..model import Device, Part, parts_of, to_data
from .leased import Leased

SCHEMA = 1

#: Policies for other owners' instances that the layout does not name.
POLICIES = ("fail", "remove", "keep")
#: Policies for GPUs that lost their layout entry.
UNNAMED_POLICIES = KEEP, RELEASE = ("keep", "release")


@frozen
class Owned:
    """An owned instance: its placement, and its MIG devices' last known UUIDs."""

    gpu_uuid: str
    profile: str
    start: int
    mig_uuids: tuple[str, ...]


@frozen
class Ownership:
    """The owned instances, those of leases, and the policy for all others."""

    policy: str
    owned: frozenset[Owned] = frozenset()
    leased: frozenset[Leased] = frozenset()

    def foreign(self, gpu: Device, instance: Part) -> bool:
        """Return whether an instance belongs to another owner."""
        uuids = set(instance.uuids)
        for ours in self.owned:
            if (ours.gpu_uuid, ours.profile, ours.start) == (gpu.uuid, instance.profile, instance.start):
                # An instance without compute instances has no UUID to compare, and no process can run in it.
                return bool(uuids) and not uuids.intersection(ours.mig_uuids)
        return True

    def lease(self, gpu: Device, instance: Part) -> Leased | None:
        """Return an instance's lease record, or None for any other instance.

        An instance that the collection owns is no instance of leases.
        """
        record = next((each for each in self.leased if each.matches(gpu, instance)), None)
        return record if record is None or self.foreign(gpu, instance) else None


class Record:
    """The file with a host's owned instances."""

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
        """Record these GPUs' instances as owned, except other owners' instances.

        `seen` has each GPU with the instances of other owners. Records of all other GPUs are kept.
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

        An instance without compute instances keeps its recorded UUIDs, because a failing driver may hide compute
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
        # No file is needed for an empty record.
        if known != data and (items or known is not None):
            durable.write(self.path, data)


def owned_instance(gpu: Device, instance: Part) -> Owned:
    """Return the record of an owned instance."""
    uuids = tuple(sorted(uuid for uuid in instance.uuids if uuid))
    return Owned(gpu.uuid, instance.profile, instance.start, uuids)
