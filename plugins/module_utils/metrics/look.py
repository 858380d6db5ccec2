# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a host once and compare it with its layout. Changes nothing.

Does not wait for a run that is changing the host.
"""

from __future__ import annotations

import contextlib
import functools
import time
from typing import Any, Callable, Sequence, TypeVar

from ..change.unnamed import AppliedRecord, Unmanaged, unnamed_gpus
from ..errors import ApplyError, FleetError, NvmlError, UnansweredCallError
from ..holders.find import find_holders
from ..holders.mark import mark
from ..layout.types import Layout
from ..leases.record import BookingRecord
from ..model import Holder, Host
from ..plan.leased import LeasedRecord
from ..plan.metric_family import Family
from ..plan.ownership import Ownership, Record
from ..plan.services import Service, merged
from ..plan.transaction import looking
from ..techniques.registry import SERVING, observers_for
from ..vendors.nvidia.nvml.bounded_session import BoundedSession, hung_children
from ..vendors.nvidia.nvml.calls import lost_error
from .drift import GpuDrift, compare
from .leases import families as lease_families
from .text import Snapshot

T = TypeVar("T")


def look(read: Callable[[], Layout], directory: str, unlisted: str) -> Snapshot:
    """Return a snapshot of the host, compared with the layout from `read`.

    Data that cannot be read becomes a problem in the snapshot. Raises NvmlError if NVML does not start.
    """
    return _HostReading(directory, unlisted).snapshot(read)


class _HostReading:
    def __init__(self, directory: str, unlisted: str) -> None:
        self._directory, self._unlisted = directory, unlisted
        self._problems: list[FleetError] = []

    def snapshot(self, read: Callable[[], Layout]) -> Snapshot:
        layout = self._attempt(read)
        applied = self._attempt(AppliedRecord(self._directory).read)
        observers = self._attempt(lambda: observers_for(layout, self._directory))
        with contextlib.ExitStack() as held:
            busy = self._attempt(lambda: held.enter_context(looking(self._directory)))
            if busy is not None:
                # The run may reset GPUs, so this process must not have them open.
                return Snapshot(time.time(), changing=busy)
            hung = hung_children()
            if hung:
                # This code runs every minute. While the driver hangs, each run would leave another process behind.
                problem = "an earlier NVML call has not returned (pid %s)" % ", ".join(map(str, hung))
                raise NvmlError("this host", problem, UnansweredCallError.ADVICE)
            session = held.enter_context(BoundedSession())
            session.observers = observers or ()
            host, private = session.observe(), session.private
        # A GPU that is off the bus is no problem here, because the alert GpuLost reports it.
        self._problems += [lost_error("this host", [gpu]) for gpu in host.lost if gpu.state != "is lost"]
        services = [each for each in (each.service(private) for each in SERVING) if self._succeeds(each.observe)]
        holders = _holders(host, services)
        services = [each for each in services if self._succeeds(functools.partial(each.observe_on, host.gpus))]
        busy = self._attempt(self._changing)
        standing: tuple[GpuDrift, ...] = ()
        if layout is not None and busy is None:
            standing = self._standing(layout, mark(host, holders), services, bool(host.lost))
        unmanaged: tuple[Unmanaged, ...] = ()
        if layout is not None and applied is not None and applied.known:
            unmanaged = unnamed_gpus(layout, host, applied, {each.key: each.seen for each in services})
        by_uuid = {gpu.uuid: gpu for gpu in host.gpus}
        bookings = self._attempt(lambda: BookingRecord(self._directory).read().bookings)
        leased = self._attempt(LeasedRecord(self._directory).read)
        of_services = tuple(family for each in services for family in each.families(by_uuid))
        of_leases: tuple[Family, ...] = ()
        if bookings is not None and leased is not None:
            pool = {each.gpu_uuid: each.pool for each in standing if each.pool is not None}
            of_leases = lease_families(bookings, leased, by_uuid, pool, of_services)
        return Snapshot(
            time.time(),
            host.gpus,
            standing,
            unmanaged,
            holders,
            (*of_services, *of_leases),
            tuple(self._problems),
            busy,
        )

    def _changing(self) -> ApplyError | None:
        with looking(self._directory) as busy:
            return busy

    def _standing(self, layout: Layout, host: Host, services: Sequence[Service], lost: bool) -> tuple[GpuDrift, ...]:
        leased = self._attempt(LeasedRecord(self._directory).read)
        if leased is None:
            return ()
        ownership = Ownership("remove", leased=leased)
        if self._unlisted == "keep":
            owned = self._attempt(Record(self._directory).read)
            if owned is None:
                return ()
            ownership = Ownership("keep", owned, leased)
        standing, problems = compare(layout, host, ownership, services, lost)
        self._problems += problems
        return standing

    def _attempt(self, function: Callable[[], T]) -> T | None:
        try:
            return function()
        except FleetError as error:
            self._problems.append(error)
            return None

    def _succeeds(self, function: Callable[[], Any]) -> bool:
        before = len(self._problems)
        self._attempt(function)
        return len(self._problems) == before


def _holders(host: Host, services: Sequence[Service]) -> tuple[Holder, ...]:
    """Return the holders that run work.

    The clients of services are included, but not the services' own processes.
    """
    own = merged(service.own(clients=False) for service in services)
    return tuple(h for h in find_holders(host) if not h.watches and h.pid not in own.get(h.gpu_uuid, ()))
