# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the current and earlier quiet times of GPUs and their holders.

One instant query finds the GPUs that were quiet for the whole grace period. The history is read only for these GPUs, in
steps of one hour. It only has the hours in which something changed, so it is short for a quiet GPU.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Collection, Mapping, Sequence

from ..idle.rhythm import LEAST_COVERED_RATIO, Rhythm, Span
from ..idle.rule import Policy
from ..idle.signals import CPU_TIME, KERNELS, POWER, SIGNALS, Signal
from .asking import Asking
from .history import Key
from .model import Quiet
from .series import (
    ACTIVITY,
    BY,
    DEVICE_ACTIVITY,
    HARDLY_SECONDS,
    HELD,
    QUIET_BUSY_RATIO,
    QUIET_RATIO,
    ROLL_UP_SECONDS,
    SERIES,
    key_of,
)

#: Length of the history to read in seconds. It includes at least one run of a job at the end of each quarter.
LOOK_BACK_SECONDS = 100 * 86400

#: Labels that identify a GPU or instance on any host.
_BY_GPU = "gpu_uuid, mig_instance"

_HOUR = 3600
#: Minimum number of samples in an hour. An hour with fewer is a gap. Five-minute roll-ups have 12 samples per hour.
_LEAST_SAMPLES = 4

#: A GPU hardly works if its activity is below this limit in this share of five-minute intervals. Kernels count five
#: times, so the limit is 1.2 % of the time, slightly more than the 1 % that NVML reports for a health probe.
_NEARLY_ALL, _HARDLY_RATIO = 0.97, 0.06

#: Maximum average number of cores in ten minutes for processes that start no kernels.
_IDLE_CORES = 0.02

#: Kinds of events, which are values of the label `event`.
_WORKS, _APPEARS, _VANISHES, _TAKEN, _WATCHED = "works", "appears", "vanishes", "taken", "watched"


@dataclass(frozen=True)
class QuietQuestion:
    """Settings of a search for quiet times.

    `grace_seconds` is the minimum quiet time. `holidays` are spans that do not count as quiet.
    """

    grace_seconds: float = Policy.grace_seconds
    holidays: tuple[Span, ...] = ()


BY_DEFAULT = QuietQuestion()


def quiet_times(asking: Asking, question: QuietQuestion, notes: list[str]) -> dict[Key, Quiet]:
    """Return the quiet times that are at least as long as the grace period.

    Without the series ACTIVITY, the busy ratio is used. It misses short work, and a note says so. Raises
    PrometheusError.
    """
    for series in (ACTIVITY, SERIES["busy"].roll_up, SERIES["busy"].name):
        if asking.ask("count(last_over_time(%s{%%(where)s}[15m]))" % series):
            break
    else:
        return {}
    if series != ACTIVITY:
        notes.append(
            "The recording rule %s is missing: idle times are based on gpu:busy_ratio alone, which misses short work. "
            "Load the current rules of the role gpu_monitoring." % ACTIVITY
        )
    return _quiet_by(asking, question, series, QUIET_RATIO if series == ACTIVITY else QUIET_BUSY_RATIO)


def device_quiet_times(asking: Asking, question: QuietQuestion, known: Collection[Key]) -> dict[Key, Quiet]:
    """Return the quiet times of devices whose only sign of work is CPU time.

    Devices are GPUs and instances. CPU time is ignored for these quiet times. `known` has the devices without any sign
    of work, which are left out. Returns {} if the server does not have the series DEVICE_ACTIVITY. Raises
    PrometheusError.
    """
    if not asking.ask("count(last_over_time(%s{%%(where)s}[15m]))" % DEVICE_ACTIVITY):
        return {}
    return {
        key: replace(quiet, signals=tuple(name for name in quiet.signals if name != CPU_TIME.name))
        for key, quiet in _quiet_by(asking, question, DEVICE_ACTIVITY, QUIET_RATIO, known).items()
    }


def hardly_working(asking: Asking) -> set[Key]:
    """Return the GPUs and instances that hardly worked in the last week.

    In nearly all five-minute intervals, kernels ran for at most 1 % of the time, which is enough for health probes and
    few requests. Samples must exist for nearly the whole week. Raises PrometheusError.
    """
    seldom = "max by (%s) (quantile_over_time(%g, %s{%%(where)s}[%ds])) < %g >= 0" % (
        BY, _NEARLY_ALL, DEVICE_ACTIVITY, HARDLY_SECONDS, _HARDLY_RATIO,
    )  # fmt: skip
    known = "max by (%s) (count_over_time(%s{%%(where)s}[%ds])) >= %d" % (
        BY, DEVICE_ACTIVITY, HARDLY_SECONDS, LEAST_COVERED_RATIO * HARDLY_SECONDS / ROLL_UP_SECONDS,
    )  # fmt: skip
    return {key_of(sample.labels) for sample in asking.ask("(%s) and (%s)" % (seldom, known))}


