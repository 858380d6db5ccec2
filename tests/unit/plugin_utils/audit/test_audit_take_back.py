# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the order, places, reasons and sums of workloads to take GPUs from."""

from __future__ import annotations

import dataclasses

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.ledger_model import Ledger, Row
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import Finding, Holding, Quiet, Subject, Verdict
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.take_back import actions
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.workload_model import Workload

DAY = 86400.0
BOB = Workload("unit", "tune.service", "h1", user="bob")


def part(number, word, owner, *, verdict="", gpus=1.0, cost=100.0, days=3.0, host="h1", **more):
    """Return the finding and the row of one part of a GPU."""
    subject = Subject("gpu", host, "GPU-%s-%d" % (host, number), str(number))
    holding = Holding(subject, quiet=Quiet(days * DAY), **more)
    found = Finding("f-%s-%d" % (host, number), Verdict(verdict or word, ""), holding)
    return found, Row(host, subject.gpu_uuid, str(number), "", "", found.id, word, gpus, 0.0, cost, owner)


def of(*parts):
    findings = {found.id: found for found, _row in parts}
    return actions(Ledger(tuple(row for _found, row in parts)), findings.values())


def test_gpus_of_a_workload_are_one_row_with_the_shortest_quiet_time():
    ((stop,),) = (of(part(4, "idle", BOB, days=9), part(5, "idle", BOB, days=7)),)
    (item,) = stop.items
    assert (stop.name, item.user, item.name, item.places) == ("stop", "bob", "unit tune.service", (("h1", ("4", "5")),))
    assert (item.why, item.sum.gpus, item.sum.cost_per_month) == ("no sign of work for 7 days", 2.0, 200.0)


def test_workload_without_a_process_is_first_then_the_most_expensive():
    def unit(user):
        return Workload("unit", "a.service", "h1", user=user)

    (stop,) = of(
        part(0, "idle", unit("cheap"), cost=50.0),
        part(1, "idle", unit("dear"), cost=500.0),
        part(2, "idle", unit("gone"), verdict="held_without_process", cost=10.0, days=2),
    )
    assert [(item.user, item.why) for item in stop.items] == [
        ("gone", "no process for 2 days"),
        ("dear", "no sign of work for 3 days"),
        ("cheap", "no sign of work for 3 days"),
    ]
    assert stop.by_user() == [("cheap", 1.0), ("dear", 1.0), ("gone", 1.0)]


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
    )
    assert [action.name for action in found] == ["ask"]
    assert {(item.owner and item.owner.name, item.why) for item in found[0].items} == {
        ("t", "no sign of work for 3 days"),
        ("processes of zoe", "no sign of work for 3 days"),
        (None, "its holder is unknown"),
        ("tune.service", "it works on other GPUs, so it is not stopped, 1 of its 2 GPUs"),
        ("tune.service", "waits, no sign of work for 3 days, 1 of its 2 GPUs"),
        ("tune.service", "busy without progress for 4 days, 1 of its 2 GPUs"),
    }


def test_resizable_workload_names_what_it_needs():
    found, unused = part(0, "resizable", BOB, verdict="oversized_memory", gpus=0.75, cost=75.0)
    used = dataclasses.replace(unused, word="in_use", gpus=0.25, cost_per_month=25.0)
    (resize,) = of((found, unused), (found, used))
    assert [(item.why, item.sum.gpus) for item in resize.items] == [("needs 0.25 of 1 GPU", 0.75)]


def test_actions_without_prices_are_ordered_by_gpus():
    small, large = (Workload("unit", name, "h1", user=name) for name in ("small", "large"))
    (stop,) = of(part(0, "idle", small, cost=None, gpus=0.5), part(1, "idle", large, cost=None))
    assert [item.user for item in stop.items] == ["large", "small"] and stop.sum.cost_per_month is None
