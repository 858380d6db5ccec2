# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who waits for whom: callbacks within the driver's calls, and a tenant of hundreds of processes while one looks at it."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from account import MIB
from limiter_lab import DEADLINE, OUT, Client, Tenant
from test_region import GPUS, LOCKED_SLOTS, SLOT_SIZE, SLOTS, TOTAL, USED, region

LIVING = 60
F_OFD_SETLK = 37  # fcntl.h; Python names it from 3.9 on. It stays when the file is opened and closed again.


def test_a_callback_within_the_drivers_calls_may_call_hooked_functions(tenant: Tenant) -> None:
    """CUPTI's callbacks run on the thread that made the call, also where the limiter has made it with a lock held."""
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
    """A tenant whose slots 2 and up are those of living processes, as far as a process of it can tell."""
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
    """A client whose calls of fcntl strace writes down, or makes slow."""
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
    """How often a slot was asked for its process; the stub asks too, by bytes of its own file."""
    found = re.findall(r"F_OFD_GETLK.*l_start=(\d+)", (tenant.root / "trace").read_text())
    return sum(LOCKED_SLOTS <= int(start) < LOCKED_SLOTS + 1024 for start in found)


def test_looking_at_the_memory_asks_only_for_those_who_have_some(crowded: Tenant) -> None:
    """A call to the kernel for each process that holds memory on the GPU, and none for the others."""
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
    """One process asks the kernel for all the others, each answer taking a second; another allocates meanwhile."""
    slow = ("-e", "inject=fcntl:delay_enter=1000000:when=30+")
    give_each_a_byte(crowded)
    with crowded.client() as other, traced(crowded, *slow) as looker:
        # The stub's own calls come first, and they are not slow yet.
        looker.send(f"call {' '.join(map(str, call))}")
        end = time.monotonic() + DEADLINE
        while asked(crowded) < 35 and time.monotonic() < end:
            time.sleep(0.05)
        other.free(other.alloc(7 * MIB))
        ready, _, _ = select.select([looker.process.stdout], [], [], 0)
        assert not ready, "it has found all of them already: nothing is shown"
        looker.kill()
