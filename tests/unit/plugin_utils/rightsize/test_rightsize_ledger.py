# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a proposal has the audit's ledger, and steps in a possible order."""

from __future__ import annotations

import dataclasses
import random
import re
from decimal import Decimal

import pytest

from tests.audit.rightsize_hosts import gpu, state

pytest.importorskip("numpy")

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.holdings import HostState, Price
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.ledger import booked
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.ledger_model import Ledger
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.make import Order
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import Window
from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.model import WHOLE, mig
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize import make, report_html
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.after import after
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.larger import remedy
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.model import HostChange, Outcome, Proposal
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.observed import hosts_today
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.steps import steps
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.today import fleet_today
from tests.audit.rightsize_fleets import H100, audit_of, today

WORDS = ("oversized_memory", "oversized_compute")


def random_request(seed):
    """Return the request and the audit of a random fleet with fixed profiles."""
    chance = random.Random(seed)
    states, words, said = {}, {}, {}
    for host in map("h{}".format, range(chance.randint(1, 3))):
        rows = []
        for index in range(chance.randint(2, 6)):
            unit = "s%d.service" % index if chance.random() < 0.7 else None
            rows.append(gpu(host, index, H100, unit))
            words[(host, index, "")] = chance.choice(WORDS) if unit else "free"
        states[host] = state(*rows)
        said[host] = [
            make.Wish(match="s%d*" % number, profile=chance.choice(["1g.10gb", "2g.20gb", "3g.40gb"]))
            for number in range(6)
            if chance.random() < 0.8
        ]
    audit = audit_of(states, words)
    found = tuple(
        dataclasses.replace(
            one,
            verdict=dataclasses.replace(one.verdict, waste_ratio=chance.random()),
            holding=dataclasses.replace(one.holding, gpu_ratio=1.0, price_per_hour=2.37),
        )
        for one in audit.findings
    )
    found, book = booked(found, 96 * 3600.0)
    audit = dataclasses.replace(audit, findings=found, ledger=book, currency="EUR", window=Window(0, 96 * 3600.0))
    hosts = {name: HostState(one["gpus"]) for name, one in states.items()}
    order = Order(96 * 3600.0, hosts=hosts, hosts_asked=[*states], prices=[Price("*", 2.37)], currency="EUR")
    return make.Request(order, states, {}, said), audit


def money_of(text):
    match = re.search(r"(-?[\d,]+) EUR", text)
    return Decimal(match.group(1).replace(",", "")) if match else Decimal(0)


def tables(page):
    """Yield the rows of each table that has a total.

    A row is a list of cells without markup.
    """
    for table in re.findall(r"<table>(.*?)</table>", page, re.S):
        rows = [
            [re.sub(r"<[^>]+>", " ", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.S)]
            for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table.partition("<tbody>")[2], re.S)
        ]
        if rows and rows[-1][0] == "Total":
            yield rows


@pytest.mark.parametrize("seed", range(12))
def test_savings_add_up_over_random_fleets(seed, monkeypatch):
    request, audit = random_request(seed)
    monkeypatch.setattr(make, "make_audit", lambda *args: audit)
    proposal = make.make(request, audit.made_at_seconds)
    before, then = proposal.ledger_today, proposal.ledger_then
    for key in ("gpus", "cost_per_month"):
        sums = [sum(Decimal(str(getattr(one, key) or 0)) for one in ledger.values()) for ledger in (before, then)]
        assert sums[0] == sums[1] == Decimal(str(getattr(audit.ledger.sum_of(), key)))
    saved = (then["free"].cost_per_month or 0) - (before["free"].cost_per_month or 0)
    assert saved == sum(change.saved_per_month or 0 for change in proposal.hosts) == (proposal.saved_per_month or 0)
    assert proposal.saved_gpus == then["free"].gpus - before["free"].gpus
    # A workload in a smaller part never uses more than before.
    assert then["in_use"].gpus <= before["in_use"].gpus and then["resizable"].gpus <= before["resizable"].gpus
    page = report_html.to_text(proposal)
    found = list(tables(page))
    for column in (3, 4):
        assert money_of(found[0][-1][column]) == sum(money_of(row[column]) for row in found[0][:-1])
    for rows in found[1:]:
        assert money_of(rows[-1][-1]) == sum(money_of(row[-1]) for row in rows[:-1])


def outcome(name, host, then_host):
    return Outcome(name, host, 0, "oversized_memory", "a whole GPU", "moved", "mig", "", then_host, 1, "1g.10gb at 0")


