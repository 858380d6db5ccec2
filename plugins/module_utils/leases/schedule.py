# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which requests get a lease, where and when. Pure functions.

Requests are served in the order of arrival. Each waiting request has a booking with places and a start. A later request
can start earlier, but only in places and at times without bookings, so it delays no other request. Bookings assume that
leases end on time. If a lease ends early, bookings move forward. They move backward only if a lease ends late.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Sequence

from ..frozen import frozen
from ..sizes import BYTES_PER_UNIT
from .model import Booking, Card, LeaseError, Offer, Place, Request, Use

#: Seconds by which a booking can move back, because leases start and end slightly late.
SLACK_SECONDS = 60.0
#: Seconds after which an overdue lease is assumed to end.
_OVERDUE_SECONDS = 30.0
#: Maximum number of waiting requests on a host.
MOST_WAITING = 64


@frozen
class Schedule:
    """A host's offers, and all bookings in the order of their requests."""

    offers: tuple[Offer, ...]
    bookings: tuple[Booking, ...] = ()

    @property
    def started(self) -> tuple[Booking, ...]:
        """Return the current leases."""
        return tuple(booking for booking in self.bookings if booking.started)

    @property
    def waiting(self) -> tuple[Booking, ...]:
        """Return the requests that wait."""
        return tuple(booking for booking in self.bookings if not booking.started)

    def booking(self, number: int) -> Booking:
        """Return the booking of a request. Raises LeaseError."""
        for each in self.bookings:
            if each.request.number == number:
                return each
        raise LeaseError("lease %d" % number, "it does not exist", "List the leases with `gpu-layout lease list`.")


def book(schedule: Schedule, request: Request, offers: Sequence[Offer], now: float, wait: bool = True) -> Schedule:
    """Return the schedule with the request as a started or waiting booking.

    `offers` are the offers that the account may use. If `wait` is false, a request that would have to wait is refused.
    Raises LeaseError, with the free resources, if the request is refused.
    """
    if not offers:
        raise LeaseError(
            "this host", "no entry offers leases to %s" % request.account, "Ask for membership in a group of `leases`."
        )
    # First start the requests that are due.
    schedule = advance(schedule, now)
    problems: list[LeaseError] = []
    best: Booking | None = None
    for offer in offers:
        try:
            made = _earliest(request, offer, _Times(offer, schedule.bookings, now))
        except LeaseError as error:
            problems.append(error)
            continue
        try:
            check_limits(schedule, offer, request)
        except LeaseError as error:
            # Report the entry's limit, because the entry could otherwise grant the request.
            problems.insert(0, error)
            continue
        if best is None or made.begins < best.begins:
            best = made
    if best is None:
        raise problems[0]
    if best.begins > now and not wait:
        raise LeaseError(
            best.where,
            "%s is not free on %s now. Free is: %s" % (request.shape, _count(request), free(schedule, offers)),
            "It is free in %s at the latest. Use --wait, or ask for less." % duration(best.begins - now),
        )
    if best.begins > now and len(schedule.waiting) >= MOST_WAITING:
        raise LeaseError(best.where, "%d requests wait already" % MOST_WAITING, "Try again later.")
    best = dataclasses.replace(best, started=best.begins <= now)
    return dataclasses.replace(schedule, bookings=(*schedule.bookings, best))


