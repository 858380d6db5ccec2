# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lend MIG instances as leases, with the methods of `techniques.lender.Lender`.

`instances` plans the instances. This module reads and writes their record, and applies the plans.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterable, Mapping, Sequence

from ..change.apply_plan import Context, apply
from ..errors import ApplyError, BusyError, FleetError
from ..layout.types import Entry
from ..leases.grant import Grant
from ..leases.model import LATER, Booking, Card, LeaseError, RetryLaterError, Shape, Use, not_free
from ..leases.names import lease_of, lease_text
from ..model import Holder, Host, parts_of
from ..plan.gpu_plan import Plan
from ..plan.leased import LeasedRecord
from ..plan.ownership import KEEP, Ownership, Record
from ..slurm.mig_devices import DeviceNodes, device_files, mig_devices
from . import instances


class InstanceLender:
    """The instances of leases.

    `directory` is the host's state directory. `context` is None if nothing is changed.
    """

    exclusive = True

    def __init__(self, directory: str, context: Context | None = None) -> None:
        self._leased, self._owned, self._context = LeasedRecord(directory), Record(directory), context

    def current(self) -> dict[int, str]:
        texts = [record.lease for record in self._leased.read()]
        return {
            lease[0]: text for text in texts if text is not None for lease in (lease_of(text),) if lease is not None
        }

    def fixed(self) -> Sequence[Any]:
        """Return nothing, because leases of instances have no tenants."""
        return ()

    def cards(self, offered: Sequence[tuple[Any, Entry]], host: Host) -> list[Card]:
        ownership = self._ownership()
        return [instances.card(gpu, entry.leases.profiles, ownership) for gpu, entry in offered]

    def take(self, booking: Booking, entry: Entry, places: Sequence[tuple[Any, Any]], host: Host) -> tuple[Host, bool]:
        request, ownership = booking.request, self._ownership()
        shape, text = request.shape, lease_text(request.number, request.account)
        context: Any = self._context
        plans = []
        for place, (gpu, card) in zip(booking.places, places):
            used = instances.uses(gpu, ownership, text)
            if card.find(shape, [used], place.start) is None:
                raise not_free(booking, gpu.label, card, used)
            plans.append(instances.plan(gpu, shape, place, card.removed(Use(shape, place.start)), booking.where))
        plan = Plan(tuple(plans))
        self._refuse_used(booking, context)
        self._leased.write(instances.taken(self._leased.read(), shape, booking.places, text))
        try:
            host = apply(context, plan) if plan.changes else host
        except FleetError as error:
            if not isinstance(error, ApplyError) or error.outcome == "old":
                # The rollback has recorded the new UUIDs of recreated instances. If it cannot write the records,
                # `recover` corrects them. Raise the first error, which has the reason.
                with contextlib.suppress(FleetError):
                    self._leased.write(instances.released(self._leased.read(), text))
                    self.settle(context.session.observe())
            if isinstance(error, BusyError):
                raise RetryLaterError(error.where, "an idle instance is still in use", LATER) from error
            raise
        self.settle(host)
        return host, plan.changes

    def resize(self, number: int, shape: Shape, cards: Mapping[str, Any], host: Host) -> bool:
        """Return False, because an instance cannot be resized."""
        return False

    def give_back(self, number: int, text: str, host: Host) -> None:
        records = self._leased.read()
        self._refuse_holders(number, [record for record in records if record.lease == text], host)
        self._leased.write(instances.settled(instances.released(records, text), host))

    def grant(self, number: int, text: str | None, host: Host, nodes: DeviceNodes) -> Grant | None:
        records = [record for record in self._leased.read() if text is not None and record.lease == text]
        order = {gpu.uuid: gpu for gpu in host.gpus}
        parts = []
        for record in sorted(records, key=lambda each: order[each.gpu_uuid].index if each.gpu_uuid in order else -1):
            gpu = order.get(record.gpu_uuid)
            instance = None if gpu is None else instances.instance_of(record, gpu)
            if gpu is None or instance is None:
                place = "%s@%d on gpu %s" % (record.profile, record.start, record.gpu_uuid)
                raise LeaseError(
                    "lease %d" % number, "its instance %s is gone" % place, "End it, and take another lease."
                )
            parts.append((gpu, instance))
        if not parts:
            return None
        uuids = tuple(uuid for _gpu, instance in parts for uuid in instance.uuids if uuid)
        paths = [
            path
            for gpu, instance in parts
            for device in mig_devices(gpu)
            if device.uuid in instance.uuids
            for path in device_files(device, nodes)
        ]
        variables = [(name, ",".join(uuids)) for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")]
        return Grant(
            number,
            tuple(dict.fromkeys(gpu.uuid for gpu, _instance in parts)),
            uuids,
            environment=tuple(variables),
            devices=tuple(dict.fromkeys(paths)),
            cdi=tuple("nvidia.com/gpu=%s" % uuid for uuid in uuids),
        )

    def settle(self, host: Host) -> None:
        self._leased.write(instances.settled(self._leased.read(), host))

    def repair(self, living: Sequence[int], host: Host) -> set[int]:
        """Return an empty set.

        A lost instance cannot be recreated for running programs.
        """
        return set()

    def holders(self, grant: Grant, host: Host) -> list[Holder]:
        return [
            holder
            for gpu in host.gpus
            for instance in parts_of(gpu)
            if set(grant.mig_uuids).intersection(instance.uuids)
            for holder in instance.held_by
        ]

    def _ownership(self) -> Ownership:
        return Ownership(KEEP, self._owned.read(), self._leased.read())

    def _refuse_used(self, booking: Booking, context: Context) -> None:
        """Raise RetryLaterError if a process uses an idle instance in a place."""
        places = {(place.gpu_uuid, place.start) for place in booking.places}
        records = [each for each in self._leased.read() if (each.gpu_uuid, each.start) in places and each.mig_uuids]
        if records:
            self._refuse_holders(booking.request.number, records, context.observe())

    @staticmethod
    def _refuse_holders(number: int, records: Iterable[Any], host: Host) -> None:
        for record in records:
            for gpu in host.gpus:
                instance: Any = instances.instance_of(record, gpu) if gpu.uuid == record.gpu_uuid else None
                who = [] if instance is None else [h for h in (*instance.held_by, *instance.processes) if _holds(h)]
                if who:
                    where = "%s@%d on %s" % (record.profile, record.start, gpu.short_label)
                    problem = "it is still in use by %s" % ", ".join(dict.fromkeys(map(str, who[:5])))
                    raise RetryLaterError("lease %d, %s" % (number, where), problem, LATER)


def _holds(holder: Any) -> bool:
    return not getattr(holder, "watches", False)
