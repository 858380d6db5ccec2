# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the guarantees that region.h gives for the tenant's shared region.

The tests read and modify the region's bytes from outside.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.limiter import account
from tests.limiter.account import MIB
from tests.limiter.limiter_lab import DEADLINE, OUT, Client, Tenant, data
from tests.limiter.mounts import UNSHARE, can_mount

# The layout of region.1 is repeated here. No release may change it while older releases use the file.
MAGIC = 0x3155504756464F00
GPUS, SLOTS = 64, 64 + 16 * 48
GPU_SIZE, SLOT_SIZE, SLOT_COUNT = 48, 320, 1024
SIZE = SLOTS + SLOT_COUNT * SLOT_SIZE
LOCK, TAKEOVERS, TOTAL, PEAK, REFUSED = 16, 32, 24, 32, 40
NONCE, PID, NAME, USED, CONTEXT = 4, 8, 24, 64, 192
LOCKED_SLOTS = (1 << 24) + 1


class Region:
    """Read and write the fields of a region file."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory

    def get(self, at: int, kind: str = "<Q") -> int:
        return struct.unpack_from(kind, self.memory, at)[0]

    def set(self, at: int, value: int, kind: str = "<Q") -> None:
        struct.pack_into(kind, self.memory, at, value)

    def slot(self, number: int, at: int, kind: str = "<Q") -> int:
        return self.get(SLOTS + number * SLOT_SIZE + at, kind)


@contextmanager
def region(tenant: Tenant) -> Iterator[Region]:
    with tenant.region.open("r+b") as file, mmap.mmap(file.fileno(), SIZE) as memory:
        yield Region(memory)


def lives(path: Path, slot: int) -> bool:
    """Return whether another process sees a lock on the byte of this slot."""
    with path.open("r+b") as file:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, LOCKED_SLOTS + slot, 1, 0)
        return struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, lock))[0] != fcntl.F_UNLCK


def test_what_is_in_it(tenant: Tenant) -> None:
    tenant.quota(8 * MIB)
    with tenant.client() as first, tenant.client() as second:
        first.alloc(3 * MIB)
        second.alloc(2 * MIB)
        assert second.call("cuMemAlloc_v2", OUT, 4 * MIB)[0] == 2
        with region(tenant) as found:
            assert (found.get(0), found.get(8, "<I"), found.get(12, "<I")) == (MAGIC, 1, SIZE)
            assert tenant.region.stat().st_size == SIZE
            assert found.get(LOCK, "<I") == 0
            assert bytes(found.memory[GPUS : GPUS + 16]).hex() == tenant.card.uuid(0)[4:].replace("-", "")
            assert (found.get(GPUS + TOTAL), found.get(GPUS + PEAK), found.get(GPUS + REFUSED)) == (5 * MIB, 5 * MIB, 1)
            assert {found.slot(n, PID): found.slot(n, USED) for n in range(2)} == {
                first.pid: 3 * MIB,
                second.pid: 2 * MIB,
            }
            assert bytes(found.memory[SLOTS + NAME : SLOTS + NAME + 7]) == b"client\0"
        assert lives(tenant.region, 0) and lives(tenant.region, 1) and not lives(tenant.region, 2)
    assert not lives(tenant.region, 0) and not lives(tenant.region, 1)


def test_the_peak_is_of_what_was_there(tenant: Tenant) -> None:
    """Leave refused calls, and growth that a pool tries in vain, out of the peak.

    The peak is the most memory that the tenant really held.
    """
    tenant.quota(64 * MIB)
    with tenant.client(STUB_FAIL="cuMemAlloc_v2:2:2", STUB_POOL_GROWTH="0") as client:
        kept = client.alloc(8 * MIB)
        assert client.call("cuMemAlloc_v2", OUT, 32 * MIB)[0] == 2
        with region(tenant) as found:
            assert found.get(GPUS + PEAK) == 8 * MIB
            assert client.call("cuMemAllocAsync", OUT, 60 * MIB, 0)[0] == 2
            client.free(kept)
            assert found.get(GPUS + PEAK) == 8 * MIB
            for call in (
                ("cuMemAllocAsync", OUT, 10 * MIB, 0),
                ("cuMemCreate", OUT, 4 * MIB, data(account.on_device(0)), 0),
                ("cuArrayCreate_v2", OUT, data(account.array_2d(1024, 1024, 0x20, 1))),
            ):
                client.ok(*call)
                assert found.get(GPUS + PEAK) == tenant.used()


def test_a_dead_processs_slot_is_used_again(tenant: Tenant) -> None:
    tenant.quota(8 * MIB)
    for _ in range(3):
        with tenant.client() as client:
            assert client.memory()[0] == 8 * MIB
            client.alloc(5 * MIB)
            client.kill()
    with region(tenant) as found:
        assert [found.slot(n, NONCE, "<I") > 0 for n in range(4)].count(True) <= 3


@pytest.mark.parametrize("waiters", [0, 1])
def test_the_lock_of_a_dead_process_is_taken_over(tenant: Tenant, waiters: int) -> None:
    """Take over the lock if the process that held it was killed.

    The killed process had changed a slot but not the sum, or only the sum.
    """
    tenant.quota(8 * MIB)
    with tenant.client() as keeper:
        keeper.alloc(MIB)
        with tenant.client() as victim:
            victim.alloc(2 * MIB)
            victim.kill()
        with region(tenant) as found:
            dead = next(n for n in range(2) if found.slot(n, PID) == victim.pid)
            found.set(LOCK, waiters << 31 | found.slot(dead, NONCE, "<I") << 11 | (dead + 1), "<I")
            found.set(GPUS + TOTAL, 77 * MIB)
            keeper.alloc(7 * MIB)
            assert keeper.call("cuMemAlloc_v2", OUT, 1)[0] == 2
            assert (found.get(GPUS + TOTAL), found.get(LOCK, "<I"), found.get(TAKEOVERS)) == (8 * MIB, 0, 1)
    assert tenant.peak() == 8 * MIB


def test_signals_do_not_hide_that_the_holder_is_dead(tenant: Tenant) -> None:
    """Find a dead lock holder although a profiler's timer interrupts every wait."""
    tenant.quota(8 * MIB)
    with tenant.client() as keeper:
        keeper.alloc(MIB)
        with tenant.client() as victim:
            victim.alloc(2 * MIB)
            victim.kill()
        # getpid is the signal handler, because it does nothing.
        handler = keeper.tell("find getpid").split()[0]
        assert keeper.call("signal", int(signal.SIGALRM), handler)[0] == 0
        keeper.ok("setitimer", 0, data(struct.pack("<4q", 0, 100, 0, 100)), 0)
        rescue = threading.Timer(DEADLINE, keeper.process.kill)
        rescue.start()
        with region(tenant) as found:
            dead = next(n for n in range(2) if found.slot(n, PID) == victim.pid)
            found.set(LOCK, found.slot(dead, NONCE, "<I") << 11 | (dead + 1), "<I")
            keeper.alloc(7 * MIB)
            assert (found.get(LOCK, "<I"), found.get(TAKEOVERS)) == (0, 1)
        rescue.cancel()


