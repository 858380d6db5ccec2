# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpu:*` series to typed history. What is not known stays None; a wrong value is dropped and said.

Every quantile and maximum is computed by the server, over roll-ups of a quarter of an hour for windows of days, of five minutes
for shorter ones (the rules of the role gpu_monitoring record both), and over the series themselves where there are none. One row
a subject and figure crosses the network, whatever the window. What a server does for it grows with the samples it goes through,
so that none are asked twice for what one answer tells, and series as dense as the scrapes are looked at in steps.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Callable, Mapping, Sequence

from .asking import Asking
from .history import History, Key, Record
from .lasting import Piece, lasting
from .model import Day, Quiet, Stat, Subject, Window
from .prometheus import Prometheus, Sample
from .series import (
    BUSY_FOR_COMPUTE,
    FLEET,
    HELD,
    LONG_SECONDS,
    LONG_WINDOW_SECONDS,
    OVER_TIME,
    QUIET_BUSY_RATIO,
    ROLL_UP_SECONDS,
    SERIES,
    TENANT,
    THROTTLED,
    Series,
)

#: What tells subjects apart: host, GPU, MIG instance, and a tenant's or workload's name.
_BY = "host, gpu_uuid, mig_instance"

#: Clocks further apart than this are told of.
_SKEW_SECONDS = 60

#: Where the window is cut, in seconds before its end, to see how long a subject has been quiet or held.
_CUTS = tuple(hours * 3600 for hours in (1, 3, 6, 12, 24, 72, 168, 336))

_DAY = 86400.0


