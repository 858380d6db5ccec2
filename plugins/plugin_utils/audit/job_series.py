# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the use of devices over time, and which devices have a job label."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Collection, Mapping

from .asking import Asking
from .job_devices import Device
from .series import BY, SERIES, Series, key_of

#: Possible lengths of an interval in seconds.
_STEPS = (300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 86400)
#: Maximum number of intervals for one device, and in total.
_MOST_INTERVALS, _MOST_SAMPLES = 3000, 3_000_000
#: The exporter's series for the job label, which its other series have, too.
_LABELLED = 'count by (%s, workload) (count_over_time(gpu:info{workload=~"[0-9]{1,12}",%%(where)s}[%ds]))'


@dataclass(frozen=True)
class DeviceUse:
    """Use of devices in intervals of equal length.

    By device and number of the interval, `compute` has the average active share of the SMs, and `memory` the highest
    number of used bytes. The window's last interval has the number 0, the one before it 1.
    """

    step_seconds: float
    compute: Mapping[Device, Mapping[int, float]] = field(default_factory=dict)
    memory: Mapping[Device, Mapping[int, float]] = field(default_factory=dict)


def step_of(window_seconds: float, devices: int) -> int:
    """Return the length of an interval for a window and a number of devices."""
    for step in _STEPS:
        count = window_seconds / step
        if count <= _MOST_INTERVALS and count * devices <= _MOST_SAMPLES:
            return step
    return _STEPS[-1]


def labelled(asking: Asking, span_seconds: int) -> dict[str, frozenset[Device]]:
    """Return the devices with the exporter's job label, by the job's ID.

    Raises PrometheusError.
    """
    found: dict[str, set[Device]] = defaultdict(set)
    for sample in asking.ask(_LABELLED % (BY, span_seconds)):
        found[sample.labels.get("workload", "")].add(key_of(sample.labels)[:3])
    return {job: frozenset(devices) for job, devices in found.items()}


def use_of(asking: Asking, span_seconds: int, devices: Collection[Device]) -> DeviceUse:
    """Return the use of these devices over the last `span_seconds`.

    Raises PrometheusError.
    """
    step = step_of(span_seconds, len(devices))
    if not devices:
        return DeviceUse(step)
    return DeviceUse(
        step,
        _courses(asking, SERIES["compute"], "avg_over_time", (span_seconds, step), devices),
        _courses(asking, SERIES["memory"], "max_over_time", (span_seconds, step), devices),
    )


def _courses(
    asking: Asking, series: Series, function: str, times: tuple[int, int], devices: Collection[Device]
) -> dict[Device, dict[int, float]]:
    span, step = times
    uuids = sorted({device[1] for device in devices})
    recorded = asking.ask("count(last_over_time(%s{%%(where)s}[1h]))" % series.roll_up)
    name = series.roll_up if recorded else series.name
    expression = "max by (%s) (%s(%s{%%(where)s}[%ds]))" % (BY, function, name, step)
    found: dict[Device, dict[int, float]] = {}
    # The span is a whole number of steps, so that the last interval ends with the window.
    for course in asking.ask_courses(expression, span // step * step, step, uuids):
        device = key_of(course.labels)[:3]
        if device in devices:
            values = {
                round((asking.end_seconds - at) / step): value
                for at, value in course.values.items()
                if series.least <= value <= series.most
            }
            found.setdefault(device, {}).update(values)
    return found
