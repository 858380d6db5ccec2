# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the memory of contexts and their limits.

The limiter learns the cost of a context from NVML, and reserves it before the next context is created.
"""

from __future__ import annotations

import time

import pytest

from tests.limiter.account import MIB
from tests.limiter.limiter_lab import OUT, Client, Tenant
from tests.limiter.test_report import settled

OUT_OF_MEMORY = 2
QUOTA, COST = 1024 * MIB, 400 * MIB
STACK, FIFO, HEAP = range(3)
THREADS = 132 * 2048  # The number of threads that can run on the stub's GPU at the same time.
CREATE = {
    "cuCtxCreate": (OUT, 0, 0),
    "cuCtxCreate_v2": (OUT, 0, 0),
    "cuCtxCreate_v3": (OUT, 0, 0, 0, 0),
    "cuCtxCreate_v4": (OUT, 0, 0, 0),
}


def client(tenant: Tenant, cost: int = COST, start: bool = True, **environment: str) -> Client:
    return tenant.client(start, STUB_CONTEXT_BYTES=str(cost), **environment)


def create(program: Client, form: str = "cuCtxCreate_v2") -> int:
    """Create a context without making it current.

    Returns the result of the call.
    """
    result, _ = program.call(form, *CREATE[form])
    if result == 0:
        program.ok("cuCtxPopCurrent_v2", OUT)
    return result


@pytest.mark.parametrize("form", CREATE)
def test_contexts_beyond_the_quota_are_refused(tenant: Tenant, form: str) -> None:
    tenant.quota(QUOTA)
    with client(tenant) as program:
        assert [create(program, form) for _ in range(9)] == [0] + [OUT_OF_MEMORY] * 8
        assert tenant.peak() == 2 * COST
        assert program.memory() == (QUOTA - 2 * COST, QUOTA)
        program.alloc(QUOTA - 2 * COST)
        assert program.call("cuMemAlloc_v2", OUT, 1)[0] == OUT_OF_MEMORY


def test_other_processes_know_the_cost(tenant: Tenant) -> None:
    tenant.quota(QUOTA)
    with client(tenant) as first:
        assert create(first) == 0
        with client(tenant, start=False) as second:
            second.ok("cuInit", 0)
            assert second.call("cuDevicePrimaryCtxRetain", OUT, 0)[0] == OUT_OF_MEMORY
        first.kill()
    with client(tenant) as third:
        assert create(third) == 0
        assert tenant.peak() == 2 * COST


def test_a_context_that_goes_gives_back_what_it_cost(tenant: Tenant) -> None:
    tenant.quota(QUOTA)
    with client(tenant) as program:
        for _ in range(5):
            context = program.ok("cuCtxCreate_v2", OUT, 0, 0)
            assert create(program) == OUT_OF_MEMORY
            program.ok("cuCtxDestroy_v2", context)
        assert program.memory() == (QUOTA - COST, QUOTA)


def test_the_primary_context_is_one_however_often_it_is_retained(tenant: Tenant) -> None:
    tenant.quota(QUOTA)
    with client(tenant) as program:
        assert create(program) == 0
        for _ in range(3):
            program.ok("cuDevicePrimaryCtxRetain", OUT, 0)
        for _ in range(4):
            program.ok("cuDevicePrimaryCtxRelease_v2", 0)
        assert create(program) == 0
        assert program.call("cuDevicePrimaryCtxRetain", OUT, 0)[0] == OUT_OF_MEMORY
        assert tenant.used() == tenant.peak() == 2 * COST


def test_what_the_driver_refuses_is_not_charged(tenant: Tenant) -> None:
    tenant.quota(QUOTA)
    with client(tenant, STUB_FAIL="cuCtxCreate:2") as program:
        assert create(program) == OUT_OF_MEMORY
        assert program.memory() == (QUOTA - COST, QUOTA)
        assert create(program) == 0


def test_where_nvml_does_not_know_the_process_the_reservation_stays(tenant: Tenant) -> None:
    """Keep the reservation if NVML does not know the process in its PID namespace."""
    tenant.quota(3 * COST)
    with client(tenant) as outside:
        assert create(outside) == 0
        tenant.in_namespace(0xF0000123)
        with client(tenant) as inside:
            end = time.monotonic() + 1.5  # The limiter queries NVML once a second.
            while time.monotonic() < end:
                assert inside.memory() == (0, 3 * COST)
            inside.ok("cuDevicePrimaryCtxRelease_v2", 0)
            assert outside.memory() == (COST, 3 * COST)


def test_what_is_learned_is_the_least_that_was_seen(tenant: Tenant) -> None:
    """Reserve the lowest cost among the contexts that the limiter has seen.

    One process has large modules, so its cost is higher.
    """
    tenant.quota(QUOTA)
    with client(tenant, cost=900 * MIB) as large:
        assert create(large) == OUT_OF_MEMORY
    with client(tenant, cost=100 * MIB) as small:
        assert settled(small, QUOTA - 100 * MIB) == (QUOTA - 100 * MIB, QUOTA)
        assert [create(small) for _ in range(10)] == [0] * 9 + [OUT_OF_MEMORY]


@pytest.mark.parametrize(
    ("limit", "value", "costs", "too_much"),
    [
        (HEAP, 108 * MIB, 100 * MIB, 2 * QUOTA),
        (FIFO, 101 * MIB, 100 * MIB, 2 * QUOTA),
        (STACK, 2048, 1024 * THREADS, 8192),
    ],
    ids=["heap", "fifo", "stack"],
)
def test_limits_of_a_context(tenant: Tenant, limit: int, value: int, costs: int, too_much: int) -> None:
    tenant.quota(QUOTA)
    with client(tenant, cost=0) as program:
        first = program.ok("cuCtxGetLimit", OUT, limit)
        assert program.call("cuCtxSetLimit", limit, too_much)[0] == OUT_OF_MEMORY
        assert program.ok("cuCtxGetLimit", OUT, limit) == first
        program.ok("cuCtxSetLimit", limit, value)
        assert tenant.used() == costs
        assert program.memory() == (QUOTA - costs, QUOTA)
        program.ok("cuCtxSetLimit", limit, first)
        assert program.memory() == (QUOTA, QUOTA)
        assert tenant.peak() == costs


def test_limits_go_with_their_context(tenant: Tenant) -> None:
    tenant.quota(QUOTA)
    tenant.in_namespace(0xF0000123)
    with client(tenant, cost=0) as program:
        context = program.ok("cuCtxCreate_v2", OUT, 0, 0)
        program.ok("cuCtxSetLimit", HEAP, 508 * MIB)
        assert program.memory() == (QUOTA - 500 * MIB, QUOTA)
        program.ok("cuCtxDestroy_v2", context)
        assert program.memory() == (QUOTA, QUOTA)


def test_without_a_quota_nothing_is_refused(tenant: Tenant) -> None:
    with client(tenant) as program:
        assert [create(program) for _ in range(9)] == [0] * 9
        program.ok("cuCtxSetLimit", HEAP, QUOTA)
    tenant.quota(0)
    with client(tenant) as program:
        assert [create(program) for _ in range(9)] == [0] * 9
