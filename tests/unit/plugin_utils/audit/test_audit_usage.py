# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute the use of GPUs by jobs, users and accounts from jobs and metrics."""

from __future__ import annotations

import json

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import load_models
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import report_html, report_json
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.holdings import HostState
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.job_devices import (
    Finder,
    held_now,
    hosts_by_node,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.job_series import DeviceUse, step_of
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.jobs import jobs_of
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.make import Order, make
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import Subject
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.usage import Joined

END = 1_800_000_000.0
HOUR = 3600.0
START = END - 100 * HOUR
GIB = 1 << 30
H100 = "NVIDIA H100 80GB HBM3"
#: The node n1 has four GPUs, of which GPU 3 has two instances.
GPUS = [("n1", "GPU-%d" % number, "") for number in range(3)]
MIG = [("n1", "GPU-3", "7"), ("n1", "GPU-3", "8")]
SUBJECTS = [Subject("gpu", *place[:2], model=H100, gpu_index=place[1][-1]) for place in GPUS] + [
    Subject("mig_instance", *place[:2], model=H100, mig_instance=place[2], mig_profile="1g.10gb+me") for place in MIG
]


def row(job, start, end, tres="gres/gpu:h100=1,gres/gpu=1", **more):
    """Return a job as the module slurm_jobs does.

    Its times are hours after the start of the window.
    """
    times = {"start": "%d" % (START + start * HOUR), "end": "Unknown" if end is None else "%d" % (START + end * HOUR)}
    state = "RUNNING" if end is None else "COMPLETED"
    return {
        "id": str(job), "array_id": str(job), "user": "alice", "account": "team-a", "state": state, "suspended": "00:00:00",
        "tres": tres, "nodes": "n1", **times, **more,
    }  # fmt: skip


def result(*rows, **more):
    found = {"source": "sacct", "problem": "", "since_seconds": START, "records": len(rows), "clock_seconds": END}
    return {**found, "jobs": list(rows), **more}


def used(*rows, compute=None, memory=None, current=None, labelled=None, step=HOUR, subjects=SUBJECTS, **more):
    """Return the use of GPUs by jobs.

    The keys of `compute` and `memory` are devices, and then hours after the start of the window.
    """

    def numbered(values):
        return {place: {round(100 - hour) - 1: value for hour, value in of.items()} for place, of in values.items()}

    jobs = jobs_of({"login": result(*rows, **more)}, START, END)
    by_node = hosts_by_node({subject.host for subject in subjects}, {})
    joined = Joined(jobs, END, Finder(subjects, by_node, current or {}, labelled or {}))
    use = DeviceUse(step, numbered(compute or {}), numbered(memory or {}))
    return joined.usage(START, use, lambda device: " ".join(filter(None, device)))


def hours(first, last, value):
    return dict.fromkeys(range(first, last), value)


# --- Devices ----------------------------------------------------------------------------------------------------------


def test_running_job_has_the_devices_that_its_host_reports():
    holders = [{"kind": "slurm", "who": "Slurm job 7", "job": "7"}]
    state = HostState([{"uuid": "GPU-1", "holders": holders, "mig": {"instances": []}}])
    usage = used(row(7, 90, None), current=held_now({"n1": state}))
    (job,) = usage.jobs
    assert (job.evidence, job.devices, job.held_gpu_seconds) == ("holders", ("n1 GPU-1",), 10 * HOUR)


def test_ended_job_does_not_get_the_devices_of_a_later_job_with_its_id():
    (job,) = used(row(7, 10, 20), current={"7": frozenset(GPUS[:1])}).jobs
    assert (job.evidence, job.devices, job.unknown) == ("", (), "Slurm's accounting has no device numbers")


def test_ended_job_has_the_devices_that_the_exporter_labelled():
    (job,) = used(row(7, 10, 20), labelled={"7": frozenset(GPUS[1:2])}).jobs
    assert (job.evidence, job.devices) == ("exporter", ("n1 GPU-1",))


@pytest.mark.parametrize("places", [GPUS[:2], [("n2", "GPU-9", "")], []])
def test_devices_that_do_not_fit_the_allocation_are_unknown(places):
    """Check a job that was requeued onto another GPU, and a label of another node."""
    (job,) = used(row(7, 10, 20), labelled={"7": frozenset(places)}).jobs
    assert (job.evidence, job.devices) == ("", ())


@pytest.mark.parametrize(
    ("tres", "places"),
    [
        ("gres/gpu=5", GPUS + MIG),
        ("gres/gpu=5,gres/gpu:h100=3,gres/gpu:1g.10gb.me=2", GPUS + MIG),
        ("gres/gpu=3,gres/gpu:h100=3", GPUS),
        ("gres/gpu=2,gres/gpu:1g.10gb.me=2", MIG),
    ],
)
def test_job_with_all_devices_or_all_of_a_type_has_these(tres, places):
    (job,) = used(row(7, 10, 20, tres)).jobs
    assert job.evidence == "whole node"
    assert job.devices == tuple(sorted(" ".join(filter(None, place)) for place in places))


@pytest.mark.parametrize("tres", ["gres/gpu=3", "gres/gpu=2,gres/gpu:h100=2", "gres/gpu=1,gres/gpu:1g.10gb.me=1"])
def test_part_of_a_node_is_unknown(tres):
    (job,) = used(row(7, 10, 20, tres), compute={place: hours(0, 100, 1.0) for place in GPUS + MIG}).jobs
    assert (job.evidence, job.used_gpu_seconds, job.efficiency_ratio, job.memory_max_bytes) == ("", None, None, None)
    assert job.unknown == "Slurm's accounting has no device numbers"
    assert job.held_gpu_seconds >= 10 * HOUR


def test_nodes_are_found_by_name_and_by_the_inventory():
    by_node = hosts_by_node(["a.example.org", "b.example.org", "c.x", "c.y"], {"b.example.org": "gpu-b"})
    assert by_node == {
        "a": "a.example.org", "a.example.org": "a.example.org", "gpu-b": "b.example.org", "c.x": "c.x", "c.y": "c.y",
    }  # fmt: skip


def test_jobs_on_other_nodes_count_nowhere():
    usage = used(row(7, 10, 20), row(8, 10, 20, nodes="cpu[1-3]"))
    assert (usage.job_count, usage.other_jobs, [job.name for job in usage.jobs]) == (1, 1, ["7"])


def test_job_with_one_unknown_node_counts_without_use():
    (job,) = used(row(7, 10, 20, "gres/gpu=10", nodes="n[1-2]")).jobs
    assert (job.held_gpu_seconds, job.unknown) == (100 * HOUR, "the audit does not know its node n2")


def test_shares_of_gpus_count_nowhere():
    usage = used(row(7, 10, 20, "gres/shard=4"), row(8, 10, 20, "gres/mps:h100=50"))
    assert (usage.job_count, usage.shared_jobs) == (0, 2)


# --- Use --------------------------------------------------------------------------------------------------------------


def test_use_of_a_job_is_that_of_its_devices():
    compute = {GPUS[0]: hours(0, 100, 0.25), GPUS[1]: hours(0, 100, 0.75)}
    memory = {GPUS[0]: hours(10, 20, 8 * GIB) | hours(20, 100, 70 * GIB), GPUS[1]: hours(0, 100, 4 * GIB)}
    labelled = {"7": frozenset(GPUS[:2])}
    usage = used(row(7, 10, 20, "gres/gpu:h100=2"), labelled=labelled, compute=compute, memory=memory)
    (job,) = usage.jobs
    assert (job.held_gpu_seconds, job.measured_gpu_seconds, job.used_gpu_seconds) == (20 * HOUR, 20 * HOUR, 10 * HOUR)
    assert (job.efficiency_ratio, job.memory_max_bytes, job.compute_max_ratio) == (0.5, 8 * GIB, 0.75)
    (total,) = usage.accounts
    assert (total.name, total.jobs, total.efficiency_ratio, total.held_by_type) == (
        "team-a",
        1,
        0.5,
        {"h100": 20 * HOUR},
    )
    assert usage.users[0].name == "alice"


def test_time_outside_of_the_window_does_not_count():
    before, after = row(7, -50, 5), row(8, 95, None)
    labelled = {"7": frozenset(GPUS[:1]), "8": frozenset(GPUS[1:2])}
    compute = {place: hours(0, 100, 1.0) for place in GPUS}
    usage = used(before, after, row(9, -50, -10), labelled=labelled, compute=compute)
    found = {job.name: (job.held_gpu_seconds, job.measured_gpu_seconds) for job in usage.jobs}
    assert found == {"7": (5 * HOUR, 5 * HOUR), "8": (5 * HOUR, 5 * HOUR)}


def test_short_job_that_was_alone_gets_the_use_of_its_interval():
    """Give a short job the whole use of the hour in which it ran alone.

    The job ran for a quarter of an hour.
    """
    compute, memory = {GPUS[0]: {10: 0.2}}, {GPUS[0]: {10: GIB}}
    (job,) = used(row(7, 10.25, 10.5), labelled={"7": frozenset(GPUS[:1])}, compute=compute, memory=memory).jobs
    assert (job.measured_gpu_seconds, job.used_gpu_seconds, job.memory_max_bytes) == (HOUR / 4, 0.2 * HOUR, GIB)


def test_interval_that_two_jobs_share_is_not_measured():
    compute = {GPUS[0]: hours(0, 100, 1.0)}
    labelled = {"7": frozenset(GPUS[:1]), "8": frozenset(GPUS[:1])}
    usage = used(row(7, 10, 11.5), row(8, 11.5, 13), labelled=labelled, compute=compute)
    measured = {job.name: job.measured_gpu_seconds for job in usage.jobs}
    assert measured == {"7": HOUR, "8": HOUR}


@pytest.mark.parametrize("tres", ["gres/gpu=2", "gres/shard=1"])
def test_edge_that_a_job_with_unknown_devices_may_have_used_is_not_measured(tres):
    compute = {GPUS[0]: hours(0, 100, 1.0)}
    usage = used(row(7, 10, 11.5), row(8, 11.5, 13, tres), labelled={"7": frozenset(GPUS[:1])}, compute=compute)
    assert next(job for job in usage.jobs if job.name == "7").measured_gpu_seconds == HOUR


def test_intervals_without_samples_are_not_measured():
    (job,) = used(row(7, 10, 20), labelled={"7": frozenset(GPUS[:1])}, compute={GPUS[0]: hours(10, 15, 0.0)}).jobs
    assert (job.held_gpu_seconds, job.measured_gpu_seconds, job.used_gpu_seconds) == (10 * HOUR, 5 * HOUR, 0.0)
    (job,) = used(row(7, 10, 20), labelled={"7": frozenset(GPUS[:1])}).jobs
    assert (job.used_gpu_seconds, job.unknown) == (None, "the metrics have no samples for this job alone")


def test_unknown_use_is_not_a_part_of_the_efficiency():
    labelled, compute = {"7": frozenset(GPUS[:1])}, {GPUS[0]: hours(0, 100, 0.5)}
    (total,) = used(row(7, 10, 20), row(8, 10, 90), labelled=labelled, compute=compute).users
    assert (total.held_gpu_seconds, total.measured_gpu_seconds) == (90 * HOUR, 10 * HOUR)
    assert (total.used_gpu_seconds, total.efficiency_ratio) == (5 * HOUR, 0.5)


def test_runs_of_a_requeued_job_count_once_each():
    usage = used(row(7, 10, 12, state="REQUEUED"), row(7, 13, 15), row(7, 13, 15))
    assert [job.held_gpu_seconds for job in usage.jobs] == [2 * HOUR, 2 * HOUR]


def test_suspended_job_still_holds_its_gpus():
    usage = used(row(7, 90, None, state="SUSPENDED", suspended="1-02:00:00"))
    assert usage.jobs[0].held_gpu_seconds == 10 * HOUR


def test_tasks_of_an_array_have_the_names_that_users_know():
    usage = used(row(12, 10, 12, array_id="12_3"), row(13, 10, 12, array_id="12_[4-9%2]\n"))
    assert {job.name for job in usage.jobs} == {"12_3", "13"}


# --- Input ------------------------------------------------------------------------------------------------------------


def test_names_are_printable_and_short():
    hostile = row(7, 10, 20, account="<script>\x1b[31m\nx" + "y" * 500, user="{{ lookup('pipe', 'id') }}")
    (total,) = used(hostile).accounts
    assert total.name.isprintable() and len(total.name) <= 100
    assert used(row(7, 10, 20, account="")).accounts[0].name == "(none)"


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "7x"}, {"id": ""}, {"start": "yesterday"}, {"end": "0"}, {"end": "-5"}, {"start": "9" * 30},
    ],
)  # fmt: skip
def test_invalid_record_counts_nowhere_and_is_reported(wrong):
    jobs = jobs_of({"login": result({**row(7, 10, 20), **wrong})}, START, END)
    assert jobs.jobs == () and jobs.notes == ("login: 1 record of Slurm cannot be read.",)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({}, "did not answer"),
        (None, "did not answer"),
        ({"failed": True, "msg": "no route\x1b to host"}, "no route"),
        ({"unreachable": True, "msg": "ssh timed out"}, "ssh timed out"),
        ({"jobs": "many"}, "since_seconds"),
        (result(jobs=[7]), "jobs[0]"),
        (result(source="a shell"), "source"),
        (result(records=-1), "records"),
        (result(source="", problem="sacct timed out after 60 s"), "sacct timed out after 60 s"),
    ],
)
def test_missing_answer_is_reported(answer, words):
    jobs = jobs_of({"login": answer}, START, END)
    assert jobs.jobs == () and jobs.sources == ()
    assert len(jobs.notes) == 1 and words in jobs.notes[0] and jobs.notes[0].isprintable()


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ({"source": "squeue", "problem": "Slurm accounting storage is disabled"}, "only current jobs are known"),
        ({"since_seconds": END - 24 * HOUR, "problem": "sacct timed out after 50 s"}, "covers only the last 24 h"),
        ({"clock_seconds": END - 600}, "its clock differs by -600 s"),
        (
            {"jobs": [], "records": 12},
            "none of 12 jobs has GPUs. If jobs use GPUs, add gres/gpu to AccountingStorageTRES",
        ),
    ],
)
def test_incomplete_accounting_is_reported(more, note):
    jobs = jobs_of({"login": result(row(7, 10, 20), **more)}, START, END)
    assert len(jobs.notes) == 1 and note in jobs.notes[0] and jobs.sources