def check_limits(schedule: Schedule, offer: Offer, request: Request) -> None:
    """Raise LeaseError if the account would exceed a limit of the entry.

    The account's waiting requests count too, so that no account fills the queue. An earlier booking of the same request
    does not count.
    """
    own = [
        each.request
        for each in schedule.bookings
        if each.where == offer.where and each.request.account == request.account
    ]
    own = [each for each in own if each.number != request.number]
    limits, shape = offer.leases, request.shape
    if request.seconds > 3600 * limits.hours:
        raise LeaseError(
            offer.where, "a lease lasts at most %d hours" % limits.hours, "Ask for less, and extend the lease later."
        )
    if len(own) >= limits.count:
        raise LeaseError(
            offer.where,
            "%s has %d leases and waiting requests, and the limit is %d" % (request.account, len(own), limits.count),
            "End one with `gpu-layout lease end`.",
        )
    for name, limit in (("memory_bytes", limits.memory_bytes), ("sm_percent", limits.sm_percent)):
        has = sum(getattr(each.shape, name) * each.gpus for each in own)
        if limit is not None and has + getattr(shape, name) * request.gpus > limit:
            raise LeaseError(
                offer.where,
                "%s has %s and asks for %s on %s, and the limit is %s"
                % (
                    request.account,
                    _amount(name, has),
                    _amount(name, getattr(shape, name)),
                    _count(request),
                    _amount(name, limit),
                ),
                "Ask for less, or end a lease with `gpu-layout lease end`.",
            )


def advance(schedule: Schedule, now: float, freed: bool = False) -> Schedule:
    """Return the schedule with all due requests started.

    If `freed` is true, a place became free earlier than planned, so other bookings can move forward and start.
    """
    if not schedule.waiting:
        return schedule
    offers = {offer.where: offer for offer in schedule.offers}
    # Remove requests for entries that no longer have leases.
    waiting = [each for each in schedule.waiting if each.where in offers]
    fixed = list(schedule.started)
    for each in [each for each in waiting if each.begins <= now]:
        # A lease that ends late can block a due booking. The booking keeps its places until they are free.
        free_now = _fits(each, offers[each.where], [one for one in fixed if one.started], now)
        fixed.append(_begun(each, now) if free_now else each)
    later = [each for each in waiting if each.begins > now]
    if not freed:
        return _with(schedule, [*fixed, *later])
    moved: list[Booking] = []
    times = {where: _Times(offer, fixed, now) for where, offer in offers.items()}
    for each in later:
        moved.append(_earliest(each.request, offers[each.where], times[each.where], moved))
        times[each.where].add(moved[-1])
    if any(new.begins > old.begins for new, old in zip(moved, later)):
        moved = _moved_one_by_one(fixed, later, offers, now)
    return _with(schedule, [*fixed, *(_begun(each, now) if each.begins <= now else each for each in moved)])


def _begun(booking: Booking, now: float) -> Booking:
    """Return the booking as a lease.

    A lease that starts slightly late keeps its end, so that it delays no later booking.
    """
    begins = now if now > booking.begins + SLACK_SECONDS else booking.begins
    return dataclasses.replace(booking, begins=begins, started=True)


def _moved_one_by_one(
    fixed: Sequence[Booking], later: Sequence[Booking], offers: dict[str, Offer], now: float
) -> list[Booking]:
    """Return the bookings, each moved forward into gaps between the others.

    A booking that conflicts with a late lease moves back.
    """
    current = {each.request.number: each for each in later}
    moved = True
    while moved:
        # A moved booking can leave a gap for an earlier request. Starts only decrease, so this loop ends.
        moved = False
        for number, old in list(current.items()):
            others = [*fixed, *(each for each in current.values() if each.request.number != number)]
            new = _earliest(old.request, offers[old.where], _Times(offers[old.where], others, now))
            if new.begins < old.begins or not _fits(old, offers[old.where], others, now):
                current[number] = new
                moved = True
    return list(current.values())


def ended(schedule: Schedule, number: int, now: float) -> Schedule:
    """Return the schedule without this lease or waiting request. Raises LeaseError."""
    gone = schedule.booking(number)
    left = _with(schedule, [each for each in schedule.bookings if each is not gone])
    return advance(left, now, freed=gone.ends > now)


