# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the work of GPUs and GPU instances for some seconds.

Utilization is sampled once a second and rounded to whole percents, so it misses short kernels. So counters are also
read at the start and at the end.

For GPUs in MIG mode, NVML reports no utilization, and therefore (nvml.h) no process accounting or process utilization.
GPM (Hopper and later) measures instances.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Dict, Mapping, Sequence

from ....errors import NvmlError
from ....model import Place, Work

#: Values of counters or GPM metrics, by name or number.
Values = Dict[Any, float]

#: Seconds between samples of the utilization.
PERIOD_SECONDS = 1.0
#: Minimum number of seconds between two GPM samples (nvml.h).
LEAST_SECONDS = 0.1
_ENGINES = ("Encoder", "Decoder", "Jpg", "Ofa")
#: Kinds of samples that the driver records: utilization of kernels, JPEG and optical flow.
_SAMPLES = (1, 8, 9)
#: GPM metrics by number: kernels, memory bandwidth, JPEG and optical flow, video decoders, traffic in MiB/s in both
#: directions.
_KERNELS, _BANDWIDTH, _JPEG, _OPTICAL_FLOW, _DECODERS = 1, 10, range(40, 48), range(50, 52), range(30, 38)
_PCIE, _NVLINK = (20, 21), (60, 61)
_NUMBERS = (_KERNELS, _BANDWIDTH, *_JPEG, *_OPTICAL_FLOW, *_DECODERS, *_PCIE, *_NVLINK)
#: Counters among NVML's field values: (number, scope, bytes per unit). NVLink's scope is all links.
_COUNTERS = {
    "pcie": ((197, 0, 1), (198, 0, 1)),
    "nvlink": ((138, 0xFFFFFFFF, 1024), (139, 0xFFFFFFFF, 1024)),
}


def measure(session: Any, places: Sequence[Place], seconds: float) -> dict[Place, Work]:
    """Watch these GPUs and GPU instances, and return their work.

    `session` is a `Session`. For a `BoundedSession`, its `perform` calls this function in the child. GPUs that fail are
    left out.
    """
    return _Meter(session).work(places, seconds)


