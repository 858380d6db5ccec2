# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test many processes of one tenant.

They share one quota, and no memory is lost when processes are killed.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.limiter.limiter_lab import DEADLINE, OUT, Client, Tenant

KIB, MIB = 1 << 10, 1 << 20
OUT_OF_MEMORY = 2


def assert_whole_quota_is_free(tenant: Tenant, quota: int) -> None:
    """Check that a new process can allocate exactly the quota."""
    with tenant.client() as client:
        assert client.call("cuMemAlloc_v2", OUT, quota + 1)[0] == OUT_OF_MEMORY
        address = client.alloc(quota)
        assert client.call("cuMemAlloc_v2", OUT, 1)[0] == OUT_OF_MEMORY
        client.free(address)


def test_one_quota_for_all(tenant: Tenant) -> None:
    tenant.quota(10 * MIB)
    with tenant.client() as first, tenant.client() as second:
        held = first.alloc(6 * MIB)
        assert second.call("cuMemAlloc_v2", OUT, 4 * MIB + 1)[0] == OUT_OF_MEMORY
        second.alloc(4 * MIB)
        assert first.memory() == second.memory() == (0, 10 * MIB)
        first.free(held)
        second.alloc(6 * MIB)
        assert first.call("cuMemAlloc_v2", OUT, 1)[0] == OUT_OF_MEMORY
        assert tenant.peak() == 10 * MIB


def test_tenants_do_not_touch_each_other(tenant: Tenant) -> None:
    other = Tenant(tenant.root, tenant.card, tenant.built, "tenant-b")
    tenant.quota(4 * MIB)
    other.quota(8 * MIB)
    with tenant.client() as a, other.client() as b:
        a.alloc(4 * MIB)
        assert b.memory() == (8 * MIB, 8 * MIB)
        b.alloc(8 * MIB)
        assert a.memory() == (0, 4 * MIB)
    assert (tenant.peak(), other.peak()) == (4 * MIB, 8 * MIB)


def test_300_processes_at_once(tenant: Tenant) -> None:
    """Let each of 300 processes allocate its part of the quota.

    One more process gets nothing. At the end, all memory is free.
    """
    count = 300
    tenant.quota(count * MIB)
    clients = [tenant.client(start=False) for _ in range(count)]
    try:
        # Send to all clients before the first answer is read, so that the clients run in parallel.
        for client in clients:
            client.send("call cuInit 0", "call cuDevicePrimaryCtxRetain & 0")
        for client in clients:
            assert client.answer("cuInit") == "0"
            context = client.answer("cuDevicePrimaryCtxRetain").split()[1]
            client.send(f"call cuCtxSetCurrent {context}", f"call cuMemAlloc_v2 & {MIB}")
        for client in clients:
            assert client.answer("cuCtxSetCurrent").split()[0] == "0"
            assert client.answer("cuMemAlloc_v2").split()[0] == "0"
        assert tenant.used() == tenant.peak() == count * MIB
        with tenant.client() as late:
            assert late.call("cuMemAlloc_v2", OUT, 1)[0] == OUT_OF_MEMORY
            assert late.memory() == (0, count * MIB)
        for client in clients[::2]:
            client.kill()
    finally:
        for client in clients:
            client.__exit__()
    assert_whole_quota_is_free(tenant, count * MIB)


@pytest.mark.parametrize("seed", range(3))
def test_kill_storm(tenant: Tenant, seed: int) -> None:
    """Kill processes at random times while they allocate and free as fast as they can.

    Afterwards, all their memory must be free. The card must never have held more than the quota.
    """
    quota, generator = 8 * MIB, random.Random(seed)
    tenant.quota(quota)
    running: list[Client] = []
    for number in range(80):
        client = tenant.client()
        client.send(f"churn {generator.randrange(1 << 30)} {MIB}")
        running.append(client)
        if len(running) == 5:
            victim = running.pop(generator.randrange(5))
            # This wait makes the time of the kill random, and has no other purpose.
            for _ in range(generator.randrange(2000)):
                os.getppid()
            victim.kill()
            victim.__exit__()
        if number % 20 == 19:
            for client in running:
                client.kill()
                client.__exit__()
            running.clear()
            assert_whole_quota_is_free(tenant, quota)
    assert tenant.peak() == quota
    assert tenant.card.refused() == 0, "the card itself ran full"


