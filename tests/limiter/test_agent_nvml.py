# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test NVML process data that the agent provides, also to programs in containers.

The tenant is charged for memory that the agent reports, and programs do not query NVML themselves.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.limiter.account import MIB
from tests.limiter.agent_lab import Agent, make_tenant, own, wait_until
from tests.limiter.limiter_lab import DEADLINE, INITIAL_PID_NAMESPACE, OUT, Client, Tenant
from tests.limiter.test_contexts import COST, OUT_OF_MEMORY, QUOTA, client, create
from tests.limiter.test_region import NONCE, PID, SLOT_SIZE, SLOTS, region
from tests.limiter.test_report import settled

#: agent_report.c considers the agent stopped after this time without a report.
SILENT_NS = 5 * 10**9
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child")


def can_unshare() -> bool:
    """Return whether root can make a PID namespace and /proc shows all processes."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    done = subprocess.run([*UNSHARE, "readlink", "/proc/self"], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() not in ("", "1")


pytestmark = pytest.mark.skipif(not can_unshare(), reason="no PID namespace can be made here")


@pytest.fixture
def speaking(agent: Agent, tenant: Tenant) -> Agent:
    """Give the tenant the quota QUOTA, and start an agent that uses NVML.

    Returns after the agent's first report.
    """
    make_tenant(tenant.quota(QUOTA))
    return speak(agent, tenant)


def speak(agent: Agent, *tenants: Tenant) -> Agent:
    """Start the agent for these tenants.

    The agent reads the real PID namespaces of programs, so the simulated namespace of each tenant is set to the real
    one.
    """
    for tenant in tenants:
        tenant.in_namespace(int(Path("/proc/self/ns/pid").readlink().name[5:-1]))
    agent.environment = {"LD_LIBRARY_PATH": str(tenants[0].built.stub), **tenants[0].card.environment()}
    agent.start()
    for tenant in tenants:
        wait_until((own(tenant) / "nvml.1").exists, "the agent reports")
    return agent


def in_container(tenant: Tenant, tmp_path: Path, **more: str) -> Client:
    """Start a program in a new PID namespace.

    NVML reports the program's pid on the host, which the program does not know.
    """
    view = tmp_path / "view"
    if not view.exists():
        view.mkdir()
        for name, target in (("etc", tenant.root / "etc"), ("run", tenant.root / "run"), ("proc", Path("/proc"))):
            (view / name).symlink_to(target)
    settings = {"STUB_CONTEXT_BYTES": str(COST), "OPENFLEET_VGPU_ROOT": str(view), **more}
    preload = settings.pop("preload", "yes") == "yes"
    environment = tenant.environment(preload, **settings)
    # Set LD_PRELOAD only for the client. A sanitizer's library would end a shell that was built without the sanitizer.
    preloaded = environment.pop("LD_PRELOAD", "")
    script = tmp_path / "client-in-container"
    script.write_text(f"#!/bin/sh\nexec {' '.join(UNSHARE)} env LD_PRELOAD='{preloaded}' {tenant.built.client}\n")
    script.chmod(0o755)
    return Client(SimpleNamespace(client=script), environment)


def test_contexts_in_a_container_count(speaking: Agent, tenant: Tenant, tmp_path: Path) -> None:
    with in_container(tenant, tmp_path) as program:
        assert settled(program, QUOTA - COST) == (QUOTA - COST, QUOTA)
        assert [create(program) for _ in range(9)] == [0] + [OUT_OF_MEMORY] * 8
        assert tenant.peak() == 2 * COST
        assert settled(program, QUOTA - 2 * COST) == (QUOTA - 2 * COST, QUOTA)
        assert program.call("cuMemAlloc_v2", OUT, QUOTA - 2 * COST + 1)[0] == OUT_OF_MEMORY
        program.alloc(QUOTA - 2 * COST)


def test_a_context_of_a_process_that_calls_nothing_more_counts(speaking: Agent, tenant: Tenant, tmp_path: Path) -> None:
    """Charge the first context of a process that makes no further call.

    The size of the first context is not known in advance. A process checks its own usage only during calls, so the
    agent must charge the context.
    """
    with in_container(tenant, tmp_path), client(tenant) as other:
        assert settled(other, QUOTA - 2 * COST) == (QUOTA - 2 * COST, QUOTA)


def test_memory_that_nobody_reserved_is_charged(speaking: Agent, tenant: Tenant, tmp_path: Path) -> None:
    """Charge the memory of a program that runs without the limiter."""
    with client(tenant) as counted:
        with in_container(tenant, tmp_path, preload="no") as bare:
            bare.alloc(100 * MIB)
            left = QUOTA - 2 * COST - 100 * MIB
            assert settled(counted, left) == (left, QUOTA)
            assert counted.call("cuMemAlloc_v2", OUT, left + 1)[0] == OUT_OF_MEMORY
            with client(tenant, start=False) as late:
                late.ok("cuInit", 0)
                assert late.call("cuDevicePrimaryCtxRetain", OUT, 0)[0] == OUT_OF_MEMORY, "as soon as it starts"
            bare.free(bare.alloc(MIB))
        assert settled(counted, QUOTA - COST) == (QUOTA - COST, QUOTA)
        counted.alloc(QUOTA - COST)


def test_a_number_in_shared_memory_says_whose_nobody_is(agent: Agent, tenant: Tenant, tmp_path: Path) -> None:
    """Ignore a tenant's slot in which the tenant wrote the pid of another tenant.

    The forger is still charged for its own memory, and the other tenant is charged for no more than its own.
    """
    forger = make_tenant(Tenant(tenant.root, tenant.card, tenant.built, "tenant-b").quota(QUOTA))
    speak(agent, make_tenant(tenant.quota(QUOTA)), forger)
    with client(tenant) as victim, client(forger, start=False) as forging:
        forging.ok("cuInit", 0)
        forging.call("cuDeviceTotalMem_v2", OUT, 0)
        with region(forger) as shared:
            number = next(n for n in range(9) if shared.slot(n, PID) == forging.pid)
            shared.set(SLOTS + number * SLOT_SIZE + PID, victim.pid)
        forging.start()
        assert settled(forging, QUOTA - COST) == (QUOTA - COST, QUOTA)
        assert settled(victim, QUOTA - COST) == (QUOTA - COST, QUOTA)
        with region(tenant) as shared:
            assert sum(shared.slot(n, NONCE, "<I") > 0 for n in range(1024)) == 1, "the neighbour has one process"


def asks_nvml(program: Client) -> bool:
    return "libnvidia-ml" in Path(f"/proc/{program.pid}/maps").read_text()


def written_ns(tenant: Tenant) -> int:
    """Return the time of the agent's last report."""
    return struct.unpack_from("=q", (own(tenant) / "nvml.1").read_bytes(), 16)[0]


def test_no_program_asks_nvml_while_the_agent_does(speaking: Agent, tenant: Tenant) -> None:
    tenant.in_namespace(INITIAL_PID_NAMESPACE)
    spoke, silent_ns = written_ns(tenant), 0
    with client(tenant) as program:
        # Twice the interval at which programs would query NVML.
        until = time.monotonic() + 2.5
        while time.monotonic() < until or program.memory()[0] != QUOTA - COST:
            assert time.monotonic() < until + DEADLINE
            program.free(program.alloc(MIB))
            silent_ns = max(silent_ns, time.monotonic_ns() - spoke)
            spoke = written_ns(tenant)
        # On a very busy machine, the agent may be silent for SILENT_NS. Programs then query NVML themselves.
        assert not asks_nvml(program) or silent_ns > SILENT_NS
        speaking.kill()
        until = time.monotonic() + DEADLINE
        while not asks_nvml(program) and time.monotonic() < until:
            program.memory()
            time.sleep(0.05)
        assert asks_nvml(program), "without the agent programs ask themselves"