def test_a_lock_of_the_slots_earlier_process_is_nobodys(tenant: Tenant) -> None:
    """Take over the lock of an ended process, whose slot another process now has.

    The new process of the slot does not hold the lock.
    """
    tenant.quota(8 * MIB)
    with tenant.client() as first:
        first.alloc(MIB)
        with region(tenant) as found:
            nonce = found.slot(0, NONCE, "<I")
            found.set(LOCK, (nonce - 1) << 11 | 1, "<I")
            with tenant.client() as second:
                second.alloc(7 * MIB)
            found.set(LOCK, (nonce - 1) << 11 | 1, "<I")
            first.alloc(7 * MIB)
            assert found.get(TAKEOVERS) == 2


@pytest.mark.parametrize("word", [0x7FF, 0x80000000 | 0x7FF, 0x7FFFFFFF])
def test_a_lock_that_names_nobody(tenant: Tenant, word: int) -> None:
    tenant.quota(8 * MIB)
    with tenant.client() as client:
        client.alloc(MIB)
        with region(tenant) as found:
            found.set(LOCK, word, "<I")
            client.alloc(7 * MIB)
            assert found.get(LOCK, "<I") == 0


@pytest.mark.parametrize("what", ["missing", "forbidden", "foreign", "newer", "a folder"])
def test_without_a_region_every_allocation_is_refused(tenant: Tenant, what: str) -> None:
    """Refuse every allocation if the tenant has no region.

    Otherwise each process would have a quota for itself, and the tenant would have no limit.
    """
    tenant.quota(8 * MIB)
    if what == "missing" or what == "a folder":
        tenant.region.unlink()
    if what == "a folder":
        tenant.region.mkdir()
    elif what == "forbidden":
        if os.geteuid() == 0:
            pytest.skip("nothing is forbidden to root")
        tenant.region.chmod(0o444)
    elif what == "foreign":
        tenant.region.write_bytes(b"something else\n")
    elif what == "newer":
        tenant.region.write_bytes(struct.pack("<QII", MAGIC, 2, SIZE) + bytes(SIZE))
    before = tenant.region.read_bytes() if what in ("foreign", "newer") else b""
    with tenant.client() as first, tenant.client() as second:
        for client in (first, second):
            assert client.call("cuMemAlloc_v2", OUT, 1)[0] == 2
            assert client.memory() == (0, 8 * MIB)
    assert "allocations on GPUs with a quota are refused" in tenant.logged()
    if before:
        assert tenant.region.read_bytes()[: len(before)] == before


