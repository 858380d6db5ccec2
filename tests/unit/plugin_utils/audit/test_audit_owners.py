# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that workloads, users and teams get the GPU hours that they held."""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.compare import findings
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.jobs import Job
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.lease_model import Lease
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.ledger import booked
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import (
    Holder,
    Holding,
    Pod,
    Quiet,
    Stat,
    Subject,
    Verdict,
    Window,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.owners import owners
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.owning import Known, KnownJobs, owned
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.usage_model import JobUse, Usage

NOW, GIB, HOUR = 1700000000.0, float(1 << 30), 3600.0
HOURS = 300.0
GPU = Subject("gpu", "n1", "GPU-1", "0", "NVIDIA H100")
UNIT = Holder("process", "pid 1 (python3)", NOW - 400 * HOUR, user="alice", unit="train.service")


def stat(mean, most, hours=HOURS):
    return Stat(hours * HOUR, hours / HOURS, mean=mean, max=most)


def holding(subject=GPU, *holders, **more):
    made = {
        "memory": stat(None, 20 * GIB),
        "compute": stat(0.25, 0.5),
        "memory_total_bytes": 80 * GIB,
        "gpu_ratio": 1.0,
    }
    return Holding(subject, holders=holders, **{**made, **more})


def owned_by(*judged, entries=(), jobs=None, leases=()):
    """Return the ledger and its totals, for a window of 300 hours."""
    found, book = booked(findings([(one, Verdict(word, "")) for one, word in judged], {}, NOW), HOURS * HOUR)
    known = Known(Window(NOW - HOURS * HOUR, NOW), True, owners(list(entries)), jobs or KnownJobs(), leases)
    book, totals, _notes = owned(book, found, known, None)
    return book, totals


def hours(rows):
    return {one.name: one.held_gpu_hours for one in rows}


# --- gpu_owners -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "where", "problem"),
    [
        ("vision", "gpu_owners[1]", "not a mapping"),
        ({"accounts": ["a"]}, "gpu_owners[1].team", "missing"),
        ({"team": "t"}, "gpu_owners[1]", "no workloads"),
        ({"team": "t", "users": ["a"]}, "gpu_owners[1].users", "unknown key"),
        ({"team": "t", "accounts": "alice"}, "gpu_owners[1].accounts", "not a list"),
        ({"team": "t", "units": ["a", ""]}, "gpu_owners[1].units[1]", "empty"),
        ({"team": "t", "units": [{"a": "b"}]}, "gpu_owners[1].units[0]", "not text"),
        ({"team": "t\x1b[2J", "units": ["a"]}, "gpu_owners[1].team", "control character"),
        ({"team": "t", "contact": "x" * 300, "units": ["a"]}, "gpu_owners[1].contact", "too long"),
    ],
)
def test_wrong_entry_is_named(entry, where, problem):
    with pytest.raises(FleetError) as error:
        owners([{"team": "good", "accounts": ["bob"]}, entry])
    assert str(error.value).startswith(where + ":") and problem in str(error.value)


@pytest.mark.parametrize(
    ("entry", "holder"),
    [
        ({"accounts": ["ali*"]}, UNIT),
        ({"units": ["train"]}, UNIT),
        ({"units": ["train.service"]}, UNIT),
        ({"units": ["web"]}, Holder("container", "web", NOW, unit="docker container web")),
        ({"namespaces": ["vision-*"]}, Holder("kubelet", "c", NOW, pod=Pod("vision-a", "web-1", "Deployment/web"))),
        ({"namespaces": ["vision-*"]}, Holder("kubelet", "c of pod vision-a/web-1 (nvidia.com/gpu)", job="uid")),
    ],
)
def test_workload_has_the_team_of_the_first_matching_entry(entry, holder):
    entries = [{"team": "other", "accounts": ["nobody"]}, {"team": "mine", "contact": "m@x", **entry}]
    entries.append({"team": "late", "accounts": ["*"], "namespaces": ["*"], "units": ["*"]})
    _book, totals = owned_by((holding(GPU, holder), "right"), entries=entries)
    assert [(one.name, one.contact) for one in totals.teams if one.rank] == [("mine", "m@x")]


# --- Workloads --------------------------------------------------------------------------------------------------------


