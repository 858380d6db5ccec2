# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record which MIG instances are this collection's, so that no other one is removed unasked.

An instance is ours when a layout created it or named it (then it is adopted). The record is kept on the host; the
instance's MIG UUIDs tell it from another one that was created later at the same place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, Sequence

from . import durable
from .frozen import frozen
from .model import Gpu, GpuInstance, to_data

SCHEMA = 1

#: What to do with instances that are not ours and that the layout does not name.
POLICIES = ("fail", "remove", "keep")
#: What to do with GPUs that had an entry and that no entry names any more.
UNNAMED_POLICIES = KEEP, RELEASE = ("keep", "release")


@frozen
class Owned:
    """One instance that is ours: where it is, and the UUIDs of its MIG devices when it was last seen."""

    gpu_uuid: str
    profile: str
    start: int
    mig_uuids: tuple[str, ...]


@frozen
class Ownership:
    """The record, and the policy for all that is not in it."""

    policy: str
    owned: frozenset[Owned] = frozenset()

    def foreign(self, gpu: Gpu, instance: GpuInstance) -> bool:
        """Return whether this instance is not the collection's."""
        there = {c.mig_uuid for c in instance.compute_instances}
        for ours in self.owned:
            if (ours.gpu_uuid, ours.profile, ours.start) == (gpu.uuid, instance.profile, instance.placement.start):
                # Ours without a compute instance left has nothing to be told by, and nothing that could run in it.
                return bool(there) and not there.intersection(ours.mig_uuids)
        return True


class Record:
    """The record of one host, as a file."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory) / "owned.json"

    def read(self) -> frozenset[Owned]:
        """Empty where nothing was ever applied. Raises ApplyError for a file that this release cannot read."""
        data = durable.read(self.path, SCHEMA)
        items = [] if data is None else data["instances"]
        return frozenset(Owned(**dict(item, mig_uuids=tuple(item["mig_uuids"]))) for item in items)

    def adopt(self, seen: Iterable[tuple[Gpu, Sequence[GpuInstance]]]) -> None:
        """Record all instances of these GPUs as ours, except those beside each GPU, which are not ours.

        What the record says of other GPUs stays.
        """
        seen = list(seen)
        named = {gpu.uuid for gpu, _ in seen}
        ours = {item for item in self.read() if item.gpu_uuid not in named}
        for gpu, left in seen:
            places = {instance.placement for instance in left}
            ours.update(owned_instance(gpu, i) for i in gpu.mig.instances if i.placement not in places)
        self._write(ours)

    def renew(self, gpus: Iterable[Gpu]) -> None:
        """Record the current UUIDs of our instances, after they were created again where they had been.

        An instance that shows no compute instance keeps its recorded UUIDs: a driver that fails calls may hide them for a while.
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
        # That nothing is ours needs no file.
        if known != data and (items or known is not None):
            durable.write(self.path, data)


def owned_instance(gpu: Gpu, instance: GpuInstance) -> Owned:
    """The instance as the record has it."""
    uuids = tuple(sorted(c.mig_uuid for c in instance.compute_instances if c.mig_uuid))
    return Owned(gpu.uuid, instance.profile, instance.placement.start, uuids)
