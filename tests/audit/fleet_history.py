# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generate a fleet's history as OpenMetrics, and serve it from a real Prometheus.

Each GPU has at most one problem.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Callable, Iterator, Mapping

from tests.monitoring.prometheus_process import running
from tests.monitoring.rule_files import TOOLS

STEP = 300
#: Length of a Prometheus block in seconds.
BLOCK = 7200
GIB = float(1 << 30)
#: DCGM's value for "unknown": https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-types.html
SENTINEL = 9223372036854775794.0

#: Maps an hour of the window to a value, or to None if there is no sample.
Course = Callable[[float], "float | None"]


def steady(value: float) -> Course:
    return lambda hour: value


def since(start: float, course: Course) -> Course:
    return lambda hour: course(hour) if hour >= start else None


def until(end: float, course: Course) -> Course:
    return lambda hour: course(hour) if hour < end else None


def wave(low: float, high: float) -> Course:
    """Return a daily cycle: `low` at night, `high` by day."""
    return lambda hour: low + (high - low) * (1 - math.cos(2 * math.pi * hour / 24)) / 2


@dataclass(frozen=True)
class Device:
    """A GPU or an instance, and the course (values over time) of each series.

    All other series have a healthy GPU's values.
    """

    host: str
    index: int
    mig_instance: str = ""
    mig_profile: str = ""
    series: Mapping[str, Course] = field(default_factory=dict)
    #: Courses of series with one more label, by (name, label, label value).
    labelled: Mapping[tuple[str, str, str], Course] = field(default_factory=dict)
    #: Names of the jobs that report the device. Two exporters on one host have two jobs.
    jobs: tuple[str, ...] = ("gpu_exporter",)
    #: The course of gpu:info. The device has samples only while this course has a value.
    info: Course = lambda hour: 1
    #: The whole host's series: (name, labels, course).
    of_host: tuple[tuple[str, Mapping[str, str], Course], ...] = ()
    #: The UUID that a host reports, or empty for a GPU without a host.
    known_uuid: str = ""

    @property
    def uuid(self) -> str:
        return self.known_uuid or "GPU-%s-%d" % (self.host, self.index)

    @property
    def labels(self) -> dict[str, str]:
        found = {"host": self.host, "gpu_uuid": self.uuid, "gpu_index": str(self.index)}
        if self.mig_instance:
            found.update(mig_instance=self.mig_instance, mig_profile=self.mig_profile)
        return found


WELL: Mapping[str, Course] = {
    "gpu:memory_used_bytes:max5m": wave(50 * GIB, 70 * GIB),
    "gpu:memory_total_bytes": steady(80 * GIB),
    "gpu:busy_ratio:avg5m": wave(0.6, 0.9),
    "gpu:activity_ratio:max5m": wave(0.7, 1.0),
    "gpu:compute_active_ratio:avg5m": wave(0.5, 0.8),
    "gpu:memory_bandwidth_active_ratio:avg5m": steady(0.4),
    "gpu:tensor_active_ratio:avg5m": steady(0.3),
    "gpu:processes": steady(1),
    "gpu:processes:max5m": steady(1),
    "gpu:held:avg5m": steady(1),
    # These series only show that the exporter measures the signs of work. Rules combine their values into
    # gpu:activity_ratio:max5m.
    "gpu:sm_active_ratio": steady(0.5),
    "gpu:pcie_bytes_per_second": steady(0),
    "gpu:codec_busy_ratio": steady(0),
    "gpu:power_watts": steady(100),
    "gpu:process_cpu_seconds_total": steady(0),
}
AT_REST: Mapping[str, Course] = {
    **{name: steady(0.0) for name in WELL if "ratio" in name},
    "gpu:memory_used_bytes:max5m": steady(20 * GIB),
}

#: Values for a GPU that a process holds, and for a GPU without a holder.
HELD = {("gpu:held", "kind", "process"): steady(1)}
NOBODY = {**AT_REST, "gpu:processes": steady(0), "gpu:processes:max5m": steady(0), "gpu:held:avg5m": steady(0)}
CLEAR = dict.fromkeys(HELD, steady(0))


