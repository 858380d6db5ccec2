# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Launch kernels of tenants on the stub GPU in simulated time. Measure the shares."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.limiter.card import Card
from tests.limiter.limiter_lab import DEADLINE, Built, Tenant


@dataclass
class Worker:
    """A process of a tenant, and its reports as (seconds, busy ns, launches).

    `calls` is the number of driver calls that the limiter made. `parted` is the number of dependent launches before
    which the limiter recorded an event. `waits` is how often the first thread slept or waited.
    """

    tenant: Tenant
    options: Sequence[str]
    preload: bool = True
    ends_with: int = 0
    lines: list[tuple[float, int, int]] = field(default_factory=list)
    calls: int = 0
    parted: int = 0
    waits: int = 0
    process: subprocess.Popen | None = None

    @property
    def calls_per_launch(self) -> float:
        return self.calls / self.lines[-1][2]

    @property
    def busy_seconds(self) -> float:
        return self.lines[-1][1] / 1e9

    def share(self, since: float = 0, until: float = 1e9) -> float:
        """Return the process's percentage of GPU time between two of its reports."""
        chosen = [line for line in self.lines if since <= line[0] <= until]
        assert len(chosen) > bool(since), f"no reports between {since} and {until}: {self.lines}"
        first = chosen[0] if since else (0.0, 0, 0)
        return 100 * (chosen[-1][1] - first[1]) / 1e9 / (chosen[-1][0] - first[0])


class World:
    """A GPU with a simulated clock, and tenants on this GPU."""

    def __init__(self, folder: Path, built: Built, gpus: int = 1, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.built, self.environment = folder, built, environment
        self.card = Card(folder / "card", gpus)
        self.workers: list[Worker] = []
        options = (f"-L{built.stub}", "-l:libcuda.so.1")
        sanitizer = [f"-fsanitize={built.sanitizer}"] if built.sanitizer else []
        self.program = built.program("sm_worker", *sanitizer, *options)

    def tenant(self, sm: int, name: str = "tenant-a", seat: int = 0, **quota: object) -> Tenant:
        """Create a tenant without a memory limit."""
        tenant = Tenant(self.folder / "root", self.card, self.built, name)
        return tenant.quota(*[0] * self.card.gpus, sm=sm, seat=seat, **quota)

    def worker(self, tenant: Tenant, options: str, preload: bool = True, ends_with: int = 0) -> Worker:
        """Add a process of a tenant, which run() will start.

        client/sm_worker.c lists the options.
        """
        self.workers.append(Worker(tenant, options.split(), preload, ends_with))
        return self.workers[-1]

    def start(self, parties: int = 0) -> None:
        """Start all workers.

        The simulated clock starts when all their threads have started.
        """
        for worker in self.workers:
            threads = worker.options[worker.options.index("--threads") + 1] if "--threads" in worker.options else 1
            parties += int(threads)
        for worker in self.workers:
            environment = worker.tenant.environment(
                worker.preload, STUB_CLOCK=str(self.folder / "clock"), STUB_PARTIES=str(parties), **self.environment
            )
            worker.process = subprocess.Popen(
                [str(self.program), *worker.options], stdout=subprocess.PIPE, text=True, env=environment
            )

    def finish(self) -> None:
        """Wait for all workers and read their output."""
        try:
            for worker in self.workers:
                out, _ = worker.process.communicate(timeout=DEADLINE)
                code = worker.process.returncode
                assert code == worker.ends_with, f"{worker.options} ended with {code}"
                for line in out.splitlines():
                    seconds, busy, launches, *counts = line.split()
                    worker.calls, worker.parted, worker.waits = map(int, counts)
                    worker.lines.append((float(seconds), int(busy), int(launches)))
        finally:
            for worker in self.workers:
                if worker.process.poll() is None:
                    worker.process.kill()
                    worker.process.wait(DEADLINE)

    def run(self) -> None:
        self.start()
        self.finish()


def alone(folder: Path, built: Built, percent: int, options: str, **environment: str) -> float:
    """Return the percentage that a tenant gets on an otherwise idle GPU.

    The tenant has a fixed share and always has work.
    """
    world = World(folder, built, **environment)
    worker = world.worker(world.tenant(percent), options)
    world.run()
    return worker.share()


def two(
    folder: Path, built: Built, first: int, second: int, options: Sequence[str], **environment: str
) -> tuple[float, float]:
    """Return the percentages that two tenants get on one GPU."""
    world = World(folder, built, **environment)
    workers = [
        world.worker(world.tenant(percent, f"tenant-{seat}", seat), words)
        for seat, (percent, words) in enumerate(zip((first, second), options))
    ]
    world.run()
    return workers[0].share(), workers[1].share()


def launch_ns(folder: Path, built: Built, percent: int | None, launches: int = 20000) -> float:
    """Return the host time of a launch of an empty kernel, by the real clock.

    If percent is None, the limiter is not loaded.
    """
    world = World(folder, built)
    tenant = world.tenant(percent or 100)
    command = [str(world.program), "--kernel", "0", "--time", str(launches)]
    environment = tenant.environment(percent is not None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[0])


def driver_calls(folder: Path, built: Built, streams: int) -> float:
    """Return the driver calls per kernel launch of 10 us, including the launch.

    The tenant has half of the GPU.
    """
    world = World(folder, built, **LATE)
    worker = world.worker(world.tenant(50), f"--kernel 10000 --streams {streams} --seconds 2")
    world.run()
    return worker.calls_per_launch


#: On a Linux machine, each sleep lasts longer by this delay (timer slack and wake-up). Tests add the delay, so that
#: results do not depend on the exact length of sleeps.
LATE = {"STUB_LATE_NS": "60000"}
BENCH = ("--kernel 10000", "--kernel 1000000", "--kernel 50000000", "--kernel 20000 --graph 10 --form graph")


def sm_errors(folder: Path, built: Built, seconds: int = 10) -> dict[str, float]:
    """Return the largest difference from the share in percentage points.

    The cases have kernels of 10 us to 50 ms, and one case is a graph. Each worker launches kernels for `seconds` of
    simulated time.
    """
    errors = {}
    for percent in (20, 50, 80):
        shares = [
            alone(folder / f"{percent}-{i}", built, percent, f"{words} --seconds {seconds}", **LATE)
            for i, words in enumerate(BENCH)
        ]
        errors[f"limiter_sm_error_{percent}"] = max(abs(share - percent) for share in shares)
    worst = 0.0
    for i, words in enumerate(BENCH):
        shares = two(folder / f"10-90-{i}", built, 10, 90, [f"{words} --seconds {seconds}"] * 2, **LATE)
        worst = max(worst, abs(shares[0] - 10), abs(shares[1] - 90))
    errors["limiter_sm_error_10_90"] = worst
    return errors
