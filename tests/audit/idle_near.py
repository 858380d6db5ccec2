# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define patterns near the thresholds.

The workloads are little or rare work, small servers, long rhythms, hung workloads, and servers that receive only
probes.
"""

from __future__ import annotations

from dataclasses import replace

from tests.audit.idle_abandoned import trained, until
from tests.audit.idle_model import (
    DAY,
    HOUR,
    REQUEST,
    REST,
    SERVE,
    TRAIN,
    TRANSCODE,
    WEEK,
    Holder,
    Pattern,
    Schedule,
    Use,
    blend,
)
from tests.audit.idle_working import (
    BERLIN,
    PROFILING,
    SERVER,
    SYDNEY,
    TRAFFIC,
    UNIT,
    WEEKDAYS,
    When,
    always,
    bursts,
    days_apart,
    hours,
    never,
    phases,
    work,
)

NO_PROFILING = PROFILING | {"gpu:compute_active_ratio"}
#: A kernel waits for another GPU, as in a hung all-reduce, while a CPU core polls.
HUNG = REST._replace(busy=1, sm=0.15, power=150, cpu=1)
#: A kernel computes in registers only.
SIMULATION = REST._replace(busy=1, sm=0.9, bandwidth=0.004, power=380, cpu=1)


def kernels(seconds: float, cpu: float = 0.004) -> Use:
    """Return a minute's activity with some seconds of kernels."""
    share = seconds / 60
    return REST._replace(busy=share, sm=share / 2, bandwidth=share / 4, cpu=cpu, counted=share)


def unseen(use: Use) -> Use:
    """Return the activity as an exporter sees it that samples between the kernels."""
    return use._replace(busy=0, sm=0, tensor=0, bandwidth=0)


def whole_percent(name: str, minute: int, value: float) -> float:
    """Return utilization as NVML rounds it."""
    return round(100 * value) / 100 if name == "gpu:busy_ratio" else value


def steady(use: Use) -> Schedule:
    return lambda minute: (use, True)


def on_days(*days: tuple[int, int], length: int) -> When:
    """Return whether a minute is in one of several runs.

    A run starts at one of these (day, minute), and takes `length` minutes.
    """
    starts = [day * DAY + minute for day, minute in days]
    return lambda minute: any(start <= minute < start + length for start in starts)


def paused(*pauses: tuple[int, int]) -> Schedule:
    """Return a schedule that trains, except between these days."""
    return work(lambda minute: not any(first * DAY <= minute < last * DAY for first, last in pauses), TRAIN)


