# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Grant leases on the GPUs of this host, and take them back.

`schedule` decides which request starts where. `LeaseHost` creates its MIG instances or its quota.

Two records say which parts of GPUs belong to a lease: leased.json for MIG instances, and the tenants' specs for quotas.
They are written before the part is created and deleted after it is removed, so that `LeaseHost.recover` finds each part
after a crash. The caller manages the bookings (`record.BookingRecord`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping

from ..cdi.follow import follow
from ..change import lost_gpus
from ..change.apply_plan import Context
from ..change.journal import Journal
from ..change.pending import PendingReboot, WaitingRun
from ..change.prepare import ALL_PARTS, PlanRequest, make_plan, observe, services_for
from ..change.recovery import recover
from ..change.unnamed import AppliedRecord
from ..errors import FollowError
from ..frozen import frozen
from ..layout.files import read_layout
from ..layout.leases import HOST
from ..layout.types import Entry, Layout
from ..leases.grant import Grant
from ..leases.model import LATER, Booking, LeaseError, Offer, RetryLaterError, Shape
from ..model import Host
from ..plan.leased import LeasedRecord
from ..plan.ownership import KEEP, Ownership, Record
from ..plan.transaction import DIRECTORY, LockedError, locked, looking
from ..slurm.task_devices import read_nodes
from ..techniques.forms import parse_layout
from ..techniques.lender import Lender
from ..techniques.lenders import LENDERS
from ..techniques.registry import SERVING, observers_for
from ..vendors.registry import vendor_of_host
from .instance_lender import InstanceLender

#: The layout that the role gpu_layout installs.
LAYOUT = "/etc/openfleet-gpu/layout.json"
#: Device nodes that every program on a GPU needs.
_NODES = ("dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-uvm-tools")


@frozen
class Recovered:
    """An action of `LeaseHost.recover`.

    action       meaning
    given back   the lease had no living unit
    in use       the lease has no living unit, but a process still uses its part. The next call tries again
    lost         the unit lives, but the part of the lease is gone. The caller must stop the unit and give the lease back
    restored     the quota of a living lease was written again

    `text` is a sentence for the journal of the host.
    """

    number: int
    action: str
    text: str


@frozen
class _Ready:
    """The host as read for a lease.

    `cards` has (entry, GPU, card) for each GPU that can have leases.
    """

    host: Host
    entries: tuple[Entry, ...]
    cards: tuple[tuple[str, Any, Any], ...]

    def card(self, where: str, uuid: str) -> tuple[Any, Any]:
        """Return a GPU of the entry, and its card. Raises RetryLaterError."""
        for place, gpu, card in self.cards:
            if (place, gpu.uuid) == (where, uuid):
                return gpu, card
        raise RetryLaterError("%s on gpu %s" % (where, uuid), "the GPU does not have its layout, or is lost", LATER)

    def entry(self, where: str) -> Entry:
        """Return an entry with leases. Raises LeaseError."""
        for entry in self.entries:
            if entry.where == where:
                return entry
        raise LeaseError(where, "it no longer offers leases", "Take a lease from another entry.")


class LeaseHost:
    """The GPUs of this host that can have leases.

    `directory` is the host's state directory. `layout` is the path of its layout. `root` has the device nodes. Methods
    that change something hold the layout's lock, and raise RetryLaterError if it is not free within
    `lock_timeout_seconds`. Methods also raise FleetError if the driver does not answer, and ApplyError if a record
    cannot be written. `recover` repairs the state after such an error.
    """

    def __init__(
        self, directory: str = DIRECTORY, layout: str = LAYOUT, lock_timeout_seconds: float = 10.0, root: str = "/"
    ) -> None:
        self._directory, self._layout, self._lock_timeout_seconds = directory, layout, lock_timeout_seconds
        self._root = Path(root)

    # --- reading ----------------------------------------------------------------------------------------------------

    def offers(self, allocator: str = HOST) -> tuple[Offer, ...]:
        """Return the entries whose leases `allocator` grants, with a card for each GPU.

        `Offer.leases` has the groups and limits. The cards include fixed and idle instances, and quotas of fixed
        tenants. They do not include leases, which are the schedule's bookings. A GPU that is lost, or does not have its
        layout yet, has no card. Raises RetryLaterError if a layout change runs or is pending.
        """
        with looking(self._directory) as busy:
            if busy is not None:
                raise RetryLaterError(busy.where, busy.problem, LATER)
            self._refuse_pending()
            with vendor_of_host().open() as session:
                ready = self._read(session)
        changing = self._in_journal()
        cards = [(where, card) for where, gpu, card in ready.cards if gpu.uuid not in changing]
        offers = [
            Offer(entry.where, entry.leases, tuple(card for where, card in cards if where == entry.where))
            for entry in ready.entries
            if entry.leases.by == allocator
        ]
        return tuple(offer for offer in offers if offer.cards)

    def tenants(self) -> tuple[Any, ...]:
        """Return the layout's tenants, without those that leases created."""
        with vendor_of_host().open() as session:
            lenders = lenders_of(self._directory, session.private)
        return tuple(tenant for lender in lenders.values() for tenant in lender.fixed())

    def grant(self, number: int) -> Grant:
        """Return the grant of a current lease.

        Raises LeaseError if the lease has no complete part.
        """
        with looking(self._directory) as busy:
            if busy is not None:
                raise RetryLaterError(busy.where, busy.problem, LATER)
            with vendor_of_host().open() as session:
                return self._grant(number, session.observe(), lenders_of(self._directory, session.private))

    # --- changing ---------------------------------------------------------------------------------------------------

    def take(self, booking: Booking) -> Grant:
        """Create a started booking's instances or quota in its places.

        Idle instances of earlier leases in these places are removed or reused. Nothing else changes. If the lease
        already exists, its grant is returned. Raises RetryLaterError if a layout change runs or is pending, or if a
        place is not free.
        """
        number = booking.request.number
        with self._changing() as context:
            self._refuse_pending()
            ready = self._read(context.session)
            lenders = lenders_of(self._directory, context.session.private, context)
            if number in _current(lenders):
                # The caller may not know that an earlier call succeeded.
                _settle(lenders, ready.host)
                with contextlib.suppress(LeaseError):
                    grant = self._grant(number, ready.host, lenders)
                    # An interrupted call may have written only some of the files.
                    for lender in lenders.values():
                        lender.repair([number], ready.host)
                    return grant
                _give_back(number, context.observe(), lenders)
                ready = self._read(context.session)
            entry = ready.entry(booking.where)
            places = [ready.card(booking.where, place.gpu_uuid) for place in booking.places]
            host, changed = lenders[_key(entry)].take(booking, entry, places, ready.host)
            warnings = _renewed_cdi() if changed and not context.session.private else ()
            return self._grant(number, host, lenders, warnings)

    def resize(self, number: int, shape: Shape) -> Grant:
        """Change the quota of a lease, which running programs follow.

        Raises LeaseError for MIG, or without enough room. The quota is then unchanged.
        """
        with self._changing() as context:
            self._refuse_pending()
            ready = self._read(context.session)
            lenders = lenders_of(self._directory, context.session.private, context)
            cards = {gpu.uuid: card for _where, gpu, card in ready.cards}
            if not any(lender.resize(number, shape, cards, ready.host) for lender in lenders.values()):
                raise LeaseError(
                    "lease %d" % number, "it has no quota that can be changed", "End it, and take another lease."
                )
            return self._grant(number, ready.host, lenders)

    def give_back(self, number: int) -> None:
        """Take back a lease's part. Call this after its unit has stopped.

        MIG instances stay as idle instances, which the next lease with the same profile reuses. A lease without a part
        is not an error. Raises RetryLaterError if a process still uses the part. The lease then keeps it.
        """
        with self._changing() as context:
            _give_back(number, observe(context.session), lenders_of(self._directory, context.session.private, context))

    def recover(self, living: Iterable[int]) -> tuple[Recovered, ...]:
        """Repair after a crash, a boot or a driver reload, and return the actions.

        `living` has the numbers of the leases whose unit still runs. All other leases are given back. If a process
        still uses one, the next call tries again.
        """
        numbers = set(living)
        done: list[Recovered] = []
        with self._changing() as context:
            host, lenders = observe(context.session), lenders_of(self._directory, context.session.private, context)
            _settle(lenders, host)
            current = _current(lenders)
            for number in sorted(current.keys() - numbers):
                text = current[number]
                try:
                    _give_back(number, host, lenders)
                except RetryLaterError as error:
                    done.append(Recovered(number, "in use", str(error)))
                else:
                    done.append(Recovered(number, "given back", "%s had no unit and was given back" % text))
            whole = []
            for number in sorted(numbers):
                try:
                    self._grant(number, host, lenders)
                except LeaseError as error:
                    done.append(Recovered(number, "lost", str(error)))
                else:
                    whole.append(number)
            for lender in lenders.values():
                for number in sorted(lender.repair(whole, host)):
                    text = current.get(number, "lease %d" % number)
                    done.append(Recovered(number, "restored", "the quota of %s was written again" % text))
        return tuple(done)

    # --- helpers ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Context]:
        """Hold the layout's lock, and complete an interrupted change."""
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locked(self._directory, self._lock_timeout_seconds))
            except LockedError as error:
                raise RetryLaterError(error.where, error.problem, LATER) from None
            session = held.enter_context(vendor_of_host().open())

            def look(gpu: str | None = None) -> Host:
                return observe(session, None, gpu)

            journal, applied = Journal(self._directory), AppliedRecord(self._directory)
            leased = LeasedRecord(self._directory)
            context = Context(session, journal, Record(self._directory), look, None, applied, leased)
            if journal.read() is not None:
                recover(context, [each.service(session.private) for each in SERVING if each.service])
            # Changes for leases adopt no instances and record no layout.
            yield Context(session, journal, None, look, None, None, leased)

    def _refuse_pending(self) -> None:
        """Raise RetryLaterError if a layout change is pending."""
        if PendingReboot(self._directory).due():
            raise RetryLaterError("this host", "a layout change waits for a reboot", LATER)
        if WaitingRun(self._directory).due():
            raise RetryLaterError("this host", "a layout change waits until its GPUs are free", LATER)

    def _in_journal(self) -> set[str]:
        """Return the UUIDs of the GPUs whose change was interrupted."""
        entry = Journal(self._directory).read()
        return set() if entry is None else {target.gpu_uuid for target in (*entry.before, *entry.after)}

    def _read(self, session: Any) -> _Ready:
        """Read the layout and the host.

        A GPU that is lost or does not have its layout gets no card.
        """
        layout = parse_layout(read_layout(self._layout))
        layout = Layout(tuple(entry for entry in layout.entries if entry.leases is not None))
        session.observers = observers_for(layout, self._directory)
        services = services_for(ALL_PARTS, layout, session.private)
        for service in services:
            service.observe()
        host = session.observe()
        for service in services:
            service.observe_on(host.gpus)
        ownership = Ownership(KEEP, Record(self._directory).read(), LeasedRecord(self._directory).read())
        layout = lost_gpus.answering(layout, host, lost_gpus.SKIP).layout
        plan = make_plan(layout, host, ownership, PlanRequest(), services)
        lenders, entries = (
            lenders_of(self._directory, session.private),
            {entry.where: entry for entry in layout.entries},
        )
        offered: dict[str | None, list[tuple[Any, Entry]]] = {}
        for each in plan.gpus:
            if not plan.changed(each):
                entry = entries[each.target.where]
                offered.setdefault(_key(entry), []).append((each.gpu, entry))
        cards = [
            (entry.where, gpu, card)
            for key, pairs in offered.items()
            for (gpu, entry), card in zip(pairs, lenders[key].cards(pairs, host))
        ]
        return _Ready(host, tuple(layout.entries), tuple(cards))

    def _grant(
        self, number: int, host: Host, lenders: Mapping[str | None, Lender], warnings: tuple[str, ...] = ()
    ) -> Grant:
        nodes = read_nodes(self._root)
        always = tuple("/" + path for path in _NODES if (self._root / path).exists())
        text = _current(lenders).get(number)
        for lender in lenders.values():
            grant = lender.grant(number, text, host, nodes)
            if grant is not None:
                return dataclasses.replace(grant, devices=(*always, *grant.devices), warnings=warnings)
        raise LeaseError("lease %d" % number, "it has no part of a GPU", "Take another lease.")


