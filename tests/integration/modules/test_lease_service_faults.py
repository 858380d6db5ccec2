# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let the lease service fail or die at each of a request's steps.

After a restart, these rules hold: each lease has a living unit and its part of a GPU, each lease's living unit has its
part, no other part remains, and a later request succeeds. Units are folders here. All other parts are real, with a
simulated driver.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.lease_service.service import (
    RETURN_SECONDS,
    Caller,
    LeaseService,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.model import LeaseError
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.names import lease_of
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.record import BookingRecord
from tests.integration.lease_fleet import GIB, Killed, LeaseFleet, Refused, mig, vgpu
from tests.integration.modules.test_lease_faults import FileFault, Saved
from tests.thorough import THOROUGH

LAYOUT = [mig([0], "2g.20gb"), vgpu([1], {"name": "fixed", "memory": "8GiB", "sm_percent": 10})]
SMALL, LARGE = {"profile": "1g.10gb"}, {"profile": "3g.40gb"}
QUOTA, MORE = {"memory_bytes": 8 * GIB, "sm_percent": 20}, {"memory_bytes": 16 * GIB, "sm_percent": 30}
ROOT = Caller(os.getpid(), 0)


class Units:
    """Leases' units as folders.

    `FileFault` replaces functions of `os`, so that a fault can happen before and after a unit's start and end.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, pid, uid, grant, account):
        try:
            os.mkdir(self.folder / str(grant.number))  # noqa: PTH102
        except OSError as error:
            raise LeaseError("lease %d" % grant.number, "systemd did not start its unit: %s" % error, "") from None

    def stop(self, number):
        if self.seems_alive(number):
            try:
                os.rmdir(self.folder / str(number))  # noqa: PTH106
            except OSError as error:
                raise LeaseError("lease %d" % number, "systemd did not stop its unit: %s" % error, "") from None

    def living(self, numbers):
        return {number for number in numbers if self.seems_alive(number)}

    def seems_alive(self, number):
        return (self.folder / str(number)).exists()


class Desk:
    """A host with the lease service.

    Each call is a new process, like the service's child.
    """

    def __init__(self, fleet: LeaseFleet) -> None:
        self.fleet = fleet
        self.units = Units(fleet.root / "units")
        self.units.folder.mkdir()

    def work(self, request=None, recover=False, later=0.0):
        """Return the answer to a request."""
        # The service starts at the first time, and handles the request `later` seconds after it.
        clock = iter([1e9])
        record = BookingRecord(self.fleet.directory)
        service = LeaseService(
            self.fleet.lease_host(), record, self.units, lambda: next(clock, 1e9 + later), lambda grant, account: None
        )
        line = None if request is None else json.dumps(request).encode()
        return service.work({}, line, ROOT, recover)["answer"]

    def take(self, shape, seconds=3600):
        request = {"op": "take", "shape": shape, "gpus": 1, "seconds": seconds, "wait": False, "number": None}
        return self.work(request)

    def bookings(self):
        """Return each booking's (number, started)."""
        return [(each.request.number, each.started) for each in BookingRecord(self.fleet.directory).read().bookings]

    def parts(self):
        """Return the numbers of the leases that have an instance or a quota."""
        texts = [lease_of(text)[0] for text in self.fleet.records().values() if text is not None]
        tenants = [int(name[len("lease-") :]) for name in self.fleet.tenants() if name.startswith("lease-")]
        return sorted([*texts, *tenants])

    def living(self):
        return sorted(int(path.name) for path in self.units.folder.iterdir())


@pytest.fixture
def desk(host, monkeypatch):
    host.create([{"model": "H100-80GB", "count": 2}])
    fleet = LeaseFleet(host, monkeypatch)
    assert not fleet.apply(LAYOUT).get("failed")
    desk = Desk(fleet)
    for shape in (SMALL, QUOTA, SMALL):
        assert "lease" in fleet.fork(lambda shape=shape: desk.take(shape))
    # Lease 3 leaves an idle instance.
    assert fleet.fork(lambda: desk.work({"op": "end", "number": 3}))["state"] == "ended"
    return desk


def end_unit(desk, number):
    """Let a lease's programs end, and do what the service then does."""
    (desk.units.folder / str(number)).rmdir()
    return desk.work()


#: The calls under test.
CASES = {
    "take an instance": lambda desk: desk.take(SMALL),
    "take the place of an idle instance": lambda desk: desk.take(LARGE),
    "take a quota": lambda desk: desk.take(QUOTA),
    "end an instance": lambda desk: desk.work({"op": "end", "number": 1}),
    "end a quota": lambda desk: desk.work({"op": "end", "number": 2}),
    "resize": lambda desk: desk.work({"op": "resize", "number": 2, "shape": MORE}),
    "unit has ended": lambda desk: end_unit(desk, 1),
    "lease has expired": lambda desk: desk.work(later=3601.0),
}


@pytest.mark.parametrize("case", CASES)
def test_service_survives_a_fault_at_each_step(desk, case):
    saved = Saved(desk.fleet)

    def run(fault):
        def forked():
            fault.install()
            answer = CASES[case](desk)
            return [answer, fault.count]

        try:
            return desk.fleet.fork(forked)
        except Killed:
            return [None, 0]
        except Refused as error:
            # The server answers the client with this error.
            assert error.kind == "ApplyError", error
            return [None, 0]

    _answer, steps = run(FileFault(0, ""))
    assert steps > 1
    faults = [(nth, action) for nth in range(1, steps + 1) for action in ("kill", "kill-after", "full")]
    for nth, action in faults if THOROUGH else random.Random(steps).sample(faults, min(4, len(faults))):
        saved.restore()
        answer, _count = run(FileFault(nth, action))
        restart(desk)
        judge(desk, (case, nth, action), answer)


def restart(desk):
    """Start the service again.

    The old service's clients do not return.
    """
    for later in (0.0, 0.0, RETURN_SECONDS + 1):
        desk.fleet.fork(lambda later=later: desk.work(recover=True, later=later))


def judge(desk, what, answer):
    bookings = desk.bookings()
    assert all(started for _number, started in bookings), what
    numbers = [number for number, _started in bookings]
    assert numbers == desk.living() == desk.parts(), (what, numbers, desk.living(), desk.parts())
    if answer is not None and "lease" in answer:
        assert answer["lease"]["number"] in numbers, what
    if answer is not None and answer.get("state") == "ended":
        assert answer["ended"]["number"] not in numbers, what
    after = desk.fleet.apply(LAYOUT)
    assert not after.get("failed") and not after["changed"], (what, after)
    assert "fixed" in desk.fleet.tenants() and ("2g.20gb" in {name for name, _start in desk.fleet.instances()[0]})
    # A large lease fits after all other leases have ended.
    for number in numbers:
        assert desk.fleet.fork(lambda number=number: desk.work({"op": "end", "number": number}))["state"] == "ended", (
            what
        )
    assert "lease" in desk.fleet.fork(lambda: desk.take(LARGE)), what
