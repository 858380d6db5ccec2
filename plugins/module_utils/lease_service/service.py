# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answer requests for leases, and start and end leases.

The kernel reports the process and the user of each request. A booking is recorded before its lease is created, and
removed from the record after the lease was given back. After an interrupted call, the next call gives back each
recorded lease without a unit.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Callable, Mapping, Sequence

from ..errors import FleetError
from ..frozen import frozen
from ..keep.owner import is_administrator
from ..leases import schedule as planning
from ..leases.grant import Grant
from ..leases.model import Booking, LeaseError, Offer, Request, RetryLaterError, Shape
from ..leases.record import BookingRecord, Recorded
from ..leases.schedule import Schedule
from . import jobs, unit
from .host import LeaseHost
from .owner import account_name
from .pods import PLUGIN_UNIT, PodLeases, is_plugin
from .request import OF_JOBS, OF_PODS, Ask, parse

_ROOT = 0
#: Maximum number of waiting requests per account, so that no account fills the host's queue.
MOST_WAITING_OF_ACCOUNT = 8
#: Seconds to wait for a lease's programs to end before the answer is sent.
_END_SECONDS = 5.0
_POLL_SECONDS = 0.05
#: Seconds after a restart of the service in which clients can return to their place in the queue.
RETURN_SECONDS = 30.0
#: Seconds between two checks whether a waiting request can start earlier, or whether an unused lease can be given back.
CHECK_SECONDS = 15.0


@frozen
class Caller:
    """The process that sent a request, according to the kernel."""

    pid: int
    uid: int


class Units:
    """The systemd units of leases. Tests replace this class."""

    start = staticmethod(unit.start)
    stop = staticmethod(unit.stop)
    living = staticmethod(unit.living)
    seems_alive = staticmethod(unit.seems_alive)


class Kernel:
    """The kernel's data about callers and this boot. Tests replace this class."""

    is_plugin = staticmethod(is_plugin)
    is_prolog = staticmethod(jobs.is_prolog)
    boot_id = staticmethod(jobs.boot_id)