def explained_kernels(asking: Asking, keys: Collection[Key]) -> dict[Key, str]:
    """Return why kernels of the last week are no work of the holder, by device.

    `keys` has devices that hardly worked. The result only has devices whose kernels ran in the hours after a restart,
    or without CPU time, which a process needs to start kernels. The holder of any other device may have worked. Raises
    PrometheusError.
    """
    kernels = "max by (%s) (max_over_time(%s{%%(where)s}[1h])) >= %g" % (BY, DEVICE_ACTIVITY, _HARDLY_RATIO)
    # The counter falls when processes end. Two hours include a restart at the full hour.
    restarts = "max by (%s) (resets(%s{%%(where)s}[2h])) > 0" % (BY, CPU_TIME.series)
    week = "[%ds:1h]" % HARDLY_SECONDS
    some = "count_over_time((%s)%s)" % (kernels, week)
    idle_cpu = "max by (%s) (max_over_time(rate(%s{%%(where)s}[10m])[%ds:10m])) < %g >= 0" % (
        BY, CPU_TIME.series, HARDLY_SECONDS, _IDLE_CORES,
    )  # fmt: skip
    known = "max by (%s) (count_over_time(%s{%%(where)s}%s)) >= %d" % (
        BY, CPU_TIME.series, week, LEAST_COVERED_RATIO * HARDLY_SECONDS / _HOUR,
    )  # fmt: skip
    of = " and on (%s) " % BY
    texts = {
        "(%s) unless on (%s) count_over_time((%s unless %s)%s)" % (some, BY, kernels, restarts, week): (
            "The other kernels ran only after restarts."
        ),
        some + of + "(%s)" % idle_cpu: "During the other kernels, its processes used no CPU time, as in a diagnostic.",
    }
    uuids = sorted({key[1] for key in keys})
    found = {}
    for expression, text in texts.items() if uuids else ():
        for sample in asking.ask_of("(%s)%s(%s)" % (expression, of, known), uuids):
            found[key_of(sample.labels)] = text
    return {key: text for key, text in found.items() if key in keys}


def computed_ago(asking: Asking, keys: Collection[Key]) -> dict[Key, float]:
    """Return the seconds since tensor cores worked on these devices.

    The resolution is one hour. Leaves out devices whose tensor cores did not work within LOOK_BACK_SECONDS. Raises
    PrometheusError.
    """
    works = "max_over_time(%s{%%(where)s}[1h]) >= bool %g" % (SERIES["tensor"].roll_up, QUIET_BUSY_RATIO)
    last = "max by (%s) (max_over_time((time() * (%s))[%ds:1h])) > 0" % (BY, works, LOOK_BACK_SECONDS)
    uuids = sorted({key[1] for key in keys})
    samples = asking.ask_of(last, uuids) if uuids else []
    return {key_of(sample.labels): max(0.0, asking.end_seconds - sample.value) for sample in samples}


def _quiet_by(
    asking: Asking, question: QuietQuestion, series: str, least: float, without: Collection[Key] = ()
) -> dict[Key, Quiet]:
    """Return the quiet times according to one series.

    A value of at least `least` is a sign of work. Leaves out keys in `without`.
    """
    # A GPU without current samples may be working now, so skip it.
    candidates = asking.ask(
        "(max by (%s) (max_over_time(%s{%%(where)s}[%ds])) < %g >= 0)"
        " and on (%s) last_over_time(%s{%%(where)s}[15m]) and on (%s) %s"
        % (BY, series, question.grace_seconds, least, BY, series, BY, _known(series, ""))
    )
    keys = {key_of(sample.labels) for sample in candidates} - set(without)
    if not keys:
        return {}
    uuids = sorted({key[1] for key in keys})
    events = _events_of(asking, series, least, uuids)
    signals = _signals(asking, uuids) if series in (ACTIVITY, DEVICE_ACTIVITY) else {}
    kernel_hours = _kernel_hours(asking, uuids)
    cores = _cpu_cores(asking, question.grace_seconds, uuids)
    watts = _rest_watts(asking, uuids)
    quiets = {
        key: _quiet(
            events.get(key) or events.get(_anywhere(key), {}),
            asking.end_seconds,
            question.holidays,
            (KERNELS.name, *_of(signals, key)),
            kernel_hours.get(key, 0.0),
            cores.get(key),
        )
        for key in keys
    }
    return {key: replace(quiet, rest_watts=watts.get(key[:2])) for key, quiet in quiets.items()}


