# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpu:*` series to typed history. What is not known stays None; a wrong value is dropped and said.

Every quantile and maximum is computed by the server, over roll-ups of five minutes where it has them (the rules of the
role gpu_monitoring record them) and over the series themselves elsewhere. One row a subject and figure crosses the
network, whatever the window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Callable, Mapping

from .model import Day, Quiet, Stat, Subject, Window
from .prometheus import Prometheus, PrometheusError, Sample

Key = tuple[str, str, str, str]

#: What tells subjects apart: host, GPU, MIG instance, and a tenant's or workload's name.
_BY = "host, gpu_uuid, mig_instance"

#: Between two values of a roll-up: the interval of the rules that record them.
ROLL_UP_SECONDS = 300

#: Clocks further apart than this are told of.
_SKEW_SECONDS = 60

#: How long a subject has been quiet is looked up in these steps, in seconds, as far as the window reaches.
_QUIET_STEPS = tuple(hours * 3600 for hours in (1, 3, 6, 12, 24, 72, 168, 336))

#: A GPU that did less than this in five minutes did nothing: what a monitoring client itself makes of a GPU stays below.
QUIET_BUSY_RATIO = 0.01


@dataclass(frozen=True)
class Series:
    """A `gpu:*` series: its roll-up, the figures that are asked of it, and the values that it can have."""

    name: str
    roll_up: str
    figures: tuple[str, ...]
    least: float = 0.0
    most: float = math.inf


_RATIO = 1.05  # a counter read a moment apart from its clock gives a little over 1
_ALL = ("p50", "p95", "p99", "max", "mean")

SERIES = {
    "memory": Series("gpu:memory_used_bytes", "gpu:memory_used_bytes:max5m", _ALL, most=1e15),
    "busy": Series("gpu:busy_ratio", "gpu:busy_ratio:avg5m", _ALL, most=_RATIO),
    "compute": Series("gpu:compute_active_ratio", "gpu:compute_active_ratio:avg5m", _ALL, most=_RATIO),
    "bandwidth": Series(
        "gpu:memory_bandwidth_active_ratio", "gpu:memory_bandwidth_active_ratio:avg5m", ("p95", "mean"), most=_RATIO
    ),
    "tensor": Series("gpu:tensor_active_ratio", "gpu:tensor_active_ratio:avg5m", ("p95", "mean"), most=_RATIO),
    "processes": Series("gpu:processes", "gpu:processes:max5m", ("max",), most=1e6),
}
_TENANT = Series("gpu:tenant_memory_used_bytes", "gpu:tenant_memory_used_bytes:max5m", _ALL, most=1e15)

_DAY = 86400.0

#: What is told of the whole fleet, of each day one number.
_FLEET = {
    "gpus": "avg_over_time(count(count by (host, gpu_uuid) (gpu:info{%(where)s}))[SPAN:1h])",
    "held_ratio": "avg(avg_over_time((gpu:held:avg5m{%(where)s} > bool 0)[SPAN:5m]))",
    # A GPU whose figures are impossible is left out, and does not spoil the others' average.
    "busy_ratio": "avg(avg_over_time(gpu:busy_ratio:avg5m{%(where)s}[SPAN]) >= 0 <= 1.05)",
    "memory_ratio": "sum(avg_over_time(gpu:memory_used_bytes:max5m{%(where)s}[SPAN]) >= 0 <= 1e15)"
    " / sum(max by (host, gpu_uuid, mig_instance) (last_over_time(gpu:memory_total_bytes{%(where)s}[SPAN])))",
}

#: How many holders there were, of all kinds; a roll-up only, since holders of a kind come and go as series.
_HELD = "gpu:held:avg5m"

_OVER_TIME = {
    "p50": "quantile_over_time(0.5, %s)",
    "p95": "quantile_over_time(0.95, %s)",
    "p99": "quantile_over_time(0.99, %s)",
    "max": "max_over_time(%s)",
    "mean": "avg_over_time(%s)",
    "count": "count_over_time(%s)",
}


@dataclass(frozen=True)
class Record:
    """All that the server knows of one subject."""

    subject: Subject
    stats: Mapping[str, Stat] = field(default_factory=dict)
    memory_total_bytes: float | None = None
    memory_limit_bytes: float | None = None
    processes_now: float | None = None
    held_now: Mapping[str, float] | None = None
    held_seconds: float | None = None
    quiet: Quiet | None = None
    xid: Mapping[str, str] = field(default_factory=dict)
    throttled: Mapping[str, float] = field(default_factory=dict)
    denials: float | None = None
    lost: bool = False
    silent_seconds: float = 0.0
    price_per_hour: float | None = None
    sharing: str = ""


