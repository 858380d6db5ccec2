# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that processes do not block each other.

The tests cover callbacks within driver calls, and a tenant with many processes of which one checks the others.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.processes.child_process import readable
from tests.limiter.account import MIB
from tests.limiter.limiter_lab import DEADLINE, OUT, Client, Tenant, data
from tests.limiter.test_region import GPUS, LOCKED_SLOTS, SLOT_SIZE, SLOTS, TOTAL, USED, region
from tests.limiter.turnstile_lab import Seat, Turnstile

LIVING = 60
# The value is from fcntl.h, because Python has the name only since 3.9. An OFD lock stays if another descriptor of the
# file is closed.
F_OFD_SETLK = 37


def test_a_callback_within_the_drivers_calls_may_call_hooked_functions(tenant: Tenant) -> None:
    """Call hooked functions from a CUPTI callback within a driver call.

    The callback runs in the thread of the driver call, and the limiter may hold a lock during this call.
    """
    tenant.quota(64 * MIB)
    program = tenant.built.program("callbacks", "-Wno-strict-prototypes")
    environment = tenant.environment(STUB_POOL_GROWTH=str(2 * MIB))
    done = subprocess.run(
        [str(program), str(64 * MIB)], env=environment, capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert tenant.peak() <= 66 * MIB


@pytest.fixture
def crowded(tenant: Tenant) -> Iterator[Tenant]:
    """Return a tenant whose slots from 2 on seem to belong to running processes."""
    tenant.quota(8 * MIB)
    with tenant.client() as client:
        client.free(client.alloc(MIB))
    with tenant.region.open("r+b") as file, region(tenant) as found:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, LOCKED_SLOTS + 2, LIVING, 0)
        fcntl.fcntl(file, F_OFD_SETLK, lock)
        for number in range(2, 2 + LIVING):
            found.set(SLOTS + number * SLOT_SIZE, 1, "<I")
        found.set(20, 2 + LIVING, "<I")  # slot_limit
        yield tenant


def give_each_a_byte(crowded: Tenant) -> None:
    with region(crowded) as found:
        for number in range(2, 2 + LIVING):
            found.set(SLOTS + number * SLOT_SIZE + USED, 1)
        found.set(GPUS + TOTAL, found.get(GPUS + TOTAL) + LIVING)


def traced(tenant: Tenant, *options: str) -> Client:
    """Start a client under strace, which records its fcntl calls or delays them."""
    if not shutil.which("strace"):
        pytest.skip("no strace")
    script = tenant.root / "traced"
    trace = tenant.root / "trace"
    environment = tenant.environment()
    preload = environment.pop("LD_PRELOAD")
    words = " ".join(["strace", "-f", "-o", str(trace), "-e", "trace=fcntl", *options])
    script.write_text(f"#!/bin/sh\nexec {words} -E LD_PRELOAD='{preload}' {tenant.built.client}\n")
    script.chmod(0o755)
    return Client(SimpleNamespace(client=script), environment)


def asked(tenant: Tenant) -> int:
    """Return how often the traced process tested the lock of a slot.

    Lock tests of the stub, in another file and at other offsets, do not count.
    """
    found = re.findall(r"F_OFD_GETLK.*l_start=(\d+)", (tenant.root / "trace").read_text())
    return sum(LOCKED_SLOTS <= int(start) < LOCKED_SLOTS + 1024 for start in found)


def test_looking_at_the_memory_asks_only_for_those_who_have_some(crowded: Tenant) -> None:
    """Test only the locks of processes that hold memory."""
    with traced(crowded) as client:
        for _ in range(20):
            assert client.memory() == (8 * MIB, 8 * MIB)
        assert asked(crowded) == 0
        give_each_a_byte(crowded)
        assert client.memory() == (8 * MIB - LIVING, 8 * MIB)
        assert asked(crowded) == LIVING
        client.end()