def _known(series: str, ago: str, by: str = BY) -> str:
    """Return PromQL that selects hours with enough samples.

    The selection excludes hours with NaN, because their average is NaN, and a comparison with NaN is false.
    """
    return "(max by (%s) (count_over_time(%s{%%(where)s}[1h]%s) >= %d and avg_over_time(%s{%%(where)s}[1h]%s) >= 0))" % (
        by, series, ago, _LEAST_SAMPLES, series, ago,
    )  # fmt: skip


def _anywhere(key: Key) -> Key:
    """Return a key of the GPU or instance without the host."""
    return ("", *key[1:])


def _events_of(asking: Asking, series: str, least: float, uuids: Sequence[str]) -> dict[Key, dict[str, list[float]]]:
    """Return these GPUs' events.

    If one host reports a GPU now, the events of all hosts are merged, because host labels change and GPUs move between
    hosts. If several hosts report it now, each host's events are separate.
    """
    several = "count by (gpu_uuid) (count by (host, gpu_uuid) (last_over_time(%s{%%(where)s}[15m]))) > 1" % series
    shared = {sample.labels.get("gpu_uuid", "") for sample in asking.ask_of(several, uuids)}
    return {
        **_events(asking, series, least, [uuid for uuid in uuids if uuid not in shared], _BY_GPU),
        **_events(asking, series, least, [uuid for uuid in uuids if uuid in shared], BY),
    }