@pytest.mark.skipif(not can_mount(), reason="this user cannot mount a tmpfs, not even in a namespace of its own")
@pytest.mark.parametrize(("room", "shared"), [("64k", False), ("8m", True)])
@pytest.mark.parametrize("size", [0, SIZE])
def test_a_full_run_ends_no_program(tenant: Tenant, tmp_path: Path, room: str, shared: bool, size: int) -> None:
    """Start a program while /run has no space for the region.

    The allocations must fail, but the program must get no signal when it first accesses the region.
    """
    tenant.quota(8 * MIB)
    script, run = tmp_path / "client", tenant.root / "run"
    script.write_text(
        f"""#!/bin/sh -e
        test "$1" = inside || exec {" ".join(UNSHARE)} "$0" inside
        mount -t tmpfs -o size={room} none {run}
        mkdir -p {tenant.region.parent} {tenant.gpus}
        truncate -s {size} {tenant.region}
        exec {tenant.built.client}
        """
    )
    script.chmod(0o755)
    with Client(SimpleNamespace(client=script), tenant.environment()) as client:
        if shared:
            client.alloc(8 * MIB)
        assert client.call("cuMemAlloc_v2", OUT, 1)[0] == 2
    assert ("are refused" in tenant.logged()) != shared


WAYS_TO_ALLOCATE = (
    ("cuMemAlloc_v2", OUT, 1),
    ("cuMemAllocPitch_v2", OUT, OUT, 1, 1, 4),
    ("cuMemAllocManaged", OUT, 1, 1),
    ("cuMemCreate", OUT, 2 * MIB, data(account.on_device(0)), 0),
    ("cuArrayCreate_v2", OUT, data(account.array_2d(1, 1, 0x20, 1))),
    ("cuMemAllocAsync", OUT, 1, 0),
    ("cuMemPoolCreate", OUT, data(account.pool_on_device(0))),
)


def test_places_of_gpus_are_used_again_when_nobody_knows_them(tenant: Tenant) -> None:
    """Reuse places of GPUs after sixteen earlier GPUs have filled the table.

    As long as a process from that time runs, there is no room for another GPU.
    """
    head = f"version 1\ntenant {tenant.name}\n"
    earlier = [f"gpu GPU-{number:032x} memory 0\n" for number in range(1, 17)]
    now = f"gpu {tenant.card.uuid()} memory {8 * MIB}\n"
    with tenant.write(head + "".join(earlier)).client() as old:
        old.alloc(MIB)
        with tenant.write(head + now).client() as client:
            assert client.memory() == (0, 8 * MIB)
            for call in WAYS_TO_ALLOCATE:
                assert client.call(*call)[0] == 2, call
            assert "are refused. End all programs of the tenant" in tenant.logged()
    with tenant.client() as client:
        assert client.call("cuMemAlloc_v2", OUT, 8 * MIB + 1)[0] == 2
        client.alloc(8 * MIB)
        with tenant.client() as another:
            assert another.memory() == (0, 8 * MIB)


def test_when_all_places_are_taken(tenant: Tenant) -> None:
    """Refuse memory to a process if 1024 other processes have all slots.

    The log contains the reason.
    """
    tenant.quota(8 * MIB)
    with tenant.client() as client:
        client.alloc(MIB)
        with tenant.region.open("r+b") as file:
            lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, LOCKED_SLOTS + 1, SLOT_COUNT - 1, 0)
            fcntl.fcntl(file, fcntl.F_SETLK, lock)
            with tenant.client() as late:
                assert late.memory() == (0, 8 * MIB)
                assert late.call("cuMemAlloc_v2", OUT, 1)[0] == 2
        assert "all 1024 slots" in tenant.logged()
        with tenant.client() as next_one:
            assert next_one.memory() == (7 * MIB, 8 * MIB)


REPLACED = """
import ctypes, os
driver, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(8 << 20)) == 0
os.write(1, b"has it\\n")
os.read(0, 1)
os.execvp("cat", ["cat"])
"""


def test_a_program_that_is_replaced_by_another_gives_all_back(tenant: Tenant) -> None:
    """Free all memory when a program replaces itself with exec.

    The driver itself must close its own files.
    """
    tenant.quota(8 * MIB)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", REPLACED], env=tenant.environment(), **pipes) as process:
        assert process.stdout.readline() == b"has it\n"
        with tenant.client() as other:
            assert other.call("cuMemAlloc_v2", OUT, 1)[0] == 2
            process.stdin.write(b"xcat is here\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"cat is here\n"
            assert other.memory() == (8 * MIB, 8 * MIB)
            other.alloc(8 * MIB)
        process.stdin.close()


def test_a_region_that_was_made_anew_says_nothing_of_the_old_one(tenant: Tenant) -> None:
    """Recreate a tenant while processes of its old region run.

    The old processes must still count each other's memory.
    """
    tenant.quota(8 * MIB)
    with tenant.client() as first, tenant.client() as second:
        first.alloc(5 * MIB)
        second.alloc(2 * MIB)
        tenant.region.rename(tenant.region.with_suffix(".old"))
        tenant.region.touch()
        tenant.region.chmod(0o666)
        assert second.call("cuMemAlloc_v2", OUT, 2 * MIB)[0] == 2
        assert second.memory() == first.memory() == (MIB, 8 * MIB)
        with tenant.client() as third:
            assert third.memory() == (8 * MIB, 8 * MIB)