def test_unit_has_the_hours_and_the_use_of_its_gpu():
    _book, totals = owned_by((holding(GPU, UNIT), "right"))
    (one,) = totals.workloads
    assert (one.name, one.user, one.held_gpu_hours) == ("unit train.service on n1", "alice", 300.0)
    assert (one.used_gpu_hours, one.efficiency_ratio, one.memory_max_bytes) == (75.0, 0.25, 20 * GIB)


def test_part_of_a_mig_gpu_counts_by_its_size():
    instance = dataclasses.replace(GPU, kind="mig_instance", mig_instance="1", mig_profile="1g.10gb")
    book, totals = owned_by((holding(instance, UNIT, gpu_ratio=0.125), "idle"))
    assert hours(totals.workloads) == {"unit train.service on n1": 37.5, "not assigned": 262.5}
    assert totals.workloads[0].used_gpu_hours == pytest.approx(9.375, abs=0.01) and book.sum_of().gpu_hours == 300.0


def test_hours_before_the_start_of_a_workload_are_not_its_own():
    young = dataclasses.replace(UNIT, since_seconds=NOW - 30 * HOUR)
    _book, totals = owned_by((holding(GPU, young), "right"))
    assert hours(totals.workloads) == {"unit train.service on n1": 30.0, "earlier or unknown workloads": 270.0}
    assert totals.workloads[0].used_gpu_hours is None and totals.workloads[0].gpus == 1.0


def test_latest_hours_of_an_idle_gpu_are_the_unused_ones():
    young = dataclasses.replace(UNIT, since_seconds=NOW - 150 * HOUR)
    _book, totals = owned_by((holding(GPU, young, quiet=Quiet(100 * HOUR)), "idle"))
    mine, earlier = totals.workloads
    assert (mine.held_gpu_hours, mine.unused_gpu_hours, mine.unused_gpus) == (150.0, 100.0, 1.0)
    assert (earlier.name, earlier.held_gpu_hours, earlier.unused_gpu_hours) == (
        "earlier or unknown workloads",
        150.0,
        0.0,
    )


def test_workloads_that_share_a_gpu_divide_it_and_their_use_is_unknown():
    other = dataclasses.replace(UNIT, user="bob", unit="other.service")
    _book, totals = owned_by((holding(GPU, UNIT, other), "right"))
    assert hours(totals.users) == {"alice": 150.0, "bob": 150.0}
    assert {one.gpus for one in totals.users} == {0.5} and {one.efficiency_ratio for one in totals.users} == {None}


def test_open_device_node_does_not_divide_a_gpu():
    bare = Holder("device_handle", "pid 9", NOW - 400 * HOUR, user="bob")
    _book, totals = owned_by((holding(GPU, UNIT, bare), "right"))
    assert hours(totals.users) == {"alice": 300.0}


def test_session_of_a_user_is_named_by_the_user():
    holder = Holder("process", "pid 1", NOW - 400 * HOUR, user="bob", unit="session-12.scope")
    _book, totals = owned_by((holding(GPU, holder), "right"))
    assert hours(totals.workloads) == {"process processes of bob on n1": 300.0}


def test_lease_with_a_quota_belongs_to_the_account_of_its_scope():
    tenant = dataclasses.replace(GPU, kind="tenant", name="lease-7")
    program = Holder("process", "pid 1", NOW - 400 * HOUR, user="carol", unit="openfleet-gpu-lease-7.scope")
    quota = holding(tenant, gpu_ratio=None, compute=None, memory_total_bytes=20 * GIB)
    _book, totals = owned_by((holding(GPU, program), "right"), (quota, "right"))
    assert hours(totals.workloads) == {"lease 7 on n1": 75.0, "not assigned": 225.0}
    assert totals.workloads[0].user == "carol" and totals.workloads[0].memory_max_bytes == 20 * GIB


def test_lease_without_a_program_belongs_to_the_account_of_the_metrics():
    quota = holding(
        dataclasses.replace(GPU, kind="tenant", name="lease-7"), gpu_ratio=None, memory_total_bytes=20 * GIB
    )
    leases = (Lease("n1", "7", "carol", "20GiB", "gpu_layout[0]", ("0",), NOW + 60),)
    _book, totals = owned_by((holding(GPU), "free"), (quota, "idle"), leases=leases)
    assert (totals.users[0].name, totals.users[0].unused_gpu_hours) == ("carol", 75.0)


