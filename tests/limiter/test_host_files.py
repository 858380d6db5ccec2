# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the library reads the files that modules write, and the reverse.

The tests also cover the usage that the library counts and modules report.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.host import VgpuHost
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import VgpuSeat, VgpuTenant, VgpuUsage
from tests.limiter.card import Card
from tests.limiter.limiter_lab import DEADLINE, OUT, Built, Client

MIB = 1 << 20
OUT_OF_MEMORY = 2


class Host:
    """Two cards, the tenants below a root, and programs of these tenants."""

    def __init__(self, folder: Path, built: Built) -> None:
        self.built, self.card, self.root = built, Card(folder / "card", gpus=2), folder / "root"
        self.tenants = VgpuHost(root=str(self.root))

    def write(self, name: str, mib: int, *gpus: int, **more: object) -> VgpuTenant:
        """Write a tenant's files as the modules do.

        Each tenant of the host gets another seat.
        """
        seat = len(self.tenants.observe())
        seats = tuple(VgpuSeat(self.card.uuid(gpu), seat) for gpu in gpus)
        tenant = VgpuTenant(name, mib * MIB, 100, seats, **more)
        self.tenants.write(tenant)
        return tenant

    def client(self, name: str) -> Client:
        """Start a program with the tenant's environment file and the tested library."""
        lines = (self.root / "etc/openfleet-gpu/vgpu" / name / "env").read_text().splitlines()
        own = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
        assert own.pop("LD_PRELOAD").endswith("/libopenfleet-vgpu.so")
        environment = {**self.built.environment(), **self.card.environment(), **own}
        return Client(self.built, dict(environment, OPENFLEET_VGPU_ROOT=str(self.root), STUB_GROUP=name))

    def usage(self, name: str) -> VgpuUsage:
        return next(seen.usage for seen in self.tenants.observe() if seen.tenant.name == name)


@pytest.fixture(name="host")
def with_two_cards(tmp_path: Path, built: Built) -> Host:
    return Host(tmp_path, built)


def until(holds, what: str) -> None:
    """Wait until a new quota takes effect.

    The library reads its quota once a second, during a call.
    """
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_tenant_gets_its_quota_to_the_byte(host: Host) -> None:
    host.write("a", 64, 0)
    host.write("b", 32, 0)
    with host.client("a") as a, host.client("b") as b:
        assert (a.memory(), b.memory()) == ((64 * MIB, 64 * MIB), (32 * MIB, 32 * MIB))
        assert a.call("cuMemAlloc_v2", OUT, 64 * MIB + 1)[0] == OUT_OF_MEMORY
        a.alloc(64 * MIB)
        assert b.call("cuMemAlloc_v2", OUT, 32 * MIB + 1)[0] == OUT_OF_MEMORY
        b.alloc(32 * MIB)


def test_what_is_used_is_told_as_the_card_has_it(host: Host) -> None:
    host.write("a", 64, 0)
    assert host.usage("a") == VgpuUsage()
    with host.client("a") as one, host.client("a") as two:
        one.alloc(10 * MIB)
        two.alloc(20 * MIB)
        usage = host.usage("a")
        assert usage.processes == 2
        assert [(use.gpu_uuid, use.used_bytes) for use in usage.gpus] == [(host.card.uuid(0), 30 * MIB)]
        two.kill()
        assert [use.used_bytes for use in host.usage("a").gpus] == [10 * MIB]
    usage = host.usage("a")
    assert (usage.processes, [(use.used_bytes, use.peak_bytes) for use in usage.gpus]) == (0, [(0, 30 * MIB)])


def test_another_quota_holds_for_those_that_run(host: Host) -> None:
    tenant = host.write("a", 64, 0)
    with host.client("a") as client:
        client.alloc(48 * MIB)
        host.tenants.write(dataclasses.replace(tenant, memory_bytes=32 * MIB))
        # The quota is below the current use. No process ends, but none gets further memory.
        until(lambda: client.memory() == (0, 32 * MIB), "the smaller quota")
        assert client.call("cuMemAlloc_v2", OUT, 1)[0] == OUT_OF_MEMORY
        host.tenants.write(dataclasses.replace(tenant, memory_bytes=96 * MIB))
        until(lambda: client.memory() == (48 * MIB, 96 * MIB), "the larger quota")
        client.alloc(48 * MIB)


