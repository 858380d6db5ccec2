# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the tenant's other processes can use memory that pools release.

A pool releases memory when its process waits for the GPU. Other processes must be able to use the memory, whatever this
process does next.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limiter import account
from tests.limiter.account import MIB
from tests.limiter.limiter_lab import DEADLINE, OUT, Client, Tenant, data
from tests.limiter.test_report import opened

OUT_OF_MEMORY = 2
QUOTA, MOST = 1024 * MIB, 900 * MIB
RELEASE_THRESHOLD = 4
WAITS = (
    "cuCtxSynchronize",
    "cuCtxSynchronize_v2",
    "cuStreamSynchronize",
    "cuStreamSynchronize_ptsz",
    "cuEventSynchronize",
    "cuMemFree_v2",
)


def prepared(client: Client, wait: str) -> tuple:
    """Prepare the arguments of a call that waits, and return the call."""
    if wait == "cuEventSynchronize":
        return (wait, client.ok("cuEventCreate", OUT, 0))
    if wait == "cuMemFree_v2":
        return (wait, client.alloc(1))
    return (wait,) if wait == "cuCtxSynchronize" else (wait, 0)


@pytest.mark.parametrize("wait", WAITS)
def test_what_an_idle_process_gave_back_is_there_for_others(tenant: Tenant, wait: str) -> None:
    """Let other processes immediately use memory that an idle process has released.

    Earlier, these processes were refused although the card was empty, until the idle process made a call that allocates
    or frees.
    """
    tenant.quota(QUOTA)
    with tenant.client() as idle, tenant.client() as sibling:
        call = prepared(idle, wait)
        idle.ok("cuMemFreeAsync", idle.ok("cuMemAllocAsync", OUT, MOST, 0), 0)
        assert sibling.call("cuMemAlloc_v2", OUT, MOST)[0] == OUT_OF_MEMORY, "the card has not got it back"
        idle.ok(*call)
        assert tenant.used() == 0
        address = sibling.alloc(MOST)
        assert idle.call("cuMemAllocAsync", OUT, MOST, 0)[0] == OUT_OF_MEMORY, "the pool grows within the quota"
        assert tenant.peak() <= QUOTA
        sibling.free(address)
        idle.ok("cuMemAllocAsync", OUT, MOST, 0)


def test_what_a_pool_keeps_is_on_the_card_and_counts(tenant: Tenant) -> None:
    """Count memory that a pool keeps.

    Only the process of the pool can use this memory. Other processes are refused, as they would be without the limiter.
    """
    tenant.quota(QUOTA)
    with tenant.client() as idle, tenant.client() as sibling:
        pool = idle.ok("cuDeviceGetDefaultMemPool", OUT, 0)
        idle.ok("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, data(MOST.to_bytes(8, "little")))
        idle.ok("cuMemFreeAsync", idle.ok("cuMemAllocAsync", OUT, MOST, 0), 0)
        idle.ok("cuCtxSynchronize")
        assert tenant.used() == MOST
        assert sibling.call("cuMemAlloc_v2", OUT, QUOTA - MOST + 1)[0] == OUT_OF_MEMORY
        sibling.alloc(QUOTA - MOST)


#: One thread waits for the GPU while the allocation of another thread is still in the driver. Pools of both threads
#: release unused memory.
MEANWHILE = """
import ctypes, os, sys, threading
driver, context, pool = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
properties, size = ctypes.create_string_buffer(bytes.fromhex(sys.argv[1])), ctypes.c_size_t(int(sys.argv[2]))
address = ctypes.c_uint64()
assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
assert driver.cuMemPoolCreate(ctypes.byref(pool), properties) == 0
assert driver.cuMemAllocFromPoolAsync(ctypes.byref(address), size, pool, None) == 0
assert driver.cuMemFreeAsync(address, None) == 0
os.mkfifo(os.environ["STUB_PAUSE_GROWN"])
def grow():
    address = ctypes.c_uint64()
    assert driver.cuCtxSetCurrent(context) == 0
    assert driver.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(32 << 20), None) == 0
thread = threading.Thread(target=grow)
thread.start()
print("grows", flush=True)
sys.stdin.readline()
assert driver.cuCtxSynchronize() == 0
print("waited", flush=True)
thread.join()
print("grown", flush=True)
sys.stdin.readline()
"""


def test_who_waits_for_the_gpu_waits_for_no_other_thread(tenant: Tenant, tmp_path: Path) -> None:
    """Wait for the GPU without waiting for another thread's allocation in the driver.

    The allocation may depend on the next call of the waiting thread, so they would wait for each other. At the end,
    memory that the pools released must no longer count.
    """
    tenant.quota(QUOTA)
    grown = tmp_path / "grown"
    properties = account.pool_on_device(0).hex()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, "-c", MEANWHILE, properties, str(MOST)],
        env=tenant.environment(STUB_PAUSE_GROWN=str(grown)),
        text=True,
        **pipes,
    ) as process:
        try:
            assert process.stdout.readline() == "grows\n"
            allocation = opened(grown)
            process.stdin.write("wait\n")
            process.stdin.flush()
            assert process.stdout.readline() == "waited\n"
            os.close(allocation)
            assert process.stdout.readline() == "grown\n"
            with tenant.client() as sibling:
                assert sibling.memory() == (QUOTA - tenant.used(), QUOTA)
                sibling.alloc(MOST)
            process.communicate("end\n", timeout=DEADLINE)
        finally:
            process.kill()
    assert process.returncode == 0
