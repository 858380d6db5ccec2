# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which `gpu:*` series are asked for which figures, and by which roll-ups; docs/monitoring.md has them all."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Mapping

from .history import Key

#: What tells subjects apart: host, GPU, MIG instance.
BY = "host, gpu_uuid, mig_instance"

#: Between two values of a roll-up, and of the longer ones: the intervals of the rules that record them.
ROLL_UP_SECONDS = 300
LONG_SECONDS = 900

#: Windows from here on, in seconds, are read from the longer ones: a sample in place of three costs a third.
LONG_WINDOW_SECONDS = 3 * 86400

#: Below this ACTIVITY is none; the same of kernels alone, which count five times there. What a monitoring client makes of a GPU
#: stays below.
QUIET_RATIO = 0.01
QUIET_BUSY_RATIO = QUIET_RATIO / 5

#: The highest sample of any sign of work in five minutes, and the work that `gpu:busy_ratio` does not report, or reports alone:
#: only as roll-ups.
ACTIVITY = "gpu:activity_ratio:max5m"
#: ACTIVITY without the CPU time of processes.
DEVICE_ACTIVITY = "gpu:device_activity_ratio:max5m"
UNREPORTED_WORK = "gpu:unreported_work_ratio:avg5m"
#: There only where `gpu:busy_ratio` shows kernels all the time, and all else that is measured rests.
UNEXPLAINED_BUSY = "gpu:unexplained_busy_ratio:avg5m"

#: What a figure is in PromQL.
OVER_TIME = {
    "p50": "quantile_over_time(0.5, %s)",
    "p95": "quantile_over_time(0.95, %s)",
    "p99": "quantile_over_time(0.99, %s)",
    "max": "max_over_time(%s)",
    "min": "min_over_time(%s)",
    "mean": "avg_over_time(%s)",
    "count": "count_over_time(%s)",
}


@dataclass(frozen=True)
class Series:
    """A `gpu:*` series: its roll-up, the figures that are asked of it, and the values that it can have.

    `long` is its longer roll-up, if there is one, and `peaks` the one of which p99 and max are taken then.
    """

    name: str
    roll_up: str
    figures: tuple[str, ...]
    least: float = 0.0
    most: float = math.inf
    long: str = ""
    peaks: str = ""


_RATIO = 1.05  # a counter read a moment apart from its clock gives a little over 1
_ALL = ("p50", "p95", "p99", "max", "mean")


def _series(name: str, kind: str, figures: tuple[str, ...], most: float, long: bool = True) -> Series:
    longer, peaks = ("%s:%s15m" % (name, kind), "%s:max15m" % name) if long else ("", "")
    return Series(name, "%s:%s5m" % (name, kind), figures, most=most, long=longer, peaks=peaks)


SERIES = {
    "memory": _series("gpu:memory_used_bytes", "max", _ALL, 1e15),
    "busy": _series("gpu:busy_ratio", "avg", ("max", "mean"), _RATIO, long=False),
    "compute": _series("gpu:compute_active_ratio", "avg", _ALL, _RATIO),
    "bandwidth": _series("gpu:memory_bandwidth_active_ratio", "avg", ("p95", "mean"), _RATIO),
    "tensor": _series("gpu:tensor_active_ratio", "avg", ("p95", "mean"), _RATIO),
    "processes": _series("gpu:processes", "max", ("max",), 1e6),
}
#: Stands for compute where nothing says how many SMs were at work.
BUSY_FOR_COMPUTE = replace(SERIES["busy"], figures=_ALL)
TENANT = _series("gpu:tenant_memory_used_bytes", "max", _ALL, 1e15, long=False)

#: In how much of five minutes it was held, and in how much it was throttled, for each reason; both only as roll-ups: holders
#: and reasons come and go as series, and what is not throttled has none of the latter.
HELD = "gpu:held:avg5m"
THROTTLED = "gpu:throttled:avg5m"

#: Series of the whole fleet, one number for each day (SPAN); what hardly changes is looked at four times (STEP) in it.
FLEET = {
    "gpus": "avg_over_time(count(count by (host, gpu_uuid) (gpu:info{%(where)s}))[SPAN:STEP])",
    "held_ratio": "avg(avg_over_time(gpu:held:avg5m{%(where)s}[SPAN]) >= 0 <= 1)",
    # A GPU whose figures are impossible is left out, and does not spoil the others' average.
    "busy_ratio": "avg(avg_over_time(gpu:busy_ratio:avg5m{%(where)s}[SPAN]) >= 0 <= 1.05)",
    "memory_ratio": "sum(avg_over_time(gpu:memory_used_bytes:max5m{%(where)s}[SPAN]) >= 0 <= 1e15)"
    " / sum(max by (host, gpu_uuid, mig_instance) (max_over_time(gpu:memory_total_bytes{%(where)s}[SPAN:STEP])))",
}


def key_of(labels: Mapping[str, str]) -> Key:
    """Whom a sample of a GPU or instance is of."""
    return (labels.get("host", ""), labels.get("gpu_uuid", ""), labels.get("mig_instance", ""), "")


def tenant_key_of(labels: Mapping[str, str]) -> Key:
    """The same of a sample of a tenant."""
    return (*key_of(labels)[:3], labels.get("tenant", ""))