class _Meter:
    """Measures work with a session's calls."""

    def __init__(self, session: Any) -> None:
        self._nvml = session._nvml
        self._call, self._optional, self._best_effort = session._call, session._optional, session._best_effort

    def work(self, places: Sequence[Place], seconds: float) -> dict[Place, Work]:
        """Return the work of these places."""
        found = self._devices({uuid for uuid, _instance in places})
        places = [place for place in places if place[0] in found]
        samples = {place: self._gpm_sample(found[place[0]][1], place[1]) for place in places}
        first = {uuid: self._counters(handle) for uuid, (_index, handle) in found.items()}
        began, since = time.monotonic(), int(time.time() * 1e6)
        ends = began + max(seconds, LEAST_SECONDS)
        rates: dict[str, list[tuple[int | None, int | None]]] = {uuid: [] for uuid in found}
        while True:
            for uuid in [uuid for uuid in found if rates.get(uuid) is not None]:
                try:
                    rates[uuid].append(self._rates(found[uuid][1]))
                except NvmlError:
                    del rates[uuid]
            remaining = ends - time.monotonic()
            if remaining <= 0:
                break
            time.sleep(min(PERIOD_SECONDS, remaining))
        work = {}
        for place in places:
            uuid, instance = place
            index, handle = found[uuid]
            gpm = self._gpm(samples[place], self._gpm_sample(handle, instance))
            taken = time.monotonic() - began
            if uuid in rates:
                moved = _growth(first[uuid], self._counters(handle), taken)
                kept = self._kept_samples(handle, since) if instance is None else 0
                work[place] = _work(index, taken, [(kept, None), *rates[uuid]], gpm, moved)
        return work

    def _devices(self, uuids: set[str]) -> dict[str, tuple[int, Any]]:
        """Return (index, handle) by UUID."""
        found = {}
        for index in range(self._call("nvmlDeviceGetCount")):
            with contextlib.suppress(NvmlError):
                handle = self._call("nvmlDeviceGetHandleByIndex", index, gpu=str(index))
                uuid = self._call("nvmlDeviceGetUUID", handle, gpu=str(index))
                if uuid in uuids:
                    found[uuid] = (index, handle)
        return found

    def _rates(self, handle: Any) -> tuple[int | None, int | None]:
        """Return the utilization of kernels and of the busiest engine, in percent."""
        rates = self._optional("nvmlDeviceGetUtilizationRates", handle)
        engines = {name: self._best_effort("nvmlDeviceGet%sUtilization" % name, handle) for name in _ENGINES}
        used = [int(engine[0]) for engine in engines.values() if engine is not None]
        known = None not in (engines["Jpg"], engines["Ofa"])
        highest = None if rates is None else max([int(rates.gpu), *used])
        return highest, max(used) if known else None

    def _kept_samples(self, handle: Any, since: int) -> int:
        """Return the highest utilization in percent that the driver recorded.

        `since` is a Unix time in microseconds. The driver takes several samples a second, for the GPU and for each
        process.
        """
        found = []
        for kind in _SAMPLES:
            _type, samples = self._best_effort("nvmlDeviceGetSamples", handle, kind, since) or (0, ())
            found += [(one.timeStamp, one.sampleValue.uiVal) for one in samples]
        for one in self._best_effort("nvmlDeviceGetProcessUtilization", handle, since) or ():
            found += [(one.timeStamp, percent) for percent in (one.smUtil, one.encUtil, one.decUtil)]
        return max([int(percent) for at, percent in found if at > since and percent <= 100], default=0)

    def _counters(self, handle: Any) -> Values:
        """Return the energy in joules and the traffic in bytes.

        The counters start when the driver is loaded. A counter of 0 is unknown, because some drivers report success
        without a value.
        """
        values: Values = {}
        energy = self._best_effort("nvmlDeviceGetTotalEnergyConsumption", handle)
        if energy is not None:
            values["energy"] = energy / 1000.0
        for name, counters in _COUNTERS.items():
            fields = [(number, scope) for number, scope, _unit in counters]
            answers = self._best_effort("nvmlDeviceGetFieldValues", handle, fields) or ()
            total = sum(_number(one) * unit for one, (_field, _scope, unit) in zip(answers, counters))
            if total > 0:
                values[name] = total
        return values

    def _gpm_sample(self, handle: Any, instance: int | None) -> Any:
        """Return a sample, or None if GPM does not measure the place."""
        support = self._best_effort("nvmlGpmQueryDeviceSupport", handle)
        if support is None or not support.isSupportedDevice:
            return None
        sample = self._best_effort("nvmlGpmSampleAlloc")
        if sample is None:
            return None
        of = ("nvmlGpmSampleGet", handle) if instance is None else ("nvmlGpmMigSampleGet", handle, instance)
        if self._best_effort(*of, sample) is None:
            self._best_effort("nvmlGpmSampleFree", sample)
            return None
        return sample

    def _gpm(self, first: Any, last: Any) -> Values:
        """Return the measured values by number, and free both samples."""
        samples = [sample for sample in (first, last) if sample is not None]
        values: Values = {}
        if len(samples) == 2:
            request = self._nvml.c_nvmlGpmMetricsGet_t()
            request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
            request.numMetrics, request.sample1, request.sample2 = len(_NUMBERS), first, last
            for metric, number in zip(request.metrics, _NUMBERS):
                metric.metricId = number
            if self._best_effort("nvmlGpmMetricsGet", request) is not None:
                # This comparison also excludes NaN.
                values = {
                    number: metric.value
                    for number, metric in zip(_NUMBERS, request.metrics)
                    if metric.nvmlReturn == 0 and 0.0 <= metric.value < float("inf")
                }
        for sample in samples:
            self._best_effort("nvmlGpmSampleFree", sample)
        return values


def _number(answer: Any) -> int:
    """Return a field value, or 0 if it is unknown."""
    if answer.nvmlReturn != 0:
        return 0
    return int({1: answer.value.uiVal, 3: answer.value.ullVal}.get(answer.valueType, 0))


def _growth(first: Values, last: Values, seconds: float) -> Values:
    """Return the growth of counters per second, without counters that were reset."""
    return {name: (last[name] - first[name]) / seconds for name in first if last.get(name, -1.0) >= first[name]}


def _sum(gpm: Values, numbers: Sequence[int], moved: float | None) -> float | None:
    """Return the traffic in both directions, in bytes per second.

    `moved` is the counter's growth.
    """
    known = [gpm[number] * (1 << 20) for number in numbers if number in gpm]
    return max([sum(known), moved or 0.0]) if len(known) == len(numbers) or moved is not None else None


def _work(
    index: int,
    seconds: float,
    rates: Sequence[tuple[int | None, int | None]],
    gpm: Mapping[int, float],
    moved: Values,
) -> Work:
    highest = [gpu for gpu, _engines in rates]
    engines = [share / 100.0 for _gpu, share in rates if share is not None]
    by_gpm = [gpm[number] / 100.0 for number in (*_JPEG, *_OPTICAL_FLOW, *_DECODERS) if number in gpm]
    known = engines or (any(one in gpm for one in _JPEG) and any(one in gpm for one in _OPTICAL_FLOW))
    return Work(
        index,
        seconds,
        utilization_percent=None if None in highest else max(one or 0 for one in highest),
        kernels_ratio=gpm[_KERNELS] / 100.0 if _KERNELS in gpm else None,
        engines_ratio=max([*engines, *by_gpm]) if known else None,
        bandwidth_ratio=gpm[_BANDWIDTH] / 100.0 if _BANDWIDTH in gpm else None,
        pcie_bytes_per_second=_sum(dict(gpm), _PCIE, moved.get("pcie")),
        nvlink_bytes_per_second=_sum(dict(gpm), _NVLINK, moved.get("nvlink")),
        watts=moved.get("energy"),
    )