class LeaseService:
    """The leases of a host."""

    def __init__(
        self,
        host: LeaseHost,
        record: BookingRecord,
        units: Any = Units,
        clock: Callable[[], float] = time.time,
        end_holders: Callable[[Grant, str], None] | None = None,
        kernel: Any = Kernel,
    ) -> None:
        self._host, self._record, self._units, self._clock = host, record, units, clock
        self._end_holders, self._kernel = end_holders, kernel
        self._pods = PodLeases(host, self._write)
        self._jobs = jobs.JobLeases(host, self._write, kernel.boot_id())
        self._returned_by = clock() + RETURN_SECONDS
        self._checked = 0.0

    # -- Methods for the server -----------------------------------------------------------------------------------------

    def due(self, connected: Sequence[int]) -> frozenset[int]:
        """Return the leases and requests for which `work` has something to do.

        The number 0 means a regular check. `connected` has the waiting requests with a connected client. This function
        must be cheap, because it is called every second.
        """
        now, due = self._clock(), set()
        bookings = self._record.read().bookings
        stale = self._jobs.stale(bookings)
        for each in bookings:
            number = each.request.number
            if each.request.claim is not None:
                # The kubelet or Slurm ends this lease.
                is_due = each in stale
            elif each.started:
                is_due = each.ends <= now or not self._units.seems_alive(number)
            else:
                is_due = each.begins <= now or (number not in connected and now > self._returned_by)
            if is_due:
                due.add(number)
        if now - self._checked >= CHECK_SECONDS and not all(each.started for each in bookings):
            self._checked = now
            due.add(0)
        return frozenset(due)

    def is_idle(self) -> bool:
        """Return whether the host has no leases and no waiting requests."""
        return not self._record.read().bookings

    def work(
        self,
        waiting: Mapping[int, Caller],
        line: bytes | None = None,
        caller: Caller | None = None,
        recover: bool = False,
    ) -> dict[str, Any]:
        """Update all leases, and answer one request.

        If `recover` is true, first repairs leases, as after a boot or a driver reload.

        `waiting` has the waiting requests with a connected client. The result has `answers` (by waiting request),
        `answer` for this request, and `log`, the lines for the journal.
        """
        turn = _Turn(self._record.read(), self._clock(), waiting)
        try:
            if recover:
                self._recover(turn)
            self._take_back(turn)
            if line is not None and caller is not None:
                turn.answer = self._answer(turn, parse(line), caller)
        except FleetError as error:
            turn.answer = failure(error)
        if not all(each.started for each in turn.bookings):
            self._advance(turn)
        for each in turn.bookings:
            if each.started and each.request.number not in turn.started:
                self._start(turn, each)
        self._write(turn)
        answer = turn.answer
        if line is not None and turn.requested is not None:
            answer = turn.answers.pop(turn.requested, answer)
        return {"answer": answer, "answers": turn.answers, "log": turn.log}

    # -- Steps ---------------------------------------------------------------------------------------------------------

    def _recover(self, turn: _Turn) -> None:
        """Repair leases after a boot, a crash of the service or a driver reload."""
        pods = {each.request.number for each in turn.bookings if each.request.claim is not None}
        living = self._units.living(each.request.number for each in _with_units(turn.bookings)) | pods
        try:
            actions = self._host.recover(sorted(living))
        except FleetError as error:
            turn.log.append(str(error))
            return
        for each in actions:
            turn.log.append(each.text)
            if each.action == "lost" and each.number not in pods:
                # The lease's programs can no longer use the GPU.
                self._units.stop(each.number)

    def _take_back(self, turn: _Turn) -> None:
        """Take back all ended leases, and remove requests whose client is gone."""
        for each in turn.bookings:
            if not each.started and each.request.number not in turn.waiting and turn.now > self._returned_by:
                turn.end(each)
        for each in self._jobs.stale(turn.bookings):
            self._give_back(turn, dataclasses.replace(each, request=_expired(each)))
        started = _with_units(turn.bookings)
        living = self._units.living(each.request.number for each in started)
        for each in started:
            number = each.request.number
            if number in living and each.ends <= turn.now:
                self._units.stop(number)
            elif number not in living:
                self._give_back(turn, each)

    def _stop(self, number: int) -> bool:
        """End a lease's programs, and return whether they end within _END_SECONDS."""
        self._units.stop(number)
        deadline = time.monotonic() + _END_SECONDS
        while self._units.living([number]):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _give_back(self, turn: _Turn, booking: Booking) -> bool:
        """Give back a lease without a unit. Return whether it is free.

        A process that left the unit still uses the lease until it expires, and is then ended.
        """
        number = booking.request.number
        try:
            self._host.give_back(number)
        except RetryLaterError as error:
            if booking.ends > turn.now or self._end_holders is None:
                return False
            try:
                self._end_holders(self._host.grant(number), booking.request.account)
                self._host.give_back(number)
            except FleetError as problem:
                turn.log.append("lease %d of %s is not free: %s %s" % (number, booking.request.account, error, problem))
                return False
        turn.end(booking)
        turn.log.append("lease %d of %s has ended" % (number, booking.request.account))
        return True

    def _answer(self, turn: _Turn, ask: Ask, caller: Caller) -> dict[str, Any]:
        if ask.operation == "list":
            return {"leases": [to_row(each, turn.now) for each in turn.bookings]}
        if ask.operation == "take":
            return self._request(turn, ask, caller)
        if ask.operation in OF_PODS:
            if not self._kernel.is_plugin(caller.pid, caller.uid):
                problem = "only %s may send it" % PLUGIN_UNIT
                raise LeaseError("the request %s" % ask.operation, problem, "Create a pod with a claim instead.")
            return dict(self._pods.answer(turn, ask))
        if ask.operation in OF_JOBS:
            if not self._kernel.is_prolog(caller.pid, caller.uid):
                raise LeaseError("the request %s" % ask.operation, "only root may send it", "Submit a job instead.")
            return dict(self._jobs.answer(turn, ask))
        booking = turn.booking(ask.number or 0)
        if caller.uid != _ROOT and not _owns(account_name(caller.uid), booking):
            raise LeaseError(
                "lease %d" % booking.request.number,
                "it belongs to %s" % booking.request.account,
                "List your leases with `gpu-layout lease list`.",
            )
        if booking.request.claim is not None:
            problem = "it belongs to %s" % booking.request.account
            raise LeaseError("lease %d" % booking.request.number, problem, "Delete its pods, or cancel its job.")
        if ask.operation == "end":
            return self._end(turn, booking)
        if booking.started and booking.ends <= turn.now:
            raise LeaseError("lease %d" % booking.request.number, "it has expired", "Take a new lease.")
        turn.offers = self._host.offers()
        if ask.operation == "extend":
            return self._extend(turn, booking, ask)
        return self._resize(turn, booking, ask)

    def _request(self, turn: _Turn, ask: Ask, caller: Caller) -> dict[str, Any]:
        account = account_name(caller.uid)
        for each in turn.bookings:
            # The client keeps the place that it had before the restart.
            number = each.request.number
            if number == ask.number and not each.started and number not in turn.waiting and _owns(account, each):
                turn.waiting[number] = caller
                turn.requested, turn.can_wait = number, True
                return waiting_row(turn, each)
        turn.offers = self._host.offers()
        offers = [each for each in turn.offers if is_administrator(caller.uid, each.leases.groups)]
        seconds = ask.seconds or 3600 * _usual_hours(offers, ask.shape)
        request = Request(turn.next_number, account, ask.shape, float(seconds), ask.gpus)
        schedule = planning.book(turn.schedule, request, offers, turn.now, ask.wait)
        booked = schedule.booking(request.number)
        own = [each for each in schedule.waiting if each.request.account == account]
        if not booked.started and len(own) > MOST_WAITING_OF_ACCOUNT:
            raise LeaseError(
                booked.where,
                "%s has %d waiting requests, which is the limit" % (account, MOST_WAITING_OF_ACCOUNT),
                "Wait until one has started.",
            )
        turn.next_number += 1
        turn.requested = request.number
        turn.waiting[request.number] = caller
        turn.can_wait = ask.wait
        turn.bookings = schedule.bookings
        return waiting_row(turn, booked)

    def _end(self, turn: _Turn, booking: Booking) -> dict[str, Any]:
        number = booking.request.number
        if not booking.started:
            turn.end(booking)
            turn.answers[number] = failure(
                LeaseError("lease %d" % number, "the request was ended", "Request a lease again if you need one.")
            )
            return {"ended": to_row(booking, turn.now), "state": "ended"}
        if self._stop(number) and self._give_back(turn, dataclasses.replace(booking, request=_expired(booking))):
            return {"ended": to_row(booking, turn.now), "state": "ended"}
        # A later call gives the lease back after its programs have ended.
        turn.update(dataclasses.replace(booking, request=_expired(booking)))
        return {"ended": to_row(booking, turn.now), "state": "ending"}

    def _extend(self, turn: _Turn, booking: Booking, ask: Ask) -> dict[str, Any]:
        number = booking.request.number
        changed = planning.extended(turn.schedule, number, float(ask.seconds or 0), turn.now)
        turn.bookings = changed.bookings
        turn.log.append("lease %d of %s was extended" % (number, booking.request.account))
        return {"changed": to_row(turn.booking(number), turn.now)}

    def _resize(self, turn: _Turn, booking: Booking, ask: Ask) -> dict[str, Any]:
        number = booking.request.number
        request = dataclasses.replace(booking.request, shape=ask.shape)
        if (booking.request.shape.profile is None) != (ask.shape.profile is None) or ask.shape.profile is not None:
            raise LeaseError(
                "lease %d" % number, "only a quota can change its size", "End this lease, and take a new one."
            )
        changed = planning.resized(turn.schedule, number, request, turn.now)
        self._host.resize(number, ask.shape)
        turn.bookings = changed.bookings
        turn.log.append("lease %d of %s has now %s" % (number, booking.request.account, ask.shape))
        return {"changed": to_row(turn.booking(number), turn.now)}

    def _advance(self, turn: _Turn) -> None:
        """Find the waiting requests that can start now."""
        try:
            turn.offers = self._host.offers()
        except FleetError:
            # A layout change runs. The requests wait until it ends.
            return
        try:
            turn.bookings = planning.advance(turn.schedule, turn.now, freed=True).bookings
        except LeaseError:
            # A request no longer fits because a GPU is lost. It keeps its place in the queue until the GPU works again.
            turn.bookings = planning.advance(turn.schedule, turn.now).bookings
        left = {each.request.number for each in turn.bookings}
        for number in [number for number in turn.waiting if number not in left and number not in turn.answers]:
            del turn.waiting[number]
            turn.answers[number] = failure(
                LeaseError("lease %d" % number, "its entry no longer offers leases", "Request a lease again.")
            )

    def _start(self, turn: _Turn, booking: Booking) -> None:
        number, account = booking.request.number, booking.request.account
        caller = turn.waiting.pop(number, None)
        if caller is None:
            # The client may still return to its place.
            turn.update(dataclasses.replace(booking, started=False))
            return
        # If this call is interrupted after this line, the next call gives the lease back.
        self._write(turn)
        try:
            grant = self._host.take(booking)
            self._units.start(caller.pid, caller.uid, grant, account)
        except FleetError as error:
            turn.log.append("lease %d of %s did not start: %s" % (number, account, error))
            self._undo(turn, booking, caller, error)
            return
        turn.log.append("%s takes lease %d: %s" % (account, number, describe(booking.request)))
        turn.answers[number] = {
            "lease": to_row(booking, turn.now),
            "environment": dict(grant.environment),
            "cdi": list(grant.cdi),
        }

    def _undo(self, turn: _Turn, booking: Booking, caller: Caller, error: FleetError) -> None:
        """Give back a lease that did not start.

        Its request waits again if it can start later.
        """
        number = booking.request.number
        try:
            self._host.give_back(number)
        except FleetError:
            # The lease has no unit, so the next call tries again.
            turn.answers[number] = failure(error)
            return
        if isinstance(error, RetryLaterError) and (turn.requested != number or turn.can_wait):
            turn.waiting[number] = caller
            turn.update(dataclasses.replace(booking, started=False, begins=turn.now))
            if turn.requested == number:
                turn.answer = waiting_row(turn, turn.booking(number))
            return
        turn.end(booking)
        turn.answers[number] = failure(error)

    def _write(self, turn: _Turn) -> None:
        bookings = tuple(sorted(turn.bookings, key=lambda each: each.request.number))
        self._record.write(Recorded(bookings, turn.next_number))