def extended(schedule: Schedule, number: int, seconds: float, now: float) -> Schedule:
    """Return the schedule with this lease ending `seconds` from now.

    Raises LeaseError if this exceeds the entry's limit or would delay a waiting request.
    """
    old = schedule.booking(number)
    request = dataclasses.replace(old.request, seconds=now + seconds - old.begins)
    changed = _changed(schedule, old, request, now, limited=dataclasses.replace(request, seconds=seconds))
    return advance(changed, now, freed=True)


def resized(schedule: Schedule, number: int, request: Request, now: float) -> Schedule:
    """Return the schedule with another shape for a lease in its current places.

    Raises LeaseError if the shape does not fit there, exceeds a limit or would delay a waiting request.
    """
    old = schedule.booking(number)
    limited = dataclasses.replace(request, seconds=0)
    return advance(_changed(schedule, old, request, now, limited), now, freed=True)


def _changed(schedule: Schedule, old: Booking, request: Request, now: float, limited: Request) -> Schedule:
    where = "lease %d" % old.request.number
    offer = next((each for each in schedule.offers if each.where == old.where), None)
    if offer is None:
        raise LeaseError(where, "its entry no longer offers leases", "Take a new lease from another entry.")
    if not old.started:
        raise LeaseError(where, "it waits for its GPUs", "End it, and request another lease.")
    check_limits(schedule, offer, limited)
    new = dataclasses.replace(old, request=request)
    others = [each for each in schedule.bookings if each is not old]
    if not _fits(new, offer, others, now):
        raise LeaseError(
            where,
            "there is no room, or a waiting request would be delayed. Free is: %s" % free(schedule, [offer]),
            "Ask for less, or take a new lease with --wait.",
        )
    return _with(schedule, [*others, new])


def free(schedule: Schedule, offers: Iterable[Offer]) -> str:
    """Return the free parts of GPUs as text."""
    texts = []
    for offer in offers:
        for card in offer.cards:
            uses = [use for booking in schedule.started for uuid, use in _uses(booking) if uuid == card.uuid]
            texts.append(card.free(uses))
    return ", ".join(filter(None, texts)) or "nothing"


