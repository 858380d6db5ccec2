# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure online and offline tenants on the stub GPU. Time is simulated.

Each of LOADS (percent of the GPU's time that online requests need) runs with offline kernels of each of KERNELS_NS. A
request is 20 ms of GPU time, and requests arrive at random times (SEED). tests/limiter/colocation.py has the details.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.benchmark.amounts import amount
from tests.limiter import sm
from tests.limiter.colocation import MS, WATERLINE, Colocated, Colocation
from tests.limiter.limiter_lab import Built

FIGURES = (
    "colocate_online_p99_ratio",
    "colocate_online_over_bound",
    "colocate_resume_ms",
    "colocate_offline_efficiency",
    "limiter_short_kernels_lost_percent",
)
LOADS = (10, 30, 50, 70, 90)
KERNELS_NS = (MS // 50, MS // 5, MS, 5 * MS, 50 * MS)
#: Each run's simulated seconds.
SECONDS = 40
#: Offline kernels up to this length may delay a request by this time. Longer kernels may delay it by their own length.
SHORT_NS = MS
#: Minimum share of GPU time below the waterline at which shares are compared.
LEAST_LEFT = 0.05


def figures(options):
    """Yield (name, value, unit)."""
    seconds, seed = amount(options, SECONDS, 1), int(options.get("SEED", "1"))
    ratio, over, resume, efficiency = 0.0, 0, 0, float("inf")
    with tempfile.TemporaryDirectory(prefix="openfleet-colocate-") as name:
        folder = Path(name)
        built = Built(folder / "built")
        for load in LOADS[-3:-2] if options.get("SMALL") else LOADS:
            alone = _run(folder / f"{load}", built, load, None, seconds, seed)
            for kernel_ns in KERNELS_NS:
                shared = _run(folder / f"{load}-{kernel_ns}", built, load, kernel_ns, seconds, seed)
                if kernel_ns <= SHORT_NS:
                    ratio = max(ratio, shared.online[0].latency_ns(99) / alone.online[0].latency_ns(99))
                over += _over_bound(alone, shared, max(kernel_ns, SHORT_NS))
                resume = max(resume, shared.resume_ns())
                left = WATERLINE / 100 - shared.online[0].busy_ns / 1e9 / seconds
                if left >= LEAST_LEFT:
                    efficiency = min(efficiency, shared.offline[0].busy_ns / 1e9 / seconds / left)
        lost = max(_lost(folder / f"lost-{ns}", built, ns, min(seconds, 5)) for ns in (5_000, 20_000))
    yield "colocate_online_p99_ratio", ratio, "ratio"
    yield "colocate_online_over_bound", over, "requests"
    yield "colocate_resume_ms", resume / MS, "ms"
    yield "colocate_offline_efficiency", efficiency, "ratio"
    yield "limiter_short_kernels_lost_percent", lost, "percent"


def _run(folder: Path, built: Built, load: int, kernel_ns: int | None, seconds: float, seed: int) -> Colocated:
    """Run an online program, alone without the limiter or beside an offline program."""
    world = Colocation(folder, built)
    world.online(load, seconds, seed, preload=kernel_ns is not None)
    if kernel_ns is not None:
        world.offline(kernel_ns, seconds)
    return world.run(seconds)


def _over_bound(alone: Colocated, shared: Colocated, bound_ns: int) -> int:
    """Count requests that ended later than alone by more than the bound."""
    pairs = zip(alone.online[0].requests, shared.online[0].requests)
    return sum(after[2] - before[2] > bound_ns for before, after in pairs)


def _lost(folder: Path, built: Built, kernel_ns: int, seconds: float) -> float:
    """Return the percentage of GPU time that two tenants leave unused.

    Each has a share of 50 percent and always has short kernels to run.
    """
    world = sm.World(folder, built, **sm.LATE)
    workers = [
        world.worker(world.tenant(50, f"tenant-{seat}", seat), f"--kernel {kernel_ns} --seconds {seconds}")
        for seat in range(2)
    ]
    world.run()
    return 100 - sum(worker.share() for worker in workers)
