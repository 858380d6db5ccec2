# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run tenants whose processes on several GPUs wait for each other after each step.

Data-parallel training works like this.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.limiter.limiter_lab import Built
from tests.limiter.sm import LATE, World

POLICIES = ("fixed", "contended", "burst")
MS = 10**6


@dataclass(frozen=True)
class Gangs:
    """Tenants with equal shares and equal work.

    Each tenant runs the same steps on each of its GPUs. A step is a kernel and a collective operation.
    """

    ranks: int
    tenants: int
    policy: str
    kernel_ns: int
    sync: bool = True  # If true, the host waits for each step.
    work_ns: int = 400 * MS  # The work of each rank, including its collective operations.

    def __str__(self) -> str:
        sync = "" if self.sync else "-async"
        return f"{self.tenants}x{self.ranks}-{self.policy}-{self.kernel_ns / MS:g}ms{sync}"

    @property
    def percent(self) -> int:
        return 100 // self.tenants

    def ratio(self, folder: Path, built: Built, seed: int) -> float:
        """Return the wall time of the slowest rank divided by its expected time.

        The expected time is the time that the work takes at the tenant's share.
        """
        choose = random.Random(seed)
        world = World(folder, built, gpus=self.ranks, **LATE)
        meet_ns = max(self.kernel_ns // 5, 20_000)
        starts: list[float] = []
        steps = self.work_ns // (self.kernel_ns + meet_ns)
        for number in range(self.tenants):
            tenant = world.tenant(self.percent, f"tenant-{number}", number, policy=self.policy)
            started = choose.uniform(0, 0.03)
            for rank in range(self.ranks):
                start = started + choose.uniform(0, 0.005)
                starts.append(start)
                world.worker(
                    tenant,
                    f"--device {rank} --kernel {self.kernel_ns} --kernel meet_{meet_ns}_{number}_{self.ranks}"
                    f" --steps {steps} --start {start:.6f}" + (" --sync 2" if self.sync else ""),
                )
        world.run()
        ideal = steps * (self.kernel_ns + meet_ns) * self.tenants / 1e9
        return max(worker.lines[-1][0] - start for worker, start in zip(world.workers, starts)) / ideal


#: All cells of the test matrix.
MATRIX = tuple(
    Gangs(ranks, tenants, policy, kernel_ns, sync)
    for sync in (True, False)
    for ranks in (2, 4)
    for tenants in (2, 3)
    for policy in POLICIES
    for kernel_ns in (MS // 5, 2 * MS, 20 * MS)
)

#: The cells of the benchmark. Each cell runs BENCH_RUNS times.
BENCH = tuple(gangs for gangs in MATRIX if gangs.ranks == gangs.tenants == 2)
BENCH_RUNS = 20


def worst_ratio(folder: Path, built: Built, runs: int = BENCH_RUNS, cells: Sequence[Gangs] = BENCH) -> float:
    """Return the highest ratio over all runs of the cells."""
    return max(gangs.ratio(folder / f"{gangs}-{seed}", built, seed) for gangs in cells for seed in range(runs))
