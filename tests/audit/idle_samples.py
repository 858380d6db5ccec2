# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generate a pattern's samples as an exporter would, and its host's gpu_info."""

from __future__ import annotations

from typing import Callable, Iterable, Iterator, NamedTuple

from tests.audit.idle_model import BUSY_SECONDS, CPU_SECONDS, GIB, MINUTES, START, Pattern, Use

#: The end of a sample line, by minute.
_TIMES = [" %d\n" % (START + 60 * minute) for minute in range(MINUTES)]


class Series(NamedTuple):
    """A GPU's or an instance's series: name, value for an activity, and more labels."""

    name: str
    value: Callable[[Use], float]
    labels: str = ""


def _field(name: str) -> Callable[[Use], float]:
    place = Use._fields.index(name)
    return lambda use: use[place]


GAUGES = (
    Series("gpu:info", lambda use: 1, 'model="NVIDIA H100 80GB HBM3",vendor="nvidia"'),
    Series("gpu:busy_ratio", _field("busy")),
    Series("gpu:compute_active_ratio", _field("sm")),
    Series("gpu:sm_active_ratio", _field("sm")),
    Series("gpu:tensor_active_ratio", _field("tensor")),
    Series("gpu:memory_bandwidth_active_ratio", _field("bandwidth")),
    Series("gpu:memory_used_bytes", _field("memory")),
    Series("gpu:memory_total_bytes", lambda use: 80 * GIB),
)
#: Series of a whole GPU that has instances.
WHOLE = (
    Series("gpu:power_watts", _field("power")),
    Series("gpu:power_limit_watts", lambda use: 700),
    Series("gpu:pcie_bytes_per_second", _field("pcie")),
    Series("gpu:nvlink_bytes_per_second", _field("nvlink")),
    Series("gpu:codec_busy_ratio", _field("codec")),
)
#: The same series without video-engine utilization, which NVML does not report for a GPU with instances.
WHOLE_OF_INSTANCES = WHOLE[:-1]
#: The same series with the names of NVIDIA's exporter. The rules in dcgm.yml convert them to gpu:*.
DCGM = (
    Series("DCGM_FI_DEV_FB_USED", lambda use: use.memory / (1 << 20)),
    Series("DCGM_FI_DEV_FB_FREE", lambda use: 80 * 1024 - use.memory / (1 << 20)),
    Series("DCGM_FI_DEV_GPU_TEMP", lambda use: 35 + use.power / 20),
    Series("DCGM_FI_DEV_GPU_UTIL", lambda use: round(100 * use.busy)),
    Series("DCGM_FI_DEV_ENC_UTIL", lambda use: 0),
    Series("DCGM_FI_DEV_DEC_UTIL", lambda use: round(100 * use.codec)),
    Series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", _field("busy")),
    Series("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", _field("tensor")),
    Series("DCGM_FI_PROF_DRAM_ACTIVE", _field("bandwidth")),
    Series("DCGM_FI_DEV_POWER_USAGE", _field("power")),
    Series("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", lambda use: 700),
)


def text(pattern: Pattern, first: int, last: int) -> Iterator[str]:
    """Yield OpenMetrics lines of these minutes, one series after the other."""
    last = min(last, MINUTES - 1)
    for host, begin, end in ((pattern.host + "-before", 0, pattern.renamed), (pattern.host, pattern.renamed, MINUTES)):
        if max(first, begin) <= min(last, end - 1):
            yield from _text(pattern, host, max(first, begin), min(last, end - 1))


def _text(pattern: Pattern, host: str, first: int, last: int) -> Iterator[str]:
    for job, begin, end in pattern.exporters:
        labels = _dcgm_labels(pattern, host) if pattern.dcgm else _labels(pattern, host, job)
        yield from _of(pattern, DCGM if pattern.dcgm else GAUGES, labels, max(first, begin), min(last, end - 1))
        if pattern.neighbour is not None:
            labels = _labels(pattern, host, job).replace('mig_instance="1"', 'mig_instance="2"')
            yield from _of(pattern, GAUGES, labels, max(first, begin), min(last, end - 1), pattern.neighbour)
        if pattern.instance:
            labels = _labels(pattern, host, job, whole=True)
            yield from _of(
                pattern,
                (GAUGES[0], *WHOLE_OF_INSTANCES),
                labels,
                max(first, begin),
                min(last, end - 1),
                pattern.neighbour,
            )
        elif not pattern.dcgm:
            yield from _of(pattern, WHOLE, labels, max(first, begin), min(last, end - 1))
    kind = "container" if pattern.holder.kind == "process" else pattern.holder.kind
    of_host = (Series("gpu:processes", _field("processes")), Series("gpu:held", _field("held"), 'kind="%s"' % kind))
    labels = _labels(pattern, host, "host")
    yield from _of(pattern, of_host, labels, first, last)
    if CPU_SECONDS not in pattern.without:
        yield _counter(pattern, CPU_SECONDS, labels, first, last, pattern.cpu_seconds)
    if pattern.counts:
        yield _counter(pattern, BUSY_SECONDS, labels, first, last, pattern.busy_seconds)


