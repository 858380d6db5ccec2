# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read `gpu:*` series into a typed history.

The history has four parts: the subjects, their statistics over the window (figures.py), their current state, and the daily
averages of the fleet. Unknown values are None. Impossible values are dropped, and a note reports them.

Raw series are sampled in steps, because the load on the server grows with the number of samples that it reads.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Callable, Mapping

from ..counted import counted
from .asking import Asking
from .figures import Figures
from .history import History, Key, Record, is_pod
from .model import Day, Stat, Subject, Window
from .prometheus import Prometheus, Sample
from .quiet_times import (
    BY_DEFAULT,
    QuietQuestion,
    computed_ago,
    device_quiet_times,
    explained_kernels,
    hardly_working,
    quiet_times,
)
from .series import (
    BUSY_FOR_COMPUTE,
    BY,
    FLEET,
    ROLL_UP_SECONDS,
    SERIES,
    STALLED,
    TENANT,
    THROTTLED,
    UNEXPLAINED_BUSY,
    UNREPORTED_WORK,
    key_of,
    tenant_key_of,
)

#: A larger clock difference is reported in a note.
_SKEW_SECONDS = 60

_DAY = 86400.0
#: Maximum price per hour. JSON cannot represent infinity, to which sums of larger prices could overflow.
_MOST_PRICE = 1e9


@dataclass(frozen=True)
class Question:
    """Settings for reading a history, except the length of the window.

    The window ends at `end_seconds` since the epoch, or now if `end_seconds` is None. `quiet` selects the quiet times.
    `selector` has label matchers, for example ``cluster="a"``. `our_seconds` is this machine's current time, which is
    compared with the server's time if the window ends now.
    """

    quiet: QuietQuestion = BY_DEFAULT
    selector: str = ""
    our_seconds: float | None = None
    end_seconds: float | None = None


def read(
    server: Prometheus,
    window_seconds: float,
    question: Question = Question(),  # frozen
    say: Callable[[str], None] = lambda line: None,
) -> History:
    """Read the history of the last `window_seconds` from the server.

    Figures are None if the server does not have them. Raises PrometheusError.
    """
    return _Reading(server, window_seconds, question, say).run()