def use(memory_gib, compute, total_gib=80):
    """Return a steady workload's series."""
    return {
        "gpu:memory_used_bytes:max5m": steady(memory_gib * GIB),
        "gpu:memory_total_bytes": steady(total_gib * GIB),
        "gpu:busy_ratio:avg5m": steady(compute),
        "gpu:activity_ratio:max5m": steady(compute),
        "gpu:compute_active_ratio:avg5m": steady(compute),
    }


def device(host, index, series=None, instance="", profile=""):
    """Return a device that a process holds.

    The device works well unless `series` says otherwise.
    """
    return Device(host, index, instance, profile, series=series or {}, labelled=HELD)


def text(devices: list[Device], start: int, first: int, last: int) -> Iterator[str]:
    """Yield OpenMetrics lines of the samples from `first` to `last`.

    The function groups lines by metric name, and then by series. Courses count hours from `start`.
    """
    rows: dict[str, list[tuple[dict[str, str], Course]]] = {}
    for device in devices:
        for name, course in {**WELL, **device.series}.items():
            rows.setdefault(name, []).append((device.labels, course))
        for (name, label, value), course in device.labelled.items():
            rows.setdefault(name, []).append(({**device.labels, label: value}, course))
        for name, labels, course in device.of_host:
            rows.setdefault(name, []).append(({"host": device.host, **labels}, course))
        for job in device.jobs:
            labels = {**device.labels, "job": job, "model": "NVIDIA H100 80GB HBM3", "vendor": "nvidia"}
            rows.setdefault("gpu:info", []).append((labels, device.info))
    for name, series in rows.items():
        yield "# TYPE %s gauge\n" % name
        for labels, course in series:
            written = ",".join('%s="%s"' % pair for pair in labels.items())
            for at in range(first, last + 1, STEP):
                value = course((at - start) / 3600)
                if value is not None:
                    yield "%s{%s} %s %d\n" % (name, written, value, at)
    yield "# EOF\n"


def prometheus(devices: list[Device], hours: float, folder: Path) -> contextlib.AbstractContextManager[str]:
    """Serve the devices' history up to now from a Prometheus; return its address."""
    return serve(partial(text, devices), hours, folder)


@contextlib.contextmanager
def serve(
    history: Callable[[int, int, int], Iterator[str]], hours: float, folder: Path, block: int = BLOCK
) -> Iterator[str]:
    """Serve any OpenMetrics text from a real Prometheus, and yield its address.

    The function calls `history` with the history's start, and the times of the first and the last sample, in seconds
    since 1970. `block` is the length of a Prometheus block in seconds: two hours, or two hours times 3, 9 and so on.
    """
    # The history must not reach into the future. The history must end less than 15 minutes ago, because states are
    # valid only for that time.
    end = int(time.time()) // STEP * STEP
    make_blocks(history, end - int(hours * 3600), end, folder, block)
    with serve_blocks(folder) as url:
        yield url


def make_blocks(
    history: Callable[[int, int, int], Iterator[str]],
    start: int,
    end: int,
    folder: Path,
    block: int = BLOCK,
    step: int = STEP,
) -> None:
    """Write the blocks of a history from `start` to `end` to folder/data.

    Samples are `step` seconds apart.
    """
    source = folder / "history.om"
    make = [
        str(TOOLS / "promtool"),
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        "-q",
        "--max-block-duration=%ds" % block,
        str(source),
        str(folder / "data"),
    ]
    # promtool reads its complete input once for each block, so give each block its own input.
    for first in range(start // block * block, end + 1, block):
        with source.open("w") as file:
            file.writelines(history(start, max(start, first), min(end, first + block - step)))
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    source.unlink()
    (folder / "prometheus.yml").write_text("global: {}\n")


@contextlib.contextmanager
def serve_blocks(folder: Path) -> Iterator[str]:
    """Serve the blocks in folder/data from a real Prometheus, and yield its address."""
    # On a busy machine, a rule over days of a large fleet may exceed the default timeout of two minutes.
    lasting = ("--storage.tsdb.retention.time=10y", "--query.timeout=30m")
    with running(folder, folder / "prometheus.yml", *lasting) as server:
        yield server.url