@pytest.mark.parametrize("call", [("cuMemGetInfo_v2", OUT, OUT), ("cuMemAlloc_v2", OUT, 9 * MIB)])
def test_nobody_waits_for_who_looks_for_the_dead(crowded: Tenant, call: tuple) -> None:
    """Allocate without waiting for a process that tests the locks of all processes.

    strace makes each of these tests take a second.
    """
    slow = ("-e", "inject=fcntl:delay_enter=1000000:when=30+")
    give_each_a_byte(crowded)
    with crowded.client() as other, traced(crowded, *slow) as looker:
        # The first fcntl calls are the stub's own, and are not delayed yet.
        looker.send(f"call {' '.join(map(str, call))}")
        end = time.monotonic() + DEADLINE
        while asked(crowded) < 35 and time.monotonic() < end:
            time.sleep(0.05)
        other.free(other.alloc(7 * MIB))
        assert not readable(looker.process.stdout, time.monotonic()), (
            "it has found all of them already: nothing is shown"
        )
        looker.kill()


# --- another tenant's lease, with the clock and the kernel of this machine ---

FUTEX, FUTEX_WAKE = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine), 1
NEIGHBOUR = 4096 << 48  # A process ID without a lock, so that the process always counts as alive.


class Neighbour:
    """A tenant on seat 1 that has the GPU.

    The class maps the file of the turnstile separately.
    """

    def __init__(self, tenant: Tenant) -> None:
        with (tenant.gpus / f"{tenant.card.uuid()}.1").open("r+b") as file:
            file.truncate(ctypes.sizeof(Turnstile))
            self.memory = mmap.mmap(file.fileno(), 0)
        self.turnstile = Turnstile.from_buffer(self.memory)
        self.seat = self.turnstile.seats[1]
        self.seat.tenant, self.seat.percent = b"tenant-b", 50
        self.libc = ctypes.CDLL(None)

    def hold(self) -> None:
        self.seat.lease = NEIGHBOUR | (time.monotonic_ns() + 900_000_000) // 1000

    def wake(self) -> None:
        half = ctypes.c_void_p(ctypes.addressof(self.seat) + Seat.lease.offset + 4)
        self.libc.syscall(FUTEX, half, FUTEX_WAKE, 1 << 30, None, None, 0)

    def held_back(self) -> float:
        """Return how many seconds the tenant on seat 0 was delayed."""
        return self.turnstile.seats[0].throttled_ns / 1e9


def switches(pid: int) -> int:
    """Return how often the main thread of a process gave up the CPU to wait."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE).group(1))


def wakes_a_second(tenant: Tenant, meanwhile: Callable[[Neighbour], None]) -> float:
    """Return how often a tenant wakes per second while it waits for another's lease.

    The other tenant holds the GPU for half a second. Then it clears the lease but wakes no waiter. The waiting tenant
    must continue nevertheless.
    """
    if not FUTEX:
        pytest.skip("which number has this processor's call?")
    tenant.quota(0, sm=50)
    with tenant.client() as client:
        module = client.ok("cuModuleLoadData", OUT, 0)
        function, _ = client.ok("cuModuleGetFunction", OUT, module, data(b"busy_0\0"))
        launch = f"call cuLaunchKernel {function} 1 1 1 1 1 1 0 0 0 0"
        assert client.tell(launch).split() == ["0"]
        neighbour = Neighbour(tenant)
        before, earlier = switches(client.pid), neighbour.held_back()
        neighbour.hold()
        client.send(launch)
        end = time.monotonic() + DEADLINE
        while neighbour.held_back() - earlier < 0.5 and time.monotonic() < end:
            neighbour.hold()
            meanwhile(neighbour)
        neighbour.seat.lease = 0
        assert client.answer(launch).split() == ["0"]
        waited = neighbour.held_back() - earlier
        assert waited >= 0.5
        return (switches(client.pid) - before) / waited


def test_who_waits_for_a_neighbours_lease_sleeps(tenant: Tenant) -> None:
    assert wakes_a_second(tenant, lambda _: time.sleep(0.02)) < 2500


def test_a_neighbour_that_wakes_waiters_all_the_time_costs_no_more_than_asking_often(tenant: Tenant) -> None:
    def wake(neighbour: Neighbour) -> None:
        for _ in range(1000):
            neighbour.wake()

    assert wakes_a_second(tenant, wake) < 25_000
