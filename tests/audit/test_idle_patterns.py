# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test usage patterns in a real Prometheus with the shipped rules.

The audit must not report holders who work as idle, but must report holders who left. `make bench BENCH=idle` has more
patterns and more audits.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import Finding, Holding, Subject, Verdict
from tests.audit import idle_abandoned, idle_near, idle_working
from tests.audit.idle_judge import LAST, Outcome, judge, judge_one, seen_with, serve, states_of, total
from tests.audit.idle_model import (
    DAY,
    FACTOR,
    GRACE,
    HOLIDAY_DATES,
    HOLIDAYS,
    HOUR,
    MINUTES,
    NEW,
    START,
    WEEK,
    Pattern,
)
from tests.audit.idle_samples import text
from tests.audit.past_rules import passes
from tests.monitoring.rule_files import FILES
from tests.thorough import THOROUGH

NAMED = [*idle_working.named(0, 4), *idle_working.named(2 * WEEK, 2)]
LATER = [
    *idle_working.named(0, 4, idle_working.LATER),
    *idle_working.named(2 * WEEK, 2, idle_working.LATER),
]
#: Patterns for `make test`: the hardest of each kind with two weeks of history, which take half as long as four weeks.
#: They are the rhythms with the longest pauses, requests that an exporter sees by chance, the transcoder that DCGM
#: reports, and a delayed weekly job.
USUAL = {
    "office-hours-2w", "office-bridge-2w", "weekly-2h-2w", "weekly-2h-later-2w", "request-0.4s-minute-instant-2w",
    "request-unix-socket-2w", "request-2s-hour-instant-2w", "busy-nan-10h-2w", "activity-stuck-2w", "dcgm-gr-engine-stuck-2w",
    "mig-zero-at-350w-2w", "transcoder-dcgm-2w", "busy-stuck-office-2w", "busy-stuck-dcgm-2w",
}  # fmt: skip
#: Patterns near the thresholds for `make test`: one of each kind.
USUAL_NEAR = {
    "queue-75ms-minute-office", "queue-75ms-minute-counted", "4ms-second-no-profiling", "1s-each-6h-counted", "standby-3GiB",
    "second-weekends", "weekly-12h-late-2w", "simulation", "hung-all-reduce", "probes-of-1-percent-small", "restarts-each-6h",
    "nightly-diagnostic", "restarts-each-6h-not-listening", "nightly-diagnostic-not-listening", "nightly-job-of-3-minutes",
}  # fmt: skip
WORKING = [one for one in [*NAMED, *LATER] if THOROUGH or one.name in USUAL] + [
    one for one in idle_near.working() if one.name in USUAL_NEAR
]
#: In `make test`, the holders came as late as possible for a deadline before the last audits.
LEFT = [
    one if THOROUGH else idle_abandoned.came_later(one, 12 * DAY)
    for one in idle_abandoned.patterns()
    if one.name in ("forgotten-notebook", "never-used-container", "dcgm-left", "polling-server-left")
] + [one for one in idle_near.left() if one.name in USUAL_NEAR]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """Audit the last Monday and Wednesday at 06:00, over two and four weeks."""
    with serve([*WORKING, *LEFT], tmp_path_factory.mktemp("patterns")) as url:
        yield judge(url, [*WORKING, *LEFT], LAST)


def wrong(outcome, pattern, *kinds):
    return "\n".join(str(one) for one in outcome.wrong if one.pattern.name == pattern.name and one.what in kinds)


@pytest.mark.parametrize("pattern", WORKING, ids=lambda one: one.name)
def test_who_works_is_never_called_idle(outcome, pattern):
    assert wrong(outcome, pattern, "false flag") == ""


@pytest.mark.parametrize("pattern", WORKING, ids=lambda one: one.name)
def test_who_works_is_never_stopped(outcome, pattern):
    assert wrong(outcome, pattern, "false stop") == ""