def working() -> list[Pattern]:
    """Return holders who work, and servers that wait."""
    queue = UNIT("queue.service", listens=False, clients=0)
    weekday = hours(9, 18, WEEKDAYS)
    late = ((5, 180), (12, 180 + 12 * HOUR), (19, 180), (26, 180 + 12 * HOUR))
    return [
        # --- Little work, all the time
        Pattern("queue-75ms-minute", steady(kernels(0.075)), holder=queue, near=True),
        Pattern("queue-75ms-minute-office", work(weekday, kernels(0.075)), holder=queue, near=True),
        Pattern("queue-75ms-minute-counted", steady(unseen(kernels(0.075))), holder=queue, counts=True, near=True),
        Pattern("queue-110ms-minute", steady(kernels(0.11)), holder=queue, near=True),
        Pattern("queue-130ms-minute", steady(kernels(0.13)), holder=queue, near=True),
        Pattern("queue-300ms-minute", steady(kernels(0.3)), holder=queue, near=True),
        Pattern("4ms-second", steady(kernels(0.24, 0.02)), holder=queue, near=True),
        Pattern("4ms-second-no-profiling", steady(kernels(0.24, 0.02)), holder=queue, near=True,
                sampled=whole_percent, without=NO_PROFILING),
        Pattern("4ms-second-counted", steady(kernels(0.24, 0.002)), holder=queue, counts=True, near=True,
                sampled=whole_percent, without=NO_PROFILING),
        Pattern("8ms-second-no-profiling", steady(kernels(0.48, 0.03)), holder=queue, near=True,
                sampled=whole_percent, without=NO_PROFILING | TRAFFIC - {"gpu:process_cpu_seconds_total"}),
        Pattern("copies-12MB", steady(REST._replace(pcie=1.2e7, cpu=0.02)), near=True),
        Pattern("copies-25MB-hourly", work(bursts(always, 2, 60), REST._replace(pcie=2.5e7)), near=True),
        Pattern("peer-1.5MB", steady(REST._replace(nvlink=1.5e6)), near=True),
        Pattern("bandwidth-1.2-percent", steady(REST._replace(bandwidth=0.012)), near=True),
        Pattern("cpu-0.15-cores", steady(REST._replace(cpu=0.15)), near=True),
        # --- Rare work
        Pattern("1s-each-6h", work(bursts(always, 1, 6 * HOUR), kernels(1)), holder=queue, near=True),
        Pattern("1s-each-6h-counted", work(bursts(always, 1, 6 * HOUR), unseen(kernels(1))), holder=queue,
                counts=True, near=True),
        Pattern("500ms-each-12h-counted", work(bursts(always, 1, 12 * HOUR), unseen(kernels(0.5))), holder=queue,
                counts=True, near=True),
        Pattern("5s-daily-counted", work(bursts(always, 1, DAY), unseen(kernels(5))), holder=queue, counts=True),
        Pattern("2s-hourly-counted", work(bursts(always, 1, HOUR), unseen(kernels(2))), holder=queue, counts=True,
                without=NO_PROFILING),
        # The audit must not mistake the holder of a short nightly job for a diagnostic.
        Pattern("nightly-job-of-3-minutes", work(bursts(always, 3, DAY), TRAIN), holder=queue),
        # --- Small servers
        *(Pattern("standby-%sGiB" % size, work(never), holder=SERVER, waits=True, memory_gib=size, near=size >= 3)
          for size in (0.6, 1, 3, 5, 7.5)),
        Pattern("standby-unit-2GiB", work(never), holder=UNIT("embed.service", listens=True, clients=0), waits=True,
                memory_gib=2),
        Pattern("standby-instance-1GiB", work(never), holder=SERVER, waits=True, memory_gib=1, instance="1g.10gb"),
        Pattern("standby-2GiB-polls-slowly", work(never, rest=REST._replace(cpu=0.05)), holder=SERVER, waits=True,
                memory_gib=2, near=True),
        # --- JPEG and optical flow, which the exporter reports with the video engines
        Pattern("jpeg", work(bursts(hours(7, 23), 5, 60), TRANSCODE._replace(codec=0.02)), near=True),
        Pattern("optical-flow", steady(TRANSCODE._replace(codec=0.01, pcie=1e5)), near=True),
        # --- Rhythms
        Pattern("second-weekends", work(on_days((5, 600), (6, 600), (19, 600), (20, 600), length=8 * HOUR), TRAIN)),
        Pattern("second-weekends-later", work(on_days((12, 600), (13, 600), (26, 600), (27, 600), length=8 * HOUR), TRAIN)),
        Pattern("second-saturdays", work(on_days((5, 120), (19, 120), length=3 * HOUR), TRAIN), near=True),
        Pattern("weekly-12h-late", work(on_days(*late, length=2 * HOUR), TRAIN), near=True),
        Pattern("weekly-12h-late-2w", work(on_days(*late, length=2 * HOUR), TRAIN), came=2 * WEEK, near=True),
        Pattern("each-10-days", work(days_apart(9 * DAY, 10 * DAY, 4 * HOUR), TRAIN), near=True),
        Pattern("nightly-berlin", work(hours(1.5, 2.5), TRAIN)),
        Pattern("nightly-sydney", work(hours(2, 2.5, zone=SYDNEY), TRAIN)),
        Pattern("weekly-berlin", work(hours(2, 3, (6,), BERLIN), TRAIN), near=True),
        Pattern("quarter-end", work(on_days((22, 540), (23, 540), length=8 * HOUR), TRAIN), rare=True, asked=True),
        # --- Paused training: the history cannot show that it continues, but it must not be stopped soon.
        *(Pattern("paused-training-%dd" % days, paused((10, 10 + days), (24, 24 + days)), asked=True, near=True,
                  holder=UNIT("train.service", listens=False, clients=0))
          for days in (2, 3, 5, 6)),
        Pattern("paused-training-late", paused((26, 32)), asked=True, near=True),
        # --- Kernels all the time that are not stalled
        Pattern("simulation", steady(SIMULATION), near=True),
        Pattern("long-evaluation", phases((20 * HOUR, TRAIN), (50, HUNG), (10, TRAIN)), near=True),
        Pattern("kernel-that-waits", steady(HUNG), holder=Holder(listens=True, clients=0), near=True),
    ]  # fmt: skip


