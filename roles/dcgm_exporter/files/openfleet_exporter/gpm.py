# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the utilization of GPUs and MIG instances from GPM (Hopper and later)."""

from __future__ import annotations

import math
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

import pynvml as nvml

from .gpus import Gpu, Gpus, NvmlGoneError, ask

MIB = 1 << 20
#: Ratios by name, with the number of NVML's percentage.
RATIOS = {
    "graphics_active": nvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
    "sm_active": nvml.NVML_GPM_METRIC_SM_UTIL,
    "sm_occupancy": nvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "memory_bandwidth_active": nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    "tensor_active": nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
}
#: Rates in bytes per second by name, with NVML's numbers for both directions. NVML reports them in MiB per second, for
#: the whole GPU.
RATES = {
    "pcie_bytes_per_second": (nvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, nvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC),
    "nvlink_bytes_per_second": (
        nvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
        nvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC,
    ),
}
#: Numbers of all metrics in one request.
_NUMBERS = (*RATIOS.values(), *(number for numbers in RATES.values() for number in numbers))
#: UUID of a GPU, and the GPU instance (None for the whole GPU).
Place = Tuple[str, Optional[int]]


class Gpm(threading.Thread):
    """Samples continuously, because each metric is computed from two samples."""

    def __init__(self, gpus: Gpus, interval: float, clock=time.monotonic) -> None:
        super().__init__(name="gpm", daemon=True)
        self.gpus, self.interval, self.clock = gpus, interval, clock
        self.lock = threading.Lock()
        self.gone: Optional[str] = None
        self._samples: Dict[Place, Any] = {}
        self._figures: Dict[Place, Tuple[float, Dict[str, float]]] = {}
        self._taken: Dict[Place, float] = {}
        self._busy_seconds: Dict[Place, float] = {}

    def figures(self, gpu_uuid: str, instance: Optional[int]) -> Dict[str, float]:
        """Return ratios and rates by name. Empty if NVML has no recent values."""
        with self.lock:
            when, figures = self._figures.get((gpu_uuid, instance), (0.0, {}))
        return figures if figures and self.clock() - when <= 3 * self.interval else {}

    def busy_seconds(self, gpu_uuid: str, instance: Optional[int]) -> Optional[float]:
        """Return the total time with kernels, including the time between scrapes.

        Returns None before the second sample.
        """
        with self.lock:
            return self._busy_seconds.get((gpu_uuid, instance))

    def run(self) -> None:
        while True:
            try:
                self.sample(self.gpus.scan())
            except NvmlGoneError as error:
                self.gone = str(error)
                return
            except nvml.NVMLError as error:
                print("cannot take GPM samples: %s" % error, flush=True)
            time.sleep(self.interval)

    def sample(self, gpus: List[Gpu]) -> None:
        places = set()
        for gpu in gpus:
            if gpu.lost or not supported(gpu.handle):
                continue
            # Rates exist only for the whole GPU, even if the GPU has instances.
            for instance in (None, *sorted({mig.gpu_instance for mig in gpu.mig_devices})):
                place = (gpu.entity.uuid, instance)
                sample = take(gpu.handle, instance)
                if sample is None:
                    continue
                places.add(place)
                former = self._samples.get(place)
                self._samples[place] = sample
                before, now = self._taken.get(place, 0.0), self.clock()
                self._taken[place] = now
                if former is not None:
                    figures = between(former, sample)
                    ask(nvml.nvmlGpmSampleFree, former)
                    with self.lock:
                        self._figures[place] = (now, figures)
                        if "graphics_active" in figures:
                            busy = figures["graphics_active"] * (now - before)
                            self._busy_seconds[place] = self._busy_seconds.get(place, 0.0) + busy
        for place in set(self._samples) - places:
            ask(nvml.nvmlGpmSampleFree, self._samples.pop(place))
            with self.lock:
                self._figures.pop(place, None)
                self._busy_seconds.pop(place, None)


def supported(handle: Any) -> bool:
    answer = ask(nvml.nvmlGpmQueryDeviceSupport, handle)
    return answer is not None and bool(answer.isSupportedDevice)


def take(handle: Any, instance: Optional[int]) -> Any:
    sample = ask(nvml.nvmlGpmSampleAlloc)
    if sample is None:
        return None
    if instance is None:
        taken = ask(nvml.nvmlGpmSampleGet, handle, sample)
    else:
        taken = ask(nvml.nvmlGpmMigSampleGet, handle, instance, sample)
    if taken is None:
        ask(nvml.nvmlGpmSampleFree, sample)
    return taken


def between(former: Any, latter: Any) -> Dict[str, float]:
    """Return the ratios and rates between two samples. Unknown values are omitted."""
    request = nvml.c_nvmlGpmMetricsGet_t()
    request.version = nvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(_NUMBERS)
    request.sample1, request.sample2 = former, latter
    for position, number in enumerate(_NUMBERS):
        request.metrics[position].metricId = number
    if ask(nvml.nvmlGpmMetricsGet, request) is None:
        return {}
    values = {
        number: metric.value
        for number, metric in zip(_NUMBERS, request.metrics)
        # This comparison also excludes NaN.
        if metric.nvmlReturn == nvml.NVML_SUCCESS and 0.0 <= metric.value < math.inf
    }
    figures = {name: values[number] / 100.0 for name, number in RATIOS.items() if values.get(number, math.inf) <= 100.0}
    for name, directions in RATES.items():
        # Omit the sum if one direction is unknown.
        if all(number in values for number in directions):
            figures[name] = sum(values[number] for number in directions) * MIB
    return figures
