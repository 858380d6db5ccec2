# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the limiter does not change the state of a program.

The state is the umask, signals, environment, descriptors, threads and exit code.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable

import pytest

from tests.limiter.limiter_lab import DEADLINE, OUT, Built, Tenant

MIB = 1 << 20


def run(built: Built, environment: dict[str, str], code: int = 0) -> str:
    """Run client/effects.c, and return its output without the limiter's log lines."""
    program = built.program("effects", "-Wno-strict-prototypes")
    done = subprocess.run(
        [str(program), str(code)], env=environment, capture_output=True, text=True, timeout=DEADLINE, cwd="/"
    )
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout


def without_quota(tenant: Tenant) -> None:
    pass


def with_quota(tenant: Tenant) -> None:
    tenant.quota(64 * MIB)


def with_nonsense(tenant: Tenant) -> None:
    tenant.write("version 1\ngpu what memory ever\n\xff\n")


def without_region(tenant: Tenant) -> None:
    tenant.quota(64 * MIB)
    tenant.region.unlink()
    tenant.region.parent.rmdir()


def with_a_region_of_something_else(tenant: Tenant) -> None:
    tenant.quota(64 * MIB)
    tenant.region.write_bytes(os.urandom(1 << 20))


def with_a_throttle(tenant: Tenant) -> None:
    tenant.quota(64 * MIB, sm=50)


SITUATIONS = (
    without_quota,
    with_quota,
    with_nonsense,
    without_region,
    with_a_region_of_something_else,
    with_a_throttle,
)


UNCOUNTED = (without_region, with_a_region_of_something_else)


@pytest.mark.parametrize("prepare", SITUATIONS, ids=lambda prepare: prepare.__name__)
@pytest.mark.parametrize("code", [0, 3])
def test_nothing_of_the_process_changes(tenant: Tenant, built: Built, prepare: Callable, code: int) -> None:
    bare = run(built, tenant.environment(preload=False), code)
    prepare(tenant)
    limited = run(built, tenant.environment(), code)
    if prepare is with_a_throttle:
        # The turnstile's file stays open. Its lock shows other processes that this process is alive.
        launched = limited.index("cuLaunchKernel: ")
        limited, bare = limited[:launched], bare[:launched]
    if prepare in UNCOUNTED:
        # Only the allocation differs: the program gets no memory.
        assert "cuMemAlloc_v2: 2 " in limited and "cuMemAlloc_v2: 0 " in bare
        limited, bare = (re.sub(r"^(cu\w+): \d+ ", r"\1: ", text, flags=re.MULTILINE) for text in (limited, bare))
    assert limited == bare


def test_without_a_tenant_it_is_not_there(tenant: Tenant, built: Built) -> None:
    tenant.quota(1)
    bare, limited = tenant.environment(preload=False), tenant.environment()
    for environment in (bare, limited):
        del environment["OPENFLEET_VGPU"]
    assert run(built, limited) == run(built, bare)


@pytest.mark.parametrize("name", ["", "a/b", "..", "../tenant-a", "x" * 300, "tenant a", "nobody"])
def test_names_that_are_none_leave_it_passive(tenant: Tenant, name: str) -> None:
    tenant.quota(1)
    with tenant.client(OPENFLEET_VGPU=name) as client:
        client.free(client.alloc(MIB))
        assert client.memory()[1] == tenant.card.memory


def test_programs_without_cuda_do_not_notice(tenant: Tenant) -> None:
    tenant.quota(1)
    command = ["sh", "-c", "umask; echo $OPENFLEET_VGPU; exit 7"]
    bare, limited = (
        subprocess.run(command, env=tenant.environment(preload), capture_output=True, text=True, timeout=DEADLINE)
        for preload in (False, True)
    )
    assert (limited.returncode, limited.stdout, limited.stderr) == (7, bare.stdout, "")
    assert tenant.region.stat().st_size == 0
    assert tenant.logged() == ""


def test_a_program_may_close_every_descriptor(tenant: Tenant) -> None:
    """Let a program close all its descriptors, as daemons do.

    The process must still count as alive.
    """
    tenant.quota(4 * MIB)
    program = tenant.built.program("daemon")
    daemon = subprocess.Popen([str(program)], env=tenant.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert daemon.stdout.readline() == b"has 3 MiB\n"
        with tenant.client() as other:
            assert other.call("cuMemAlloc_v2", OUT, 2 * MIB)[0] == 2
            other.alloc(MIB)
    finally:
        daemon.communicate(b"\n", timeout=DEADLINE)
    assert daemon.returncode == 0


def test_quota_zero_is_counted_and_not_limited(tenant: Tenant) -> None:
    tenant.quota(0)
    with tenant.client() as client:
        client.alloc(tenant.card.memory)
        assert client.memory()[1] == tenant.card.memory