@dataclass(frozen=True)
class History:
    """The whole answer: subjects by (host, GPU's UUID, MIG instance, name), and what was noticed on the way, in words."""

    window: Window
    records: Mapping[Key, Record]
    days: tuple[Day, ...] = ()
    notes: tuple[str, ...] = ()


def read(
    server: Prometheus,
    window_seconds: float,
    *,
    selector: str = "",
    our_seconds: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> History:
    """Ask the server for the last `window_seconds`.

    `selector` narrows the series, as ``cluster="a"``; `our_seconds` is this machine's clock, to tell of a wrong one.
    Raises PrometheusError where the server does not answer; a figure that it does not have is None.
    """
    return _Reading(server, window_seconds, selector, our_seconds, say).run()


class _Reading:
    def __init__(
        self,
        server: Prometheus,
        window_seconds: float,
        selector: str,
        our_seconds: float | None,
        say: Callable[[str], None],
    ) -> None:
        self.server = server
        self.selector = selector
        self.say = say
        self.notes: list[str] = []
        # By the server's clock: what it recorded bears its time.
        end = server.now()
        if our_seconds is not None and abs(our_seconds - end) > _SKEW_SECONDS:
            self.notes.append(
                "The clock of %s is %d s %s this machine's: times are by the server's."
                % (server.name, abs(our_seconds - end), "ahead of" if end > our_seconds else "behind")
            )
        self.window = Window(end - window_seconds, end)
        self.records: dict[Key, Record] = {}
        self.hosts: list[str] = []
        self.dropped: dict[str, int] = {}

    def run(self) -> History:
        self._subjects()
        if self.records:
            for metric, series in SERIES.items():
                self.say("reading %s" % series.name)
                self._stats(metric, series)
            self._tenants()
            self._state()
            self._quiet()
        for name, count in sorted(self.dropped.items()):
            self.notes.append(
                "%d values of %s were impossible (NaN, blank or out of range) and left out." % (count, name)
            )
        days = self._days() if self.records else ()
        return History(self.window, self.records, days, tuple(dict.fromkeys(self.notes)))

    # --- Asking -----------------------------------------------------------------------------------------------------

    def _ask(self, expression: str, at: float | None = None) -> list[Sample]:
        """An expression with %(where)s in its selectors; in parts, host by host at last, where the server finds it too much."""
        return self._ask_of(expression, self.hosts, whole=True, at=at)

    def _ask_of(self, expression: str, hosts: list[str], *, whole: bool, at: float | None) -> list[Sample]:
        matchers = [self.selector] if self.selector else []
        if not whole:
            matchers.append('host=~"%s"' % "|".join(_quoted(host) for host in hosts))
        try:
            answer = self.server.query(
                expression.replace("%(where)s", ",".join(matchers)), self.window.end_seconds if at is None else at
            )
        except PrometheusError as error:
            if not error.too_much or len(hosts) < 2:
                raise
            half = len(hosts) // 2
            return self._ask_of(expression, hosts[:half], whole=False, at=at) + self._ask_of(
                expression, hosts[half:], whole=False, at=at
            )
        for warning in answer.warnings:
            self.notes.append("%s warns: %s" % (self.server.name, warning))
        return list(answer.samples)

    def _span(self, seconds: float | None = None) -> str:
        return "[%ds]" % round(self.window.seconds if seconds is None else seconds)

    # --- Who there is -----------------------------------------------------------------------------------------------

    def _subjects(self) -> None:
        """Every GPU and instance of which there was a sample in the window, by what was last said of it."""
        step = max(ROLL_UP_SECONDS, round(self.window.seconds / 336))
        seen = self._ask("max_over_time(timestamp(gpu:info{%%(where)s})[%ds:%ds])" % (round(self.window.seconds), step))
        latest: dict[Key, Sample] = {}
        for sample in seen:
            key = _key(sample.labels)
            if not key[0] or not key[1]:
                self.notes.append("Series of gpu:info without host or gpu_uuid were left out.")
                continue
            if not math.isfinite(sample.value):
                continue
            if key not in latest or sample.value > latest[key].value:
                latest[key] = sample
        for key, sample in latest.items():
            labels = sample.labels
            self.records[key] = Record(
                Subject(
                    kind="mig_instance" if key[2] else "gpu",
                    host=key[0],
                    gpu_uuid=key[1],
                    gpu_index=labels.get("gpu_index", ""),
                    model=labels.get("model", ""),
                    vendor=labels.get("vendor", ""),
                    mig_profile=labels.get("mig_profile", ""),
                    mig_instance=key[2],
                ),
                silent_seconds=max(0.0, self.window.end_seconds - sample.value),
            )
        self.hosts = sorted({key[0] for key in self.records})
        twice = self._ask("count by (%s) (last_over_time(gpu:info{%%(where)s}[15m])) > 1" % _BY) if self.records else []
        if twice:
            self.notes.append(
                "%d GPUs or instances are reported by more than one exporter, %s first: the highest value of each figure "
                "is taken."
                % (len(twice), " gpu ".join(_key(sorted(twice, key=lambda s: _key(s.labels))[0].labels)[:2]))
            )

    # --- Figures ----------------------------------------------------------------------------------------------------

    def _stats(self, metric: str, series: Series) -> None:
        for key, stat in self._figures(series, _BY, lambda labels: _key(labels)).items():
            if key in self.records:
                record = self.records[key]
                self.records[key] = replace(record, stats={**record.stats, metric: stat})

    def _figures(self, series: Series, by: str, key_of: Callable[[Mapping[str, str]], Key]) -> dict[Key, Stat]:
        """The figures of a series for each key. `max by` takes one of series that stand for the same subject."""
        source, step = self._source(series)
        found: dict[Key, dict[str, float]] = {}
        for figure in ("count", *series.figures):
            inner = _OVER_TIME[figure] % ("%s{%%(where)s}%s" % (source, self._span()))
            for sample in self._ask("max by (%s) (%s)" % (by, inner)):
                value = sample.value
                if figure != "count" and not (series.least <= value <= series.most):
                    self.dropped[series.name] = self.dropped.get(series.name, 0) + 1
                    continue
                found.setdefault(key_of(sample.labels), {})[figure] = value
        stats = {}
        for key, figures in found.items():
            # Half an answer would say too little of how sure it is, or nothing.
            if set(figures) != {"count", *series.figures}:
                continue
            seconds = min(figures.pop("count") * step, self.window.seconds)
            stats[key] = Stat(seconds=seconds, coverage_ratio=seconds / self.window.seconds, **figures)
        return stats

    def _source(self, series: Series) -> tuple[str, float]:
        """The roll-up, or the series itself where the server does not have it, and the seconds that a sample stands for."""
        if self._ask("count(count_over_time(%s{%%(where)s}%s))" % (series.roll_up, self._span())):
            return series.roll_up, ROLL_UP_SECONDS
        # The samples' own distance: the shortest of any series, so that gaps do not hide in it.
        dense = self._ask("max(count_over_time(%s{%%(where)s}[1h]))" % series.name)
        step = 3600 / dense[0].value if dense and dense[0].value > 0 else ROLL_UP_SECONDS
        if dense:
            self.notes.append(
                "There is no %s: figures are of %s itself, which the server takes longer for."
                % (series.roll_up, series.name)
            )
        return series.name, step

    def _tenants(self) -> None:
        """Tenants with a quota, beside the GPU that they share."""
        by = _BY + ", tenant"
        limits = self._ask(
            "max by (%s) (last_over_time(gpu:tenant_memory_limit_bytes{%%(where)s}%s))" % (by, self._span())
        )
        if not limits:
            return
        stats = self._figures(_TENANT, by, _tenant_key)
        denials = {
            _tenant_key(sample.labels): sample.value
            for sample in self._ask(
                "sum by (%s) (increase(gpu:tenant_denied_total{%%(where)s}%s))" % (by, self._span())
            )
            if math.isfinite(sample.value) and sample.value >= 0
        }
        for sample in limits:
            key = _tenant_key(sample.labels)
            whole = self.records.get((*key[:3], ""))
            if whole is None or not key[3] or not math.isfinite(sample.value):
                continue
            self.records[key] = Record(
                replace(whole.subject, kind="tenant", name=key[3]),
                stats={"memory": stats[key]} if key in stats else {},
                memory_limit_bytes=sample.value if sample.value > 0 else None,
                denials=denials.get(key),
                silent_seconds=whole.silent_seconds,
            )

    # --- State ------------------------------------------------------------------------------------------------------

    def _state(self) -> None:
        """What holds at the end of the window: the last value of a quarter of an hour."""
        self._take("memory_total_bytes", "gpu:memory_total_bytes", self._span(), most=1e15)
        self._take("processes_now", "gpu:processes", "[15m]", most=1e6)
        self._take("price_per_hour", "gpu:price_per_hour", "[15m]")
        for sample in self._ask("max by (%s) (last_over_time(gpu:lost{%%(where)s}[15m]))" % _BY):
            self._change(_key(sample.labels), lost=sample.value == 1)
        for sample in self._ask(
            "max by (%s, sharing) (last_over_time(gpu:layout_sharing_info{%%(where)s}[15m]))" % _BY
        ):
            self._change(_key(sample.labels), sharing=sample.labels.get("sharing", ""))
        self._by_label("held_now", "kind", "max by (%s, kind) (last_over_time(gpu:held{%%(where)s}[15m]))" % _BY)
        # Classed by the alerts' rules, so that an audit and a page at night say the same of an error.
        xids: dict[Key, dict[str, str]] = {}
        for sample in self._ask(
            "max by (%s, xid, class) (max_over_time(gpu:xid_class_errors:count5m{%%(where)s}%s)) > 0"
            % (_BY, self._span())
        ):
            xids.setdefault(_key(sample.labels), {})[sample.labels.get("xid", "")] = sample.labels.get("class", "")
        for key, found in xids.items():
            self._change(key, xid=found)
        self._by_label(
            "throttled",
            "reason",
            "max by (%s, reason) (avg_over_time(gpu:throttled{%%(where)s}%s)) > 0" % (_BY, self._span()),
        )

    def _take(self, name: str, series: str, span: str, most: float = math.inf) -> None:
        for sample in self._ask("max by (%s) (last_over_time(%s{%%(where)s}%s))" % (_BY, series, span)):
            if 0 <= sample.value <= most:
                self._change(_key(sample.labels), **{name: sample.value})
            else:
                self.dropped[series] = self.dropped.get(series, 0) + 1

    def _by_label(self, name: str, label: str, expression: str) -> None:
        found: dict[Key, dict[str, float]] = {}
        for sample in self._ask(expression):
            if math.isfinite(sample.value) and sample.value >= 0:
                found.setdefault(_key(sample.labels), {})[sample.labels.get(label, "")] = sample.value
        for key, values in found.items():
            self._change(key, **{name: values})

    def _change(self, key: Key, **values: object) -> None:
        if key in self.records:
            self.records[key] = replace(self.records[key], **values)  # type: ignore[arg-type]

    def _quiet(self) -> None:
        """For how long nothing ran, and for how long somebody held it: the longest step of which both are certain.

        Certain is a step only with nearly all of its samples: a gap is not idleness.
        """
        source, step = self._source(SERIES["busy"])
        steps = [seconds for seconds in _QUIET_STEPS if seconds < self.window.seconds] + [round(self.window.seconds)]
        # Whoever holds it by the server's word holds it for some time, which the steps say if it is an hour or more.
        for sample in self._ask("last_over_time(%s{%%(where)s}[15m]) > 0" % _HELD):
            self._change(_key(sample.labels), held_seconds=0.0)
        for seconds in steps:
            span = "{%%(where)s}[%ds]" % seconds
            enough = math.floor(0.9 * seconds / step)
            for sample in self._ask(
                "(max by (%s) (max_over_time(%s)) < %g) and (max by (%s) (count_over_time(%s)) >= %d)"
                % (_BY, source + span, QUIET_BUSY_RATIO, _BY, source + span, enough)
            ):
                if sample.value >= 0:
                    self._change(_key(sample.labels), quiet=Quiet(seconds, whole_window=seconds == steps[-1]))
            for sample in self._ask(
                "(min_over_time(%s) > 0) and (count_over_time(%s) >= %d)"
                % (_HELD + span, _HELD + span, math.floor(0.9 * seconds / ROLL_UP_SECONDS))
            ):
                self._change(_key(sample.labels), held_seconds=float(seconds))

    # --- The fleet --------------------------------------------------------------------------------------------------

    def _days(self) -> tuple[Day, ...]:
        """The fleet's days, the oldest first, each the 24 hours up to a time of day that is the window's end."""
        made = []
        for back in range(math.ceil(self.window.seconds / _DAY)):
            end = self.window.end_seconds - back * _DAY
            length = min(_DAY, end - self.window.start_seconds)
            if length < ROLL_UP_SECONDS:
                break
            made.append(
                Day(
                    end - length,
                    **{
                        name: self._one(expression.replace("SPAN", "%ds" % round(length)), end)
                        for name, expression in _FLEET.items()
                    },
                )
            )
        return tuple(reversed(made))

    def _one(self, expression: str, at: float) -> float | None:
        """The only value of an answer; of several parts the fleet's cannot be told."""
        try:
            samples = self._ask_of(expression, [], whole=True, at=at)
        except PrometheusError as error:
            if not error.too_much:
                raise
            self.notes.append("The fleet's history is too much for %s, and left out." % self.server.name)
            return None
        return samples[0].value if samples and math.isfinite(samples[0].value) else None


def _key(labels: Mapping[str, str]) -> Key:
    return (labels.get("host", ""), labels.get("gpu_uuid", ""), labels.get("mig_instance", ""), "")


def _tenant_key(labels: Mapping[str, str]) -> Key:
    return (*_key(labels)[:3], labels.get("tenant", ""))


def _quoted(host: str) -> str:
    """A host's name within a regular expression within a string."""
    special = set("\\.+*?()|[]{}^$")
    text = "".join("\\" + character if character in special else character for character in host)
    return text.replace("\\", "\\\\").replace('"', '\\"')
