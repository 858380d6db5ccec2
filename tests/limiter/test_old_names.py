# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test functions from before CUDA 3.2, with 32-bit pointers and sizes.

The quota applies to these functions, and to the launch functions from before CUDA 4.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.limiter.account import MIB, array_bytes, pitched
from tests.limiter.limiter_lab import OUT, Built, Client, Tenant, data
from tests.limiter.sm import World, alone

OUT_OF_MEMORY = 2
FLOAT = 0x20


@pytest.fixture(params=["by name", "by version"])
def call(request: pytest.FixtureRequest, tenant: Tenant) -> object:
    """Return a function that calls by exported name or by cuGetProcAddress (CUDA 3.1)."""
    tenant.quota(8 * MIB)
    with tenant.client() as client:

        def ask(name: str, *arguments: object) -> tuple[int, list]:
            return (
                client.call(name, *arguments) if request.param == "by name" else client.proc(name, 3010, 0, *arguments)
            )

        ask.client = client
        yield ask


def whole_quota_is_free(client: Client) -> bool:
    return client.memory() == (8 * MIB, 8 * MIB)


def test_memory(call: object, tenant: Tenant) -> None:
    assert call("cuMemAlloc", OUT, 8 * MIB + 1)[0] == OUT_OF_MEMORY
    result, (address,) = call("cuMemAlloc", OUT, 5 * MIB)
    assert (result, tenant.used()) == (0, 5 * MIB)
    assert 0 < address < 1 << 32
    assert call.client.memory() == (3 * MIB, 8 * MIB)
    assert call("cuMemAlloc", OUT, 3 * MIB + 1)[0] == OUT_OF_MEMORY
    assert call("cuMemFree", address)[0] == 0
    assert whole_quota_is_free(call.client)
    assert tenant.peak() == 5 * MIB


def test_either_form_frees_what_the_other_gave(call: object) -> None:
    address = call("cuMemAlloc", OUT, 5 * MIB)[1][0]
    call.client.free(address)
    assert whole_quota_is_free(call.client)


def test_rows(call: object, tenant: Tenant) -> None:
    assert call("cuMemAllocPitch", OUT, OUT, 100, 20000, 4)[0] == OUT_OF_MEMORY
    assert whole_quota_is_free(call.client)
    result, (address, pitch) = call("cuMemAllocPitch", OUT, OUT, 1000, 1000, 4)
    assert (result, pitch) == (0, 1024)
    assert call.client.memory()[0] == 8 * MIB - pitched(1000, 1000)
    assert call("cuMemFree", address)[0] == 0
    assert whole_quota_is_free(call.client)


@pytest.mark.parametrize(
    ("name", "form"),
    [("cuArrayCreate", "<2I2I"), ("cuArray3DCreate", "<3I2II")],
)
def test_arrays(call: object, tenant: Tenant, name: str, form: str) -> None:
    def described(width: int, height: int) -> str:
        depth = () if name == "cuArrayCreate" else (0,)
        return data(struct.pack(form, width, height, *depth, FLOAT, 1, *depth))

    assert call(name, OUT, described(4096, 4096))[0] == OUT_OF_MEMORY
    result, (array, _) = call(name, OUT, described(1024, 1024))
    assert result == 0
    assert tenant.used() == 8 * MIB - call.client.memory()[0] == array_bytes(1024, 1024, 0, FLOAT, 1)
    assert call("cuArrayDestroy", array)[0] == 0
    assert whole_quota_is_free(call.client)


def test_what_is_told(call: object) -> None:
    call.client.alloc(3 * MIB)
    assert call("cuMemGetInfo", OUT, OUT) == (0, [5 * MIB, 8 * MIB])
    assert call("cuMemGetInfo", 0, OUT) == (0, [8 * MIB])
    assert call("cuDeviceTotalMem", OUT, 0) == (0, [8 * MIB])


def test_what_does_not_go_into_32_bits(tenant: Tenant) -> None:
    tenant.quota(6 << 30)
    with tenant.client() as client:
        assert client.call("cuMemGetInfo", OUT, OUT) == (0, [(1 << 32) - 1] * 2)
        assert client.call("cuDeviceTotalMem", OUT, 0) == (0, [(1 << 32) - 1])


def test_without_a_quota_they_are_the_drivers(tenant: Tenant) -> None:
    with tenant.client() as limited, tenant.client(preload=False) as bare:
        for call in (
            ("cuMemGetInfo", OUT, OUT),
            ("cuDeviceTotalMem", OUT, 0),
            ("cuMemAlloc", OUT, 0),
            ("cuMemFree", 5),
        ):
            assert limited.call(*call) == bare.call(*call), call


@pytest.mark.parametrize("form", ["old", "grid", "grid_async", "devices"])
def test_each_kind_of_launch_is_held_back(tmp_path: Path, built: Built, form: str) -> None:
    assert alone(tmp_path, built, 30, f"--kernel 200000 --form {form} --streams 1 --seconds 3") == pytest.approx(
        30, abs=3
    )


@pytest.mark.parametrize("form", ["old", "devices"])
def test_a_share_of_100_percent_is_not_held_back(tmp_path: Path, built: Built, form: str) -> None:
    world = World(tmp_path, built)
    worker = world.worker(world.tenant(100), f"--kernel 200000 --form {form} --streams 1 --seconds 1")
    world.run()
    assert worker.share() > 99
