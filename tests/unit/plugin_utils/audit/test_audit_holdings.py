# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Combine the history of GPUs with the state of their hosts, if parts are missing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.history import History, Record
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.holdings import (
    HostState,
    Price,
    holdings,
    hosts_of,
    is_held,
    price_of,
    runs_processes,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import Holder, Stat, Subject, Window
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.prometheus import Answer, Sample
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.signals import read
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.verdict import Thresholds, judge
from ansible_collections.openfleet.gpu.plugins.plugin_utils.host_results import lost_notes

HOUR = 3600.0
USE = {"memory": Stat(HOUR, 1.0, max=1e9), "busy": Stat(HOUR, 1.0, max=0.5)}


def history(*records):
    keyed = {
        (*record.subject.place, record.subject.name if record.subject.kind == "tenant" else ""): record
        for record in records
    }
    return History(Window(0, HOUR), keyed)


def subject(uuid="GPU-1", host="a", **more):
    return Subject("mig_instance" if more.get("mig_instance") else "gpu", host, uuid, **more)


def gpu(uuid="GPU-1", index=0, **more):
    base = {"uuid": uuid, "index": index, "name": "NVIDIA H100 80GB HBM3", "memory_total_bytes": 85899345920}
    return {**base, "processes": [], "holders": [], "mig": {"instances": []}, **more}


def instance(number, profile, **more):
    return {"id": number, "profile": profile, "processes": [], "holders": [], **more}


PROCESS = {"kind": "process", "who": "pid 4711 (python3)", "watches": False}
WATCHER = {"kind": "device_handle", "who": "pid 5 (nv-hostengine)", "watches": True}


def test_failing_gpu_is_lost_by_its_hosts_report():
    sick = {"index": 1, "uuid": "GPU-2", "name": "NVIDIA H100 80GB HBM3", "problem": "Unknown Error", "code": 999}
    unnamed = {"index": 2, "problem": "Unknown Error", "code": 999}
    states = {"a": {"gpus": [gpu()], "lost_gpus": [sick, unnamed]}}
    past = history(Record(subject("GPU-2", mig_instance="1", mig_profile="3g.40gb")), Record(subject()))
    found = holdings(past, hosts_of(states))
    assert [(str(one.subject), one.lost) for one in found] == [("a gpu 0", False), ("a gpu 1", True)]
    assert judge(found[1], Thresholds()).word == "unhealthy"
    assert lost_notes(states) == [
        "a: gpu 1 (GPU-2) does not work: Unknown Error",
        "a: gpu 2 does not work: Unknown Error",
    ]


def test_host_state_alone_has_holders_without_history():
    found = holdings(
        None, {"a": HostState([gpu(processes=[{"pid": 4711}], holders=[PROCESS, WATCHER]), gpu("GPU-2", 1)])}
    )
    assert [str(one.subject) for one in found] == ["a gpu 0", "a gpu 1"]
    assert [holder.who for holder in found[0].holders] == ["pid 4711 (python3)"]
    assert is_held(found[0]) is True and runs_processes(found[0]) is True
    assert is_held(found[1]) is False and runs_processes(found[1]) is False
    assert found[0].missing == ("no history: use over time is unknown",)


def test_history_alone_has_unknown_holders():
    (found,) = holdings(history(Record(subject(), stats=USE)), {})
    assert found.holders is None and is_held(found) is None and runs_processes(found) is None
    assert any("was not asked or did not answer" in text for text in found.missing)
    assert any("useful and busy cannot be distinguished" in text for text in found.missing)


def test_host_without_a_scan_has_unknown_holders():
    (found,) = holdings(None, {"a": HostState([gpu(holders=None, processes=None)])})
    assert found.holders is None
    assert any("the host did not check" in text for text in found.missing)


def test_history_and_state_are_one_holding_per_gpu():
    (found,) = holdings(history(Record(subject(), stats=USE)), {"a": HostState([gpu(holders=[PROCESS])])})
    assert found.memory.max == 1e9 and found.holders[0].kind == "process"
    assert found.subject.model == "NVIDIA H100 80GB HBM3" and found.subject.gpu_index == "0"


def test_age_of_the_newest_process_uses_the_servers_clock():
    known = history(Record(subject(), stats=USE))

    def age(*rows):
        (found,) = holdings(known, {"a": HostState([gpu(holders=list(rows))])})
        return found.newest_holder_seconds

    old, young = {**PROCESS, "started_seconds": HOUR - 900.0}, {**PROCESS, "started_seconds": HOUR - 60.0}
    assert age(old, young) == 60 and age(old) == 900 and age(PROCESS) is None and age() is None
    # Monitoring processes and bare handles do not count as active. If the host's clock is ahead, a process counts as
    # just started.
    handle = {**young, "kind": "device_handle"}
    assert age(old, handle) == age(old, {**WATCHER, "started_seconds": HOUR}) == 900 and age(handle) == 60
    assert age({**PROCESS, "started_seconds": 2 * HOUR}) == 0
    (found,) = holdings(None, {"a": HostState([gpu(holders=[old])])})
    assert found.newest_holder_seconds is None


def test_gpu_with_instances_is_listed_by_instances():
    state = HostState([gpu(mig={"instances": [instance(1, "3g.40gb"), instance(2, "1g.10gb")]})])
    records = [Record(subject(), stats=USE), Record(subject(mig_instance="1", mig_profile="3g.40gb"), stats=USE)]
    found = holdings(history(*records), {"a": state})
    assert [(one.subject.mig_instance, one.memory is not None) for one in found] == [("1", True), ("2", False)]
    assert any("no samples" in text for text in found[1].missing)


def test_removed_instances_are_left_out_if_the_host_answers():
    old = Record(subject(mig_instance="9", mig_profile="1g.10gb"), stats=USE)
    state = HostState([gpu(mig={"instances": [instance(1, "3g.40gb")]})])
    assert [one.subject.mig_instance for one in holdings(history(old), {"a": state})] == ["1"]
    assert [one.subject.mig_instance for one in holdings(history(old), {})] == ["9"]


def test_gpu_that_its_host_no_longer_lists_is_marked():
    (gone, present) = holdings(
        history(Record(subject("GPU-1")), Record(subject("GPU-2"))), {"a": HostState([gpu("GPU-2")])}
    )[::-1]
    assert gone.subject.gpu_uuid == "GPU-1" and "the host does not list this GPU" in gone.missing
    assert "the host does not list this GPU" not in present.missing


def test_tenants_are_listed_with_their_gpu():
    tenant = {"name": "pair", "memory_bytes": 16 << 30, "gpus": [{"uuid": "GPU-1"}, {"uuid": "GPU-2"}]}
    found = holdings(None, {"a": HostState([gpu(), gpu("GPU-2", 1)], tenants=[tenant, {"problem": "no region"}])})
    assert [(one.subject.kind, one.subject.gpu_uuid) for one in found] == [
        ("gpu", "GPU-1"), ("tenant", "GPU-1"), ("gpu", "GPU-2"), ("tenant", "GPU-2"),
    ]  # fmt: skip
    assert found[1].memory_total_bytes == 16 << 30


def test_quotas_of_pods_stay_although_the_host_does_not_report_them():
    tenants = [Record(replace(subject(), kind="tenant", name=name)) for name in ("ml/train-0", "gone")]
    found = holdings(history(Record(subject()), *tenants), {"a": HostState([gpu()])})
    assert [one.subject.name for one in found] == ["", "ml/train-0"]


def test_prices_by_model_and_for_instances_by_their_memory():
    prices = [Price("H100*", 4.0), Price("*", 1.0)]
    state = HostState(
        [gpu(mig={"instances": [instance(1, "3g.40gb"), instance(2, "1g.10gb"), instance(3, "1g.10gb+me")]})]
    )
    found = holdings(None, {"a": state}, prices)
    # Two tenants have parts of the GPU's 80 GiB, and no tenant has the rest.
    assert [one.price_per_hour for one in found] == pytest.approx([2.0, 0.5, 0.5])
    assert price_of("NVIDIA L40S", prices) == 1.0 and price_of("NVIDIA L40S", prices[:1]) is None


def test_events_of_a_gpu_apply_to_its_instances():
    whole = Record(subject(), lost=True, xid={"79": "lost"}, throttled={"hw_thermal": 0.9})
    records = history(whole, Record(subject(mig_instance="1", mig_profile="1g.10gb"), stats=USE))
    (found,) = holdings(records, {"a": HostState([gpu(mig={"instances": [instance(1, "1g.10gb")]})])})
    assert found.lost and found.xid == {"79": "lost"} and found.throttled == {"hw_thermal": 0.9}


def test_servers_price_is_used_if_the_table_has_none():
    (found,) = holdings(history(Record(subject(), price_per_hour=3.0)), {})
    assert found.price_per_hour == 3.0


def test_holdings_are_sorted_by_host_and_gpu():
    hosts = {"b": HostState([gpu("GPU-9", 10), gpu("GPU-8", 9)]), "a": HostState([gpu()])}
    assert [(one.subject.host, one.subject.gpu_index) for one in holdings(None, hosts)] == [
        ("a", "0"),
        ("b", "9"),
        ("b", "10"),
    ]


def test_held_now_according_to_the_server():
    (found,) = holdings(history(Record(subject(), held_now={"container": 1.0, "process": 0.0}, processes_now=0.0)), {})
    assert [holder.kind for holder in found.holders] == ["container"]
    assert is_held(found) is True and runs_processes(found) is False
    assert replace(found, holders=()).holders == ()


def test_unicode_digit_is_no_index():
    rows = [Record(subject("GPU-2", gpu_index="\u00b2")), Record(subject("GPU-1", gpu_index="10"))]
    rows.append(Record(subject("GPU-3", gpu_index="\u0663", mig_instance="\u00b9")))
    found = [one.subject for one in holdings(history(*rows), {})]
    assert [one.gpu_uuid for one in found] == ["GPU-1", "GPU-2", "GPU-3"]
    assert [one.gpu_uuid for one in sorted(found, key=lambda one: one.rack_order)] == ["GPU-1", "GPU-2", "GPU-3"]


class Prices:
    """A server that has only data about GPUs and their prices."""

    name = "http://server"

    def __init__(self, *prices):
        self.prices = prices

    def now(self):
        return 1e9

    def query(self, expression, at_seconds=None):
        price = "gpu:price_per_hour" in expression
        if not price and not expression.startswith("last_over_time(gpu:info"):
            return Answer(())
        labels = [{"host": "a", "gpu_uuid": "GPU-%d" % number} for number in range(len(self.prices))]
        return Answer(tuple(Sample(one, self.prices[n] if price else 1.0) for n, one in enumerate(labels)))


def test_impossible_price_is_left_out_with_a_note():
    found = read(Prices(2.5, math.inf, 1e308, math.nan, -1.0, 1e9), HOUR)
    assert [one.price_per_hour for one in found.records.values()] == [2.5, None, None, None, None, 1e9]
    assert "4 impossible values of gpu:price_per_hour dropped" in " ".join(found.notes)


def test_holder_does_not_repeat_its_kind():
    assert str(Holder("slurm", "Slurm job 417")) == "Slurm job 417"
    assert str(Holder("container", "web (docker)")) == "container web (docker)"
    assert str(Holder("process", "3")) == "process (3)"
