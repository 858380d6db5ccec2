# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure audits over two weeks, with fleets of three sizes in a real Prometheus.

The results for 10,000 GPUs come from a straight line through the three sizes, which keeps an audit's fixed cost
separate. SIZE is the largest fleet (1,800 GPUs). The other fleets have a third and a ninth of its GPUs.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "collections")]

from tests.audit.fleet_history import GIB, serve
from tests.benchmark.amounts import amount

DAYS = 14
STEP = 300
TARGET = 10_000
RUNS = 3
#: Number of different utilization curves. The fleet's GPUs use them in turn.
_VARIANTS = 32
_PER_HOST = 8
#: Length of a history block in seconds. With a retention of 15 days, Prometheus compacts its two-hour blocks to this
#: length.
_BLOCK = 18 * 3600
_GAUGES = {
    "gpu:memory_used_bytes:max5m": lambda n, i: int((10 + 60 * _wave(n, i)) * GIB),
    "gpu:busy_ratio:avg5m": lambda n, i: round(0.9 * _wave(n, i), 4),
    "gpu:activity_ratio:max5m": lambda n, i: round(0.95 * _wave(n, i), 4),
    "gpu:compute_active_ratio:avg5m": lambda n, i: round(0.7 * _wave(n, i), 4),
    "gpu:memory_bandwidth_active_ratio:avg5m": lambda n, i: round(0.5 * _wave(n, i), 4),
    "gpu:tensor_active_ratio:avg5m": lambda n, i: round(0.4 * _wave(n, i), 4),
    "gpu:processes:max5m": lambda n, i: 1,
    "gpu:held:avg5m": lambda n, i: 1,
    "gpu:memory_used_bytes:max15m": lambda n, i: int((10 + 60 * _wave(n, i)) * GIB),
    "gpu:compute_active_ratio:avg15m": lambda n, i: round(0.7 * _wave(n, i), 4),
    "gpu:compute_active_ratio:max15m": lambda n, i: round(0.8 * _wave(n, i), 4),
    "gpu:memory_bandwidth_active_ratio:avg15m": lambda n, i: round(0.5 * _wave(n, i), 4),
    "gpu:tensor_active_ratio:avg15m": lambda n, i: round(0.4 * _wave(n, i), 4),
    "gpu:processes:max15m": lambda n, i: 1,
    "gpu:info": lambda n, i: 1,
    "gpu:memory_total_bytes": lambda n, i: int(80 * GIB),
    "gpu:processes": lambda n, i: 1,
}


FIGURES = (
    "audit_seconds_10000_gpus",
    "audit_bytes_10000_gpus",
    "audit_peak_memory_10000_gpus",
    "audit_growth_exponent",
)


def figures(options):
    """Yield (name, value, unit) or (name, None, reason)."""
    largest = amount(options, 1800, 72, "SIZE")
    sizes = [size for size in (largest // 9, largest // 3, largest) if size >= _PER_HOST]
    if len(sizes) < 3:
        for name in FIGURES:
            yield name, None, f"three sizes are needed, and SIZE={largest} is too small for them"
        return
    days, runs = amount(options, DAYS, 2), amount(options, RUNS, 1)
    measured = [(size, *measure(size, days, runs)) for size in sizes]
    sizes, *columns = zip(*measured)
    lines = [line(sizes, one) for one in columns]
    seconds, received, memory = (fixed + slope * TARGET for fixed, slope in lines)
    yield FIGURES[0], seconds, "s"
    yield FIGURES[1], received / 2**20, "MiB"
    yield FIGURES[2], memory / 2**20, "MiB"
    # The growth's exponent between the two largest fleets, without the fixed cost. 1 is linear.
    grown = [max(1e-9, value - lines[0][0]) for value in columns[0][-2:]]
    yield FIGURES[3], math.log(grown[1] / grown[0]) / math.log(sizes[-1] / sizes[-2]), "ratio"


def line(xs, ys):
    """Return (intercept, slope) of the least-squares line through the points."""
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys)) / sum((x - middle_x) ** 2 for x in xs)
    return middle_y - slope * middle_x, slope


def measure(gpus, days, runs):
    """Return the best of `runs` audits.

    The values are seconds, bytes received, and peak memory in bytes.
    """
    with tempfile.TemporaryDirectory(prefix="bench-audit-") as name:
        folder = Path(name)
        print(f"bench: {gpus} GPUs, {days} days: making their history", file=sys.stderr, flush=True)
        with serve(partial(text, gpus), days * 24, folder, _BLOCK) as url:
            found = [run(url, folder, days) for _ in range(runs)]
    best = min(found)
    print(f"bench: {gpus} GPUs: {best[0]:.1f} s, {best[1]} bytes, {best[2] >> 20} MiB", file=sys.stderr, flush=True)
    return best


def run(url, folder, days):
    """Run one audit in a separate process, to measure its memory."""
    done = subprocess.run(
        [sys.executable, __file__, url, str(folder), str(days)], check=True, capture_output=True, text=True
    )
    return tuple(json.loads(done.stdout))


def text(gpus, start, first, last):
    times = [(at, (at - start) // STEP) for at in range(first, last + 1, STEP)]
    for name, value in _GAUGES.items():
        yield f"# TYPE {name} gauge\n"
        kept = times[::3] if name.endswith("15m") else times
        courses = [[f" {value(n, i)} {at}\n" for at, i in kept] for n in range(_VARIANTS)]
        more = ',gpu_index="0",model="NVIDIA H100 80GB HBM3",vendor="nvidia",job="gpu"' if name == "gpu:info" else ""
        for gpu in range(gpus):
            series = f'{name}{{host="gpu-{gpu // _PER_HOST:05d}.example.org",gpu_uuid="GPU-{gpu:032x}"{more}}}'
            yield series + series.join(courses[gpu % _VARIANTS])
    yield "# EOF\n"


def _wave(variant, step):
    """Return a utilization from 0 to 1 with a daily and a weekly cycle.

    A fourth of the GPUs are always idle.
    """
    if variant % 4 == 0:
        return 0.0
    return (2 + math.sin(step / 45.8 + variant) + math.sin(step / 320.9)) / 4


def audit(url, folder, days):
    """Run an audit the way the action plugin does.

    Returns seconds, received bytes and peak memory.
    """
    import resource

    from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import prometheus, write
    from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.holdings import Price
    from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.make import Order, make

    received = []
    query = prometheus.Prometheus._read

    def counted(self, response):
        before = self.bytes_received
        body = query(self, response)
        received.append(self.bytes_received - before)
        return body

    prometheus.Prometheus._read = counted
    started = time.perf_counter()
    access = prometheus.Access(url, timeout_seconds=300)
    made = make(Order((int(days) * 24 - 1) * 3600.0, access, prices=[Price("*", 2.0)]), time.time())
    write.all_of(made, Path(folder) / "report")
    seconds = time.perf_counter() - started
    return seconds, sum(received), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    print(json.dumps(audit(*sys.argv[1:])))