def test_job_that_slurmctld_lost_counts_nowhere():
    jobs = jobs_of({"login": result(row(7, 10, None, runs=False), row(8, 10, None, runs=True))}, START, END)
    assert [job.id for job in jobs.jobs] == ["8"]
    assert "sacctmgr show runawayjobs" in jobs.notes[0]


def test_two_hosts_of_a_cluster_report_its_jobs_once():
    jobs = jobs_of({"a": result(row(7, 10, 20)), "b": result(row(7, 10, 20))}, START, END)
    assert len(jobs.jobs) == 1 and jobs.sources == ("sacct on a", "sacct on b")


def test_account_with_small_jobs_gets_advice_from_the_audit():
    compute = {GPUS[0]: hours(0, 100, 0.05)}
    memory = {GPUS[0]: hours(0, 100, 4 * GIB)}
    rows = [row(number, number * 10, number * 10 + 10) for number in range(8)]
    labelled = {str(number): frozenset(GPUS[:1]) for number in range(8)}
    model = next(one for one in load_models().values() if one.name == H100)
    jobs = jobs_of({"login": result(*rows)}, START, END)
    joined = Joined(jobs, END, Finder(SUBJECTS, {"n1": "n1"}, {}, labelled))

    def advised(step):
        use = DeviceUse(step, {place: dict(of) for place, of in compute.items()}, memory)
        return joined.usage(START, use, lambda device: device[1], {"GPU-0": model}).advice

    (sentence,) = advised(HOUR)
    assert "Account team-a: 8 jobs with one GPU of type h100" in sentence and "1g.10gb" in sentence
    # In averages over three hours, short peaks are invisible.
    assert advised(3 * HOUR) == ()


