# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that each GPU hour has one class in the ledger, and that rows add up."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import random
import re
from decimal import Decimal

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import (
    report_csv,
    report_html,
    report_index,
    report_json,
    report_prom,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.compare import findings
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.jobs import Job
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.ledger import apportion, booked
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.ledger_model import (
    CLASSES,
    NOT_ASSIGNED,
    RESERVED_UNUSED,
    Ledger,
    Row,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import (
    WORDS,
    Audit,
    Holder,
    Holding,
    Quiet,
    Sources,
    Stat,
    Subject,
    Verdict,
    Window,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.owners import owners
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.owning import Known, KnownJobs, owned
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.report_index import Entry
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.workload_model import Workload
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.write_line import line

NOW, GIB, HOUR = 1700000000.0, float(1 << 30), 3600.0
WINDOW = 336 * HOUR


def subject(kind="gpu", **more):
    return Subject(kind, "a", "GPU-1", "0", "NVIDIA H100", **more)


def holding(hours=336.0, **more):
    stat = Stat(hours * HOUR, hours / 336)
    return Holding(**{"subject": subject(), "memory": stat, "memory_total_bytes": 80 * GIB, "gpu_ratio": 1.0, **more})


def rows_of(*judged, window=WINDOW):
    return booked(findings(judged, {}, NOW), window)


def classes(book):
    return {word: (one.gpus, one.gpu_hours) for word, one in book.by_class().items() if one.gpus or one.gpu_hours}


@pytest.mark.parametrize("word", WORDS)
def test_each_verdict_has_a_class(word):
    _found, book = rows_of((holding(quiet=Quiet(60 * HOUR)), Verdict(word, "", waste_ratio=0.5)))
    assert book.sum_of().gpus == 1.0 and book.sum_of().gpu_hours == 336.0


def test_hours_before_an_idle_time_were_in_use_and_hours_without_samples_are_unknown():
    _found, book = rows_of((holding(hours=300, quiet=Quiet(60 * HOUR)), Verdict("idle", "")))
    assert classes(book) == {"idle": (1.0, 60.0), "in_use": (0.0, 240.0), "unknown": (0.0, 36.0)}


def test_oversized_workload_has_a_used_and_a_resizable_part():
    found, book = rows_of((holding(price_per_hour=2.0), Verdict("oversized_memory", "", waste_ratio=0.25)))
    assert classes(book) == {"resizable": (0.25, 84.0), "in_use": (0.75, 252.0)}
    assert found[0].verdict.waste_per_month == 365.0 and book.sum_of().cost_per_month == 1461.0


def test_quota_of_a_tenant_on_a_free_gpu_is_reserved():
    tenant = holding(subject=subject("tenant", name="t"), memory_total_bytes=20 * GIB, gpu_ratio=None)
    free = holding(quiet=Quiet(336 * HOUR), price_per_hour=1.0)
    found, book = rows_of((free, Verdict("free", "")), (tenant, Verdict("idle", "")))
    assert classes(book) == {"idle": (0.25, 84.0), "unassigned": (0.75, 252.0)}
    assert {one.holding.subject.kind: one.verdict.waste_per_month for one in found} == {"tenant": 183.0, "gpu": None}


def test_tenants_of_a_used_gpu_have_their_own_classes():
    tenants = [
        (holding(subject=subject("tenant", name=name), memory_total_bytes=gib * GIB, gpu_ratio=None), Verdict(word, ""))
        for name, gib, word in (("a", 40, "right"), ("b", 20, "idle"))
    ]
    _found, book = rows_of((holding(), Verdict("right", "")), *tenants)
    assert classes(book) == {"in_use": (0.5, 168.0), "idle": (0.25, 84.0), "unassigned": (0.25, 84.0)}


def test_memory_outside_of_instances_is_unassigned():
    part = holding(
        subject=subject("mig_instance", mig_instance="1", mig_profile="3g.40gb"), gpu_ratio=0.5, price_per_hour=1.0
    )
    _found, book = rows_of((part, Verdict("right", "")))
    assert classes(book) == {"in_use": (0.5, 168.0), "unassigned": (0.5, 168.0)}
    assert book.sum_of(["unassigned"]).cost_per_month == 730.0


def test_removed_tenant_reserves_nothing():
    tenant = holding(subject=subject("tenant", name="t"), silent_seconds=9 * HOUR)
    _found, book = rows_of((holding(quiet=Quiet(336 * HOUR)), Verdict("free", "")), (tenant, Verdict("no_data", "")))
    assert classes(book) == {"free": (1.0, 336.0)}


@pytest.mark.parametrize("seed", range(20))
def test_parts_add_up(seed):
    chance = random.Random(seed)
    weights = [chance.random() for _ in range(chance.randint(1, 9))]
    total = chance.randint(0, 10000)
    parts = apportion(total, weights)
    assert sum(parts) == total and min(parts) >= 0
    exact = [total * weight / sum(weights) for weight in weights]
    assert all(abs(part - value) < 1 for part, value in zip(parts, exact))


def random_audit(seed):
    """Return the audit of a random fleet.

    The fleet has whole GPUs, instances and tenants with any verdict.
    """
    chance = random.Random(seed)
    window = chance.choice([0.0, 336 * HOUR, 100.3 * HOUR])
    judged = []

    def judge_some(**more):
        price = chance.choice([None, 0.37, 2.4, 11.113])
        ratio = more.get("gpu_ratio", 1.0)
        made = holding(
            chance.uniform(0, 400),
            quiet=chance.choice([None, Quiet(chance.uniform(0, 500) * HOUR)]),
            **{**more, "price_per_hour": None if price is None or ratio is None else price * ratio},
        )
        if chance.random() < 0.7:
            names = [
                chance.choice(["a.service", "b.service", "x container y", ""]) for _ in range(chance.randint(0, 3))
            ]
            holders = tuple(
                Holder(
                    "process",
                    "pid 1",
                    chance.choice([None, NOW - chance.uniform(0, 500) * HOUR]),
                    user=chance.choice(["", "alice", "bob"]),
                    unit=name,
                    job=chance.choice(["", "", "17"]),
                )
                for name in names
            )
            made = dataclasses.replace(made, holders=holders)
        waste = chance.random()
        judged.append((made, Verdict(chance.choice(WORDS), "Why.", waste_ratio=waste)))

    for number in range(chance.randint(1, 150)):
        base = dataclasses.replace(subject(), host="h%d" % (number // 4), gpu_uuid="GPU-%d" % number)
        if chance.random() < 0.3:
            for instance in range(chance.randint(1, 7)):
                named = dataclasses.replace(base, kind="mig_instance", mig_instance=str(instance))
                judge_some(subject=named, gpu_ratio=chance.choice([0.125, 10 / 80, 1 / 7, None]))
        else:
            judge_some(subject=base)
            for tenant in range(chance.choice([0, 0, 1, 5])):
                quota = chance.choice([None, 7 * GIB, 30 * GIB])
                named = dataclasses.replace(base, kind="tenant", name="t%d" % tenant)
                judge_some(subject=named, gpu_ratio=None, memory_total_bytes=quota)
    found, book = booked(findings(judged, {}, NOW), window)
    jobs = [Job("9", "9", "carol", "hpc", "COMPLETED", NOW - 200 * HOUR, NOW - 100 * HOUR, (("", 1),), ("n",))]
    ended = {one.holding.subject.place: [(jobs[0], chance.uniform(0, 2) * HOUR * 100)] for one in found[::3]}
    teams = owners([{"team": "a", "accounts": ["alice"], "units": ["y"]}])
    known = Known(Window(NOW - window, NOW), window > 0, teams, KnownJobs(tuple(jobs), ended))
    book, totals, _notes = owned(book, found, known, None)
    return Audit(NOW, Window(NOW - window, NOW), Sources(), found, currency="EUR", ledger=book, owners=totals)


def number(text):
    """Return the first number of a cell, or 0 if it has none."""
    match = re.search(r"-?[\d,]+(?:\.\d+)?", text)
    return Decimal(match.group().replace(",", "")) if match else Decimal(0)


def money_of(text):
    """Return the amount before the currency, or 0 if there is none."""
    match = re.search(r"([\d,]+) EUR", text)
    return Decimal(match.group(1).replace(",", "")) if match else Decimal(0)


def tables(page):
    """Yield the rows of each table that has a total.

    A row is a list of cells without markup.
    """
    for table in re.findall(r"<table>(.*?)</table>", page, re.S):
        rows = [
            [re.sub(r"<[^>]+>", " ", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.S)]
            for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table.partition("<tbody>")[2], re.S)
            if "<td" in row
        ]
        if rows and rows[-1][0] == "Total":
            yield rows


@pytest.mark.parametrize("seed", range(25))
def test_rows_of_random_fleets_add_up_to_totals_everywhere(seed):
    audit = random_audit(seed)
    sums = report_json.summary(audit)["ledger"]
    places = {one.holding.subject.place[:2] for one in audit.findings}
    assert sums["total"]["gpus"] == len(places)
    hours = Decimal(str(round(audit.window.seconds / 3600, 2)))
    assert Decimal(str(sums["total"]["gpu_hours"])) == len(places) * hours
    # CSV of hours: rows must add up to each class, and to each headline.
    rows = list(csv.DictReader(io.StringIO(report_csv.hours_text(audit))))
    metrics = report_prom.to_text(audit)
    for key in ("gpus", "gpu_hours", "cost_per_month"):
        by_class = {
            word: sum((number(row[key]) for row in rows if row["class"] == word), Decimal(0)) for word in CLASSES
        }
        assert by_class == {word: Decimal(str(sums["classes"][word][key] or 0)) for word in CLASSES}
        assert sum(by_class.values()) == Decimal(str(sums["total"][key] or 0))
        for name, words in (("reserved_unused", RESERVED_UNUSED), ("not_assigned", NOT_ASSIGNED)):
            assert sum(by_class[word] for word in words) == Decimal(str(sums[name][key] or 0))
        series = dict(re.findall(r'^gpu_audit_%s\{class="(\w+)"\} (\S+)$' % key, metrics, re.M))
        assert {word: Decimal(value) for word, value in series.items() if Decimal(value)} == {
            word: value for word, value in by_class.items() if value
        }
        owned_series = re.findall(r'^gpu_audit_owner_%s\{.*class="(\w+)"\} (\S+)$' % key, metrics, re.M)
        assert by_class == {
            word: sum((Decimal(value) for of, value in owned_series if of == word), Decimal(0)) for word in CLASSES
        }
    # Findings: their costs in audit.csv, and the costs of parts without a finding, must add up to both headlines.
    costs = [row["waste_per_month"] for row in csv.DictReader(io.StringIO(report_csv.to_text(audit)))]
    wasted = (*RESERVED_UNUSED, *NOT_ASSIGNED)
    costs += [row["cost_per_month"] for row in rows if row["class"] in wasted and not row["finding_id"]]
    headlines = [Decimal(str(sums[name]["cost_per_month"] or 0)) for name in ("reserved_unused", "not_assigned")]
    assert sum(map(number, costs)) == sum(headlines)
    # Owners: the rows of audit-owners.csv, and each list of totals, must add up to the ledger.
    by_workload = list(csv.DictReader(io.StringIO(report_csv.owners_text(audit))))
    for column, key, part in (
        ("gpus", "gpus", "total"),
        ("gpu_hours_held", "gpu_hours", "total"),
        ("unused_gpus", "gpus", "reserved_unused"),
        ("unused_gpu_hours", "gpu_hours", "reserved_unused"),
        ("unused_per_month", "cost_per_month", "reserved_unused"),
    ):
        assert sum(number(row[column]) for row in by_workload) == Decimal(str(sums[part][key] or 0)), column
    for of_kind in (audit.owners.teams, audit.owners.users, audit.owners.workloads):
        assert round(math.fsum(one.held_gpu_hours for one in of_kind), 2) == sums["total"]["gpu_hours"]
        assert round(math.fsum(one.unused_gpus for one in of_kind), 4) == sums["reserved_unused"]["gpus"]
    # Page: the rows of each table must add up to its last row.
    page = report_html.to_text(audit)
    found = list(tables(page))
    assert found
    by_class_table = next(rows for rows in found if len(rows[-1]) == 4)
    assert money_of(by_class_table[-1][3]) == sum(money_of(row[3]) for row in by_class_table[:-1])
    assert number(by_class_table[-1][2]) == sum(number(row[2]) for row in by_class_table[:-1])
    for rows_of_table in (rows for rows in found if rows is not by_class_table):
        assert money_of(rows_of_table[-1][-1]) == sum(money_of(row[-1]) for row in rows_of_table[:-1])
    # The sections of hosts must add up to the headlines of the page, and the index page must have the same amounts.
    sections = re.findall(r'<section class="card host".*?</p>', page, re.S)
    data = {"summary": report_json.summary(audit), "made_at_seconds": NOW, "line": line(audit)}
    index = report_index.to_text([Entry.of("report", data)])
    for title, headline in zip(("reserved and unused", "not assigned"), headlines):
        of_hosts = [re.search(r"%s: [\d.]+ GPUs?, (.*?) per month" % title, section) for section in sections]
        assert sum(money_of(found.group(1)) for found in of_hosts if found) == headline
        assert money_of(re.search(r'data-name="%s">(.*?)</td>' % title, index).group(1)) == headline
    # Each headline must be the total of its table.
    *actions, free = re.findall(r'<(?:p|span) class="[^"]*sum">(.*?)</(?:p|span)>', page, re.S)
    # If there is no workload to stop, the first headline is about the whole fleet.
    if actions and not actions[0].startswith("Stop now: "):
        del actions[0]
    if sums["total"]["cost_per_month"] is not None:
        known = [Decimal(str(sums[name]["cost_per_month"] or 0)) for name in ("reserved_unused", "not_assigned")]
        amounts = [money_of(re.sub(" of [\\d,]+", "", text)) for text in actions]
        assert [sum(amounts), money_of(free)] == known
        # Each part of the first table must add up to its heading, and a headline must have the same amount.
        take = page.partition('id="take">')[2].partition("</section>")[0]
        parts = re.findall(r'<tr class="action">(.*?)</tr>(.*?)</tbody>', take, re.S)
        assert [money_of(heading) for heading, _rows in parts] == amounts
        for heading, rows in parts:
            assert sum(map(money_of, re.findall(r'<td class="money">(.*?)</td>', rows))) == money_of(heading)
        if take:
            assert money_of(take.partition("Reserved and unused, all of the above")[2]) == known[0]
        assert money_of(found[-1][-1][-1]) == known[0]
    for name, title in (("reserved_unused", "reserved and unused: "), ("not_assigned", "not assigned: ")):
        if sums[name]["cost_per_month"] is not None:
            assert money_of(line(audit).partition(title)[2]) == Decimal(str(sums[name]["cost_per_month"]))


#: https://prometheus.io/docs/instrumenting/exposition_formats
LABELS = re.compile(r'\{(\w+="([^"\\\n]|\\[\\"n])*",?)+\}')


def test_series_have_teams_and_users_and_few_owners_have_no_own_series():
    users = [Workload("unit", "x", "h", user="u%03d" % number, team="a") for number in range(510)]
    eve = Workload("unit", "y", "h", user='eve"\n', team="b\\")
    rows = [Row("h", "GPU-1", "0", "", "", "f", "idle", 1.0, 2.0, None, one) for one in users]
    rows += [dataclasses.replace(rows[0], gpu_hours=9.0, owner=eve), dataclasses.replace(rows[0], owner=None)]
    audit = Audit(NOW, Window(NOW, NOW), Sources(), (), ledger=Ledger(tuple(rows)))
    found = re.findall(r"^gpu_audit_owner_gpus(\{.*\}) (\S+)$", report_prom.to_text(audit), re.M)
    series = dict(found)
    # These are 500 users, the other users of team a, and the parts without an owner.
    assert len(found) == len(series) == 502 and all(map(LABELS.fullmatch, series))
    assert series['{owner_team="",owner_user="",class="idle"}'] == "1.0"
    assert series['{owner_team="a",owner_user="(other users)",class="idle"}'] == "11.0"
    assert [labels for labels in series if "eve" in labels] == [
        r'{owner_team="b\\",owner_user="eve\"\\x0a",class="idle"}'
    ]
