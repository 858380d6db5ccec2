# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the stub driver without a limiter, because all other tests depend on it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.limiter.card import Card
from tests.limiter.limiter_lab import OUT, Built, Client, CudaError, Tenant, data

MIB = 1 << 20
OUT_OF_MEMORY = 2


@pytest.fixture
def bare(tenant: Tenant) -> Client:
    """Start a program with the stub and without the limiter."""
    with tenant.client(preload=False) as client:
        yield client


def test_bytes_are_exact(bare: Client, tenant: Tenant) -> None:
    first, second = bare.alloc(1), bare.alloc(12345)
    assert tenant.used() == 12346
    bare.free(first)
    assert tenant.used() == 12345
    bare.free(second)
    assert (tenant.used(), tenant.peak()) == (0, 12346)


def test_the_card_is_finite(bare: Client, card: Card) -> None:
    free, total = bare.memory()
    assert free == total == card.memory
    assert bare.call("cuMemAlloc_v2", OUT, card.memory + 1)[0] == OUT_OF_MEMORY
    bare.alloc(card.memory)
    assert bare.call("cuMemAlloc_v2", OUT, 1)[0] == OUT_OF_MEMORY
    assert card.refused() == 2


def test_a_killed_process_gives_back_all(tenant: Tenant, card: Card) -> None:
    with tenant.client(preload=False) as killed, tenant.client(preload=False) as other:
        killed.alloc(card.memory - 1)
        with pytest.raises(CudaError):
            other.alloc(2)
        killed.kill()
        other.alloc(card.memory)
        assert tenant.peak() == card.memory


def test_a_fault_is_injected(tenant: Tenant) -> None:
    with tenant.client(preload=False, STUB_FAIL="cuMemAlloc_v2:2,cuMemCreate:1:999") as client:
        client.alloc(5)
        assert client.call("cuMemAlloc_v2", OUT, 5)[0] == OUT_OF_MEMORY
        client.alloc(5)
        properties = struct.pack("<iiiiQ8x", 1, 0, 1, 0, 0)
        assert client.call("cuMemCreate", OUT, 2 * MIB, data(properties), 0)[0] == 999
        assert tenant.used() == 10


def test_a_child_of_a_process_that_uses_cuda_cannot(bare: Client, tmp_path: Path) -> None:
    with bare.fork(tmp_path / "child") as child:
        assert child.call("cuMemAlloc_v2", OUT, 1)[0] == 3
        assert child.call("cuInit", 0)[0] == 3


def test_visible_devices_by_uuid(tmp_path: Path, built: Built) -> None:
    card = Card(tmp_path / "cards", gpus=3)
    tenant = Tenant(tmp_path / "root", card, built)
    with tenant.client(preload=False, CUDA_VISIBLE_DEVICES=f"{card.uuid(2)},{card.uuid(0)[:12]}") as client:
        assert client.ok("cuDeviceGetCount", OUT) & 0xFFFFFFFF == 2
        client.alloc(7)
        assert [tenant.used(gpu) for gpu in range(3)] == [0, 0, 7]


def test_the_primary_context_takes_its_memory_along(bare: Client, tenant: Tenant) -> None:
    bare.alloc(100)
    bare.ok("cuMemAllocManaged", OUT, 50, 1)
    bare.ok("cuDevicePrimaryCtxRelease_v2", 0)
    assert tenant.used() == 0
    assert bare.call("cuMemAlloc_v2", OUT, 1)[0] == 709


def test_pools_grow_in_steps_and_shrink_when_the_gpu_is_waited_for(bare: Client, tenant: Tenant) -> None:
    address = bare.ok("cuMemAllocAsync", OUT, 1000, 0)
    assert tenant.used() == 32 * MIB
    bare.ok("cuMemAllocAsync", OUT, 33 * MIB, 0)
    assert tenant.used() == 64 * MIB
    bare.ok("cuMemFreeAsync", address, 0)
    assert tenant.used() == 64 * MIB
    bare.ok("cuCtxSynchronize")
    assert tenant.used() == 34 * MIB


def test_physical_memory_needs_no_context_and_outlives_its_handle(tenant: Tenant) -> None:
    properties = data(struct.pack("<iiiiQ8x", 1, 0, 1, 0, 0))
    with tenant.client(start=False, preload=False) as client:
        client.ok("cuInit", 0)
        handle, _ = client.ok("cuMemCreate", OUT, 4 * MIB, properties, 0)
        address = client.ok("cuMemAddressReserve", OUT, 4 * MIB, 0, 0, 0)
        client.ok("cuMemMap", address, 4 * MIB, 0, handle, 0)
        client.ok("cuMemRelease", handle)
        assert tenant.used() == 4 * MIB
        again = client.ok("cuMemRetainAllocationHandle", OUT, address)
        client.ok("cuMemUnmap", address, 4 * MIB)
        assert tenant.used() == 4 * MIB
        client.ok("cuMemRelease", again)
        assert tenant.used() == 0


@pytest.mark.parametrize(
    ("name", "version", "flags", "symbol"),
    [
        ("cuMemAlloc", 13000, 0, "cuMemAlloc_v2"),
        ("cuMemPrefetchAsync", 8000, 0, "cuMemPrefetchAsync"),
        ("cuMemPrefetchAsync", 12020, 2, "cuMemPrefetchAsync_v2_ptsz"),
        ("cuCtxGetDevice", 12080, 0, "cuCtxGetDevice"),
        ("cuCtxGetDevice", 13000, 0, "cuCtxGetDevice_v2"),
        ("cuLaunchKernel", 4000, 2, "cuLaunchKernel"),
        ("cuLaunchKernel", 13000, 2, "cuLaunchKernel_ptsz"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuGetProcAddress", 13000, 0, "cuGetProcAddress_v2"),
        ("cuMemAlloc", 2020, 0, "cuMemAlloc"),
    ],
)
def test_names_have_versions(bare: Client, name: str, version: int, flags: int, symbol: str) -> None:
    exported = int(bare.tell(f"find {symbol}").split()[0])
    text = data(name.encode() + b"\0")
    assert bare.ok("cuGetProcAddress_v2", text, OUT, version, flags, OUT)[1] == exported


def test_unknown_names_and_too_old_versions_are_no_error(bare: Client) -> None:
    for name, version, status in (("cuNoSuchThing", 13000, 1), ("cuMemCreate", 10000, 2)):
        result = bare.ok("cuGetProcAddress_v2", data(name.encode() + b"\0"), OUT, version, 0, OUT)
        assert result[1:] == [0, status]
    assert bare.call("cuGetProcAddress_v2", data(b"cuInit\0"), OUT, 99000, 0, OUT)[0] == 1