class _Turn:
    """The bookings during one call of `LeaseService.work`."""

    def __init__(self, recorded: Recorded, now: float, waiting: Mapping[int, Caller]) -> None:
        self.now, self.waiting = now, dict(waiting)
        self.bookings, self.next_number = recorded.bookings, recorded.next_number
        self.started = {each.request.number for each in recorded.bookings if each.started}
        self.offers: tuple[Offer, ...] = ()
        self.answers: dict[int, dict[str, Any]] = {}
        self.answer: dict[str, Any] = {}
        self.log: list[str] = []
        #: The number of the request in this call, and whether it may wait.
        self.requested: int | None = None
        self.can_wait = False

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.offers, self.bookings)

    def booking(self, number: int) -> Booking:
        """Return a booking. Raises LeaseError."""
        return self.schedule.booking(number)

    def end(self, booking: Booking) -> None:
        """Remove a booking."""
        self.bookings = tuple(each for each in self.bookings if each.request.number != booking.request.number)

    def update(self, booking: Booking) -> None:
        """Replace the booking with the same number."""
        number = booking.request.number
        self.bookings = tuple(booking if each.request.number == number else each for each in self.bookings)


def describe(request: Request) -> str:
    """Return a request's size for messages."""
    return "%s on %s" % (request.shape, "1 GPU" if request.gpus == 1 else "%d GPUs" % request.gpus)