def left() -> list[Pattern]:
    """Return holders who left, or whose workload hangs."""
    end = 7 * DAY
    serving = until(end, hours(6, 24))
    probed = blend(REQUEST, 0.01)._replace(tensor=0, cpu=0.01)
    start = REST._replace(busy=0.3, sm=0.2, bandwidth=0.2, pcie=2e9, power=200, cpu=1)

    def restarted(minute: int) -> tuple[Use, bool]:
        if minute >= end:
            return (start if minute % (6 * HOUR) < 3 else REST), False
        return (SERVE, True) if serving(minute) else (REST, False)

    def diagnosed(minute: int) -> tuple[Use, bool]:
        if minute >= end:
            return (TRAIN._replace(cpu=0.002) if 180 <= minute % DAY < 183 else REST), False
        return (SERVE, True) if serving(minute) else (REST, False)

    silent = UNIT("predict.service", listens=False, clients=0)
    made = [
        Pattern("hung-all-reduce", trained(end, HUNG), holder=UNIT("train.service")),
        Pattern("hung-all-reduce-warm", trained(end, HUNG._replace(power=250, sm=0.4)), holder=UNIT("train.service")),
        Pattern("hung-all-reduce-dcgm", trained(end, HUNG), dcgm=True, holder=UNIT("train.service")),
        Pattern("hung-all-reduce-rank-0", trained(end, HUNG), holder=UNIT("train.service", listens=True, clients=7)),
        Pattern("probes-of-1-percent", work(serving, SERVE, probed), holder=SERVER, memory_gib=60),
        Pattern("probes-of-1-percent-small", work(serving, SERVE, probed), holder=SERVER, memory_gib=2),
        Pattern("restarts-each-6h", restarted, holder=SERVER, memory_gib=60,
                cpu_resets=lambda minute: minute >= end and minute % (6 * HOUR) == 0),
        Pattern("nightly-diagnostic", diagnosed, holder=SERVER, memory_gib=60),
        Pattern("restarts-each-6h-not-listening", restarted, holder=silent, memory_gib=60, discounted=True,
                cpu_resets=lambda minute: minute >= end and minute % (6 * HOUR) == 0),
        Pattern("nightly-diagnostic-not-listening", diagnosed, holder=silent, memory_gib=60, discounted=True),
        Pattern("left-with-cpu-time", trained(end, REST._replace(cpu=0.05)), near=True),
        Pattern("left-with-pcie", trained(end, REST._replace(pcie=5e6)), near=True),
        Pattern("left-with-power", trained(end, REST._replace(power=105)), near=True),
        Pattern("left-with-bandwidth", trained(end, REST._replace(bandwidth=0.006)), near=True),
        Pattern("left-counted", trained(end), counts=True),
        Pattern("left-counted-no-profiling", trained(end), counts=True, without=NO_PROFILING, lengthened=12 * HOUR),
    ]  # fmt: skip
    return [replace(one, abandoned=end) for one in made]
