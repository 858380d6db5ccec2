# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the `gpu:*` series that audits read, with their statistics and roll-ups.

docs/monitoring.md describes all `gpu:*` series.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Mapping

from .history import Key

#: Labels that identify a subject: host, GPU, MIG instance.
BY = "host, gpu_uuid, mig_instance"

#: Intervals of the recording rules, in seconds: for normal and for long roll-ups.
ROLL_UP_SECONDS = 300
LONG_SECONDS = 900

#: Minimum length in seconds of a window for which long roll-ups are read. They have a third of the samples.
LONG_WINDOW_SECONDS = 3 * 86400

#: Minimum value of ACTIVITY that is a sign of work. Monitoring clients stay below it. The busy ratio has a lower
#: minimum, because ACTIVITY multiplies the share of time with kernels by five.
QUIET_RATIO = 0.01
QUIET_BUSY_RATIO = QUIET_RATIO / 5

#: Seconds for which a server must hardly work. A week has nights, a weekend and office hours.
HARDLY_SECONDS = 7 * 86400

#: This series and the next four exist only as roll-ups. ACTIVITY is the highest sample of any sign of work in five
#: minutes.
ACTIVITY = "gpu:activity_ratio:max5m"
#: Like ACTIVITY, but without the processes' CPU time.
DEVICE_ACTIVITY = "gpu:device_activity_ratio:max5m"
#: Work that `gpu:busy_ratio` does not report.
UNREPORTED_WORK = "gpu:unreported_work_ratio:avg5m"
#: Work that only `gpu:busy_ratio` reports: it shows constant load, and no other signal shows work.
UNEXPLAINED_BUSY = "gpu:unexplained_busy_ratio:avg5m"
#: Kernels that run all the time, but compute and move nothing. Exists only if tensor cores are measured.
STALLED = "gpu:stalled_ratio:avg5m"

#: PromQL for each statistic.
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
    """A `gpu:*` series with its roll-ups, statistics, and range of possible values.

    `long` is the long roll-up, or empty. `peaks` is the roll-up for the p99 and maximum of long windows.
    """

    name: str
    roll_up: str
    figures: tuple[str, ...]
    least: float = 0.0
    most: float = math.inf
    long: str = ""
    peaks: str = ""


_RATIO = 1.05  # above 1, because the samples of counter and clock are not simultaneous
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
#: Replaces `compute` if SM activity is not measured.
BUSY_FOR_COMPUTE = replace(SERIES["busy"], figures=_ALL)
TENANT = _series("gpu:tenant_memory_used_bytes", "max", _ALL, 1e15, long=False)

#: Share of five minutes in which a GPU was held, or throttled for a reason. Raw series cannot show this share, because
#: they exist only while there is a holder or a throttle reason.
HELD = "gpu:held:avg5m"
THROTTLED = "gpu:throttled:avg5m"

#: Fleet-wide queries that return one number per day (SPAN). Values that hardly change are sampled four times a day
#: (STEP).
FLEET = {
    "gpus": "avg_over_time(count(count by (host, gpu_uuid) (gpu:info{%(where)s}))[SPAN:STEP])",
    "held_ratio": "avg(avg_over_time(gpu:held:avg5m{%(where)s}[SPAN]) >= 0 <= 1)",
    # Drop impossible values, which would distort the average.
    "busy_ratio": "avg(avg_over_time(gpu:busy_ratio:avg5m{%(where)s}[SPAN]) >= 0 <= 1.05)",
    "memory_ratio": "sum(avg_over_time(gpu:memory_used_bytes:max5m{%(where)s}[SPAN]) >= 0 <= 1e15)"
    " / sum(max by (host, gpu_uuid, mig_instance) (max_over_time(gpu:memory_total_bytes{%(where)s}[SPAN:STEP])))",
}


def key_of(labels: Mapping[str, str]) -> Key:
    """Return the key of the GPU or instance in a sample's labels."""
    return (labels.get("host", ""), labels.get("gpu_uuid", ""), labels.get("mig_instance", ""), "")


def tenant_key_of(labels: Mapping[str, str]) -> Key:
    """Return the key of the tenant in a sample's labels."""
    return (*key_of(labels)[:3], labels.get("tenant", ""))
