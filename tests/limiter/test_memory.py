# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test each kind of memory.

The limiter charges memory when it is allocated, credits it when it is freed, and refuses it exactly at the quota.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.limiter import account
from tests.limiter.account import MIB, PITCH, STEP
from tests.limiter.card import Card
from tests.limiter.limiter_lab import OUT, Built, Client, Tenant, data
from tests.limiter.test_quota_file import until
from tests.limiter.test_report import settled

OUT_OF_MEMORY, INVALID_VALUE = 2, 1
PAGE = data(account.on_device(0))


def physical(client: Client, size: int) -> int:
    """Create physical memory on the first device. Return its handle."""
    return client.ok("cuMemCreate", OUT, size, PAGE, 0)[0]


def mapped(client: Client, handle: int, size: int) -> int:
    """Map the memory of a handle. Return the address."""
    address = client.ok("cuMemAddressReserve", OUT, size, 0, 0, 0)
    client.ok("cuMemMap", address, size, 0, handle, 0)
    return address


KINDS: dict[str, tuple[int, tuple, str]] = {
    "plain": (12345, ("cuMemAlloc_v2", OUT, 12345), "cuMemFree_v2"),
    "managed": (12345, ("cuMemAllocManaged", OUT, 12345, 1), "cuMemFree_v2"),
    "pitch": (3 * PITCH, ("cuMemAllocPitch_v2", OUT, OUT, 100, 3, 4), "cuMemFree_v2"),
    "array": (
        64 * 32 * 4,
        ("cuArrayCreate_v2", OUT, data(account.array_2d(64, 32, 0x20, 1))),
        "cuArrayDestroy",
    ),
    "volume": (
        16 * 8 * 4 * 2,
        ("cuArray3DCreate_v2", OUT, data(account.array_3d(16, 8, 4, 0x02, 1))),
        "cuArrayDestroy",
    ),
    "mipmap": (
        64 + 16 + 4 + 1,
        ("cuMipmappedArrayCreate", OUT, data(account.array_3d(8, 8, 0, 0x01, 1)), 99),
        "cuMipmappedArrayDestroy",
    ),
    "physical": (2 * STEP, ("cuMemCreate", OUT, 2 * STEP, PAGE, 0), "cuMemRelease"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_memory(tenant: Tenant, kind: str) -> None:
    """Allocate once with a quota of exactly the size, and refuse a second allocation.

    If the quota is one byte smaller, refuse the first allocation too.
    """
    size, call, free = KINDS[kind]
    tenant.quota(size)
    with tenant.client() as client:
        result, values = client.call(*call)
        assert (result, tenant.used()) == (0, size)
        assert client.memory() == (0, size)
        assert client.call(*call)[0] == OUT_OF_MEMORY
        client.ok(free, values[0])
        assert client.memory() == (size, size)
        client.ok(free, client.call(*call)[1][0])
        assert (tenant.used(), tenant.peak()) == (0, size)
    tenant.quota(size - 1)
    with tenant.client() as client:
        assert client.call(*call)[0] == OUT_OF_MEMORY
        assert client.memory() == (size - 1, size - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_driver_refuses_is_not_charged(tenant: Tenant, kind: str) -> None:
    size, call, free = KINDS[kind]
    tenant.quota(size)
    with tenant.client(STUB_FAIL=f"{call[0]}:1:999") as client:
        assert client.call(*call)[0] == 999
        assert client.memory() == (size, size)
        client.ok(free, client.call(*call)[1][0])


@pytest.mark.parametrize("kind", KINDS)
def test_freed_twice_it_is_given_back_once(tenant: Tenant, kind: str) -> None:
    size, call, free = KINDS[kind]
    tenant.quota(2 * size)
    with tenant.client() as client:
        first, _ = client.call(*call)[1][0], client.call(*call)
        client.ok(free, first)
        if free.startswith("cuMem"):  # The stub can report addresses only of arrays.
            assert client.call(free, first)[0] == INVALID_VALUE
        assert client.memory() == (size, 2 * size)


def test_a_pitch_is_known_only_afterwards(tenant: Tenant) -> None:
    """Refuse an allocation of rows after the driver has returned their pitch.

    Width times height is within the quota, but pitch times height is not. The limiter frees the memory and does not
    report it.
    """
    tenant.quota(3 * PITCH - 1)
    with tenant.client() as client:
        assert client.call("cuMemAllocPitch_v2", OUT, OUT, 100, 3, 4) == (OUT_OF_MEMORY, [0, 0])
        assert (tenant.used(), client.memory()[0]) == (0, 3 * PITCH - 1)
        client.alloc(3 * PITCH - 1)


@pytest.mark.parametrize(
    "call",
    [
        ("cuMemAlloc_v2", OUT, 2**64 - 1),
        ("cuMemAllocManaged", OUT, 2**64 - 1, 1),
        ("cuMemAllocPitch_v2", OUT, OUT, 2**40, 2**40, 4),
        ("cuArray3DCreate_v2", OUT, data(account.array_3d(2**30, 2**30, 2**30, 0x20, 4))),
        ("cuMipmappedArrayCreate", OUT, data(account.array_3d(2**63, 2**63, 1, 0x20, 4)), 64),
        ("cuMemCreate", OUT, 2**64 - STEP, PAGE, 0),
        ("cuMemAllocAsync", OUT, 2**64 - 1, 0),
    ],
    ids=lambda call: call[0],
)
def test_sizes_beyond_all_numbers(tenant: Tenant, call: tuple) -> None:
    tenant.quota(MIB)
    with tenant.client() as client:
        client.alloc(1)
        assert client.call(*call)[0] == OUT_OF_MEMORY
        assert client.memory() == (MIB - 1, MIB)


#: For each format: its number, the channels in the descriptor, and the bits per pixel from the descriptions in cuda.h.
#: Bits per pixel are the stored bits of a sample times the number of luma and chroma samples (chroma: two for 4:4:4,
#: one for 4:2:2, a half for 4:2:0).
FORMATS = {
    "BC1": (0x91, 4, 64 / 16),
    "BC4": (0x97, 1, 64 / 16),
    "BC3": (0x95, 4, 128 / 16),
    "BC7": (0x9D, 4, 128 / 16),
    "NV12": (0xB0, 1, 8 * 1.5),
    "P010": (0x9F, 1, 16 * 1.5),
    "P016": (0xA1, 1, 16 * 1.5),
    "NV16": (0xA2, 1, 8 * 2),
    "P210": (0xA3, 1, 16 * 2),
    "P216": (0xA4, 1, 16 * 2),
    "YUY2": (0xA5, 2, 8 * 2),
    "Y210": (0xA6, 2, 16 * 2),
    "Y216": (0xA7, 2, 16 * 2),
    "AYUV": (0xA8, 4, 8 * 4),
    "Y410": (0xA9, 4, 3 * 10 + 2),
    "Y416": (0xB1, 4, 16 * 4),
    "Y444 planar 8": (0xB2, 1, 8 * 3),
    "Y444 planar 10": (0xB3, 1, 16 * 3),
    "Y444 semi-planar 8": (0xB4, 1, 8 * 3),
    "Y444 semi-planar 16": (0xB5, 1, 16 * 3),
    "unorm 8 x 2": (0xC1, 2, 8 * 2),
    "snorm 16 x 4": (0xCB, 4, 16 * 4),
    "unorm 10-10-10-2": (0x50, 4, 3 * 10 + 2),
}


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_format_comes_to(tenant: Tenant, name: str) -> None:
    """Expect the stub's error for arrays within the quota.

    The stub rejects these formats. Above the quota, the limiter refuses the call before it reaches the stub.
    """
    number, channels, bits = FORMATS[name]
    size = int(64 * 64 * bits / 8)
    call = ("cuArrayCreate_v2", OUT, data(account.array_2d(64, 64, number, channels)))
    with tenant.quota(size).client() as client:
        assert client.call(*call)[0] == INVALID_VALUE
    with tenant.quota(size - 1).client() as client:
        assert client.call(*call)[0] == OUT_OF_MEMORY


# --- Physical memory: free after release and unmap, in any order ---


def released_first(client: Client, handle: int, address: int, size: int) -> list[Callable]:
    return [lambda: client.ok("cuMemRelease", handle), lambda: client.ok("cuMemUnmap", address, size)]


def unmapped_first(client: Client, handle: int, address: int, size: int) -> list[Callable]:
    return released_first(client, handle, address, size)[::-1]


@pytest.mark.parametrize("order", [released_first, unmapped_first], ids=lambda order: order.__name__)
def test_released_and_unmapped(tenant: Tenant, order: Callable) -> None:
    tenant.quota(STEP)
    with tenant.client() as client:
        handle = physical(client, STEP)
        address = mapped(client, handle, STEP)
        first, second = order(client, handle, address, STEP)
        first()
        assert client.memory()[0] == 0 and tenant.used() == STEP
        second()
        assert client.memory()[0] == STEP and tenant.used() == 0


def test_two_mappings_and_one_unmap_of_several(tenant: Tenant) -> None:
    tenant.quota(4 * STEP)
    with tenant.client() as client:
        handles = [physical(client, STEP) for _ in range(3)]
        start = client.ok("cuMemAddressReserve", OUT, 3 * STEP, 0, 0, 0)
        for place, handle in enumerate(handles):
            client.ok("cuMemMap", start + place * STEP, STEP, 0, handle, 0)
        again = mapped(client, handles[1], STEP)
        for handle in handles:
            client.ok("cuMemRelease", handle)
        assert client.memory()[0] == STEP
        client.ok("cuMemUnmap", start, 3 * STEP)
        assert client.memory()[0] == 3 * STEP and tenant.used() == STEP
        client.ok("cuMemUnmap", again, STEP)
        assert client.memory()[0] == 4 * STEP and tenant.used() == 0


def test_a_handle_that_was_got_back_from_an_address(tenant: Tenant) -> None:
    """Count memory whose handle was released and fetched again from a mapped address."""
    tenant.quota(STEP)
    with tenant.client() as client:
        handle = physical(client, STEP)
        address = mapped(client, handle, STEP)
        client.ok("cuMemRelease", handle)
        assert client.memory()[0] == 0
        back = client.ok("cuMemRetainAllocationHandle", OUT, address + STEP // 2)
        client.ok("cuMemUnmap", address, STEP)
        assert client.memory()[0] == 0 and tenant.used() == STEP
        client.ok("cuMemRelease", back)
        assert client.memory()[0] == STEP and tenant.used() == 0


@pytest.mark.parametrize("call", [("cuMemHostAlloc", OUT, 64 * MIB, 0), ("cuMemAllocHost_v2", OUT, 64 * MIB)])
def test_pinned_memory_of_the_host_does_not_count(tenant: Tenant, call: tuple) -> None:
    tenant.quota(8 * MIB)
    with tenant.client() as client:
        client.ok(*call)
        assert client.memory() == (8 * MIB, 8 * MIB)
        client.alloc(8 * MIB)


# --- Pools ---


def test_what_a_pool_keeps_without_need_makes_room(tenant: Tenant) -> None:
    """Let pools release unused memory before a call fails with out of memory.

    The driver does so too.
    """
    tenant.quota(64 * MIB)
    with tenant.client(STUB_POOL_GROWTH=str(32 * MIB)) as client:
        pool = client.ok("cuDeviceGetDefaultMemPool", OUT, 0)
        client.ok("cuMemPoolSetAttribute", pool, 4, data((2**64 - 1).to_bytes(8, "little")))
        address = client.ok("cuMemAllocAsync", OUT, MIB, 0)
        assert client.memory()[0] == 32 * MIB
        client.ok("cuMemFreeAsync", address, 0)
        client.ok("cuCtxSynchronize")
        client.free(client.alloc(64 * MIB))
        assert tenant.peak() <= 64 * MIB


@pytest.mark.parametrize("own_pool", [False, True])
def test_what_is_used_of_a_pool_is_no_room_for_more(tenant: Tenant, own_pool: bool) -> None:
    """Refuse 3 GiB while a pool of 7 GiB is fully in use.

    The limiter refuses the request without a call to the card.
    """
    tenant.quota(8 << 30)
    with tenant.client(STUB_POOL_GROWTH="0") as client:
        pool = client.ok("cuDeviceGetDefaultMemPool", OUT, 0)
        if own_pool:
            pool = client.ok("cuMemPoolCreate", OUT, data(account.pool_on_device(0)))[0]
        used = [client.ok("cuMemAllocFromPoolAsync", OUT, size << 30, pool, 0) for size in (4, 3)]
        assert client.call("cuMemAllocFromPoolAsync", OUT, 3 << 30, pool, 0)[0] == OUT_OF_MEMORY
        assert (tenant.peak(), client.memory()[0]) == (7 << 30, 1 << 30)
        client.ok("cuMemFreeAsync", used[1], 0)
        client.ok("cuMemAllocFromPoolAsync", OUT, 3 << 30, pool, 0)
        assert tenant.peak() == 7 << 30


def test_a_destroyed_pool_is_paid_for_until_its_last_pointer_is_free(tenant: Tenant) -> None:
    tenant.quota(64 * MIB)
    with tenant.client(STUB_POOL_GROWTH="0") as client:
        pool = client.ok("cuMemPoolCreate", OUT, data(account.pool_on_device(0)))[0]
        first, second = (client.ok("cuMemAllocFromPoolAsync", OUT, 3 * MIB, pool, 0) for _ in range(2))
        assert client.memory()[0] == 58 * MIB
        client.ok("cuMemPoolDestroy", pool)
        client.ok("cuMemFreeAsync", first, 0)
        client.ok("cuCtxSynchronize")
        assert client.memory()[0] == 58 * MIB
        client.ok("cuMemFreeAsync", second, 0)
        client.ok("cuCtxSynchronize")
        assert client.memory()[0] == 64 * MIB


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_both_forms_of_stream_ordered_calls(tenant: Tenant, suffix: str) -> None:
    tenant.quota(4 * MIB)
    with tenant.client(STUB_POOL_GROWTH="0") as client:
        pool = client.ok("cuDeviceGetDefaultMemPool", OUT, 0)
        one = client.ok(f"cuMemAllocAsync{suffix}", OUT, 2 * MIB, 0)
        two = client.ok(f"cuMemAllocFromPoolAsync{suffix}", OUT, 2 * MIB, pool, 0)
        assert client.call(f"cuMemAllocAsync{suffix}", OUT, 1, 0)[0] == OUT_OF_MEMORY
        assert client.call(f"cuMemAllocFromPoolAsync{suffix}", OUT, 1, pool, 0)[0] == OUT_OF_MEMORY
        for address in (one, two):
            client.ok(f"cuMemFreeAsync{suffix}", address, 0)
        client.ok("cuCtxSynchronize")
        client.ok("cuMemPoolTrimTo", pool, 0)
        assert client.memory() == (4 * MIB, 4 * MIB)


# --- Which GPU ---


@pytest.fixture
def pair(tmp_path: Path, built: Built) -> Tenant:
    """Create a tenant with 8 MiB on the second of two GPUs.

    The tenant has no quota on the first GPU.
    """
    return Tenant(tmp_path / "root", Card(tmp_path / "card", gpus=2), built).quota(None, 8 * MIB)


def test_a_gpu_that_is_not_in_the_quota_is_as_it_is(pair: Tenant) -> None:
    with pair.client() as client:
        client.alloc(64 * MIB)
        assert client.memory() == (pair.card.memory - 64 * MIB, pair.card.memory)


def test_gpus_are_told_by_uuid(pair: Tenant) -> None:
    """Identify a GPU by UUID, for a process that sees only the second GPU as device 0."""
    with pair.client(CUDA_VISIBLE_DEVICES=pair.card.uuid(1)) as client:
        assert client.memory() == (8 * MIB, 8 * MIB)
        assert client.call("cuMemAlloc_v2", OUT, 8 * MIB + 1)[0] == OUT_OF_MEMORY
        client.alloc(8 * MIB)
        assert (pair.used(0), pair.used(1)) == (0, 8 * MIB)


def test_the_memory_is_its_own_devices(pair: Tenant) -> None:
    """Charge memory to the device of its properties or stream, not to the context's."""
    second = data(account.on_device(1))
    with pair.client(STUB_POOL_GROWTH="0") as client:
        handle = client.ok("cuMemCreate", OUT, 4 * STEP, second, 0)[0]
        assert client.call("cuMemCreate", OUT, STEP, second, 0)[0] == OUT_OF_MEMORY
        client.ok("cuMemRelease", handle)
        context = client.ok("cuDevicePrimaryCtxRetain", OUT, 1)
        client.ok("cuCtxSetCurrent", context, thread=2)
        stream = client.ok("cuStreamCreate", OUT, 1, thread=2)
        address = client.ok("cuMemAllocAsync", OUT, 8 * MIB, stream)
        assert pair.used(1) == 8 * MIB
        assert client.call("cuMemAllocAsync", OUT, MIB, stream)[0] == OUT_OF_MEMORY
        client.ok("cuMemFreeAsync", address, stream)
        client.ok("cuCtxSynchronize", thread=2)


def test_a_graphs_memory_is_its_streams_devices(pair: Tenant) -> None:
    with pair.client() as client:
        context = client.ok("cuDevicePrimaryCtxRetain", OUT, 1)
        client.ok("cuCtxSetCurrent", context, thread=2)
        stream = client.ok("cuStreamCreate", OUT, 1, thread=2)
        made = client.ok("cuGraphCreate", OUT, 0)
        client.ok("cuGraphAddMemAllocNode", OUT, made, 0, 0, data(account.graph_memory_node(1, 10 * MIB)))
        graph = client.ok("cuGraphInstantiateWithFlags", OUT, made, 0)
        assert client.call("cuGraphUpload", graph, stream)[0] == OUT_OF_MEMORY
        assert client.call("cuGraphLaunch", graph, stream)[0] == OUT_OF_MEMORY
        assert (pair.used(1), client.ok("cuMemGetInfo_v2", OUT, OUT, thread=2)[0]) == (0, 8 * MIB)


# --- Contexts ---


def test_a_primary_context_takes_its_memory_along_with_its_last_user(tenant: Tenant) -> None:
    tenant.quota(8 * MIB)
    with tenant.client() as client:
        client.ok("cuDevicePrimaryCtxRetain", OUT, 0)
        client.alloc(5 * MIB)
        client.ok("cuDevicePrimaryCtxRelease_v2", 0)
        assert client.memory()[0] == 3 * MIB
        client.ok("cuDevicePrimaryCtxRelease_v2", 0)
        client.start()
        assert client.memory()[0] == 8 * MIB
        client.alloc(8 * MIB)
        client.ok("cuDevicePrimaryCtxReset_v2", 0)
        client.start()
        assert client.memory()[0] == 8 * MIB and tenant.used() == 0


# --- Graphs ---


def test_a_graph_whose_memory_does_not_fit_is_not_launched(tenant: Tenant) -> None:
    tenant.quota(8 * MIB)
    with tenant.client() as client:

        def graph(size: int) -> int:
            made = client.ok("cuGraphCreate", OUT, 0)
            client.ok("cuGraphAddMemAllocNode", OUT, made, 0, 0, data(account.graph_memory_node(0, size)))
            return client.ok("cuGraphInstantiateWithFlags", OUT, made, 0)

        small, large = graph(4 * MIB), graph(10 * MIB)
        client.ok("cuGraphLaunch", small, 0)
        client.ok("cuCtxSynchronize")
        assert client.memory()[0] == 4 * MIB
        assert client.call("cuMemAlloc_v2", OUT, 4 * MIB + 1)[0] == OUT_OF_MEMORY
        assert client.call("cuGraphLaunch", large, 0)[0] == OUT_OF_MEMORY
        client.ok("cuDeviceGraphMemTrim", 0)
        assert client.memory()[0] == 8 * MIB and tenant.used() == 0


# --- Managed memory above the quota ---


def with_managed(tenant: Tenant, word: str, quota: int = 64 * MIB) -> Tenant:
    """Write a quota with managed memory `counted` or `oversubscribed`."""
    tenant.quota(quota)
    return tenant.write((tenant.folder / "quota").read_text() + f"managed {word}\n")


def test_managed_memory_beyond_the_quota_where_the_quota_says_so(tenant: Tenant) -> None:
    """Do not charge managed memory, so that RMM and cuDF can exceed the card's memory."""
    call = ("cuMemAllocManaged", OUT, 200 * MIB, 1)
    with with_managed(tenant, "counted").client() as client:
        assert client.call(*call)[0] == OUT_OF_MEMORY
    with with_managed(tenant, "oversubscribed").client() as client:
        managed = client.ok(*call)
        assert client.memory() == (64 * MIB, 64 * MIB)
        plain = client.alloc(64 * MIB)
        assert client.call("cuMemAlloc_v2", OUT, 1)[0] == OUT_OF_MEMORY
        client.free(managed)
        assert client.memory() == (0, 64 * MIB)
        client.free(plain)
        assert (client.memory(), tenant.used()) == ((64 * MIB, 64 * MIB), 0)


def test_managed_memory_of_before_is_given_back_once(tenant: Tenant) -> None:
    """Credit charged memory when it is freed, even if the quota's mode has changed."""
    with with_managed(tenant, "counted").client() as client:
        counted = client.ok("cuMemAllocManaged", OUT, 40 * MIB, 1)
        with_managed(tenant, "oversubscribed")
        assert until(lambda: client.call("cuMemAllocManaged", OUT, 200 * MIB, 1)[0], 0) == 0
        assert client.memory() == (24 * MIB, 64 * MIB)
        client.free(counted)
        assert client.memory() == (64 * MIB, 64 * MIB)


def test_managed_memory_counts_again_when_the_quota_says_so(tenant: Tenant) -> None:
    with with_managed(tenant, "oversubscribed").client() as client:
        client.free(client.ok("cuMemAllocManaged", OUT, 65 * MIB, 1))
        with_managed(tenant, "counted")
        call = ("cuMemAllocManaged", OUT, 65 * MIB, 1)
        assert until(lambda: client.call(*call)[0], OUT_OF_MEMORY) == OUT_OF_MEMORY


def test_what_nvml_says_of_managed_memory_is_not_charged(tenant: Tenant) -> None:
    """Ignore NVML's total for a process with managed memory, because it includes that.

    One NVML query returns both clients. So when the second client is charged, the total of the first client is known
    too.
    """
    context = {"STUB_CONTEXT_BYTES": str(10 * MIB)}
    with_managed(tenant, "oversubscribed")
    with tenant.client(**context) as first:
        first.ok("cuMemAllocManaged", OUT, 200 * MIB, 1)
        first.alloc(20 * MIB)
        with tenant.client(**context) as second:
            assert settled(second, 34 * MIB) == (34 * MIB, 64 * MIB)
            assert first.memory() == second.memory() == (34 * MIB, 64 * MIB)


def test_what_cannot_be_counted_is_refused_also_of_managed_memory(tenant: Tenant) -> None:
    with_managed(tenant, "oversubscribed")
    tenant.region.unlink()
    with tenant.client() as client:
        assert client.call("cuMemAllocManaged", OUT, 1, 1)[0] == OUT_OF_MEMORY
