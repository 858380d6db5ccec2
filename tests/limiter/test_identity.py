# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how the library determines the tenant of a process.

In a container, the mounted quota decides. On a host, the variable OPENFLEET_VGPU decides.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.limiter.account import MIB, array_2d, on_device, pool_on_device
from tests.limiter.limiter_lab import DEADLINE, OUT, Client, Tenant, data
from tests.limiter.mounts import can_mount, client_behind, client_in_container
from tests.limiter.test_quota_file import until

OUT_OF_MEMORY = 2

pytestmark = pytest.mark.skipif(not can_mount(), reason="this user cannot mount, not even in a namespace of its own")


@pytest.fixture
def other(tenant: Tenant) -> Tenant:
    """Create a second tenant on the same host, with a larger quota."""
    return Tenant(tenant.root, tenant.card, tenant.built, "tenant-b").quota(32 * MIB)


def bound(*tenants: Tenant) -> str:
    """Bind-mount the quota folders, so that they have the same st_dev as their parent."""
    return "\n".join(f"mount --bind {each.folder} {each.folder}" for each in tenants)


def on_another_file_system(tenant: Tenant) -> str:
    """Mount the quota folders from another file system, as needed before Linux 5.8."""
    copied = f"cp -a {tenant.folder} {tenant.root}/copied && mount -t tmpfs none {tenant.folder}"
    return f"{copied} && cp -a {tenant.root}/copied/. {tenant.folder}"


def is_held_to(client: Client, size: int) -> None:
    assert client.memory()[1] == size
    assert client.call("cuMemAlloc_v2", OUT, size + 1)[0] == OUT_OF_MEMORY
    client.free(client.alloc(size))


def is_refused(client: Client) -> None:
    """Check that every kind of allocation is refused."""
    assert client.memory()[0] == 0
    pool = client.ok("cuDeviceGetDefaultMemPool", OUT, 0)
    for call in (
        ("cuMemPoolCreate", OUT, data(pool_on_device(0))),
        ("cuMemAlloc_v2", OUT, 1),
        ("cuMemAllocPitch_v2", OUT, OUT, 1, 1, 4),
        ("cuMemAllocManaged", OUT, 1, 1),
        ("cuMemCreate", OUT, 2 * MIB, data(on_device(0)), 0),
        ("cuArrayCreate_v2", OUT, data(array_2d(1, 1, 0x20, 1))),
        ("cuMemAllocAsync", OUT, 1, 0),
        ("cuMemAllocFromPoolAsync", OUT, 1, pool, 0),
    ):
        assert client.call(*call)[0] == OUT_OF_MEMORY, call


@pytest.mark.parametrize("variable", ["", "tenant-a", "tenant-b", "nobody", "a/b", "x" * 300])
def test_the_mounted_quota_holds_whatever_the_variable_says(tenant: Tenant, other: Tenant, variable: str) -> None:
    tenant.quota(8 * MIB)
    assert other.name == "tenant-b"
    with client_behind(tenant, bound(tenant), OPENFLEET_VGPU=variable) as client:
        is_held_to(client, 8 * MIB)


@pytest.mark.parametrize("variables", [{}, {"OPENFLEET_VGPU": "nobody"}, {"OPENFLEET_VGPU_ROOT": "/nowhere"}])
def test_an_empty_environment_in_a_container(tenant: Tenant, variables: dict[str, str]) -> None:
    """Limit programs that start without the tenant's environment variables.

    /etc/ld.so.preload names the limiter's library, so programs that docker exec, sshd, cron or env -i start load it
    too.
    """
    tenant.quota(8 * MIB)
    with client_in_container(tenant, **variables) as client, tenant.client() as outside:
        is_held_to(client, 8 * MIB)
        client.alloc(5 * MIB)
        assert outside.memory() == (3 * MIB, 8 * MIB)


def test_a_child_of_fork_in_a_container(tenant: Tenant) -> None:
    tenant.quota(8 * MIB)
    with client_in_container(tenant, start=False) as parent, parent.fork(tenant.root / "child") as child:
        parent.start()
        parent.alloc(6 * MIB)
        child.start()
        assert child.memory() == (2 * MIB, 8 * MIB)


