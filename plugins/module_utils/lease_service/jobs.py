# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Grant leases to Slurm jobs, for Slurm's Prolog and Epilog.

Slurm has counted the job's units. The lease lasts until the Epilog gives it back. The host chooses the GPU, and always
finds one (`leases.units` explains why).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

from ..holders.cgroup import parse_cgroup
from ..holders.peer_owner import own_container
from ..layout.leases import MOST_HOURS, SLURM
from ..leases.model import LATER, Booking, LeaseError, Offer, Place, Request, RetryLaterError, Use
from ..leases.names import job_account, job_claim, job_of
from ..leases.units import most_units, shape_of
from ..processes import peer
from .grant import grant
from .request import Ask

_ROOT = 0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Duration of a lease in the record, in seconds. The lease does not end after this time.
_SECONDS = 3600.0 * MOST_HOURS


def is_prolog(pid: int, uid: int) -> bool:
    """Return whether the kernel's data permit that a process is a Prolog or Epilog.

    Both run as root on the host. Root in a container is refused.
    """
    with peer.looking_at(pid) as process:
        if process is None or process.uids != {_ROOT} or uid != _ROOT:
            return False
        return parse_cgroup(process.cgroup, own_container()).container_id is None


def boot_id() -> str:
    """Return the id of the host's boot."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


def place_of(ask: Ask, offers: Iterable[Offer], bookings: Sequence[Booking]) -> tuple[Offer, Place, Request]:
    """Return the entry, the GPU and the size for a job.

    Chooses the fullest GPU with room. Raises RetryLaterError if no GPU has room now, and LeaseError if no GPU ever has
    room.
    """
    where = "job %s" % ask.job
    best: tuple[Any, Offer, Place, Request] | None = None
    problem = LeaseError(where, "no entry of this host has leases by %s" % SLURM, "Request another node.")
    for offer in offers:
        if ask.units > most_units(offer.leases):
            text = "%d units are more than the limit of %s, which is %d" % (
                ask.units,
                offer.where,
                most_units(offer.leases),
            )
            problem = LeaseError(where, text, "Request less.")
            continue
        shape = shape_of(offer.leases, ask.units)
        online = offer.leases.is_online(ask.partition)
        request = Request(0, job_account(ask.job, ask.user), shape, _SECONDS, online=online)
        for card in offer.cards:
            used = [
                Use(each.request.shape, place.start)
                for each in bookings
                for place in each.places
                if each.started and place.gpu_uuid == card.uuid
            ]
            found = card.find(shape, [used])
            if found is not None and (best is None or found[0] < best[0]):
                best = found[0], offer, Place(card.uuid, found[1]), request
            elif found is None and card.supports(shape) is None:
                problem = RetryLaterError(where, "no GPU has %s free now" % shape, LATER)
    if best is None:
        raise problem
    return best[1:]


class JobLeases:
    """Answers requests of Prolog and Epilog.

    `write` writes a turn's record. `boot` is the id of the host's boot.
    """

    def __init__(self, host: Any, write: Any, boot: str) -> None:
        self._host, self._write, self._boot = host, write, boot

    def answer(self, turn: Any, ask: Ask) -> Mapping[str, Any]:
        """Return the answer to a request of Prolog or Epilog. Raises FleetError."""
        if ask.operation == "jobs":
            return {"jobs": sorted(job for _booking, (job, _boot) in _of_jobs(turn.bookings))}
        booking = next((each for each, (job, _boot) in _of_jobs(turn.bookings) if job == ask.job), None)
        return self._end(turn, booking) if ask.operation == "job_end" else self._begin(turn, ask, booking)

    def stale(self, bookings: Sequence[Booking]) -> list[Booking]:
        """Return the leases of jobs that have ended or ran before the last boot."""
        return [each for each, (_job, boot) in _of_jobs(bookings) if boot != self._boot or not each.request.seconds]

    def _begin(self, turn: Any, ask: Ask, booking: Booking | None) -> Mapping[str, Any]:
        if booking is not None and booking in self.stale(turn.bookings):
            raise RetryLaterError("job %s" % ask.job, "its former lease is still in use", LATER)
        if booking is not None:
            # Slurm may run the Prolog more than once.
            return self._answer(self._host.take(booking))
        offer, place, request = place_of(ask, self._host.offers(SLURM), turn.bookings)
        number = turn.next_number
        request = dataclasses.replace(request, number=number, claim=job_claim(ask.job, self._boot))
        booking = Booking(request, offer.where, (place,), turn.now, True)
        granted = grant(self._host, turn, booking, self._write)
        turn.log.append("job %s takes lease %d: %s" % (ask.job, number, request.shape))
        return self._answer(granted)

    def _answer(self, granted: Any) -> Mapping[str, Any]:
        return {"number": granted.number, "environment": dict(granted.environment)}

    def _end(self, turn: Any, booking: Booking | None) -> Mapping[str, Any]:
        if booking is None:
            return {"ended": None}
        number = booking.request.number
        try:
            self._host.give_back(number)
        except RetryLaterError:
            # The service ends the processes that use the quota, then gives the lease back.
            turn.update(dataclasses.replace(booking, request=dataclasses.replace(booking.request, seconds=0.0)))
            return {"ended": number, "state": "ending"}
        turn.end(booking)
        turn.log.append("lease %d of %s has ended" % (number, booking.request.account))
        return {"ended": number, "state": "ended"}


def _of_jobs(bookings: Iterable[Booking]) -> list[tuple[Booking, tuple[str, str]]]:
    """Return each booking of a job, with its (job, boot)."""
    found = [(each, job_of(each.request.claim)) for each in bookings]
    return [(each, job) for each, job in found if job is not None]
