# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take leases on a simulated host.

Each call of `LeaseHost` is a fork of this process, so that a test can kill a call, and so that no call remembers
instances from other calls.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, Callable

from ansible_collections.openfleet.gpu.plugins.module_utils.lease_service.host import LeaseHost
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.model import (
    Booking,
    Place,
    Request,
    RetryLaterError,
    Shape,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.schedule import Schedule, book
from ansible_collections.openfleet.gpu.plugins.module_utils.metrics.look import look
from ansible_collections.openfleet.gpu.plugins.module_utils.metrics.text import families
from ansible_collections.openfleet.gpu.plugins.module_utils.model import parts_of, to_data
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.leased import LeasedRecord
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.files import LIBRARY
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.observe import Tenants
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.registry import vendor_of_host
from tests.integration.simulated_host import SIMULATOR, SimulatedHost

sys.path.insert(0, str(SIMULATOR))

GIB = 1 << 30
MIG_LEASES = {"by": "host", "groups": ["root"], "profiles": ["1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"]}
QUOTA_LEASES = {"by": "host", "groups": ["root"]}


def mig(gpus, *profiles, **leases):
    return {
        "gpus": gpus,
        "sharing": "mig",
        "mig": [{"profile": profile} for profile in profiles],
        "leases": {**MIG_LEASES, **leases},
    }


def vgpu(gpus, *tenants):
    part: dict[str, Any] = {"policy": "fixed", "provider": "preload"}
    if tenants:
        part["tenants"] = list(tenants)
    return {"gpus": gpus, "sharing": "vgpu", "vgpu": part, "leases": QUOTA_LEASES}


class Refused(Exception):
    """A call's error: its class and its message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__("%s: %s" % (kind, message))
        self.kind, self.message = kind, message


class Killed(Exception):
    """A kill has ended the call."""


class LeaseFleet:
    """A simulated host with a layout, and calls of its `LeaseHost`."""

    def __init__(self, host: SimulatedHost, monkeypatch: Any) -> None:
        import pynvml
        from gpusim.control import Control

        self.host = host
        self.directory = str(host.folder / "state.d")
        self.layout = str(host.folder / "layout.json")
        self.root = host.folder / "root"
        monkeypatch.setenv("GPUSIM_STATE", str(host.folder / "state"))
        monkeypatch.setenv("GPUSIM_LIBRARY", str(host.library / "libnvidia-ml.so.1"))
        monkeypatch.setenv("OPENFLEET_VGPU_ROOT", str(self.root))
        library = self.root / LIBRARY
        library.parent.mkdir(parents=True)
        library.touch()
        self.control = Control(str(host.library / "libnvidia-ml.so.1"))
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(host.library / "libnvidia-ml.so.1")))

    def apply(self, layout: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        """Apply a layout with the module, and install it as the role does."""
        done = self.host.module("layout", layout=layout, **options)
        if not done.get("failed"):
            Path(self.layout).write_text(json.dumps(layout))
        return done

    def fork(self, run: Callable[[], Any]) -> Any:
        """Return the result of `run` in a fork.

        Raise Refused or Killed if `run` fails.
        """
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                answer: Any = [None, to_data(run())]
            except BaseException as error:  # pylint: disable=broad-except
                kind = type(error).__name__
                answer = [kind, str(error) if hasattr(error, "problem") else traceback.format_exc()]
            os.write(writer, json.dumps(answer).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as stream:
            text = stream.read()
        os.waitpid(child, 0)
        if not text:
            raise Killed
        kind, value = json.loads(text)
        if kind is not None:
            raise Refused(kind, value)
        return value

    def lease_host(self, lock_timeout_seconds: float = 0) -> LeaseHost:
        return LeaseHost(self.directory, self.layout, lock_timeout_seconds)

    def find(self, number: int, shape: Shape, account: str = "root", gpus: int = 1) -> Booking:
        """Return the booking that the schedule makes for a request.

        Call this through `fork`, so that this process remembers no instances.
        """
        offers = self.lease_host().offers()
        bookings = []
        for record in LeasedRecord(self.directory).read():
            if record.lease is not None:
                request = Request(1000 + len(bookings), record.lease, Shape(profile=record.profile), 3600.0)
                bookings.append(Booking(request, "gpu_layout[0]", (Place(record.gpu_uuid, record.start),), 0.0, True))
        for tenant in Tenants().tenants():
            if tenant.lease is not None:
                shape_of = Shape(tenant.memory_bytes, tenant.sm_percent)
                request = Request(1000 + len(bookings), tenant.lease, shape_of, 3600.0)
                places = tuple(Place(uuid) for uuid in tenant.gpus)
                bookings.append(Booking(request, "gpu_layout[0]", places, 0.0, True))
        schedule = book(
            Schedule(offers, tuple(bookings)), Request(number, account, shape, 3600.0, gpus), offers, 1.0, wait=False
        )
        return schedule.booking(number)

    def find_waiting(self, number: int, shape: Shape) -> str:
        """Wait until the lock is free, and return why a request must wait."""
        while True:
            try:
                self.find(number, shape)
            except RetryLaterError as error:
                if "another run" not in str(error):
                    return "%s: %s" % (type(error).__name__, error)

    def take(self, number: int, shape: Shape, account: str = "root", gpus: int = 1) -> dict[str, Any]:
        """Take a lease in the place that the schedule chooses."""
        return self.fork(lambda: self.lease_host().take(self.find(number, shape, account, gpus)))

    def give_back(self, number: int) -> None:
        self.fork(lambda: self.lease_host().give_back(number))

    def resize(self, number: int, shape: Shape) -> dict[str, Any]:
        return self.fork(lambda: self.lease_host().resize(number, shape))

    def grant(self, number: int) -> dict[str, Any]:
        return self.fork(lambda: self.lease_host().grant(number))

    def recover(self, *living: int) -> list[tuple[int, str]]:
        return [(each["number"], each["action"]) for each in self.fork(lambda: self.lease_host().recover(living))]

    def instances(self) -> list[list[tuple[str, int]]]:
        """Return (profile, start) of each instance on each GPU."""

        def read() -> Any:
            with vendor_of_host().open() as session:
                return [sorted((i.profile, i.start) for i in parts_of(gpu)) for gpu in session.observe().gpus]

        return [[(profile, start) for profile, start in gpu] for gpu in self.fork(read)]

    def instance_id(self, index: int, start: int) -> int:
        """Return the id of the instance at this start."""

        def read() -> Any:
            with vendor_of_host().open() as session:
                return next(i.id for i in parts_of(session.observe().gpus[index]) if i.start == start)

        return int(self.fork(read))

    def lease_samples(self) -> dict[str, list[Any]]:
        """Return each lease sample's (labels, value).

        Call this through `fork`, so that this process remembers no instances.
        """
        layout = parse_layout(json.loads(Path(self.layout).read_text()))
        seen = families(look(lambda: layout, self.directory, "fail"))
        return {
            family.name: [[dict(sample.labels), sample.value] for sample in family.samples]
            for family in seen
            if family.name.startswith("openfleet_lease_")
        }

    def records(self) -> dict[tuple[str, int], str | None]:
        """Return each recorded instance's lease, by the instance's profile and start."""
        return {(each.profile, each.start): each.lease for each in LeasedRecord(self.directory).read()}

    def tenants(self) -> list[str]:
        return [tenant.name for tenant in Tenants(str(self.root)).tenants()]