def test_intervals_limit_the_number_of_samples():
    assert step_of(14 * 86400, 100) == 900
    assert 14 * 86400 / step_of(14 * 86400, 10_000) * 10_000 <= 3_000_000
    assert 365 * 86400 / step_of(365 * 86400, 10) <= 3000


# --- Report -----------------------------------------------------------------------------------------------------------


def year_of_jobs(count=1000):
    """Return the result of slurm_jobs for a year.

    Every fourth job had all GPUs of its node.
    """
    rows = []
    for number in range(count):
        start = number * 365 * 24 / count
        gpus = 3 if number % 4 == 0 else 1
        rows.append(
            row(
                number + 1,
                0,
                0,
                "gres/gpu=%d,gres/gpu:h100=%d" % (gpus, gpus),
                account="team-%d" % (number % 7),
                user="u%d" % (number % 40),
            )
            | {
                "start": "%d" % (END - 365 * 24 * HOUR + start * HOUR),
                "end": "%d" % (END - 365 * 24 * HOUR + (start + 5) * HOUR),
            }
        )
    return result(*rows, since_seconds=END - 365 * 24 * HOUR)


def host(uuids, **holders):
    gpus = [
        {"uuid": uuid, "index": number, "name": H100, "holders": [], "processes": [], "mig": {"instances": []}}
        for number, uuid in enumerate(uuids)
    ]
    return HostState(gpus)


