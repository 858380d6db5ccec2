# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Days of a fleet as OpenMetrics text, and a real Prometheus that has them. Every GPU has one trouble, or none."""

from __future__ import annotations

import contextlib
import math
import subprocess
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Callable, Iterator, Mapping

from prometheus_process import running
from rule_files import TOOLS

STEP = 300
#: What a block of Prometheus holds, in seconds.
BLOCK = 7200
GIB = float(1 << 30)
#: What a blank value of DCGM's is: https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-types.html
SENTINEL = 9223372036854775794.0

#: Of the hour of the window to the value, or None where there is no sample.
Course = Callable[[float], "float | None"]


def steady(value: float) -> Course:
    return lambda hour: value


def since(start: float, course: Course) -> Course:
    return lambda hour: course(hour) if hour >= start else None


def until(end: float, course: Course) -> Course:
    return lambda hour: course(hour) if hour < end else None


def wave(low: float, high: float) -> Course:
    """A day's course: low at night, high by day."""
    return lambda hour: low + (high - low) * (1 - math.cos(2 * math.pi * hour / 24)) / 2


@dataclass(frozen=True)
class Device:
    """A GPU or an instance, and the course of each of its series; by default it works well."""

    host: str
    index: int
    mig_instance: str = ""
    mig_profile: str = ""
    series: Mapping[str, Course] = field(default_factory=dict)
    #: Series with a further label: (name, label, value of the label) to the course.
    labelled: Mapping[tuple[str, str, str], Course] = field(default_factory=dict)
    #: The jobs that report it: two exporters on one host do.
    jobs: tuple[str, ...] = ("gpu_exporter",)
    #: When there are samples of it at all.
    info: Course = lambda hour: 1

    @property
    def uuid(self) -> str:
        return "GPU-%s-%d" % (self.host, self.index)

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
    # That these signs of work are measured; what they show is in gpu:activity_ratio:max5m.
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

#: A process has it; nobody has it, and a server says so.
HELD = {("gpu:held", "kind", "process"): steady(1)}
NOBODY = {**AT_REST, "gpu:processes": steady(0), "gpu:processes:max5m": steady(0), "gpu:held:avg5m": steady(0)}
CLEAR = dict.fromkeys(HELD, steady(0))


def use(memory_gib, compute, total_gib=80):
    """A steady workload."""
    return {
        "gpu:memory_used_bytes:max5m": steady(memory_gib * GIB),
        "gpu:memory_total_bytes": steady(total_gib * GIB),
        "gpu:busy_ratio:avg5m": steady(compute),
        "gpu:activity_ratio:max5m": steady(compute),
        "gpu:compute_active_ratio:avg5m": steady(compute),
    }


def device(host, index, series=None, instance="", profile=""):
    """One that a process has; it works well unless the series say otherwise."""
    return Device(host, index, instance, profile, series=series or {}, labelled=HELD)


def text(devices: list[Device], start: int, first: int, last: int) -> Iterator[str]:
    """OpenMetrics of the samples from `first` to `last`: those of a series together, the series of a name together.

    Courses count their hours from `start`.
    """
    rows: dict[str, list[tuple[dict[str, str], Course]]] = {}
    for device in devices:
        for name, course in {**WELL, **device.series}.items():
            rows.setdefault(name, []).append((device.labels, course))
        for (name, label, value), course in device.labelled.items():
            rows.setdefault(name, []).append(({**device.labels, label: value}, course))
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
    """A real Prometheus that has the devices' history up to now; gives its address."""
    return serve(partial(text, devices), hours, folder)


@contextlib.contextmanager
def serve(
    history: Callable[[int, int, int], Iterator[str]], hours: float, folder: Path, block: int = BLOCK
) -> Iterator[str]:
    """The same of any OpenMetrics text, made for (start of all, first sample, last sample) in seconds since the epoch.

    `block` is what a block holds, in seconds: two hours, or those three, nine, … times.
    """
    # Not into the future, and no longer ago than the 15 minutes within which a state holds.
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
    """Write such a text from `start` to `end` to folder/data; samples are `step` seconds apart."""
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
    # promtool reads all of its input once for each block, so that each block gets an input of its own.
    for first in range(start // block * block, end + 1, block):
        with source.open("w") as file:
            file.writelines(history(start, max(start, first), min(end, first + block - step)))
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    source.unlink()
    (folder / "prometheus.yml").write_text("global: {}\n")


@contextlib.contextmanager
def serve_blocks(folder: Path) -> Iterator[str]:
    """A real Prometheus that has the blocks in folder/data; gives its address."""
    # On a machine with much else to do a rule over days of a whole fleet may take more than the two minutes that are usual.
    lasting = ("--storage.tsdb.retention.time=10y", "--query.timeout=30m")
    with running(folder, folder / "prometheus.yml", *lasting) as server:
        yield server.url