def _counter(pattern: Pattern, name: str, labels: str, first: int, last: int, totals: list[float]) -> str:
    """Return the samples of a counter, given its totals by minute."""
    minutes = _minutes(pattern, first, last)
    values = [totals[minute - pattern.came] for minute in minutes]
    return _changed(pattern, name, "%s{%s} " % (name, labels), minutes, values)


def _minutes(pattern: Pattern, first: int, last: int) -> list[int]:
    return [minute for minute in range(max(first, pattern.came), last + 1) if minute % pattern.every == 0]


def _of(
    pattern: Pattern, some: Iterable[Series], labels: str, first: int, last: int, use: Use | None = None
) -> Iterator[str]:
    """Yield the samples of some series.

    If `use` has a value, it replaces the activity at all times.
    """
    minutes = _minutes(pattern, first, last)
    if not minutes:
        return
    uses = [use or pattern.moments[0][minute - pattern.came] for minute in minutes]
    different = {id(use): use for use in uses}
    times = [_TIMES[minute] for minute in minutes]
    for series in some:
        if series.name in pattern.without:
            continue
        prefix = "%s{%s%s} " % (series.name, labels, series.labels and "," + series.labels)
        values = {place: series.value(use) for place, use in different.items()}
        if pattern.sampled is None:
            # There are few different activities, so most parts of a line are built only once.
            lines = {place: "%s%.10g" % (prefix, value) for place, value in values.items()}
            yield "".join([lines[id(use)] + at for use, at in zip(uses, times)])
        else:
            yield _changed(pattern, series.name, prefix, minutes, [values[id(use)] for use in uses])


def _changed(pattern: Pattern, name: str, prefix: str, minutes: list[int], values: list[float]) -> str:
    """Return a series' samples after the pattern's changes."""
    if pattern.sampled is not None:
        values = [pattern.sampled(name, minute, value) for minute, value in zip(minutes, values)]
    return "".join(
        "%s%.10g%s" % (prefix, value, _TIMES[minute]) for minute, value in zip(minutes, values) if value is not None
    )


def _dcgm_labels(pattern: Pattern, host: str) -> str:
    return 'host="%s",UUID="%s",gpu="%d",modelName="NVIDIA H100 80GB HBM3",instance="%s:9400",job="dcgm"' % (
        host, pattern.uuid, pattern.index, host,
    )  # fmt: skip


def _labels(pattern: Pattern, host: str, job: str, whole: bool = False) -> str:
    text = 'host="%s",gpu_uuid="%s",gpu_index="%d",job="%s"' % (host, pattern.uuid, pattern.index, job)
    instance = pattern.instance and not whole
    return text + ',mig_instance="1",mig_profile="%s"' % pattern.instance if instance else text


def state(pattern: Pattern, minute: int) -> dict:
    """Return the part of the host's gpu_info that an audit uses, at this minute."""
    span, who, process = pattern.span(minute), pattern.holder, pattern.has_process(minute)
    rows = []
    if span is not None:
        rows = [{
            "gpu_uuid": pattern.uuid, "gpu_instance_id": 1 if pattern.instance else None,
            "kind": "process" if process else who.kind, "who": "%s of alice" % (who.name or pattern.host),
            "pid": 4711 if process else None, "user": "alice", "command": "python3" if process else None,
            "unit_or_container": who.name or "docker container %s" % pattern.host, "job": who.job, "watches": False,
            "started_seconds": START + 60.0 * span[0] + who.ahead_seconds,
            "listens": who.listens, "clients": who.clients,
        }]  # fmt: skip
    processes = [{"pid": 4711, "kind": "compute", "name": "python3"}] if process else []
    gpu = {
        "index": pattern.index, "uuid": pattern.uuid, "name": "NVIDIA H100 80GB HBM3", "memory_total_bytes": int(80 * GIB),
        "holders": rows, "processes": processes, "mig": {"capable": True, "enabled": False, "instances": []},
    }  # fmt: skip
    if pattern.instance:
        instance = {"id": 1, "profile": pattern.instance, "processes": processes, "holders": rows}
        gpu["mig"].update(enabled=True, instances=[instance])
    return {"gpus": [gpu], "vgpu_tenants": []}