def _events(
    asking: Asking, series: str, least: float, uuids: Sequence[str], by: str
) -> dict[Key, dict[str, list[float]]]:
    """Return the hours with an event, by GPU or instance and kind of event.

    An hour is given by its end, in seconds since the epoch.
    """
    watched = "(max by (%s) (min_over_time(%s{%%(where)s}[1h]AGO)))" % (by, HELD)
    free = "(%s == 0)" % watched
    now, before = "", " offset 1h"
    questions = {
        _WORKS: "max by (%s) (max_over_time(%s{%%(where)s}[1h])) >= %g" % (by, series, least),
        _APPEARS: "%s unless %s" % (_known(series, now, by), _known(series, before, by)),
        _VANISHES: "%s unless %s" % (_known(series, before, by), _known(series, now, by)),
        _TAKEN: "%s unless %s" % (free.replace("AGO", before), free.replace("AGO", now)),
        _WATCHED: "%s unless %s" % (watched.replace("AGO", now), watched.replace("AGO", before)),
    }
    expression = " or ".join(
        'label_replace(%s, "event", "%s", "", "")' % (question, event) for event, question in questions.items()
    )
    found: dict[Key, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for course in asking.ask_courses(expression, LOOK_BACK_SECONDS, _HOUR, uuids):
        found[key_of(course.labels)][course.labels.get("event", "")] += sorted(course.values)
    return found


def _signals(asking: Asking, uuids: Sequence[str]) -> dict[Key, set[str]]:
    """Return the signals that are measured now, by GPU or instance.

    A value of NaN is no measurement.
    """
    expression = "count by (%s, signal) (%s)" % (
        BY,
        " or ".join(
            'label_replace(%s, "signal", "%s", "", "")' % (_measured(signal), signal.name)
            for signal in SIGNALS
            if signal.series
        ),
    )
    found: dict[Key, set[str]] = defaultdict(set)
    for sample in asking.ask_of(expression, uuids):
        found[key_of(sample.labels)].add(sample.labels.get("signal", ""))
    return found


def _measured(signal: Signal) -> str:
    """Return PromQL for the GPUs and instances for which a signal is measured.

    Power counts as measured only together with the power limit or the lowest power of the last week, because it means
    nothing alone.
    """
    text = "last_over_time(%s{%%(where)s}[15m]) >= 0" % signal.series
    if signal is not POWER:
        return text
    return (
        "%s and on (host, gpu_uuid) (last_over_time(gpu:power_limit_watts{%%(where)s}[15m]) > 0"
        " or last_over_time(gpu:power_watts:min7d{%%(where)s}[2h]) > 0)" % text
    )


def _kernel_hours(asking: Asking, uuids: Sequence[str]) -> dict[Key, float]:
    """Return the share of hours with kernels too brief for a sign of work.

    Covers the last week. The result is by GPU or instance, without those that have no such hours.
    """
    expression = "count_over_time((max by (%s) (max_over_time(%s{%%(where)s}[1h])) > 0 < %g)[%ds:1h])" % (
        BY, SERIES["busy"].roll_up, QUIET_BUSY_RATIO, HARDLY_SECONDS,
    )  # fmt: skip
    hours = HARDLY_SECONDS / _HOUR
    return {key_of(sample.labels): min(1.0, sample.value / hours) for sample in asking.ask_of(expression, uuids)}


def _cpu_cores(asking: Asking, span_seconds: float, uuids: Sequence[str]) -> dict[Key, float]:
    """Return the average number of cores that processes used, by device.

    The average covers the last `span_seconds`.
    """
    expression = "max by (%s) (rate(gpu:process_cpu_seconds_total{%%(where)s}[%ds])) >= 0" % (BY, span_seconds)
    return {key_of(sample.labels): sample.value for sample in asking.ask_of(expression, uuids)}


def _rest_watts(asking: Asking, uuids: Sequence[str]) -> dict[tuple[str, str], float]:
    """Return GPUs' power in their lowest hour of the week, by host and UUID."""
    expression = "max by (host, gpu_uuid) (last_over_time(gpu:power_watts:min7d{%(where)s}[2h])) > 0"
    found = {key_of(sample.labels)[:2]: sample.value for sample in asking.ask_of(expression, uuids)}
    return {place: watts for place, watts in found.items() if math.isfinite(watts)}


def _of(signals: Mapping[Key, set[str]], key: Key) -> list[str]:
    """Return the measured signals of a GPU or instance in the order of SIGNALS.

    Power and traffic are measured for the whole GPU, and do not show which of several instances works. So they count
    for an instance only if the GPU has no other.
    """
    known = signals.get(key, set())
    neighbours = [
        neighbour
        for neighbour, names in signals.items()
        if neighbour[:2] == key[:2] and neighbour[2] and KERNELS.name in names
    ]
    if len(neighbours) < 2:
        known = known | signals.get((*key[:2], "", ""), set())
    return [signal.name for signal in SIGNALS if signal.name in known and signal is not KERNELS]


def _quiet(
    events: Mapping[str, Sequence[float]],
    end: float,
    excluded: Sequence[Span],
    signals: tuple[str, ...],
    kernel_hours_ratio: float = 0.0,
    cpu_cores: float | None = None,
) -> Quiet:
    works = [(at - _HOUR, at) for at in events.get(_WORKS, ())]
    appears, vanishes = events.get(_APPEARS, ()), events.get(_VANISHES, ())
    began = end - LOOK_BACK_SECONDS
    if appears and (not vanishes or appears[0] < vanishes[0]):
        began = appears[0] - _HOUR
    ends = [at - _HOUR for at in vanishes]
    gaps = [(start, min((at - _HOUR for at in appears if at - _HOUR >= start), default=end)) for start in ends]
    # The GPU has been held since it was last free, or since its first sample. A gap in the samples is no change of the
    # holder.
    changes = [*events.get(_TAKEN, ()), *sorted(events.get(_WATCHED, ()))[:1]]
    held_since = max([began, *(at - _HOUR for at in changes)])
    whole = _rhythm(began, works, gaps, excluded)
    holder = whole if held_since <= began else _rhythm(held_since, works, gaps, excluded)
    return Quiet(
        seconds=whole.quiet_seconds(end),
        whole_window=not works,
        longest_seconds=holder.longest_seconds,
        held_seconds=end - held_since,
        signals=signals,
        kernel_hours_ratio=kernel_hours_ratio,
        cpu_cores=cpu_cores,
    )


def _rhythm(began: float, works: Sequence[Span], gaps: Sequence[Span], excluded: Sequence[Span]) -> Rhythm:
    rhythm = Rhythm(began, excluded)
    for start, end, is_gap in sorted([(*span, False) for span in works] + [(*span, True) for span in gaps]):
        if end > began:
            (rhythm.gap if is_gap else rhythm.works)(max(start, began), end)
    return rhythm