@pytest.mark.parametrize(
    ("sequence", "kills"), [("linear", 40), ("first", 4), ("pool", 20), ("physical", 20), ("refused", 12)]
)
def test_killed_at_any_instruction(tenant: Tenant, sequence: str, kills: int) -> None:
    """Kill a program at instructions spread over a whole sequence of calls.

    SEED shifts the instructions, and CASES sets the number of kills.
    """
    quota = 64 * MIB
    tenant.quota(quota)
    program = tenant.built.program("any_instruction", "-Wno-strict-prototypes")
    done = subprocess.run(
        [str(program), str(quota), os.environ.get("SEED", "0"), os.environ.get("CASES", str(kills)), sequence],
        env=tenant.environment(),
        capture_output=True,
        text=True,
        timeout=10 * DEADLINE,
    )
    if done.stdout.startswith("no ptrace"):
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[3]) > 100, done.stdout
    assert tenant.peak() == quota


def test_a_fork_bomb_stays_within_the_quota(tenant: Tenant) -> None:
    quota = 6 * MIB
    tenant.quota(quota)
    program = tenant.built.program("bomb", "-Wno-strict-prototypes")
    done = subprocess.run([str(program), "4", "3"], env=tenant.environment(), timeout=DEADLINE)
    assert done.returncode in (0, -9)
    assert 0 < tenant.peak() <= quota
    assert_whole_quota_is_free(tenant, quota)


def test_a_child_without_cuda_holds_nothing_of_its_parent(tenant: Tenant, tmp_path: Path) -> None:
    """Free the memory of a killed trainer at once, although its data loaders survive."""
    tenant.quota(4 * MIB)
    with tenant.client() as parent:
        parent.alloc(4 * MIB)
        with parent.fork(tmp_path / "child") as child:
            assert child.call("cuDriverGetVersion", OUT)[0] == 0
            parent.kill()
            assert_whole_quota_is_free(tenant, 4 * MIB)
            assert child.call("cuDriverGetVersion", OUT)[0] == 0


def test_a_child_takes_nothing_along_when_it_ends(tenant: Tenant, tmp_path: Path) -> None:
    tenant.quota(4 * MIB)
    with tenant.client() as parent, tenant.client() as other:
        address = parent.alloc(3 * MIB)
        with parent.fork(tmp_path / "child") as child:
            assert child.call("cuMemAlloc_v2", OUT, MIB)[0] == 3, "the driver refuses children of its users"
            assert child.call("cuMemFree_v2", address)[0] == 3
            os.kill(child.pid, 9)
        assert other.call("cuMemAlloc_v2", OUT, MIB + 1)[0] == OUT_OF_MEMORY
        parent.free(address)
        other.alloc(4 * MIB)
        assert tenant.peak() == 4 * MIB


def test_a_child_from_before_cuda_is_a_process_of_its_own(tenant: Tenant, tmp_path: Path) -> None:
    tenant.quota(4 * MIB)
    with tenant.client(start=False) as parent, parent.fork(tmp_path / "child") as child:
        parent.start()
        parent.alloc(MIB)
        child.start()
        child.alloc(MIB)
        parent.kill()
        with tenant.client() as other:
            assert other.call("cuMemAlloc_v2", OUT, 3 * MIB + 1)[0] == OUT_OF_MEMORY
            other.alloc(3 * MIB)


def test_threads_of_a_process_without_a_context(tenant: Tenant) -> None:
    """Call cuMemCreate in threads without a context.

    The function needs no context, because its arguments name the device.
    """
    tenant.quota(4 * MIB)
    properties = "@" + "01000000 00000000 01000000 00000000".replace(" ", "") + "00" * 16
    with tenant.client(start=False) as client:
        client.ok("cuInit", 0)
        handle = client.ok("cuMemCreate", OUT, 4 * MIB, properties, 0, thread=3)[0]
        assert client.call("cuMemCreate", OUT, 2 * MIB, properties, 0, thread=2)[0] == OUT_OF_MEMORY
        assert client.call("cuMemAlloc_v2", OUT, 1, thread=4)[0] == 201
        client.ok("cuMemRelease", handle, thread=5)
        client.ok("cuMemCreate", OUT, 4 * MIB, properties, 0, thread=6)
        assert tenant.peak() == 4 * MIB