@pytest.mark.parametrize("variable", ["", "nobody"])
def test_on_a_host_the_variable_alone_decides(tenant: Tenant, variable: str) -> None:
    tenant.quota(8 * MIB)
    with client_behind(tenant, ":", OPENFLEET_VGPU=variable) as client:
        assert client.memory()[1] == tenant.card.memory
        client.alloc(16 * MIB)


def test_kernels_that_do_not_tell_mount_points(tenant: Tenant) -> None:
    tenant.quota(8 * MIB)
    deny = tenant.built.program("deny_statx")
    mounts = on_another_file_system(tenant)
    with client_behind(tenant, mounts, prefix=str(deny), OPENFLEET_VGPU="") as client:
        is_held_to(client, 8 * MIB)
    with client_behind(tenant, ":", prefix=str(deny), OPENFLEET_VGPU="") as client:
        assert client.memory()[1] == tenant.card.memory


def test_of_several_the_variable_names_one(tenant: Tenant, other: Tenant) -> None:
    tenant.quota(8 * MIB)
    for name, size in (("tenant-a", 8 * MIB), ("tenant-b", 32 * MIB)):
        with client_behind(tenant, bound(tenant, other), OPENFLEET_VGPU=name) as client:
            is_held_to(client, size)


@pytest.mark.parametrize("variable", ["", "nobody"])
def test_of_several_and_none_is_named_everything_is_refused(tenant: Tenant, other: Tenant, variable: str) -> None:
    tenant.quota(8 * MIB)
    with client_behind(tenant, bound(tenant, other), OPENFLEET_VGPU=variable) as client:
        is_refused(client)
    assert "2 quotas are mounted" in tenant.logged() and "Set it to one" in tenant.logged()
    assert tenant.used() == 0


@pytest.mark.parametrize("content", [None, "version 1\nnonsense\n"])
def test_a_mounted_folder_without_a_quota(tenant: Tenant, content: str | None) -> None:
    """Refuse memory until a quota exists.

    The tenant may have been removed while its container runs, or its quota file may be damaged.
    """
    if content is not None:
        tenant.write(content)
    with client_behind(tenant, bound(tenant), OPENFLEET_VGPU="") as client:
        is_refused(client)
        assert "allocations on GPUs are refused until there is a quota" in tenant.logged()
        tenant.quota(8 * MIB)
        assert until(lambda: client.memory()[1], 8 * MIB) == 8 * MIB
        is_held_to(client, 8 * MIB)


def test_programs_of_no_tenant_look_once(tenant: Tenant) -> None:
    """Open only one folder, and only once, in a program without a tenant."""
    strace = subprocess.run(["which", "strace"], capture_output=True, text=True, check=False).stdout.strip()
    if not strace:
        pytest.skip("no strace")
    trace = tenant.root / "trace"
    tenant.quota(8 * MIB)
    prefix = f"{strace} -f -o {trace} -e trace=file"
    with client_behind(tenant, ":", prefix=prefix, OPENFLEET_VGPU="", OPENFLEET_VGPU_ROOT="") as client:
        for _ in range(5):
            client.free(client.alloc(MIB))
    seen = [line for line in trace.read_text().splitlines() if "openfleet-gpu" in line and "openat" in line]
    assert len(seen) == 1, seen
    assert "/etc/openfleet-gpu/vgpu" in seen[0]


def test_programs_without_cuda_do_not_look(tenant: Tenant) -> None:
    trace = tenant.root / "trace"
    strace = subprocess.run(["which", "strace"], capture_output=True, text=True, check=False).stdout.strip()
    if not strace:
        pytest.skip("no strace")
    command = [strace, "-f", "-o", str(trace), "sh", "-c", "echo $OPENFLEET_VGPU"]
    subprocess.run(command, env=tenant.environment(), check=True, capture_output=True, timeout=DEADLINE)
    assert not [line for line in trace.read_text().splitlines() if "openfleet-gpu/vgpu/" in line]
    assert tenant.region.stat().st_size == 0
