# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record which MIG instances belong to leases.

Layout changes do not change these instances. The record is a file on the host. An instance is recorded before it is
created, so that no instance is without an owner after a crash.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Iterable

from .. import durable
from ..frozen import frozen
from ..model import Device, Part, parts_of, to_data

SCHEMA = 1
#: `Holder.kind` of a lease.
LEASE = "lease"


@frozen
class Leased:
    """An instance for leases: its placement, its MIG UUIDs and its lease.

    `mig_uuids` is empty until the instance is created. `lease` names the lease and its account for messages. It is None
    if no lease uses the instance.
    """

    gpu_uuid: str
    profile: str
    start: int
    mig_uuids: tuple[str, ...] = ()
    lease: str | None = None

    def matches(self, gpu: Device, instance: Part) -> bool:
        """Return whether this record is for the instance."""
        if (self.gpu_uuid, self.profile, self.start) != (gpu.uuid, instance.profile, instance.start):
            return False
        # An instance without compute instances has no UUID to compare, and no process can run in it.
        uuids = set(instance.uuids)
        return not self.mig_uuids or not uuids or bool(uuids.intersection(self.mig_uuids))


class LeasedRecord:
    """The file that records the instances for leases."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory) / "leased.json"

    def read(self) -> frozenset[Leased]:
        """Return the instances. Raises ApplyError if this release cannot read the file."""
        data = durable.read(self.path, SCHEMA)
        if data is None:
            return frozenset()
        try:
            return frozenset(Leased(**dict(item, mig_uuids=tuple(item["mig_uuids"]))) for item in data["instances"])
        except (KeyError, TypeError):
            raise durable.damaged(self.path) from None

    def renew(self, gpus: Iterable[Device]) -> None:
        """Record the new UUIDs of instances that a rollback recreated."""
        current = {(gpu.uuid, i.profile, i.start): i for gpu in gpus for i in parts_of(gpu) if i.uuids}
        known = self.read()
        places = [(item, current.get((item.gpu_uuid, item.profile, item.start))) for item in known]
        if known:
            self.write(
                item if part is None else dataclasses.replace(item, mig_uuids=tuple(sorted(filter(None, part.uuids))))
                for item, part in places
            )

    def write(self, instances: Iterable[Leased]) -> None:
        """Write the instances, unless the file already has them."""
        items = sorted((to_data(item) for item in instances), key=lambda item: (item["gpu_uuid"], item["start"]))
        data = {"schema": SCHEMA, "instances": items}
        known = durable.read(self.path, SCHEMA)
        # No file is needed if no instance is recorded.
        if known != data and (items or known is not None):
            durable.write(self.path, data)
