# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record which MIG instances the collection owns, so that others are not removed.

The collection owns the instances that a layout created, or adopted because it lists them. The record is a file on the host. It
has the MIG UUIDs of each instance, to distinguish it from one that was created later at the same place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, Sequence

from . import durable
from .frozen import frozen
from .model import Gpu, GpuInstance, to_data

SCHEMA = 1

#: Policies for foreign instances that the layout does not list.
POLICIES = ("fail", "remove", "keep")
#: Policies for GPUs whose layout entry was removed.
UNNAMED_POLICIES = KEEP, RELEASE = ("keep", "release")


@frozen
class Owned:
    """An owned instance: its place, and the last known UUIDs of its MIG devices."""

    gpu_uuid: str
    profile: str
    start: int
    mig_uuids: tuple[str, ...]


@frozen
class Ownership:
    """The owned instances, and the policy for foreign ones."""

    policy: str
    owned: frozenset[Owned] = frozenset()

    def foreign(self, gpu: Gpu, instance: GpuInstance) -> bool:
        """Return whether the collection does not own an instance."""
        uuids = {c.mig_uuid for c in instance.compute_instances}
        for ours in self.owned:
            if (ours.gpu_uuid, ours.profile, ours.start) == (gpu.uuid, instance.profile, instance.placement.start):
                # Without compute instances it has no UUID to compare, and nothing can run in it.
                return bool(uuids) and not uuids.intersection(ours.mig_uuids)
        return True


class Record:
    """The file with the owned instances of a host."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory) / "owned.json"

    def read(self) -> frozenset[Owned]:
        """Return the owned instances.

        Raises ApplyError for a file that this release cannot read.
        """
        data = durable.read(self.path, SCHEMA)
        items = [] if data is None else data["instances"]
        return frozenset(Owned(**dict(item, mig_uuids=tuple(item["mig_uuids"]))) for item in items)

    def adopt(self, seen: Iterable[tuple[Gpu, Sequence[GpuInstance]]]) -> None:
        """Record all instances of these GPUs as owned, except foreign ones.

        The foreign ones are given with each GPU. Entries of other GPUs are kept.
        """
        seen = list(seen)
        named = {gpu.uuid for gpu, _ in seen}
        ours = {item for item in self.read() if item.gpu_uuid not in named}
        for gpu, left in seen:
            places = {instance.placement for instance in left}
            ours.update(owned_instance(gpu, i) for i in gpu.mig.instances if i.placement not in places)
        self._write(ours)

    def renew(self, gpus: Iterable[Gpu]) -> None:
        """Record the UUIDs of owned instances after they were recreated.

        An instance without compute instances keeps its recorded UUIDs, since a failing driver may hide them for a while.
        """
        current = {
            (gpu.uuid, i.profile, i.placement.start): owned_instance(gpu, i)
            for gpu in gpus
            for i in gpu.mig.instances
            if i.compute_instances
        }
        self._write({current.get((item.gpu_uuid, item.profile, item.start), item) for item in self.read()})

    def _write(self, ours: set[Owned]) -> None:
        items = sorted((to_data(item) for item in ours), key=lambda item: (item["gpu_uuid"], item["start"]))
        data = {"schema": SCHEMA, "instances": items}
        known = durable.read(self.path, SCHEMA)
        # An empty record needs no file.
        if known != data and (items or known is not None):
            durable.write(self.path, data)


def owned_instance(gpu: Gpu, instance: GpuInstance) -> Owned:
    """Return the record's entry for an instance."""
    uuids = tuple(sorted(c.mig_uuid for c in instance.compute_instances if c.mig_uuid))
    return Owned(gpu.uuid, instance.profile, instance.placement.start, uuids)