def to_row(booking: Booking, now: float) -> dict[str, Any]:
    """Return a booking as data for clients."""
    request = booking.request
    return {
        "number": request.number,
        "account": request.account,
        "size": str(request.shape),
        "gpus": request.gpus,
        "where": booking.where,
        "state": "waiting" if not booking.started else "active" if booking.ends > now else "ending",
        "begins": booking.begins,
        "ends": booking.ends if request.claim is None else None,
    }


def waiting_row(turn: _Turn, booking: Booking) -> dict[str, Any]:
    """Return the answer to a request that waits."""
    number = booking.request.number
    before = sum(not each.started and each.request.number < number for each in turn.bookings)
    return {"waiting": {**to_row(booking, turn.now), "before": before}}


def failure(error: FleetError) -> dict[str, Any]:
    """Return the answer to a request that failed."""
    answer = {"error": {"where": error.where, "problem": error.problem, "cure": error.cure}}
    return {**answer, "later": True} if isinstance(error, RetryLaterError) else answer


def _with_units(bookings: Sequence[Booking]) -> list[Booking]:
    """Return the current leases that have a unit. Those of pods and jobs have none."""
    return [each for each in bookings if each.started and each.request.claim is None]


def _owns(account: str, booking: Booking) -> bool:
    return booking.request.account == account


def _expired(booking: Booking) -> Request:
    """Return the request of a booking, changed so that the lease ends at once."""
    return dataclasses.replace(booking.request, seconds=0.0)


def _usual_hours(offers: Sequence[Offer], shape: Shape) -> int:
    """Return the duration in hours for a request that has none."""
    fitting = [each.leases.hours for each in offers if any(card.supports(shape) is None for card in each.cards)]
    return min(fitting or [each.leases.hours for each in offers] or [1])
