# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Grant leases to pods, for the kubelet's plugin.

The Kubernetes scheduler has chosen the GPUs. The lease lasts until the kubelet gives it back. A lease belongs to a
ResourceClaim, which has at most one lease.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from ..holders.cgroup import Origin, parse_cgroup
from ..holders.peer_owner import own_container
from ..layout.leases import KUBERNETES, MOST_HOURS
from ..leases.model import Booking, LeaseError, Offer, Place, Request
from ..leases.names import job_of, pod_account
from ..processes import peer
from ..techniques.vgpu.files import CDI_KIND
from ..techniques.vgpu.model import VgpuTenant
from .grant import grant
from .request import Ask

#: The plugin's systemd unit, which the role gpu_kubernetes installs.
PLUGIN_UNIT = "openfleet-gpu-dra.service"
_ROOT = 0
#: Duration of a lease in the record, in seconds. The lease does not end after this time.
_SECONDS = 3600.0 * MOST_HOURS


def is_plugin(pid: int, uid: int) -> bool:
    """Return whether a process is the kubelet's plugin, from kernel data.

    Root in a container and processes of other units are not the plugin.
    """
    with peer.looking_at(pid) as process:
        if process is None or process.uids != {_ROOT} or uid != _ROOT:
            return False
        return parse_cgroup(process.cgroup, own_container()) == Origin(PLUGIN_UNIT)


def pool(offers: Iterable[Offer], tenants: Iterable[VgpuTenant]) -> dict[str, Any]:
    """Return the GPUs that pods may lease, and the fixed tenants on these GPUs."""
    gpus: list[dict[str, Any]] = []
    offers = tuple(offers)
    for offer in offers:
        for card in offer.cards:
            room: Any = getattr(card, "room", None)
            if room is None:
                continue
            gpus.append(
                {
                    "uuid": card.uuid,
                    "memory_bytes": max(0, room.memory_bytes),
                    "sm_percent": max(0, int(room.sm_percent)),
                    "seats": max(0, room.seats),
                    "most_memory_bytes": offer.leases.memory_bytes,
                    "most_sm_percent": offer.leases.sm_percent,
                }
            )
    uuids = {gpu["uuid"] for gpu in gpus}
    return {
        "gpus": gpus,
        "by_priority_class": any(offer.leases.online for offer in offers),
        "tenants": [
            {
                "name": tenant.name,
                "uuids": list(tenant.gpus),
                "memory_bytes": tenant.memory_bytes,
                "sm_percent": tenant.sm_percent,
                "cdi": ["%s=%s" % (CDI_KIND, tenant.name), *("nvidia.com/gpu=%s" % uuid for uuid in tenant.gpus)],
            }
            for tenant in tenants
            if uuids.issuperset(tenant.gpus)
        ],
    }


def booking_of(ask: Ask, offers: Iterable[Offer], number: int, now: float) -> Booking:
    """Return the booking of a claim on its GPUs.

    Raises LeaseError if a GPU has no entry with leases by Kubernetes, or if the GPUs are in several entries.
    """
    entries = {card.uuid: offer for offer in offers for card in offer.cards}
    missing = next((uuid for uuid in ask.uuids if uuid not in entries), None)
    if missing is not None:
        raise LeaseError(
            "claim %s" % ask.name,
            "gpu %s has no leases by %s, does not have its layout, or is lost" % (missing, KUBERNETES),
            "Delete the pod, so that it gets another GPU.",
        )
    where = {entries[uuid].where for uuid in ask.uuids}
    if len(where) > 1:
        raise LeaseError(
            "claim %s" % ask.name,
            "its GPUs are in several entries: %s" % ", ".join(sorted(where)),
            "Select GPUs of one entry.",
        )
    offer = entries[ask.uuids[0]]
    online = offer.leases.is_online(ask.priority_class)
    request = Request(number, pod_account(ask.name), ask.shape, _SECONDS, len(ask.uuids), ask.claim, online)
    return Booking(request, offer.where, tuple(Place(uuid) for uuid in ask.uuids), now, True)


def check_same(ask: Ask, booking: Booking) -> None:
    """Raise LeaseError if the claim already has a lease with other GPUs or size."""
    same = ask.shape == booking.request.shape and set(ask.uuids) == {place.gpu_uuid for place in booking.places}
    if not same:
        raise LeaseError(
            "claim %s" % ask.name,
            "it has lease %d already, with %s" % (booking.request.number, booking.request.shape),
            "Delete its pods.",
        )


class PodLeases:
    """Answers requests of the kubelet's plugin. `write` writes a turn's record."""

    def __init__(self, host: Any, write: Any) -> None:
        self._host, self._write = host, write

    def answer(self, turn: Any, ask: Ask) -> Mapping[str, Any]:
        """Return the answer to a request of the plugin. Raises FleetError."""
        if ask.operation == "pool":
            return pool(self._host.offers(KUBERNETES), self._host.tenants())
        if ask.operation == "claims":
            claims = {each.request.claim for each in turn.bookings if job_of(each.request.claim) is None}
            return {"claims": sorted(claim for claim in claims if claim is not None)}
        booking = next((each for each in turn.bookings if each.request.claim == ask.claim), None)
        if ask.operation == "unprepare":
            return self._unprepare(turn, booking)
        return self._prepare(turn, ask, booking)

    def _prepare(self, turn: Any, ask: Ask, booking: Booking | None) -> Mapping[str, Any]:
        if booking is not None:
            # The kubelet repeats the request after a restart of the kubelet.
            check_same(ask, booking)
            return self._answer(self._host.take(booking))
        booking = booking_of(ask, self._host.offers(KUBERNETES), turn.next_number, turn.now)
        granted = grant(self._host, turn, booking, self._write)
        turn.log.append("claim %s takes lease %d: %s" % (ask.name, granted.number, ask.shape))
        return self._answer(granted)

    def _answer(self, granted: Any) -> Mapping[str, Any]:
        return {"number": granted.number, "cdi": list(granted.cdi)}

    def _unprepare(self, turn: Any, booking: Booking | None) -> Mapping[str, Any]:
        if booking is None:
            return {"ended": None}
        number = booking.request.number
        self._host.give_back(number)
        turn.end(booking)
        turn.log.append("lease %d of %s has ended" % (number, booking.request.account))
        return {"ended": number}