@pytest.mark.parametrize("pattern", [one for one in WORKING if one.contradicts is not None], ids=lambda one: one.name)
def test_metrics_that_contradict_each_other_are_found(outcome, pattern):
    assert wrong(outcome, pattern, "contradiction missed") == ""


@pytest.mark.parametrize("pattern", LEFT, ids=lambda one: one.name)
def test_who_left_is_called_idle_in_time(outcome, pattern):
    assert wrong(outcome, pattern, "missed") == ""


def test_each_pattern_is_judged_at_each_time(outcome):
    assert {one.name for one in [*WORKING, *LEFT]} >= USUAL | USUAL_NEAR
    assert outcome.judged == len(LAST) * len([*WORKING, *LEFT])
    assert outcome.due == sum(minute >= one.deadline for minute, _window in LAST for one in LEFT)
    assert all(one.deadline <= LAST[-1][0] for one in LEFT) and outcome.untold == []


# --- The judge --------------------------------------------------------------------------------------------------------


def days(*some):
    """Return a pattern that works on these days from 09:00 to 17:00."""
    return Pattern("x", idle_working.work(lambda m: m // DAY in some and 9 * HOUR <= m % DAY < 17 * HOUR))


def test_quiet_times_are_those_between_work():
    pattern = days(0, 1, 4)
    assert pattern.quiet(2 * DAY) == 7 * HOUR and pattern.quiet(10 * HOUR) == 0
    assert pattern.longest(0, 2 * DAY) == 16 * HOUR and pattern.longest(0, 5 * DAY) == 2 * DAY + 16 * HOUR
    # A pause that has not ended is not a usual pause. With two weeks of history, the rule no longer assumes a weekend.
    assert pattern.usual(0, 13 * DAY) == NEW
    assert days(*range(20)).usual(0, 20 * DAY) == 16 * HOUR


def test_a_later_pattern_does_the_same_at_other_times():
    for one, later in zip(NAMED, LATER):
        first, by = one.came + 5 * DAY, idle_working.LATER
        assert (later.came, later.name) == (
            one.came,
            one.name.replace("-%sw" % one.name[-2], "-later-%sw" % one.name[-2]),
        )
        assert later.schedule(first + by) == one.schedule(first) and by % DAY and by % HOUR and by % WEEK
        if one.sampled:
            assert str(later.sampled("gpu:busy_ratio", first + by, 1)) == str(one.sampled("gpu:busy_ratio", first, 1))


def test_gpus_of_one_process_are_of_one_host_and_one_works_at_a_time():
    gpus = idle_working.in_turn("x", 8, 3 * DAY)
    (host,) = states_of(gpus, 4 * DAY).values()
    assert [gpu["index"] for gpu in host["gpus"]] == list(range(8))
    assert len({(row["pid"], row["unit_or_container"]) for gpu in host["gpus"] for row in gpu["holders"]}) == 1
    assert [one.schedule(4 * DAY)[0].busy > 0 for one in gpus] == [False, True] + 6 * [False]
    assert all(one.quiet(4 * DAY) == 0 for one in gpus)


def test_what_a_host_sees_changes_the_holder_and_not_the_samples():
    given = [NAMED[0], *idle_working.standby(), *idle_abandoned.patterns()[:1]]
    for clients, listens, lengthened in ((None, None, 0), (0, False, 0), (2, False, 0)):
        seen = seen_with(given, clients)
        assert [one.name for one in seen] == [NAMED[0].name, given[-1].name]
        assert {(one.holder.clients, one.holder.listens, one.lengthened) for one in seen} == {
            (clients, listens, lengthened)
        }
    assert seen_with([Pattern("x", NAMED[0].schedule, holder=idle_working.UNIT(clients=0), abandoned=0)], None)[
        0
    ].lengthened


def test_an_abandoned_gpu_is_due_after_grace_and_twice_the_usual():
    pattern = idle_abandoned.patterns()[0]
    assert pattern.deadline == pattern.abandoned + GRACE + FACTOR * NEW
    assert days(0).deadline is None


def test_what_no_history_tells_is_not_judged():
    pattern = days(0, 1)
    assert not pattern.cannot_be_told(9 * DAY, 14 * DAY) and pattern.cannot_be_told(10 * DAY, 14 * DAY)
    # All other patterns have enough history for a verdict.
    for pattern in [*idle_working.named(0, 4), *LATER, *idle_working.others()]:
        if pattern.contradicts is not None:
            continue
        times = range(pattern.came + DAY, MINUTES, 7 * HOUR)
        told = not any(pattern.cannot_be_told(minute, window * DAY) for minute in times for window in (14, 28))
        assert told != pattern.rare, pattern.name


def test_patterns_have_names_of_their_own_and_enough_are_abandoned():
    every = [*NAMED, *LATER, *idle_working.others(), *idle_abandoned.patterns()]
    assert len({one.name for one in every}) == len(every) >= 100
    assert len({one.deadline for one in idle_abandoned.patterns()} - {None}) > 3
    assert len([one for one in idle_abandoned.patterns() if one.deadline < 28 * DAY]) >= 15


def test_holidays_are_on_the_dates_that_the_inventory_has():
    assert [time.strftime("%Y-%m-%d", time.gmtime(START + 60 * one)) for one in HOLIDAYS] == list(HOLIDAY_DATES)


def test_samples_are_once_a_minute_and_none_is_twice():
    for pattern in (LEFT[-1], *NAMED[:13], *idle_working.others()):
        noon = max(pattern.came, 22 * DAY) + 12 * HOUR
        seen = [line.rsplit(" ", 2) for part in text(pattern, noon, noon + 90) for line in part.splitlines()]
        assert seen and len({(series, at) for series, _value, at in seen}) == len(seen), pattern.name


def test_rules_are_evaluated_after_those_that_they_read():
    files = [FILES / "rules" / "dcgm.yml", FILES / "rollups.yml"]
    order = [{rule["record"] for group in groups for rule in group["rules"]} for groups in passes(files)]
    place = {name: number for number, names in enumerate(order) for name in names}
    assert place["gpu_map:dcgm"] < place["gpu:busy_ratio"] < place["gpu:busy_ratio:avg5m"]
    assert place["gpu:compute_active_ratio:avg5m"] < place["gpu:compute_active_ratio:max15m"]


def test_outcomes_are_added_up():
    one = Outcome(3, 2, 1, ["wrong"], ["untold"])
    assert total([one, one]) == Outcome(6, 4, 2, ["wrong", "wrong"], ["untold", "untold"])


def said(pattern, word, stop=None, day=20):
    """Return the errors if this day's audit gives this verdict."""
    outcome = Outcome()
    subject = Subject("gpu", pattern.name, pattern.uuid)
    finding = Finding("x", Verdict(word, "a reason"), Holding(subject))
    judge_one(outcome, pattern, day * DAY, 14 * DAY, finding, stop)
    return [one.what for one in outcome.wrong]


def test_the_judge_goes_by_the_truth_alone():
    works, left, waits = days(*range(20)), idle_abandoned.patterns()[0], idle_working.standby()[0]
    for word in ("idle", "held_without_process", "free"):
        assert said(works, word) == said(waits, word) == ["false flag"]
    for word in ("right", "no_data", "broken_metrics", "standby", "saturated"):
        assert said(works, word) == said(waits, word) == []
        assert said(left, word) == ["missed"]
    assert said(works, "right", "a stop") == said(waits, "standby", "a stop") == ["false stop"]
    broken = replace(days(*range(20)), contradicts=0)
    assert said(broken, "broken_metrics") == [] and said(broken, "right") == ["contradiction missed"]
    assert said(broken, "idle") == ["contradiction missed", "false flag"]
    assert said(left, "idle", "a stop") == said(left, "held_without_process") == []
    # On this day, the audit may call the GPU idle, but does not have to. The test accepts either verdict.
    assert said(left, "right", day=12) == said(left, "idle", day=12) == []