@pytest.mark.slow
def test_report_of_a_year_has_every_account_and_user(tmp_path):
    order = Order(
        365 * 24 * HOUR,
        hosts={"n1": host(["GPU-0", "GPU-1", "GPU-2"])},
        hosts_asked=["n1"],
        jobs={"login": year_of_jobs()},
    )
    audit = make(order, END)
    usage = audit.usage
    assert (usage.job_count, len(usage.jobs), len(usage.accounts), len(usage.users)) == (1000, 1000, 7, 40)
    assert sum(total.held_gpu_seconds for total in usage.accounts) == pytest.approx((250 * 3 + 750) * 5 * HOUR)
    assert sum(total.jobs for total in usage.users) == 1000
    page = report_html.to_text(audit)
    assert "1000 jobs with GPUs" in page and "team-6" in page and "known from: whole node" in page
    assert "The 50 largest of 1000" in page
    assert len(json.loads(report_json.to_text(audit))["usage"]["jobs"]) == 1000


def test_names_are_escaped_in_the_page():
    rows = [row(7, 10, 20, account="<img src=x>", user="</td><script>alert(1)</script>")]
    page = report_html.to_text(
        make(Order(100 * HOUR, hosts={"n1": host(["GPU-0"])}, jobs={"login": result(*rows)}), END)
    )
    assert "<img" not in page and "<script" not in page and "&lt;img src=x&gt;" in page


def test_report_says_why_accounting_is_missing():
    hosts = {"n1": host(["GPU-0"])}
    answer = result(source="", problem="sacct timed out after 60 s")
    audit = make(
        Order(100 * HOUR, hosts=hosts, jobs={"login": answer, "gone": {"unreachable": True, "msg": "no route"}}), END
    )
    assert audit.usage is None
    missing = "\n".join(audit.sources.missing)
    assert "login: the jobs of Slurm are unknown: sacct timed out after 60 s." in missing
    assert "gone: it did not answer: no route" in missing
    assert 'id="usage"' not in report_html.to_text(audit)


def test_audit_without_slurm_does_not_mention_it():
    audit = make(Order(100 * HOUR, hosts={"n1": host(["GPU-0"])}), END)
    assert audit.usage is None and "Slurm" not in "\n".join(audit.sources.missing)
