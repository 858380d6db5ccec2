# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the vGPU limiter on a stub driver: call overhead, quotas and shares.

To measure the overhead, the benchmark runs the same program with and without the library in turn, on an empty stub. To
measure shares, the benchmark uses a simulated clock. SEED selects the quotas for limiter_quota_error.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from tests.benchmark.amounts import amount
from tests.limiter.card import Card
from tests.limiter.limiter_lab import DEADLINE, OUT, Built, Client, Tenant

FIGURES = (
    "limiter_launch_added",
    "limiter_alloc_free_added",
    "limiter_start_300_processes",
    "limiter_quota_error",
    *(f"limiter_sm_error_{shares}" for shares in ("20", "50", "80", "10_90")),
    "limiter_throttled_launch_added",
    "limiter_throttled_driver_calls",
    "limiter_throttled_driver_calls_4_streams",
    "limiter_gang_worst_ratio",
)
PROCESSES = 300
#: Number of runs with and without the library. The result is the median difference of the pairs.
RUNS = 9
#: Number of quotas that three processes fill to the last byte.
QUOTAS = 20
MIB = 1 << 20


def figures(options):
    """Yield (name, value, unit) or (name, None, reason)."""
    with tempfile.TemporaryDirectory(prefix="openfleet-limiter-") as name:
        folder = Path(name)
        built = Built(folder / "built")
        yield from _costs(folder, built, amount(options, RUNS, 1))
        yield "limiter_start_300_processes", _start(folder, built, amount(options, PROCESSES, 3)), "s"
        quotas, seed = amount(options, QUOTAS, 1), random.Random(options.get("SEED", "1"))
        yield "limiter_quota_error", _quota_error(folder, built, seed, quotas), "bytes"
        yield from _shares(folder, built, bool(options.get("SMALL")))


def _tenant(folder: Path, built: Built, name: str) -> Tenant:
    return Tenant(folder / name / "root", Card(folder / name / "card"), built)


def _costs(folder: Path, built: Built, runs: int):
    program = built.program("costs", "-O2", "-Wno-strict-prototypes")
    tenant = _tenant(folder, built, "costs").quota(1 << 30)
    added = []
    for _ in range(runs):
        bare, limited = (_measured(program, tenant.environment(preload)) for preload in (False, True))
        added.append([after - before for before, after in zip(bare, limited)])
    yield "limiter_launch_added", statistics.median(launch for launch, _ in added), "ns"
    yield "limiter_alloc_free_added", statistics.median(pair for _, pair in added), "ns"


def _measured(program: Path, environment: dict[str, str]) -> list[float]:
    done = subprocess.run([str(program)], env=environment, capture_output=True, text=True, timeout=DEADLINE, check=True)
    return [float(word) for word in done.stdout.split()]


def _start(folder: Path, built: Built, processes: int) -> float:
    """Return the seconds until all processes have allocated memory.

    The processes start at the same time.
    """
    tenant = _tenant(folder, built, "start").quota(processes * MIB)
    _ = built.library  # built before the measurement
    started = time.monotonic()
    clients = [tenant.client(start=False) for _ in range(processes)]
    try:
        for client in clients:
            client.send("call cuInit 0", "call cuDevicePrimaryCtxRetain & 0")
        for client in clients:
            client.answer("cuInit")
            client.send(f"call cuCtxSetCurrent {client.answer('cuDevicePrimaryCtxRetain').split()[1]}")
            client.send(f"call cuMemAlloc_v2 & {MIB}")
        for client in clients:
            answers = [client.answer(name).split()[0] for name in ("cuCtxSetCurrent", "cuMemAlloc_v2")]
            assert answers == ["0", "0"], answers
        return time.monotonic() - started
    finally:
        for client in clients:
            client.__exit__()


def _quota_error(folder: Path, built: Built, generator: random.Random, quotas: int) -> int:
    """Return the largest deviation of the card's memory from a filled quota.

    This includes the peak's deviation. `quotas` is the number of random quotas.
    """
    worst = 0
    for number in range(quotas):
        quota = generator.randrange(1, 4 << 30)
        tenant = _tenant(folder, built, f"quota-{number}").quota(quota)
        clients = [tenant.client() for _ in range(3)]
        try:
            size = quota
            while size:
                if not _take(generator.choice(clients), generator.randrange(1, size + 1)):
                    size //= 2
            while _take(generator.choice(clients), 1):
                pass
            worst = max(worst, abs(tenant.used() - quota), abs(tenant.peak() - quota))
        finally:
            for client in clients:
                client.__exit__()
    return worst


def _take(client: Client, size: int) -> bool:
    result, _ = client.call("cuMemAlloc_v2", OUT, size)
    assert result in (0, 2), result
    return result == 0


def _shares(folder: Path, built: Built, small: bool):
    from tests.limiter import gangs, sm

    for name, error in sm.sm_errors(folder / "shares", built, 1 if small else 10).items():
        yield name, error, "percentage points"
    # A result without a target: a launch's added cost for a throttled tenant. A real driver adds the cost of two events
    # and of reading them.
    bare = sm.launch_ns(folder / "bare", built, None)
    yield "limiter_throttled_launch_added", sm.launch_ns(folder / "held", built, 50) - bare, "ns"
    # Averages: the limiter only samples kernels of known length. If several streams have work, the limiter measures a
    # series of launches.
    yield "limiter_throttled_driver_calls", sm.driver_calls(folder / "one-stream", built, 1), "count"
    yield "limiter_throttled_driver_calls_4_streams", sm.driver_calls(folder / "four-streams", built, 4), "count"
    # Tenants with several processes that wait for each other, each process on its own GPU. The result is wall time
    # divided by the time at their share.
    runs, gang_cells = (1, gangs.BENCH[-1:]) if small else (gangs.BENCH_RUNS, gangs.BENCH)
    yield "limiter_gang_worst_ratio", gangs.worst_ratio(folder / "gangs", built, runs, gang_cells), "ratio"
