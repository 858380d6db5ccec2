# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure a GPU's activity, power and clock over a period with NVML."""

from __future__ import annotations

import sys
from typing import Any, Callable

import pynvml
from exporter import SOURCE

sys.path.append(str(SOURCE))
from openfleet_exporter import gpm


class Activity:
    """A measurement that begins when the object is created.

    NVML stays initialized until `end` is called.
    """

    def __init__(self, index: int) -> None:
        pynvml.nvmlInit()
        self._gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        self._sample = gpm.take(self._gpu, None) if gpm.supported(self._gpu) else None
        self._millijoules = _asked(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu))

    def end(self, seconds: float) -> dict[str, float]:
        """Return `active` (a ratio, from GPM), `watts` (mean) and `sm_mhz`.

        `seconds` is the duration of the measurement. The result omits values that NVML does not report.
        """
        found: dict[str, float] = {}
        try:
            if self._sample is not None:
                after = gpm.take(self._gpu, None)
                found.update(_ratio(self._sample, after))
            used = _asked(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu))
            if None not in (used, self._millijoules):
                found["watts"] = round((used - self._millijoules) / 1000 / seconds, 1)
            clock = _asked(lambda: pynvml.nvmlDeviceGetClockInfo(self._gpu, pynvml.NVML_CLOCK_SM))
            if clock is not None:
                found["sm_mhz"] = clock
        finally:
            pynvml.nvmlShutdown()
        return found


def _ratio(before: Any, after: Any) -> dict[str, float]:
    ratio = gpm.between(before, after).get("graphics_active") if after is not None else None
    for sample in (before, after):
        if sample is not None:
            pynvml.nvmlGpmSampleFree(sample)
    return {} if ratio is None else {"active": round(ratio, 4)}


def _asked(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except pynvml.NVMLError:
        return None