def test_quota_of_a_pod_belongs_to_its_namespace():
    tenant = dataclasses.replace(GPU, kind="tenant", name="ml/train-0")
    quota = holding(tenant, gpu_ratio=None, compute=None, memory_total_bytes=40 * GIB)
    _book, totals = owned_by((holding(GPU, UNIT), "right"), (quota, "right"))
    assert hours(totals.users) == {"namespace ml": 150.0, "not assigned": 150.0}


# --- Slurm ------------------------------------------------------------------------------------------------------------


def job(name, start, end, user="dave"):
    """Return a Slurm job. Its times are hours before the end of the window."""
    over = None if end is None else NOW - end * HOUR
    return Job(name, name, user, "physics", "RUNNING", NOW - start * HOUR, over, (("", 1),), ("n1",))


def test_ended_jobs_have_the_hours_before_the_current_workload():
    young = dataclasses.replace(UNIT, since_seconds=NOW - 30 * HOUR)
    first, second = job("1", 290, 190), job("2", 180, 130, "erin")
    ended = {GPU.place: [(first, 100 * HOUR), (second, 50 * HOUR)]}
    _book, totals = owned_by((holding(GPU, young), "right"), jobs=KnownJobs((first, second), ended))
    assert hours(totals.users) == {"alice": 30.0, "dave": 100.0, "erin": 50.0, "earlier or unknown workloads": 120.0}


def test_ended_jobs_never_have_more_hours_than_are_left():
    young = dataclasses.replace(UNIT, since_seconds=NOW - 250 * HOUR)
    jobs = (job("1", 290, 190), job("2", 180, 130, "erin"))
    ended = {GPU.place: [(one, 100 * HOUR) for one in jobs]}
    _book, totals = owned_by((holding(GPU, young), "right"), jobs=KnownJobs(jobs, ended))
    assert hours(totals.users) == {"alice": 250.0, "dave": 25.0, "erin": 25.0}


def test_running_job_has_the_user_account_and_use_of_the_accounting():
    running = job("7", 100, None)
    use = JobUse(
        "7", "dave", "physics", "RUNNING", "gpu:1", ("n1",), 0.0, None, 100 * HOUR, 80 * HOUR, 40 * HOUR, 0.5, GIB
    )
    usage = Usage(("sacct",), 0.0, NOW, 1, (use,), (), ())
    holder = Holder("slurm", "Slurm job 7", job="7", user="root")
    entries = [{"team": "science", "accounts": ["physics"]}]
    _book, totals = owned_by((holding(GPU, holder), "right"), entries=entries, jobs=KnownJobs((running,), {}, usage))
    team = totals.teams[0]
    assert (team.name, team.held_gpu_hours, team.used_gpu_hours, team.efficiency_ratio) == ("science", 100.0, 40.0, 0.5)
    assert totals.users[0].name == "dave" and totals.users[0].memory_max_bytes == GIB


def test_first_rank_can_save_the_most_now():
    # The user with more unused hours in the past comes second, because current costs come first.
    second, third = (dataclasses.replace(GPU, gpu_uuid="GPU-%d" % n, gpu_index=str(n)) for n in (2, 3))
    bob = dataclasses.replace(UNIT, user="bob")
    places = ((GPU, UNIT, 90), (second, UNIT, 90), (third, bob, 250))

    def users(price_of_bob):
        rows = [
            (holding(place, one, quiet=Quiet(quiet * HOUR), price_per_hour=price_of_bob if one is bob else 1.0), "idle")
            for place, one, quiet in places
        ]
        return owned_by(*rows)[1].users

    cheap = users(1.0)
    assert [(one.rank, one.name, one.unused_gpus) for one in cheap] == [(1, "alice", 2), (2, "bob", 1)]
    assert cheap[0].unused_gpu_hours < cheap[1].unused_gpu_hours
    assert [(one.rank, one.name) for one in users(3.0)] == [(1, "bob"), (2, "alice")]


@pytest.mark.parametrize(("word", "efficiency"), [("right", 0.25), ("unhealthy", None), ("broken_metrics", None)])
def test_use_of_broken_gpus_is_not_the_use_of_their_workload(word, efficiency):
    compute = Stat(HOURS * HOUR, 1.0, 0.25, 0.25, 0.25, 0.25, 0.25)
    _book, totals = owned_by((holding(GPU, UNIT, compute=compute), word))
    (alice,) = (one for one in totals.users if one.rank)
    assert alice.efficiency_ratio == efficiency