def duration(seconds: float) -> str:
    """Return a duration as text, rounded up to minutes."""
    minutes = int(-(-seconds // 60))
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    words = ["%d %s" % (n, unit) for n, unit in ((days, "d"), (hours, "h"), (minutes, "min")) if n]
    return " ".join(words) or "0 min"


def _earliest(request: Request, offer: Offer, times: _Times, before: Sequence[Booking] = ()) -> Booking:
    """Return the booking with the earliest possible start.

    `before` has bookings that this function found just before. A larger request of the same shape cannot start earlier
    than one of them. Raises LeaseError if the GPUs never have enough room.
    """
    if len(offer.cards) < request.gpus:
        problem = "%d GPUs are too many for an entry with %d" % (request.gpus, len(offer.cards))
        raise LeaseError(offer.where, problem, "Ask for fewer GPUs.")
    least = max((each.begins for each in before if _is_smaller(each, request, offer)), default=times.now)
    found = times.place(request, least) if request.gpus == 1 else times.places(request, least)
    if found is not None:
        return Booking(request, offer.where, *found)
    reasons = filter(None, (card.supports(request.shape) for card in offer.cards))
    problem = next(reasons, "%s never fits on %s" % (request.shape, _count(request)))
    raise LeaseError(offer.where, problem, "Ask for another size, or for fewer GPUs.")


def _fits(booking: Booking, offer: Offer, others: Sequence[Booking], now: float) -> bool:
    """Return whether the booking conflicts with no other booking in its places."""
    times = _Times(offer, others, now)
    starts = {place.gpu_uuid: place.start for place in booking.places}
    cards = [card for card in offer.cards if card.uuid in starts]
    begins = max(booking.begins, now)
    if len(cards) < len(starts) or booking.ends <= begins:
        return len(cards) == len(starts)
    return all(
        card.find(booking.request.shape, times.uses(card, begins, booking.ends), starts[card.uuid]) is not None
        for card in cards
    )


class _Times:
    """The leases on an offer's GPUs over time.

    A lease that is late still has its places now, and is assumed to end soon.
    """

    def __init__(self, offer: Offer, bookings: Sequence[Booking], now: float) -> None:
        self._cards = offer.cards
        self.now = now
        self._by_card: dict[str, list[tuple[float, float, Use]]] = {card.uuid: [] for card in offer.cards}
        #: The times at which places on a GPU become free, by the GPU's UUID.
        self._ends: dict[str, set[float]] = {card.uuid: {now} for card in offer.cards}
        for booking in bookings:
            self.add(booking)

    def add(self, booking: Booking) -> None:
        """Add a booking."""
        for uuid, use in _uses(booking):
            if uuid in self._by_card:
                self._ends[uuid].add(booking.ends if booking.ends > self.now else self.now + _OVERDUE_SECONDS)
                self._by_card[uuid].append((booking.begins, booking.ends, use))

    def uses(self, card: Card, begins: float, ends: float) -> list[list[Use]]:
        """Return the leases on a GPU at each time in this period at which they change."""
        near = [
            (start, end, use)
            for start, end, use in self._by_card[card.uuid]
            if start < ends and (end > begins or end <= self.now >= begins)
        ]
        instants = sorted({begins, *(each[0] for each in near if each[0] > begins)})
        return [
            [use for start, end, use in near if start <= instant and (instant < end or instant == begins)]
            for instant in instants
        ]

    def place(self, request: Request, least: float) -> tuple[tuple[Place, ...], float] | None:
        """Return the earliest place on one GPU, and its start, not before `least`.

        Among places with the same start, returns the one with the lowest cost. Returns None without a place.
        """
        best: tuple[float, Any, int, Place] | None = None
        for number, card in enumerate(self._cards):
            # A place on this GPU only becomes free when a booking on it ends.
            for begins in sorted(time for time in self._ends[card.uuid] if time >= least):
                if best is not None and begins > best[0]:
                    break
                found = card.find(request.shape, self.uses(card, begins, begins + request.seconds))
                if found is not None:
                    place = (begins, found[0], number, Place(card.uuid, found[1]))
                    best = place if best is None else min(best, place, key=lambda each: each[:3])
                    break
        return None if best is None else ((best[3],), best[0])

    def places(self, request: Request, least: float) -> tuple[tuple[Place, ...], float] | None:
        """Return the earliest places on several GPUs, as in `place`."""
        for begins in sorted({time for ends in self._ends.values() for time in ends if time >= least}):
            found: list[tuple[Any, int, Place]] = []
            for number, card in enumerate(self._cards):
                best = card.find(request.shape, self.uses(card, begins, begins + request.seconds))
                if best is not None:
                    found.append((best[0], number, Place(card.uuid, best[1])))
            if len(found) >= request.gpus:
                chosen = sorted(found, key=lambda each: each[:2])[: request.gpus]
                return tuple(place for _cost, _number, place in chosen), begins
        return None


def _is_smaller(booking: Booking, request: Request, offer: Offer) -> bool:
    own = booking.request
    return (own.shape, booking.where) == (request.shape, offer.where) and (
        own.gpus <= request.gpus and own.seconds <= request.seconds
    )


def _uses(booking: Booking) -> list[tuple[str, Use]]:
    return [(place.gpu_uuid, Use(booking.request.shape, place.start)) for place in booking.places]


def _with(schedule: Schedule, bookings: Iterable[Booking]) -> Schedule:
    return dataclasses.replace(schedule, bookings=tuple(sorted(bookings, key=lambda each: each.request.number)))


def _count(request: Request) -> str:
    return "1 GPU" if request.gpus == 1 else "%d GPUs" % request.gpus


def _amount(name: str, value: int) -> str:
    return "%d %%" % value if name == "sm_percent" else "%gGiB" % (value / BYTES_PER_UNIT["GiB"])
