# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generate a history for a lab host's Prometheus.

The history covers all GPUs and instances that the exporters report. Its series have the labels that Prometheus adds
when it scrapes, so later scraped samples belong to the same series.
"""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterator, Mapping, Tuple

from tests.lab.prometheus import Prometheus, PrometheusError, Sample

STEP = 300
DAY = 86400
GIB = float(1 << 30)
DATA = "/var/lib/prometheus/metrics2"

#: (GPU UUID, instance id or "").
Place = Tuple[str, str]


@dataclass(frozen=True)
class Use:
    """How a workload uses a GPU, as (value at night, value by day).

    Memory is in GiB. Compute is a share of all SMs of the GPU. `processes` is 0 if the workload holds the GPU without a
    process.
    """

    memory_gib: tuple[float, float]
    compute: tuple[float, float]
    processes: int = 1
    held: bool = True

    def at(self, seconds: int) -> tuple[float, float]:
        """Return (memory in bytes, share of the GPU's SMs) at a time in seconds."""
        day = (1 - math.cos(2 * math.pi * seconds / DAY)) / 2
        memory, compute = (low + (high - low) * day for low, high in (self.memory_gib, self.compute))
        return memory * GIB, compute


NOBODY = Use((0, 0), (0, 0), processes=0, held=False)

HELD = "gpu:held:avg5m"
#: Values that recording rules store every five minutes (roles/gpu_monitoring/files/rollups.yml). Each function takes
#: the use, the instance's share of the GPU's SMs, and the time.
_COURSES: Mapping[str, Callable[[Use, float, int], float]] = {
    "gpu:memory_used_bytes:max5m": lambda use, share, at: use.at(at)[0],
    "gpu:busy_ratio:avg5m": lambda use, share, at: min(1.0, use.at(at)[1] / share),
    "gpu:activity_ratio:max5m": lambda use, share, at: min(1.0, use.at(at)[1] / share),
    "gpu:compute_active_ratio:avg5m": lambda use, share, at: min(1.0, use.at(at)[1] / share),
    "gpu:memory_bandwidth_active_ratio:avg5m": lambda use, share, at: min(1.0, use.at(at)[1] / share) / 2,
    "gpu:tensor_active_ratio:avg5m": lambda use, share, at: min(1.0, use.at(at)[1] / share) / 2,
    "gpu:processes:max5m": lambda use, share, at: use.processes,
    HELD: lambda use, share, at: int(use.held),
}
#: The series from which the role's rules compute a recorded series, if its name does not show it. A GPU without the
#: source series has no recorded series either.
_MADE_OF = {"gpu:activity_ratio:max5m": "gpu:busy_ratio"}

#: Every GPU has at least one of these series, and every instance has the second one.
_ACTIVITIES = {"gpu:busy_ratio", "gpu:compute_active_ratio"}


@dataclass
class Subject:
    """A GPU or an instance, with the labels of its gpu:info and its other series.

    `series` maps the names of the other series to their labels and values.
    """

    labels: dict[str, str]
    series: dict[str, Sample] = field(default_factory=dict)


def subjects(prometheus: Prometheus) -> dict[Place, Subject]:
    """Return all GPUs and instances that Prometheus sees now.

    Raises PrometheusError if a query fails.
    """
    found = {_place(one.labels): Subject(_named(one.labels)) for one in prometheus.query("gpu:info")}
    wanted = "|".join(sorted({name.partition(":")[2].rpartition(":")[0] for name in _COURSES} | {"memory_total_bytes"}))
    for sample in prometheus.query('{__name__=~"gpu:(%s)"}' % wanted):
        name = sample.labels["__name__"]
        if _place(sample.labels) in found:
            found[_place(sample.labels)].series[name] = Sample(_named(sample.labels), sample.value)
    return found


def without_activity(there: Mapping[Place, Subject], uses: Mapping[Place, Use]) -> set[Place]:
    """Return the places in `uses` whose activity Prometheus does not know yet.

    Prometheus knows the activity of a new instance only after a second measurement. Until then, no history would be
    recorded for the instance.
    """
    return {place for place in uses if place not in there or not _ACTIVITIES & set(there[place].series)}


def _named(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name != "__name__"}


def _place(labels: Mapping[str, str]) -> Place:
    return labels["gpu_uuid"], labels.get("mig_instance", "")


def text(there: Mapping[Place, Subject], uses: Mapping[Place, Use], start: int, end: int) -> Iterator[str]:
    """Yield OpenMetrics lines of the history from `start` to `end`.

    A GPU or instance without an entry in `uses` was unused. Raises ValueError if `uses` has a GPU or an instance that
    does not exist, because its history would be lost.
    """
    nowhere = set(uses) - set(there)
    if nowhere:
        raise ValueError("there is no %s: Prometheus has not seen it" % sorted(nowhere))
    split = {uuid for uuid, instance in there if instance}
    times = range(start // STEP * STEP, end + 1, STEP)
    yield "# TYPE gpu:info gauge\n"
    for subject in there.values():
        row = _row("gpu:info", subject.labels)
        yield from (row % (1, at) for at in times)
    yield "# TYPE gpu:memory_total_bytes gauge\n"
    for subject in there.values():
        if "gpu:memory_total_bytes" in subject.series:
            labels, value = subject.series["gpu:memory_total_bytes"]
            row = _row("gpu:memory_total_bytes", labels)
            yield from (row % (value, at) for at in times)
    for name, course in _COURSES.items():
        yield "# TYPE %s gauge\n" % name
        for place, subject in there.items():
            # If a GPU has instances, only the instances have these series. A series that the exporter does not export
            # has no history either.
            whole = not place[1] and place[0] in split
            if not whole and (name == HELD or _MADE_OF.get(name, name.rpartition(":")[0]) in subject.series):
                kept = {
                    key: subject.labels[key] for key in ("host", "gpu_uuid", "mig_instance") if key in subject.labels
                }
                row, use, share = _row(name, kept), uses.get(place, NOBODY), _share(subject.labels)
                yield from (row % (course(use, share, at), at) for at in times)
    yield "# EOF\n"


def _share(labels: Mapping[str, str]) -> float:
    """Return an instance's share of the seven compute slices of its GPU.

    The share is 2 of 7 for 2g.20gb, and also for 2c.4g.40gb.
    """
    found = re.match(r"(\d+)[cg]\.", labels.get("mig_profile", ""))
    return int(found[1]) / 7 if found else 1.0


def _row(name: str, labels: Mapping[str, str]) -> str:
    written = ",".join('%s="%s"' % pair for pair in labels.items())
    assert "%" not in written
    return "%s{%s} %%s %%d\n" % (name, written)


def put_into(container: str, lines: Iterator[str]) -> None:
    """Replace the data of a lab host's Prometheus by this history.

    Prometheus continues scraping afterwards.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "history"
        with file.open("w") as output:
            output.writelines(lines)
        _podman("cp", str(file), "%s:/var/tmp/history" % container)
    # Write blocks of one week. promtool reads its whole input once per block, and a block has only two hours by
    # default.
    _inside(
        container,
        "rm -rf /var/tmp/recorded && promtool tsdb create-blocks-from openmetrics --max-block-duration=168h -q "
        "/var/tmp/history /var/tmp/recorded && chown -R prometheus: /var/tmp/recorded && rm /var/tmp/history",
    )
    _inside(
        container,
        "systemctl stop prometheus && rm -rf %(data)s/* && mv /var/tmp/recorded/* %(data)s/ && rmdir /var/tmp/recorded "
        "&& systemctl start prometheus" % {"data": DATA},
    )


def goes_on(prometheus: Prometheus, patience_seconds: float = 300) -> None:
    """Wait until Prometheus scrapes all exporters and has recorded their metrics."""
    deadline = time.monotonic() + patience_seconds
    # The generated history has no samples of these two series, so their values come from Prometheus itself.
    live = "count(up{job='gpu_exporter'} == 1) == count(up{job='gpu_exporter'}) == count(count by (host) (gpu:layout_drift))"
    seen = ""
    while time.monotonic() < deadline:
        try:
            targets = prometheus.targets().values()
            if prometheus.query(live) and set(targets) == {"up"}:
                return
            seen = "not all of its targets are up again: %s" % ", ".join(targets)
        except PrometheusError as error:  # it starts
            seen = str(error)
        reason = prometheus.why_broken()
        if reason:
            raise RuntimeError(reason)
        time.sleep(0.5)
    raise RuntimeError("Prometheus has its history, and then: %s" % seen)


def _podman(*arguments: str) -> None:
    subprocess.run(["podman", *arguments], check=True)


def _inside(container: str, command: str) -> None:
    _podman("exec", container, "sh", "-c", command)
