# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run online and offline tenants on the stub GPU in simulated time.

A request of an online tenant is KERNELS kernels of KERNEL_NS, 20 ms of GPU time. Requests arrive at random times.
"""

from __future__ import annotations

import bisect
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.limiter.card import Card
from tests.limiter.limiter_lab import DEADLINE, Built, Tenant
from tests.limiter.sm import LATE

MS = 1_000_000
KERNEL_NS, KERNELS = MS // 5, 100
REQUEST_NS = KERNEL_NS * KERNELS
WATERLINE = 80
#: The minimum time between two requests that counts as a pause of an online tenant. The limiter holds the GPU for the
#: tenant for twice this time.
PAUSE_NS = MS


@dataclass(frozen=True)
class Online:
    """The requests of an online program, as (arrival, begin, end) in ns.

    `busy_ns` is the GPU time of the program.
    """

    requests: tuple[tuple[int, int, int], ...]
    busy_ns: int

    def latency_ns(self, percentile: float) -> int:
        """Return a percentile of the time from a request's arrival to its end."""
        sizes = sorted(end - arrival for arrival, _begin, end in self.requests)
        return sizes[min(len(sizes) - 1, int(percentile / 100 * len(sizes)))]

    def bursts(self) -> list[tuple[int, int]]:
        """Return (first launch, end) of each group of requests without a pause."""
        found: list[tuple[int, int]] = []
        for _arrival, begin, end in self.requests:
            if found and begin - found[-1][1] < PAUSE_NS:
                found[-1] = (found[-1][0], end)
            else:
                found.append((begin, end))
        return found


@dataclass(frozen=True)
class Offline:
    """The launches of an offline program, as the times in ns at which they began.

    `busy_ns` is the GPU time of the program, and `renamed_ns` its GPU time before it renamed a file.
    """

    launches: tuple[int, ...]
    busy_ns: int
    renamed_ns: int = 0


@dataclass(frozen=True)
class Colocated:
    """The result of one run, which took `seconds` of simulated time."""

    online: tuple[Online, ...]
    offline: tuple[Offline, ...]
    seconds: float

    def resume_ns(self) -> int:
        """Return how long offline launches continued after a burst began.

        This is the longest time between the first launch of an online burst and an offline launch during the burst.
        """
        longest = 0
        for one in self.online:
            for begin, end in one.bursts():
                for other in self.offline:
                    last = bisect.bisect_left(other.launches, end) - 1
                    if last >= 0 and other.launches[last] > begin:
                        longest = max(longest, other.launches[last] - begin)
        return longest


class Colocation:
    """A GPU whose tenants have the policy `colocate`."""

    def __init__(self, folder: Path, built: Built, waterline: int = WATERLINE, late: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.built, self.waterline = folder, built, waterline
        self.card = Card(folder / "card", 1)
        self.environment = dict(LATE) if late else {}
        sanitizer = [f"-fsanitize={built.sanitizer}"] if built.sanitizer else []
        self.program = built.program("colocate_worker", *sanitizer, f"-L{built.stub}", "-l:libcuda.so.1", "-lm")
        self._commands: list[tuple[Tenant, bool, list[str]]] = []

    def tenant(self, latency: str, sm: int = 40, memory: int = 0) -> Tenant:
        """Add a tenant to the GPU."""
        seat = len(self._commands)
        tenant = Tenant(self.folder / "root", self.card, self.built, f"{latency}-{seat}")
        lines = [
            "version 1",
            f"tenant {tenant.name}",
            "policy colocate",
            f"priority {0 if latency == 'online' else 1}",
            f"waterline {self.waterline}",
            f"gpu {self.card.uuid(0)} memory {memory} sm {sm} seat {seat}",
        ]
        return tenant.write("\n".join(lines) + "\n")

    def online(self, load: int, seconds: float, seed: int = 1, preload: bool = True) -> Tenant:
        """Add an online program.

        `load` is the percentage of the GPU's time that its requests need.
        """
        words = ["online", KERNEL_NS, KERNELS, load, seconds, seed]
        return self._add(self.tenant("online"), words, preload)

    def offline(self, kernel_ns: int, seconds: float, preload: bool = True, sm: int = 40) -> Tenant:
        """Add an offline program, which always has work."""
        return self._add(self.tenant("offline", sm), ["offline", kernel_ns, seconds], preload)

    def rename_at(self, tenant: Tenant, seconds: float, source: Path, target: Path) -> None:
        """Let the offline program of a tenant rename a file after a number of seconds."""
        words = next(words for owner, _preload, words in self._commands if owner is tenant)
        words += [str(seconds), str(source), str(target)]

    def tenants(self) -> list[Tenant]:
        """Return the tenants of all added programs."""
        return [tenant for tenant, _preload, _words in self._commands]

    def _add(self, tenant: Tenant, words: list, preload: bool) -> Tenant:
        self._commands.append((tenant, preload, [str(word) for word in words]))
        return tenant

    def run(self, seconds: float) -> Colocated:
        """Run all programs to their end."""
        return self.finish(self.start(), seconds)

    def start(self, parties: int = 0) -> list[subprocess.Popen]:
        """Start all programs.

        Simulated time starts when these programs and `parties` other processes have registered at the clock.
        """
        environment = {
            "STUB_CLOCK": str(self.folder / "clock"),
            "STUB_PARTIES": str(len(self._commands) + parties),
            **self.environment,
        }
        return [
            subprocess.Popen(
                [str(self.program), *words],
                stdout=subprocess.PIPE,
                text=True,
                env=tenant.environment(preload, **environment),
            )
            for tenant, preload, words in self._commands
        ]

    def finish(self, started: list[subprocess.Popen], seconds: float) -> Colocated:
        """Wait for the programs and read their output."""
        online, offline = [], []
        try:
            outputs = _outputs(started)
            for (_tenant, _preload, words), process, output in zip(self._commands, started, outputs):
                assert process.returncode == 0, f"{words} ended with {process.returncode}"
                rows = [line.split() for line in output.splitlines()]
                busy = next(int(row[1]) for row in rows if row[0] == "busy")
                if words[0] == "online":
                    requests = tuple(tuple(map(int, row[1:])) for row in rows if row[0] == "request")
                    online.append(Online(requests, busy))
                else:
                    launches = tuple(int(row[1]) for row in rows if row[0] == "launch")
                    renamed = next((int(row[1]) for row in rows if row[0] == "renamed"), 0)
                    offline.append(Offline(launches, busy, renamed))
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                    process.wait(DEADLINE)
        return Colocated(tuple(online), tuple(offline), seconds)


def _outputs(processes: list[subprocess.Popen]) -> list[str]:
    """Return the output of each process.

    Reads from all processes at the same time, because a process that waits for a full pipe would stop the clock.
    """
    with ThreadPoolExecutor(len(processes)) as pool:
        return list(pool.map(lambda process: process.communicate(timeout=DEADLINE)[0], processes))