def change(host, changes_layout=True, disturbs=()):
    return HostChange(host, (), changes_layout, (), (), (), 1, 0, 0, disturbs, (), None)


def occupants(*names, unit="%s.service", job=None):
    (found,) = today({"a": state(gpu("a", 0, H100, "x.service"))})
    (one,) = found.occupants
    return {
        name: dataclasses.replace(one, name=name, holders=({"unit_or_container": unit % name, "job": job, "who": "w"},))
        for name in names
    }


def test_target_of_a_move_is_applied_before_its_source():
    made = steps([change("a"), change("b")], [outcome("x", "a", "b")], occupants("x"))
    assert [(one.host, one.kind) for one in made] == [("b", "apply"), ("a", "stop"), ("b", "start"), ("a", "apply")]
    assert made[1].command == "ssh a 'sudo systemctl stop x.service'"
    assert made[0].command.endswith("openfleet.gpu.site --limit b")


def test_workload_is_stopped_before_a_layout_that_disturbs_its_host():
    made = steps([change("a", disturbs=({"what": "gpu 0", "who": []},))], [outcome("x", "a", "a")], occupants("x"))
    assert [one.kind for one in made] == ["stop", "apply", "start"]


def test_hosts_that_exchange_workloads_stop_each_workload_once():
    made = steps([change("a"), change("b")], [outcome("x", "a", "b"), outcome("y", "b", "a")], occupants("x", "y"))
    for name in ("x", "y"):
        kinds = [one.kind for one in made if re.search(r"\b%s\b" % name, one.text)]
        assert kinds == ["stop", "start"]
    order = [(one.host, one.kind) for one in made]
    for host in "ab":
        assert order.index((host, "apply")) < order.index((host, "start"))


def test_host_without_a_new_layout_has_no_apply_step():
    made = steps([change("a", False)], [outcome("x", "a", "a")], occupants("x"))
    assert [one.kind for one in made] == ["stop", "start"]


@pytest.mark.parametrize(
    ("more", "command"),
    [
        ({"unit": "docker container %s"}, "ssh a 'sudo docker stop web'"),
        ({"unit": "crio container %s"}, ""),
        ({"unit": "%s.service; reboot"}, ""),
        ({"unit": "user@1000.service%.0s"}, ""),
        ({"job": "17"}, ""),
    ],
)
def test_only_valid_names_of_known_programs_get_a_command(more, command):
    made = steps([change("a", False)], [outcome("web", "a", "a")], occupants("web", **more))
    assert made[0].command == command and (command or "where it was started" in made[0].text)


def one_part(instance, words):
    states = {"a": state(gpu("a", 0, H100, instances=[(1, instance, 4, "render.service")]), gpu("a", 1, H100))}
    return today(states, words=words)


def test_saturated_instance_gets_the_next_larger_profile_and_a_place():
    gpus = one_part("1g.20gb", {("a", 0, "1"): "saturated"})
    (one,) = gpus[0].occupants
    text = remedy(one, gpus[0], gpus, {("a", 0)})
    assert "the next larger instance is 3g.40gb" in text and "gpu 1 of the host is free" in text
    assert "No GPU of the host is free" in remedy(one, gpus[0], gpus, {("a", 0), ("a", 1)})


def test_other_verdicts_have_no_remedy():
    gpus = one_part("1g.20gb", {})
    assert remedy(gpus[0].occupants[0], gpus[0], gpus, set()) == ""


def test_unchanged_gpus_keep_their_rows():
    states = {"a": state(gpu("a", 0, H100, "x.service"), gpu("a", 1, H100))}
    audit = audit_of(states)
    _found, book = booked(audit.findings, 0.0)
    gpus = fleet_today(audit, hosts_today(states, {}), {})
    assert after(book, gpus, {}, set()) == Ledger(tuple(dataclasses.replace(row, gpu_hours=0.0) for row in book.rows))
    assert gpus[0].occupants[0].shape == WHOLE != mig("1g.10gb")


def test_page_marks_destroyed_instances_only_if_they_are_in_use():
    free = Proposal(0.0, Window(0, 0), "", (change("a"),), (), (), 1, 1, 1, None, "", 0, 2)
    used = dataclasses.replace(free, hosts=(dataclasses.replace(change("a"), destroyed_in_use=1),))
    assert '<div class="tile"><b>2</b>GPU instances destroyed, none in use today' in report_html.to_text(free)
    assert '<div class="tile destroyed"><b>2</b>GPU instances destroyed, 1 in use today' in report_html.to_text(used)