@dataclass(frozen=True)
class _Found:
    """Where the figures of a series come from: what is asked, for how many seconds a sample stands, and how many there are.

    `peaks` is what p99 and max are asked of.
    """

    source: str
    step_seconds: float
    counts: Mapping[Key, float]
    peaks: str

    def of(self, figure: str) -> str:
        return self.peaks if figure in ("p99", "max") else self.source


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
        self.asking = Asking(server, end, selector, self.notes)
        self.span = round(window_seconds)
        cuts = [0, *(cut for cut in _CUTS if cut < self.span), self.span]
        self.pieces = list(zip(cuts, cuts[1:]))
        self.records: dict[Key, Record] = {}
        self.dropped: dict[str, int] = {}

    def run(self) -> History:
        self.say("reading what there is")
        self._subjects()
        if self.records:
            self._stats()
            self._tenants()
            self.say("reading what holds now")
            self._state()
        for name, count in sorted(self.dropped.items()):
            self.notes.append(
                "%d values of %s were impossible (NaN, blank or out of range) and left out." % (count, name)
            )
        self.say("reading the fleet's days")
        days = self._days() if self.records else ()
        return History(self.window, self.records, days, tuple(dict.fromkeys(self.notes)))

    # --- Who there is -----------------------------------------------------------------------------------------------

    def _subjects(self) -> None:
        """Every GPU and instance that there was in the window, by what was last said of it.

        One that was there for less than six hours and is gone for more than a day may be missed.
        """
        now, *before = self.asking.ask_all(
            [
                "last_over_time(gpu:info{%(where)s}[15m])",
                # The time of the last step at which it was there; timestamp() would take twenty times as long.
                "max_over_time((time() * gpu:info{%%(where)s})[%ds:30m])" % min(_DAY, self.span),
                "max_over_time((time() * gpu:info{%%(where)s})[%ds:6h])" % self.span,
            ]
        )
        end = self.window.end_seconds
        latest: dict[Key, Sample] = {}
        for sample in [*(replace(sample, value=end) for sample in now), *(sample for one in before for sample in one)]:
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
                silent_seconds=max(0.0, end - sample.value),
            )
        self.asking.hosts = sorted({key[0] for key in self.records})
        reports = Counter(_key(sample.labels) for sample in now)
        twice = sorted(key for key, count in reports.items() if count > 1 and key in self.records)
        if twice:
            self.notes.append(
                "%d GPUs or instances are reported by more than one exporter, %s first: the highest value of each figure "
                "is taken." % (len(twice), " gpu ".join(twice[0][:2]))
            )

    # --- Figures ----------------------------------------------------------------------------------------------------

    def _stats(self) -> None:
        self.say("looking for roll-ups")
        sources = {name: self._source(series, _BY, _key) for name, series in SERIES.items() if name != "busy"}
        for name, found in sources.items():
            self.say("reading %s" % SERIES[name].name)
            self._keep(name, self._figures(SERIES[name], found, _BY, _key))
        self.say("reading %s" % SERIES["busy"].name)
        busy = self._rest()
        without = [
            record for record in self.records.values() if "busy" in record.stats and "compute" not in record.stats
        ]
        if without and busy:
            self._keep("busy", self._figures(BUSY_FOR_COMPUTE, busy, _BY, _key))
        self._throttled(busy is None or busy.source == SERIES["busy"].roll_up)

    def _keep(self, metric: str, stats: Mapping[Key, Stat]) -> None:
        for key, stat in stats.items():
            if key in self.records:
                record = self.records[key]
                self.records[key] = replace(record, stats={**record.stats, metric: stat})

    def _source(self, series: Series, by: str, key_of: Callable[[Mapping[str, str]], Key]) -> _Found | None:
        """The longest roll-up that the window asks for and the server has, or the series itself where it has none."""
        if series.long and self.span >= LONG_WINDOW_SECONDS and self._reaches_as_far(series.long, series.roll_up):
            counts = self._over("count", series.long, by, key_of, [(0, self.span)])[0]
            return _Found(series.long, LONG_SECONDS, counts, series.peaks)
        counts = self._over("count", series.roll_up, by, key_of, [(0, self.span)])[0]
        if counts:
            return _Found(series.roll_up, ROLL_UP_SECONDS, counts, series.roll_up)
        step = self._distance(series)
        if step is None:
            return None
        counts = self._over("count", series.name, by, key_of, [(0, self.span)])[0]
        return _Found(series.name, step, counts, series.name)

    def _reaches_as_far(self, long: str, short: str) -> bool:
        """Whether the longer roll-up is there now, and was when the window began if the other was: rules come with releases."""
        ago = " offset %ds" % (self.span - 3600)
        now, then, before = self.asking.ask_all(
            [
                "count(last_over_time(%s{%%(where)s}[1h]%s))" % (name, at)
                for name, at in ((long, ""), (long, ago), (short, ago))
            ]
        )
        return bool(now) and (not before or (bool(then) and then[0].value >= before[0].value))

    def _distance(self, series: Series) -> float | None:
        """Between two samples of a series that has no roll-up: the shortest of any, so that gaps do not hide in it."""
        dense = self.asking.ask("max(count_over_time(%s{%%(where)s}[1h]))" % series.name)
        if not dense:
            return None
        self.notes.append(
            "There is no %s: figures are of %s itself, which the server takes longer for."
            % (series.roll_up, series.name)
        )
        return 3600 / dense[0].value if dense[0].value > 0 else ROLL_UP_SECONDS

    def _over(
        self,
        figure: str,
        source: str,
        by: str,
        key_of: Callable[[Mapping[str, str]], Key],
        pieces: Sequence[tuple[int, int]],
    ) -> list[dict[Key, float]]:
        """A figure of each piece of the window. `max by` takes one of series that stand for the same subject."""
        inner = [
            OVER_TIME[figure]
            % ("%s{%%(where)s}[%ds]%s" % (source, oldest - newest, " offset %ds" % newest if newest else ""))
            for newest, oldest in pieces
        ]
        answers = self.asking.ask_all(["max by (%s) (%s)" % (by, one) for one in inner])
        return [{key_of(sample.labels): sample.value for sample in answer} for answer in answers]

    def _figures(
        self, series: Series, found: _Found | None, by: str, key_of: Callable[[Mapping[str, str]], Key]
    ) -> dict[Key, Stat]:
        if found is None:
            return {}
        figures = {}
        questions = {
            figure: "max by (%s) (%s)"
            % (by, OVER_TIME[figure] % ("%s{%%(where)s}[%ds]" % (found.of(figure), self.span)))
            for figure in series.figures
        }
        for figure, answer in zip(questions, self.asking.ask_all(list(questions.values()))):
            figures[figure] = {key_of(sample.labels): sample.value for sample in answer}
        return self._judged(series, found, figures)

    def _judged(self, series: Series, found: _Found, figures: Mapping[str, Mapping[Key, float]]) -> dict[Key, Stat]:
        """Whole answers only: half a one would say too little of how sure it is, or nothing."""
        stats = {}
        for key, count in found.counts.items():
            known = {name: values[key] for name, values in figures.items() if key in values}
            fit = {name: value for name, value in known.items() if series.least <= value <= series.most}
            if len(fit) < len(known):
                self.dropped[series.name] = self.dropped.get(series.name, 0) + len(known) - len(fit)
            if len(fit) == len(series.figures):
                seconds = min(count * found.step_seconds, self.window.seconds)
                stats[key] = Stat(seconds=seconds, coverage_ratio=seconds / self.window.seconds, **fit)
        return stats

    def _rest(self) -> _Found | None:
        """How busy it was, and for how long nothing ran and somebody held it: one look at the samples for both."""
        series = SERIES["busy"]
        source, step = series.roll_up, float(ROLL_UP_SECONDS)
        pieces = self._pieces(source, "max")
        if not any(piece.counts for piece in pieces):
            source, step = series.name, self._distance(series)
            if step is None:
                return None
            pieces = self._pieces(source, "max")
        counts: dict[Key, float] = {}
        most: dict[Key, float] = {}
        for piece in pieces:
            for key, count in piece.counts.items():
                counts[key] = counts.get(key, 0.0) + count
            for key, value in piece.figures.items():
                # Not max(), which keeps a NaN if it comes first.
                most[key] = value if key not in most or not most[key] >= value else most[key]
        busy = _Found(source, step, counts, source)
        mean = self._over("mean", source, _BY, _key, [(0, self.span)])[0]
        self._keep("busy", self._judged(series, busy, {"max": most, "mean": mean}))
        for key, seconds in lasting(pieces, lambda value: 0 <= value < QUIET_BUSY_RATIO, step).items():
            self._change(key, quiet=Quiet(seconds, whole_window=seconds == self.span))
        # Whoever holds it by the server's word holds it for some time, which the pieces say if it is an hour or more.
        for sample in self.asking.ask("last_over_time(%s{%%(where)s}[15m]) > 0" % HELD):
            self._change(_key(sample.labels), held_seconds=0.0)
        for key, seconds in lasting(self._pieces(HELD, "min"), lambda value: value > 0, ROLL_UP_SECONDS).items():
            self._change(key, held_seconds=float(seconds))
        return busy

    def _pieces(self, source: str, figure: str) -> list[Piece]:
        figures = self._over(figure, source, _BY, _key, self.pieces)
        counts = self._over("count", source, _BY, _key, self.pieces)
        return [Piece(*span, *values) for span, *values in zip(self.pieces, figures, counts)]

    def _throttled(self, rolled_up: bool) -> None:
        """The share of the time that there are figures of in which a GPU was throttled, by reason."""
        by = _BY + ", reason"
        if not rolled_up:
            query = "max by (%s) (avg_over_time(gpu:throttled{%%(where)s}[%ds])) > 0" % (by, self.span)
            self._by_label("throttled", "reason", query)
            return
        # Of a GPU with instances it is these that have figures.
        seen: dict[tuple[str, str], float] = {}
        for key, record in self.records.items():
            seen[key[:2]] = max([seen.get(key[:2], 0.0), *(stat.seconds for stat in record.stats.values())])
        self._by_label(
            "throttled",
            "reason",
            "max by (%s) (sum_over_time(%s{%%(where)s}[%ds]))" % (by, THROTTLED, self.span),
            lambda key, value: min(1.0, value * ROLL_UP_SECONDS / (seen.get(key[:2]) or self.window.seconds)),
        )

    def _tenants(self) -> None:
        """Tenants with a quota, beside the GPU that they share."""
        by = _BY + ", tenant"
        span = "[%ds]" % self.span
        limits = self.asking.ask(
            "max by (%s) (last_over_time(gpu:tenant_memory_limit_bytes{%%(where)s}%s))" % (by, span)
        )
        if not limits:
            return
        stats = self._figures(TENANT, self._source(TENANT, by, _tenant_key), by, _tenant_key)
        denials = {
            _tenant_key(sample.labels): sample.value
            for sample in self.asking.ask("sum by (%s) (increase(gpu:tenant_denied_total{%%(where)s}%s))" % (by, span))
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
        self._take("memory_total_bytes", "gpu:memory_total_bytes", 1e15)
        if any(record.memory_total_bytes is None for record in self.records.values()):
            # Of what is silent by now, what it was.
            for sample in self.asking.ask(
                "max by (%s) (max_over_time(gpu:memory_total_bytes{%%(where)s}[%ds:6h]))" % (_BY, self.span)
            ):
                key = _key(sample.labels)
                if key in self.records and self.records[key].memory_total_bytes is None and 0 <= sample.value <= 1e15:
                    self._change(key, memory_total_bytes=sample.value)
        self._take("processes_now", "gpu:processes", 1e6)
        self._take("price_per_hour", "gpu:price_per_hour", math.inf)
        for sample in self.asking.ask("max by (%s) (last_over_time(gpu:lost{%%(where)s}[15m]))" % _BY):
            self._change(_key(sample.labels), lost=sample.value == 1)
        for sample in self.asking.ask(
            "max by (%s, sharing) (last_over_time(gpu:layout_sharing_info{%%(where)s}[15m]))" % _BY
        ):
            self._change(_key(sample.labels), sharing=sample.labels.get("sharing", ""))
        self._by_label("held_now", "kind", "max by (%s, kind) (last_over_time(gpu:held{%%(where)s}[15m]))" % _BY)
        # Classed by the alerts' rules, so that an audit and a page at night say the same of an error.
        xids: dict[Key, dict[str, str]] = {}
        for sample in self.asking.ask(
            "max by (%s, xid, class) (max_over_time(gpu:xid_class_errors:count5m{%%(where)s}[%ds])) > 0"
            % (_BY, self.span)
        ):
            xids.setdefault(_key(sample.labels), {})[sample.labels.get("xid", "")] = sample.labels.get("class", "")
        for key, found in xids.items():
            self._change(key, xid=found)

    def _take(self, name: str, series: str, most: float) -> None:
        for sample in self.asking.ask("max by (%s) (last_over_time(%s{%%(where)s}[15m]))" % (_BY, series)):
            if 0 <= sample.value <= most:
                self._change(_key(sample.labels), **{name: sample.value})
            else:
                self.dropped[series] = self.dropped.get(series, 0) + 1

    def _by_label(
        self, name: str, label: str, expression: str, made: Callable[[Key, float], float] = lambda key, value: value
    ) -> None:
        found: dict[Key, dict[str, float]] = {}
        for sample in self.asking.ask(expression):
            if math.isfinite(sample.value) and sample.value >= 0:
                key = _key(sample.labels)
                found.setdefault(key, {})[sample.labels.get(label, "")] = made(key, sample.value)
        for key, values in found.items():
            self._change(key, **{name: values})

    def _change(self, key: Key, **values: object) -> None:
        if key in self.records:
            self.records[key] = replace(self.records[key], **values)  # type: ignore[arg-type]

    # --- The fleet --------------------------------------------------------------------------------------------------

    def _days(self) -> tuple[Day, ...]:
        """The fleet's days, the oldest first, each the 24 hours up to a time of day that is the window's end."""
        ends = []
        for back in range(math.ceil(self.window.seconds / _DAY)):
            end = self.window.end_seconds - back * _DAY
            length = min(_DAY, end - self.window.start_seconds)
            if length >= ROLL_UP_SECONDS:
                ends.append((end, length))
        answers = self.asking.ask_for_one(
            [(text.replace("SPAN", "%ds" % round(length)), end) for end, length in ends for text in FLEET.values()]
        )
        values = [one.value if one and math.isfinite(one.value) else None for one in answers]
        rows = [values[first : first + len(FLEET)] for first in range(0, len(values), len(FLEET))]
        made = [Day(end - length, **dict(zip(FLEET, row))) for (end, length), row in zip(ends, rows)]
        return tuple(reversed(made))


def _key(labels: Mapping[str, str]) -> Key:
    return (labels.get("host", ""), labels.get("gpu_uuid", ""), labels.get("mig_instance", ""), "")


def _tenant_key(labels: Mapping[str, str]) -> Key:
    return (*_key(labels)[:3], labels.get("tenant", ""))