def lenders_of(directory: str, private: bool, context: Context | None = None) -> dict[str | None, Lender]:
    """Return a host's lenders by `sharing`.

    The key None has the lender of all instances. `private` is true if only this process simulates the GPUs. `context`
    is None if nothing is changed.
    """
    return {**{key: make(private) for key, make in LENDERS.items()}, None: InstanceLender(directory, context)}


def _key(entry: Entry) -> str | None:
    return entry.sharing if entry.sharing in LENDERS else None


def _current(lenders: Mapping[str | None, Lender]) -> dict[int, str]:
    """Return the text of each lease that has a part, by its number."""
    return {number: text for lender in lenders.values() for number, text in lender.current().items()}


def _settle(lenders: Mapping[str | None, Lender], host: Host) -> None:
    for lender in lenders.values():
        lender.settle(host)


def _give_back(number: int, host: Host, lenders: Mapping[str | None, Lender]) -> None:
    """Take back a lease's part. `host` has the holders of its GPUs."""
    for lender in lenders.values():
        text = lender.current().get(number)
        if text is not None:
            lender.give_back(number, text, host)


def _renewed_cdi() -> tuple[str, ...]:
    """Renew the host's CDI specifications, and return texts about failures."""
    try:
        follow(())
    except FollowError as error:
        return tuple(map(str, error.problems))
    return ()