def test_what_runs_of_a_tenant_that_is_removed_keeps_its_quota(host: Host) -> None:
    host.write("a", 64, 0)
    with host.client("a") as client:
        client.alloc(16 * MIB)
        host.tenants.forget("a")
        assert host.tenants.observe() == ()
        time.sleep(1.1)  # By this time, the library has checked for its file.
        assert client.call("cuMemAlloc_v2", OUT, 48 * MIB + 1)[0] == OUT_OF_MEMORY
        client.alloc(48 * MIB)


# --- renamed tenants ---


def used(host: Host, name: str) -> tuple[int, int]:
    """Return the number of the tenant's processes and the MiB that they use."""
    usage = host.usage(name)
    return usage.processes, sum(use.used_bytes for use in usage.gpus) // MIB


def test_processes_of_both_names_of_a_renamed_tenant_share_one_quota(host: Host) -> None:
    tenant = host.write("a", 64, 0)
    region = host.root / "run/openfleet-gpu/vgpu/tenants/a/region.1"
    with host.client("a") as old:
        address = old.alloc(40 * MIB)
        inode = region.stat().st_ino
        tenant = dataclasses.replace(tenant, name="b", counted_as="a", aliases=("a",))
        host.tenants.write(tenant)
        assert used(host, "b") == (1, 40)
        with host.client("b") as new:
            assert new.memory() == (24 * MIB, 64 * MIB)
            assert new.call("cuMemAlloc_v2", OUT, 24 * MIB + 1)[0] == OUT_OF_MEMORY
            new.alloc(24 * MIB)
            time.sleep(1.1)  # By this time, both programs have read their files again.
            assert old.call("cuMemAlloc_v2", OUT, 1)[0] == OUT_OF_MEMORY
            assert used(host, "b") == (2, 64)
            # Memory that one process frees is available to the other. Programs can still start under the earlier name.
            old.free(address)
            new.alloc(16 * MIB)
            with host.client("a") as late:
                assert late.memory() == (24 * MIB, 64 * MIB)
            # The new quota must apply to both processes.
            host.tenants.write(dataclasses.replace(tenant, memory_bytes=48 * MIB))
            for client in (old, new):
                until(lambda client=client: client.memory() == (8 * MIB, 48 * MIB), "the smaller quota")
            new.kill()
            assert old.memory() == (48 * MIB, 48 * MIB)
        assert region.stat().st_ino == inode


def test_what_runs_goes_on_when_an_earlier_name_ends_or_comes_back(host: Host) -> None:
    tenant = host.write("a", 64, 0)
    both = dataclasses.replace(tenant, name="b", counted_as="a", aliases=("a",))
    host.tenants.write(both)
    with host.client("b") as one:
        one.alloc(40 * MIB)
        host.tenants.write(dataclasses.replace(both, aliases=()))
        assert not (host.root / "etc/openfleet-gpu/vgpu/a/quota").exists()
        assert not (host.root / "etc/cdi/openfleet-vgpu-a.json").exists()
        time.sleep(1.1)
        with host.client("b") as two:
            assert two.memory() == (24 * MIB, 64 * MIB)
        # A new tenant with the earlier name is a different tenant.
        other = dataclasses.replace(tenant, counted_as="a.2", seats=(VgpuSeat(host.card.uuid(0), 1),))
        host.tenants.write(other)
        with host.client("a") as three:
            three.alloc(64 * MIB)
            assert (used(host, "a"), used(host, "b")) == ((1, 64), (1, 40))
        host.tenants.forget("a")
        host.tenants.write(dataclasses.replace(both, name="a", counted_as=None, aliases=("b",)))
        with host.client("a") as four:
            assert four.memory() == (24 * MIB, 64 * MIB)
        host.tenants.forget("a")
    assert not list((host.root / "etc/openfleet-gpu").rglob("*")) and not list(host.root.glob("run/*"))


def test_a_new_tenant_has_both_names_from_the_start(host: Host) -> None:
    host.write("b", 64, 0, aliases=("a",))
    with host.client("a") as old, host.client("b") as new:
        old.alloc(40 * MIB)
        assert new.call("cuMemAlloc_v2", OUT, 24 * MIB + 1)[0] == OUT_OF_MEMORY
        assert used(host, "b") == (2, 40)


def test_what_the_kernel_bounds_the_library_leaves(host: Host) -> None:
    """Do not limit memory in the library if the memory quota is 0.

    The seat and the share still apply.
    """
    host.write("a", 64, 0)
    quota = host.root / "etc/openfleet-gpu/vgpu/a/quota"
    bound = quota.read_text().replace("memory %d " % (64 * MIB), "memory 0 ")
    assert bound != quota.read_text()
    quota.write_text(bound)
    with host.client("a") as client:
        client.alloc(128 * MIB)
