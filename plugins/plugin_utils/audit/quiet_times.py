# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For how long GPUs have shown no sign of work, and what quiet times their holders had before.

Two steps. One instant query finds the GPUs that were quiet for the whole grace. Only of these the past is read: by the hour, as
events, so that a GPU that rests costs next to nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Collection, Mapping, Sequence

from ..idle.rhythm import Rhythm, Span
from ..idle.rule import Policy
from ..idle.signals import CPU_TIME, KERNELS, POWER, SIGNALS, Signal
from .asking import Asking
from .history import Key
from .model import Quiet
from .series import ACTIVITY, BY, DEVICE_ACTIVITY, HELD, QUIET_BUSY_RATIO, QUIET_RATIO, SERIES, key_of

#: How far back the rhythm of a holder is looked up: a monthly job has run twice within it.
LOOK_BACK_SECONDS = 56 * 86400

#: What tells a GPU or instance from others under whatever host.
_BY_GPU = "gpu_uuid, mig_instance"

_HOUR = 3600
#: So many samples make an hour one that is known: a third of the roll-ups of five minutes.
_LEAST_SAMPLES = 4

#: Labels of an event, beside those of BY.
_WORKS, _APPEARS, _VANISHES, _TAKEN, _WATCHED = "works", "appears", "vanishes", "taken", "watched"


@dataclass(frozen=True)
class QuietQuestion:
    """Quiet times from `grace_seconds` on are looked up. `holidays` are spans that do not count as quiet."""

    grace_seconds: float = Policy.grace_seconds
    holidays: tuple[Span, ...] = ()


BY_DEFAULT = QuietQuestion()


def quiet_times(asking: Asking, question: QuietQuestion, notes: list[str]) -> dict[Key, Quiet]:
    """Return the quiet time of each GPU and instance that was quiet for the whole grace. Raises PrometheusError.

    Activity is ACTIVITY. A server whose rules do not record that yet is asked for the share of time in which kernels ran, which
    hides short work: this is noted.
    """
    for series in (ACTIVITY, SERIES["busy"].roll_up, SERIES["busy"].name):
        if asking.ask("count(last_over_time(%s{%%(where)s}[15m]))" % series):
            break
    else:
        return {}
    if series != ACTIVITY:
        notes.append(
            "There is no %s (rules of gpu_monitoring): idle times are by gpu:busy_ratio alone, which hides short work."
            % ACTIVITY
        )
    return _quiet_by(asking, question, series, QUIET_RATIO if series == ACTIVITY else QUIET_BUSY_RATIO)


def device_quiet_times(asking: Asking, question: QuietQuestion, known: Collection[Key]) -> dict[Key, Quiet]:
    """Return the same by what GPUs do alone, of those where the CPU time of processes is the only sign of work.

    `known` are those that are quiet by all signs. A server without the series has none. Raises PrometheusError.
    """
    if not asking.ask("count(last_over_time(%s{%%(where)s}[15m]))" % DEVICE_ACTIVITY):
        return {}
    return {
        key: replace(quiet, signals=tuple(name for name in quiet.signals if name != CPU_TIME.name))
        for key, quiet in _quiet_by(asking, question, DEVICE_ACTIVITY, QUIET_RATIO, known).items()
    }


def _quiet_by(
    asking: Asking, question: QuietQuestion, series: str, least: float, without: Collection[Key] = ()
) -> dict[Key, Quiet]:
    """Return the quiet times by one series, without those of `without`."""
    # A GPU that is not measured just now may have begun to work.
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
    kernel_hours = _kernel_hours(asking, question.grace_seconds, uuids)
    return {
        key: _quiet(
            events.get(key) or events.get(_anywhere(key), {}),
            asking.end_seconds,
            question.holidays,
            (KERNELS.name, *_of(signals, key)),
            kernel_hours.get(key, 0.0),
        )
        for key in keys
    }


def _known(series: str, ago: str, by: str = BY) -> str:
    """What tells the hours with samples. An average that has a NaN in it is NaN, and not above 0."""
    return "(max by (%s) (count_over_time(%s{%%(where)s}[1h]%s) >= %d and avg_over_time(%s{%%(where)s}[1h]%s) >= 0))" % (
        by, series, ago, _LEAST_SAMPLES, series, ago,
    )  # fmt: skip


def _anywhere(key: Key) -> Key:
    """The same GPU or instance under whatever host."""
    return ("", *key[1:])


def _events_of(asking: Asking, series: str, least: float, uuids: Sequence[str]) -> dict[Key, dict[str, list[float]]]:
    """The events of these GPUs, under any host where the GPU has one host now: its label may have changed, or the GPU moved.

    A GPU that several hosts report just now has the events of each: what one says is no history of the other's.
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
    """The hours that begin or end something, by their ends in seconds, of each GPU or instance and kind of event."""
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
    """The names of the signals that are measured now, of each GPU or instance. NaN is no measurement."""
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
    """PromQL of where the signal could show work: power says nothing without a limit or a lowest hour to hold it against."""
    text = "last_over_time(%s{%%(where)s}[15m]) >= 0" % signal.series
    if signal is not POWER:
        return text
    return (
        "%s and on (host, gpu_uuid) (last_over_time(gpu:power_limit_watts{%%(where)s}[15m]) > 0"
        " or last_over_time(gpu:power_watts:min7d{%%(where)s}[2h]) > 0)" % text
    )


def _kernel_hours(asking: Asking, span_seconds: float, uuids: Sequence[str]) -> dict[Key, float]:
    """The share of the hours of this span in which any kernel ran, of each GPU or instance: 0 hours are left out."""
    expression = "count_over_time((max by (%s) (max_over_time(%s{%%(where)s}[1h])) > 0)[%ds:1h])" % (
        BY, SERIES["busy"].roll_up, span_seconds,
    )  # fmt: skip
    hours = max(1.0, span_seconds / _HOUR)
    return {key_of(sample.labels): min(1.0, sample.value / hours) for sample in asking.ask_of(expression, uuids)}


def _of(signals: Mapping[Key, set[str]], key: Key) -> list[str]:
    """Those of a GPU or instance in the order of SIGNALS.

    Power and traffic are measured of the whole GPU. Beside a neighbour that works they say nothing of an instance, so that they
    count for the only one of a GPU.
    """
    known = signals.get(key, set())
    neighbours = [
        other for other, names in signals.items() if other[:2] == key[:2] and other[2] and KERNELS.name in names
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
) -> Quiet:
    works = [(at - _HOUR, at) for at in events.get(_WORKS, ())]
    appears, vanishes = events.get(_APPEARS, ()), events.get(_VANISHES, ())
    began = end - LOOK_BACK_SECONDS
    if appears and (not vanishes or appears[0] < vanishes[0]):
        began = appears[0] - _HOUR
    ends = [at - _HOUR for at in vanishes]
    gaps = [(start, min((at - _HOUR for at in appears if at - _HOUR >= start), default=end)) for start in ends]
    # Since it was free last, or since the first look; a gap between is no change of hands.
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
    )


def _rhythm(began: float, works: Sequence[Span], gaps: Sequence[Span], excluded: Sequence[Span]) -> Rhythm:
    rhythm = Rhythm(began, excluded)
    for start, end, is_gap in sorted([(*span, False) for span in works] + [(*span, True) for span in gaps]):
        if end > began:
            (rhythm.gap if is_gap else rhythm.works)(max(start, began), end)
    return rhythm
