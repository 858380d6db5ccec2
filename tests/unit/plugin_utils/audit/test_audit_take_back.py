# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which workloads GPUs are taken from: order, places, reasons and sums."""

from __future__ import annotations

import dataclasses

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.fitting import models_by_name, sufficient_profiles
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.ledger_model import Ledger, Row
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import (
    Finding,
    Holder,
    Holding,
    Quiet,
    Stat,
    Subject,
    Verdict,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.take_back import actions
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.workload_model import Workload
from ansible_collections.openfleet.gpu.plugins.plugin_utils.idle.signals import SIGNALS

DAY = 86400.0
BOB = Workload("unit", "tune.service", "h1", user="bob")


def part(number, word, owner, *, verdict="", gpus=1.0, cost=100.0, days=8.0, host="h1", **more):
    """Return the finding of one part of a GPU, and the part's row."""
    subject = Subject("gpu", host, "GPU-%s-%d" % (host, number), str(number))
    signals, limit = tuple(more.pop("signals", ())), more.pop("limit", None)
    quiet = Quiet(days * DAY, more.pop("whole", False), signals=signals)
    made = Verdict(verdict or word, "", idle_after_seconds=limit)
    found = Finding("f-%s-%d" % (host, number), made, Holding(subject, quiet=quiet, **more))
    return found, Row(host, subject.gpu_uuid, str(number), "", "", found.id, word, gpus, 0.0, cost, owner)


def of(*parts):
    findings = {found.id: found for found, _row in parts}
    return actions(Ledger(tuple(row for _found, row in parts)), findings.values())


def test_gpus_of_a_workload_are_one_row_with_the_shortest_quiet_time():
    ((stop,),) = (of(part(4, "idle", BOB, days=9), part(5, "idle", BOB, days=8)),)
    (item,) = stop.items
    assert (stop.name, item.user, item.name, item.places) == ("stop", "bob", "unit tune.service", (("h1", ("4", "5")),))
    assert (item.why, item.sum.gpus, item.sum.cost_per_month) == ("no work for 8 days", 2.0, 200.0)
    assert item.findings == ("f-h1-4", "f-h1-5")


def unit(user, **more):
    return Workload("unit", "a.service", "h1", user=user, **more)


def test_the_most_expensive_workload_is_first_then_the_longest_quiet():
    (stop,) = of(
        part(0, "idle", unit("cheap"), cost=50.0),
        part(1, "idle", unit("dear"), cost=500.0),
        part(2, "idle", unit("gone"), verdict="held_without_process", cost=50.0, days=9, holders=(), processes_now=0.0),
    )
    assert [(item.user, item.why) for item in stop.items] == [
        ("dear", "no work for 8 days"),
        ("gone", "no process, no work for 9 days"),
        ("cheap", "no work for 8 days"),
    ]


def test_reasons_name_the_limit_and_the_missing_signals():
    (stop,) = of(
        part(0, "idle", BOB, whole=True, days=200, limit=2.5 * DAY, signals=[one.name for one in SIGNALS[:-1]])
    )
    (item,) = stop.items
    assert item.why == "no work for at least 200 days (limit 2.5 days)"
    assert item.risks == ("not measured: client connections",)
    heard = part(0, "idle", BOB, signals=["kernels"], holders=(Holder("process", "x", clients=0),))
    assert "client connections" not in of(heard)[0].items[0].risks[0]


def test_workload_that_reclaim_does_not_stop_yet_is_asked_about():
    # The limit is a week and 16 hours for a workload that never paused for 8 hours, and 100 days for one that never
    # worked (docs/reclaim.md).
    (ask,) = of(part(0, "idle", BOB, days=7), part(1, "idle", unit("new"), days=14, whole=True))
    assert {(item.user, item.why) for item in ask.items} == {
        ("bob", "no work for 7 days, not stopped before 7.7 days"),
        ("new", "no work for at least 14 days, not stopped before 100 days"),
    }
    assert ask.name == "ask"


def test_only_workloads_that_a_command_can_stop_are_stopped():
    works = dataclasses.replace(BOB, user="eve")
    found = of(
        part(0, "idle", Workload("tenant", "t", "h1")),
        part(1, "idle", Workload("process", "processes of zoe", "h1", user="zoe")),
        part(2, "idle", None),
        part(3, "idle", works),
        part(4, "in_use", works),
        part(5, "standby", BOB),
        part(6, "stalled", BOB, stalled_seconds=4 * DAY),
        part(7, "idle", Workload("job", "417", user="dave")),
        part(8, "idle", Workload("pod", "web", namespace="shop")),
    )
    assert [action.name for action in found] == ["ask"]
    assert {(item.owner and item.owner.name, item.why, *item.risks) for item in found[0].items} == {
        ("t", "no work for 8 days"),
        ("processes of zoe", "no work for 8 days"),
        (None, "no work for 8 days, its holder is unknown"),
        ("tune.service", "no work for 8 days, it works on other GPUs", "ending it frees all 2 GPUs"),
        ("tune.service", "standby, no work for 8 days", "ending it frees all 2 GPUs"),
        ("tune.service", "stalled for 4 days", "ending it frees all 2 GPUs"),
        ("417", "no work for 8 days"),
        ("web", "no work for 8 days"),
    }


def test_resizable_workload_names_what_it_needs_and_when_it_is_idle():
    found, unused = part(0, "resizable", BOB, verdict="oversized_memory", gpus=0.75, cost=75.0, days=3, limit=4 * DAY)
    used = dataclasses.replace(unused, word="in_use", gpus=0.25, cost_per_month=25.0)
    rows = Ledger((unused, used))
    for fits, end in (
        ({}, ""),
        ({found.id: "2g.20gb"}, ", 2g.20gb suffices"),
        ({found.id: ""}, ", no MIG profile suffices"),
    ):
        (resize,) = actions(rows, [found], fits)
        assert [(item.why, item.sum.gpus) for item in resize.items] == [("needs 0.25 of 1 GPU" + end, 0.75)]
        assert resize.items[0].risks == ("quiet for 3 days, idle after 4 days",)


def test_sufficient_profiles_have_the_headroom_of_the_sizing():
    def oversized(number, gib, ratio, model="NVIDIA H100 80GB HBM3"):
        def most(value):
            return Stat(14 * DAY, 1.0, value, value, value, value, value)

        subject = Subject("gpu", "h1", "GPU-%d" % number, str(number), model)
        holding = Holding(subject, memory=most(gib * 2.0**30), compute=most(ratio))
        return Finding("f-%d" % number, Verdict("oversized_memory", ""), holding)

    # A 2g.20gb has a quarter of the memory and two of seven compute slices. A 3g.40gb has a half and three of seven.
    found = [oversized(0, 10, 0.2), oversized(1, 18, 0.2), oversized(2, 10, 0.3), oversized(3, 64, 0.1)]
    found += [oversized(4, 1, 0.1, "NVIDIA L4"), oversized(5, 1, 0.1, "no such GPU")]
    assert sufficient_profiles(found, models_by_name()) == {
        "f-0": "2g.20gb",
        "f-1": "3g.40gb",
        "f-2": "3g.40gb",
        "f-3": "",
    }


def test_actions_without_prices_are_ordered_by_gpus():
    small, large = (Workload("unit", name, "h1", user=name) for name in ("small", "large"))
    (stop,) = of(part(0, "idle", small, cost=None, gpus=0.5), part(1, "idle", large, cost=None))
    assert [item.user for item in stop.items] == ["large", "small"] and stop.sum.cost_per_month is None