class _Reading:
    def __init__(
        self, server: Prometheus, window_seconds: float, question: Question, say: Callable[[str], None]
    ) -> None:
        self.say = say
        self.quiet = question.quiet
        self.notes: list[str] = []
        # Use the server's clock, which samples' timestamps follow.
        end = server.now() if question.end_seconds is None else question.end_seconds
        ours = question.our_seconds
        if question.end_seconds is None and ours is not None and abs(ours - end) > _SKEW_SECONDS:
            self.notes.append(
                "The clock of %s is %d s %s this machine's. Times in the report are the server's."
                % (server.name, abs(ours - end), "ahead of" if end > ours else "behind")
            )
        self.window = Window(end - window_seconds, end)
        self.asking = Asking(server, end, question.selector, self.notes)
        self.span = round(window_seconds)
        self.figures = Figures(self.asking, window_seconds, self.notes)
        self.records: dict[Key, Record] = {}

    def run(self) -> History:
        self.say("reading GPUs and instances")
        self._subjects()
        if self.records:
            self._stats()
            self._tenants()
            self.say("reading the current state")
            self._state()
        for name, count in sorted(self.figures.dropped.items()):
            self.notes.append(
                "%s of %s dropped: NaN, blank or out of range." % (counted(count, "impossible value"), name)
            )
        self.say("reading the fleet's days")
        days = self._days() if self.records else ()
        return History(self.window, self.records, days, tuple(dict.fromkeys(self.notes)))

    # --- Subjects ---------------------------------------------------------------------------------------------------

    def _subjects(self) -> None:
        """Read all GPUs and instances of the window, with their latest labels.

        May miss a subject that existed for less than six hours and disappeared more than a day ago.
        """
        now, *before = self.asking.ask_all(
            [
                "last_over_time(gpu:info{%(where)s}[15m])",
                # Query the last step at which the subject existed. PromQL's timestamp() would take twenty times as
                # long.
                "max_over_time((time() * gpu:info{%%(where)s})[%ds:30m])" % min(_DAY, self.span),
                "max_over_time((time() * gpu:info{%%(where)s})[%ds:6h])" % self.span,
            ]
        )
        end = self.window.end_seconds
        latest: dict[Key, Sample] = {}
        for sample in [*(replace(sample, value=end) for sample in now), *(sample for one in before for sample in one)]:
            key = key_of(sample.labels)
            if not key[0] or not key[1]:
                self.notes.append("Series of gpu:info without the label host or gpu_uuid are ignored.")
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
        reports = Counter(key_of(sample.labels) for sample in now)
        twice = sorted(key for key, count in reports.items() if count > 1 and key in self.records)
        if twice:
            self.notes.append(
                "Several exporters report %s, for example %s. The highest value of each figure is used."
                % (counted(len(twice), "GPU or instance", "GPUs or instances"), " gpu ".join(twice[0][:2]))
            )

    # --- Figures ----------------------------------------------------------------------------------------------------

    def _stats(self) -> None:
        self.say("looking for roll-ups")
        sources = {name: self.figures.source(series) for name, series in SERIES.items()}
        for name, found in sources.items():
            self.say("reading %s" % SERIES[name].name)
            self._keep(name, self.figures.stats(SERIES[name], found))
        without = [
            record for record in self.records.values() if "busy" in record.stats and "compute" not in record.stats
        ]
        if without:
            self._keep("busy", self.figures.stats(BUSY_FOR_COMPUTE, sources["busy"]))
        for key, seconds in self.figures.recorded_seconds(UNREPORTED_WORK).items():
            self._change(key, unreported_work_seconds=seconds)
        for key, seconds in self.figures.recorded_seconds(UNEXPLAINED_BUSY).items():
            self._change(key, unexplained_busy_seconds=seconds)
        stalled = self.figures.lasting_seconds(STALLED)
        for key, seconds in stalled.items():
            self._change(key, stalled_seconds=seconds)
        for key, seconds in computed_ago(self.asking, stalled).items():
            self._change(key, computed_seconds_ago=seconds)
        held = self.figures.held()
        for key, seconds in held.items():
            self._change(key, held_seconds=seconds)
        self.say("reading quiet times")
        quiets = quiet_times(self.asking, self.quiet, self.notes)
        for key, quiet in device_quiet_times(self.asking, self.quiet, quiets).items():
            self._change(key, device_quiet=quiet)
        hardly = hardly_working(self.asking)
        for key in hardly:
            self._change(key, hardly_works=True)
        for key, why in explained_kernels(self.asking, hardly - set(quiets)).items():
            self._change(key, explained_kernels=why)
        for key, quiet in quiets.items():
            self._change(key, quiet=quiet)
            if key in held:
                self._change(key, held_seconds=quiet.held_seconds)
        busy = sources["busy"]
        self._throttled(busy is None or busy.source == SERIES["busy"].roll_up)

    def _keep(self, metric: str, stats: Mapping[Key, Stat]) -> None:
        for key, stat in stats.items():
            if key in self.records:
                record = self.records[key]
                self.records[key] = replace(record, stats={**record.stats, metric: stat})

    def _throttled(self, rolled_up: bool) -> None:
        """Read, by reason, for which share of the measured time each GPU was throttled."""
        by = BY + ", reason"
        if not rolled_up:
            query = "max by (%s) (avg_over_time(gpu:throttled{%%(where)s}[%ds])) > 0" % (by, self.span)
            self._by_label("throttled", "reason", query)
            return
        # Use the measured time of the instances, because metrics exist only for the instances, not for their GPU.
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
        """Read the tenants with a quota, their limits and their use."""
        by = BY + ", tenant"
        span = "[%ds]" % self.span
        limits = self.asking.ask(
            "max by (%s) (last_over_time(gpu:tenant_memory_limit_bytes{%%(where)s}%s))" % (by, span)
        )
        if not limits:
            return
        stats = self.figures.stats(TENANT, self.figures.source(TENANT, by, tenant_key_of), by, tenant_key_of)
        denials = {
            tenant_key_of(sample.labels): sample.value
            for sample in self.asking.ask("sum by (%s) (increase(gpu:tenant_denied_total{%%(where)s}%s))" % (by, span))
            if math.isfinite(sample.value) and sample.value >= 0
        }
        present = self._pods_now(by) if any(is_pod(tenant_key_of(sample.labels)) for sample in limits) else set()
        for sample in limits:
            key = tenant_key_of(sample.labels)
            whole = self.records.get((*key[:3], ""))
            if whole is None or not key[3] or not math.isfinite(sample.value) or (is_pod(key) and key not in present):
                continue
            self.records[key] = Record(
                subject=replace(whole.subject, kind="tenant", name=key[3]),
                stats={"memory": stats[key]} if key in stats else {},
                memory_limit_bytes=sample.value if sample.value > 0 else None,
                denials=denials.get(key),
                silent_seconds=whole.silent_seconds,
            )

    def _pods_now(self, by: str) -> set[Key]:
        """Return the pods that have a quota at the end of the window.

        Earlier pods reserve nothing.
        """
        query = 'max by (%s) (last_over_time(gpu:tenant_memory_limit_bytes{tenant=~".+/.+",%%(where)s}[15m]))' % by
        return {tenant_key_of(sample.labels) for sample in self.asking.ask(query)}

    # --- State ------------------------------------------------------------------------------------------------------

    def _state(self) -> None:
        """Read the state at the end of the window: the last values within 15 minutes."""
        self._take("memory_total_bytes", "gpu:memory_total_bytes", 1e15)
        if any(record.memory_total_bytes is None for record in self.records.values()):
            # For subjects without current samples, use the highest earlier value.
            for sample in self.asking.ask(
                "max by (%s) (max_over_time(gpu:memory_total_bytes{%%(where)s}[%ds:6h]))" % (BY, self.span)
            ):
                key = key_of(sample.labels)
                if key in self.records and self.records[key].memory_total_bytes is None and 0 <= sample.value <= 1e15:
                    self._change(key, memory_total_bytes=sample.value)
        self._take("processes_now", "gpu:processes", 1e6)
        self._take("price_per_hour", "gpu:price_per_hour", _MOST_PRICE)
        for sample in self.asking.ask("max by (%s) (last_over_time(gpu:lost{%%(where)s}[15m]))" % BY):
            self._change(key_of(sample.labels), lost=sample.value == 1)
        for sample in self.asking.ask(
            "max by (%s, sharing) (last_over_time(gpu:layout_sharing_info{%%(where)s}[15m]))" % BY
        ):
            self._change(key_of(sample.labels), sharing=sample.labels.get("sharing", ""))
        self._by_label("held_now", "kind", "max by (%s, kind) (last_over_time(gpu:held{%%(where)s}[15m]))" % BY)
        # The alerting rules define the classes of XIDs, so that audits and alerts agree.
        xids: dict[Key, dict[str, str]] = {}
        for sample in self.asking.ask(
            "max by (%s, xid, class) (max_over_time(gpu:xid_class_errors:count5m{%%(where)s}[%ds])) > 0"
            % (BY, self.span)
        ):
            xids.setdefault(key_of(sample.labels), {})[sample.labels.get("xid", "")] = sample.labels.get("class", "")
        for key, found in xids.items():
            self._change(key, xid=found)

    def _take(self, name: str, series: str, most: float) -> None:
        for sample in self.asking.ask("max by (%s) (last_over_time(%s{%%(where)s}[15m]))" % (BY, series)):
            if 0 <= sample.value <= most:
                self._change(key_of(sample.labels), **{name: sample.value})
            else:
                self.figures.dropped[series] += 1

    def _by_label(
        self, name: str, label: str, expression: str, made: Callable[[Key, float], float] = lambda key, value: value
    ) -> None:
        found: dict[Key, dict[str, float]] = {}
        for sample in self.asking.ask(expression):
            if math.isfinite(sample.value) and sample.value >= 0:
                key = key_of(sample.labels)
                found.setdefault(key, {})[sample.labels.get(label, "")] = made(key, sample.value)
        for key, values in found.items():
            self._change(key, **{name: values})

    def _change(self, key: Key, **values: object) -> None:
        if key in self.records:
            self.records[key] = replace(self.records[key], **values)  # type: ignore[arg-type]

    # --- The fleet --------------------------------------------------------------------------------------------------

    def _days(self) -> tuple[Day, ...]:
        """Return the fleet's daily averages, the oldest day first.

        A day is a period of 24 hours. The last day ends at the end of the window.
        """
        ends = []
        for back in range(math.ceil(self.window.seconds / _DAY)):
            end = self.window.end_seconds - back * _DAY
            length = min(_DAY, end - self.window.start_seconds)
            if length >= ROLL_UP_SECONDS:
                ends.append((end, length))

        def of(length: float, text: str) -> str:
            # Shorten the step with the day. Prometheus aligns steps to multiples of their length, of which a short day
            # may have none.
            return text.replace("SPAN", "%ds" % round(length)).replace("STEP", "%ds" % (length // 4))

        answers = self.asking.ask_for_one([(of(length, text), end) for end, length in ends for text in FLEET.values()])
        values = [one.value if one and math.isfinite(one.value) else None for one in answers]
        rows = [values[first : first + len(FLEET)] for first in range(0, len(values), len(FLEET))]
        made = [Day(end - length, **dict(zip(FLEET, row))) for (end, length), row in zip(ends, rows)]
        return tuple(reversed(made))
