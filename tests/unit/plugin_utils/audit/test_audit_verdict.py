# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test verdicts with their reasons, stable IDs, and the comparison of two audits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.compare import Former, finding_id, findings, gone
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import (
    WORDS,
    Holder,
    Holding,
    Quiet,
    Stat,
    Subject,
    Verdict,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.verdict import Thresholds, judge, use_of
from ansible_collections.openfleet.gpu.plugins.plugin_utils.idle.signals import SIGNALS

DAY = 86400.0
ALL_SIGNALS = tuple(signal.name for signal in SIGNALS if signal.series)
TWO_WEEKS = 14 * DAY
GPU = Subject("gpu", "h100-01", "GPU-1", gpu_index="0", model="NVIDIA H100 80GB HBM3")
GIB = float(1 << 30)


def stat(most, *, coverage=1.0, **more):
    figures = dict.fromkeys(("p50", "p95", "p99", "max", "mean"), most)
    return Stat(seconds=coverage * TWO_WEEKS, coverage_ratio=coverage, **{**figures, **more})


def holding(**more):
    """Return the history of a GPU in good use, with these values changed."""
    base = Holding(
        GPU,
        holders=(Holder("process", "pid 4711 (python3 train.py)"),),
        memory=stat(60 * GIB),
        memory_total_bytes=80 * GIB,
        busy=stat(0.8),
        compute=stat(0.7),
        bandwidth=stat(0.4),
        tensor=stat(0.3),
        processes_now=1.0,
        price_per_hour=2.0,
    )
    return replace(base, **more)


def word(found, **limits):
    return judge(found, Thresholds(**limits), seconds=TWO_WEEKS).word


IDLE = {
    "busy": stat(0.0), "compute": stat(0.0), "quiet": Quiet(TWO_WEEKS, whole_window=True), "held_seconds": TWO_WEEKS,
}  # fmt: skip
STIRRING = {**IDLE, "quiet": replace(IDLE["quiet"], kernel_hours_ratio=0.9)}
JOB = (Holder("slurm", "job 17 of alice"),)
SERVER = (Holder("process", "pid 5 (vllm serve)", listens=True, clients=0),)
NOTEBOOK = (Holder("process", "pid 6 (python3 -m ipykernel_launcher -f k.json)", listens=True, clients=0),)
WATCHED = (Holder("process", "pid 7 (train.py)", listens=False, clients=0),)


#: The tensor cores last worked ten days ago.
COMPUTED = {"tensor": stat(0.3), "computed_seconds_ago": 10 * DAY}
NO_ENGINES = tuple(name for name in ALL_SIGNALS if name != "video engines")
UNPROFILED = ("kernels", "power", "CPU time")


def quiet(days, longest_days=0.0, signals=ALL_SIGNALS, cpu_cores=None):
    return Quiet(days * DAY, not longest_days, longest_days * DAY, TWO_WEEKS, tuple(signals), cpu_cores=cpu_cores)


def test_reason_names_holders():
    holders = (Holder("device_handle", "pid 9 (jupyter-lab), which has its device node open"), Holder("container", "x"))
    found = judge(holding(**{**IDLE, "holders": holders, "processes_now": 0.0}), seconds=TWO_WEEKS)
    assert "Held by device handle pid 9 (jupyter-lab), which has its device node open; container x." in found.reason


POLLING = {"device_quiet": quiet(13), "held_seconds": TWO_WEEKS}


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ("right", {}),
        ("unhealthy", {"lost": True}),
        ("unhealthy", {"xid": {"79": "lost"}}),
        ("unhealthy", {"xid": {"149": "hardware", "13": "application"}}),
        ("unhealthy", {"throttled": {"hw_thermal": 0.2}}),
        # XID 13 and 31 are errors of applications, and a power cap is a setting. So they are no fault of the GPU.
        ("right", {"xid": {"13": "application", "31": "application", "119": "driver", "63": "notice"}}),
        ("right", {"throttled": {"sw_power_cap": 0.9}}),
        ("right", {"throttled": {"hw_thermal": 0.01}}),
        ("held_without_process", {**IDLE, "holders": JOB, "processes_now": 0.0}),
        ("idle", {**IDLE}),
        ("free", {**IDLE, "holders": (), "processes_now": 0.0}),
        # The holder is not known, but the GPU is certainly idle.
        ("idle", {**IDLE, "holders": None, "processes_now": None}),
        # The GPU was already idle long before its current holder started, so this holder is not to blame.
        ("no_data", {**IDLE, "holders": JOB, "processes_now": 0.0, "held_seconds": 3600.0}),
        ("no_data", {**IDLE, "held_seconds": 0.0}),
        ("idle", {**IDLE, "holders": JOB, "processes_now": 0.0, "held_seconds": None}),
        # The first row is a weekly job, four days after its last run. The next row is a service that started three days
        # ago, and has not seen a weekend yet.
        ("right", {"quiet": quiet(4, longest_days=6.7), "held_seconds": TWO_WEEKS}),
        ("no_data", {**IDLE, "quiet": quiet(3), "held_seconds": 3 * DAY}),
        ("no_data", {**IDLE, "quiet": quiet(7.6), "held_seconds": 7.6 * DAY}),
        ("idle", {**IDLE, "quiet": quiet(7.7), "held_seconds": 7.7 * DAY}),
        # Another workload had this GPU until 61 hours ago, without a pause. The history belongs to that workload. A
        # holder that was restarted more than a week ago is not excused.
        (
            "right",
            {"quiet": quiet(61 / 24, longest_days=0.1), "held_seconds": 28 * DAY, "newest_holder_seconds": 61 * 3600.0},
        ),
        (
            "idle",
            {"quiet": quiet(61 / 24, longest_days=0.1), "held_seconds": 28 * DAY, "newest_holder_seconds": 15 * DAY},
        ),
        ("idle", {"quiet": quiet(8, longest_days=0.1), "held_seconds": 28 * DAY, "newest_holder_seconds": 3600.0}),
        ("right", {"quiet": quiet(7, longest_days=0.1), "held_seconds": 28 * DAY, "newest_holder_seconds": 3600.0}),
        # The holder's start is not known. The GPU was already idle when the newest process of the holder started.
        ("no_data", {**IDLE, "held_seconds": None, "newest_holder_seconds": DAY}),
        ("idle", {**IDLE, "held_seconds": None, "newest_holder_seconds": 8 * DAY}),
        # These rows are a long weekend of four days, after normal weekends.
        ("right", {"quiet": quiet(4.5, longest_days=2.6), "held_seconds": TWO_WEEKS}),
        ("idle", {"quiet": quiet(5.3, longest_days=2.6), "held_seconds": TWO_WEEKS}),
        # The grace time is 48 h. For each of the six groups of signals that is missing, 12 h are added.
        ("right", {"quiet": quiet(4.9, longest_days=0.1, signals=("kernels",)), "held_seconds": TWO_WEEKS}),
        ("idle", {"quiet": quiet(5.1, longest_days=0.1, signals=("kernels",)), "held_seconds": TWO_WEEKS}),
        ("right", {"quiet": quiet(1.9, longest_days=0.1), "held_seconds": TWO_WEEKS, "holders": WATCHED}),
        ("idle", {"quiet": quiet(2.1, longest_days=0.1), "held_seconds": TWO_WEEKS, "holders": WATCHED}),
        # The first row is a model server whose model is loaded. The next rows are similar holders that are no model
        # servers.
        ("standby", {**IDLE, "memory": stat(60 * GIB), "holders": SERVER}),
        ("standby", {**IDLE, "memory": stat(60 * GIB), "holders": (replace(SERVER[0], listens=False, clients=2),)}),
        ("standby", {**IDLE, "memory": stat(1 * GIB), "holders": (replace(SERVER[0], clients=2),)}),
        # This is a small model server, which waits too.
        ("standby", {**IDLE, "memory": stat(1 * GIB), "holders": SERVER}),
        # Some kernels ran in several hours, but were too short to count as work.
        ("standby", {**STIRRING, "memory": stat(1 * GIB), "holders": SERVER}),
        ("no_data", {**STIRRING, "memory": stat(1 * GIB), "holders": WATCHED}),
        ("no_data", {**STIRRING, "memory": stat(1 * GIB), "holders": NOTEBOOK}),
        ("idle", {**STIRRING, "quiet": replace(STIRRING["quiet"], kernel_hours_ratio=0.01), "holders": WATCHED}),
        # Without profiling, kernels of a process that uses CPU time may not be seen.
        ("no_data", {**IDLE, "quiet": quiet(13, signals=UNPROFILED, cpu_cores=0.003), "holders": WATCHED}),
        ("idle", {**IDLE, "quiet": quiet(13, signals=UNPROFILED, cpu_cores=0.002), "holders": WATCHED}),
        ("idle", {**IDLE, "quiet": quiet(13, cpu_cores=0.05), "holders": WATCHED}),
        # JPEG and optical flow also need CPU time, and NVML does not report their engines on MIG.
        ("no_data", {**IDLE, "quiet": quiet(13, signals=NO_ENGINES, cpu_cores=0.003), "holders": WATCHED}),
        ("idle", {**IDLE, "quiet": quiet(13, signals=NO_ENGINES, cpu_cores=0.002), "holders": WATCHED}),
        # Only health probes, restarts or diagnostics use this server. The metrics of a cron job look the same.
        ("standby", {"hardly_works": True, "held_seconds": TWO_WEEKS, "holders": SERVER}),
        ("standby", {"hardly_works": True, "explained_kernels": "x.", "held_seconds": TWO_WEEKS, "holders": WATCHED}),
        ("right", {"hardly_works": True, "explained_kernels": "x.", "held_seconds": 6 * DAY, "holders": WATCHED}),
        ("right", {"explained_kernels": "x.", "held_seconds": TWO_WEEKS, "holders": WATCHED}),
        ("right", {"hardly_works": True, "held_seconds": 6 * DAY, "holders": SERVER}),
        ("right", {"hardly_works": True, "held_seconds": TWO_WEEKS, "holders": WATCHED}),
        ("right", {"hardly_works": True, "held_seconds": TWO_WEEKS, "holders": NOTEBOOK}),
        ("idle", {**IDLE, "memory": stat(60 * GIB), "holders": WATCHED}),
        ("idle", {**IDLE, "memory": stat(60 * GIB), "holders": NOTEBOOK}),
        # A server that polls uses a CPU core although its GPU is idle. A process without clients may be preparing data.
        ("standby", {**POLLING, "memory": stat(60 * GIB), "holders": SERVER}),
        ("right", {**POLLING, "memory": stat(60 * GIB), "holders": WATCHED}),
        ("right", {**POLLING, "memory": stat(60 * GIB), "holders": NOTEBOOK}),
        ("right", {"device_quiet": quiet(1.9), "held_seconds": TWO_WEEKS, "memory": stat(60 * GIB), "holders": SERVER}),
        (
            "right",
            {
                "device_quiet": quiet(9, longest_days=5),
                "held_seconds": 28 * DAY,
                "memory": stat(60 * GIB),
                "holders": SERVER,
            },
        ),
        # If one metric shows work that another metric does not show, the metrics are broken, and the GPU is not idle.
        ("broken_metrics", {"unreported_work_seconds": 3600.0}),
        ("broken_metrics", {**IDLE, "unreported_work_seconds": 2 * DAY}),
        ("unhealthy", {"lost": True, "unreported_work_seconds": 2 * DAY}),
        ("broken_metrics", {"unexplained_busy_seconds": 3600.0}),
        ("broken_metrics", {**IDLE, "unexplained_busy_seconds": 2 * DAY}),
        # This training job has computed before, and now hangs in an all-reduce. The audit asks its owner.
        ("stalled", {**COMPUTED, "stalled_seconds": 3600.0}),
        ("right", {**COMPUTED, "stalled_seconds": 3599.0}),
        ("stalled", {**COMPUTED, "stalled_seconds": 2 * DAY, "processes_now": None, "holders": None}),
        ("broken_metrics", {**COMPUTED, "stalled_seconds": 2 * DAY, "unexplained_busy_seconds": 3600.0}),
        # If a kernel may be waiting for requests or for its first data, a day must pass.
        ("right", {**COMPUTED, "stalled_seconds": DAY - 1, "holders": SERVER}),
        ("stalled", {**COMPUTED, "stalled_seconds": DAY, "holders": SERVER}),
        # For these holders, nothing shows that the kernel ever did more than wait.
        ("right", {"stalled_seconds": 9 * DAY}),
        ("right", {"stalled_seconds": 9 * DAY, "holders": SERVER}),
        ("right", {**COMPUTED, "stalled_seconds": 9 * DAY, "newest_holder_seconds": 9.5 * DAY}),
        ("stalled", {**COMPUTED, "stalled_seconds": 9 * DAY, "newest_holder_seconds": 11 * DAY}),
        # In these rows, the exporter was restarted during the window.
        ("right", {"unreported_work_seconds": 900.0}),
        ("right", {"unexplained_busy_seconds": 900.0}),
        # Without data on activity, the need is unknown unless the memory is full.
        ("saturated", {"memory": stat(79 * GIB), "compute": None, "busy": None}),
        ("no_data", {"memory": stat(10 * GIB), "compute": None, "busy": None}),
        # A single idle hour does not make a GPU idle.
        ("right", {"quiet": Quiet(3600.0)}),
        ("saturated", {"memory": stat(78 * GIB)}),
        ("saturated", {"compute": stat(0.95)}),
        ("oversized_memory", {"memory": stat(20 * GIB), "compute": stat(0.3)}),
        # The workload needs the compute power, so free memory is irrelevant.
        ("right", {"memory": stat(20 * GIB)}),
        ("oversized_compute", {"compute": stat(0.2)}),
        ("right", {"memory": None}),
        ("right", {"compute": None}),
        ("no_data", {"memory": None, "compute": None, "busy": None}),
        ("no_data", {"memory": stat(20 * GIB, coverage=0.05), "compute": stat(0.1, coverage=0.05)}),
        ("no_data", {"memory": stat(20 * GIB, coverage=0.3), "compute": stat(0.1, coverage=0.3)}),
    ],
)
def test_verdict(expected, changes):
    assert word(holding(**changes)) == expected


def test_each_verdict_has_a_case():
    (cases,) = (mark.args[1] for mark in test_verdict.pytestmark)
    assert {expected for expected, _changes in cases} == set(WORDS)


def test_every_verdict_has_a_reason_and_a_waste():
    idle = judge(holding(**IDLE), seconds=TWO_WEEKS)
    assert "pid 4711" in idle.reason and "No sign of work for at least 14 days. Its limit is " in idle.reason
    assert (
        "Signals: none. Not measured: kernels, profiling, transfers, video engines, power, CPU time, client connections."
        in idle.reason
    )
    assert idle.waste_per_month == pytest.approx(2.0 * 730.5)
    assert judge(holding(), seconds=TWO_WEEKS).waste_per_month == 0.0
    assert judge(holding(price_per_hour=None, **IDLE), seconds=TWO_WEEKS).waste_per_month is None
    # The workload needs a quarter of the memory plus a margin, and a tenth of the compute power. The larger share
    # counts.
    small = judge(holding(memory=stat(20 * GIB), compute=stat(0.1)), seconds=TWO_WEEKS)
    assert small.waste_per_month == pytest.approx(2.0 * 730.5 * (1 - 0.25 * 1.15), abs=0.01)


def test_busy_gpu_can_be_underused():
    assert use_of(holding()) == "useful"
    assert use_of(holding(tensor=stat(0.0), bandwidth=stat(0.05))) == "busy"
    assert use_of(holding(tensor=None, bandwidth=None)) == "unknown"
    assert use_of(holding(**IDLE)) == "none"


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ("right", {"memory": stat(6 * GIB)}),
        ("saturated", {"memory": stat(8 * GIB)}),
        ("saturated", {"memory": stat(2 * GIB), "denials": 3.0}),
        ("oversized_memory", {"memory": stat(2 * GIB)}),
        ("idle", {"memory": stat(0.0)}),
        # 45 percent of two weeks are about six days, so the history is too short.
        ("no_data", {"memory": stat(0.0, coverage=0.45)}),
        ("no_data", {"memory": None}),
        ("no_data", {"memory": stat(2 * GIB, coverage=0.02)}),
    ],
)
def test_a_tenant_is_judged_by_its_quota(expected, changes):
    tenant = Holding(replace(GPU, kind="tenant", name="notebook-a"), memory_total_bytes=8 * GIB)
    assert word(replace(tenant, **changes)) == expected


ratios = st.one_of(st.none(), st.floats(0, 1).map(stat))
holders = st.one_of(st.none(), st.just(()), st.just(JOB))


@given(
    held_seconds=st.one_of(st.none(), st.floats(0, TWO_WEEKS)),
    busy=ratios,
    compute=ratios,
    memory=st.one_of(st.none(), st.floats(0, 80 * GIB).map(stat)),
    held=holders,
    processes=st.one_of(st.none(), st.integers(0, 3).map(float)),
    quiet=st.one_of(st.none(), st.floats(3600, TWO_WEEKS).map(Quiet)),
)
def test_unknown_activity_is_not_idle(held_seconds, busy, compute, memory, held, processes, quiet):
    found = holding(
        busy=busy,
        compute=compute,
        memory=memory,
        holders=held,
        processes_now=processes,
        quiet=quiet,
        tensor=None,
        held_seconds=held_seconds,
    )
    verdict = judge(found, seconds=TWO_WEEKS)
    assert verdict.word in WORDS and verdict.reason
    if verdict.word in ("idle", "held_without_process", "free"):
        assert quiet is not None and quiet.seconds >= 2 * DAY
    if verdict.word == "held_without_process":
        assert held and not processes and held_seconds >= 2 * DAY
    if verdict.word == "free":
        assert held == () and not processes
    if verdict.word == "oversized_memory":
        assert memory.max * 1.15 <= 40 * GIB
        assert (compute or busy).p99 <= 0.5
    if quiet is None and busy is None and compute is None:
        assert not verdict.waste_per_month
    if verdict.word == "oversized_compute":
        assert (compute or busy).p99 <= 0.5
    if verdict.waste_per_month is not None:
        assert 0 <= verdict.waste_per_month <= 2.0 * 730.5


YES = bool  # Returns True for each subject: all subjects were checked.


def judged(*words):
    return [(holding(subject=replace(GPU, gpu_uuid="GPU-%d" % n)), Verdict(w, "why")) for n, w in enumerate(words)]


def former(found):
    return {one.id: Former(one.id, one.verdict.word, one.first_found_seconds, one) for one in found}


def test_findings_keep_their_ids_when_figures_change():
    first = findings(judged("idle", "right"), {}, 100.0)
    changed = [
        (replace(held, memory=stat(1.0)), Verdict(v.word, "other figures")) for held, v in judged("idle", "right")
    ]
    second = findings(changed, former(first), 200.0)
    assert [one.id for one in first] == [one.id for one in second]
    assert {one.state for one in first} == {"new"} and {one.state for one in second} == {"still"}
    assert {one.first_found_seconds for one in second} == {100.0}
    assert gone(second, former(first), looked=YES) == ((), ())


def test_fixed_findings_are_gone_and_added_ones_new():
    first = findings(judged("idle", "right"), {}, 100.0)
    second = findings(judged("right", "saturated"), former(first), 200.0)
    assert {one.verdict.word: one.state for one in second} == {"right": "new", "saturated": "new"}
    # A GPU is oversized only in its current state, so such a finding is never reported as gone.
    (away,), hidden = gone(second, former(first), looked=YES)
    assert (away.verdict.word, away.state, hidden) == ("idle", "gone", ())


def test_unseen_findings_are_not_gone():
    first = findings(judged("idle", "idle", "idle"), {}, 100.0)
    # GPU-0 has no data. GPU-1 was checked and is gone. GPU-2 could not be checked.
    second = findings(judged("no_data"), former(first), 200.0)
    away, hidden = gone(second, former(first), looked=lambda subject: subject.gpu_uuid == "GPU-1")
    assert [one.holding.subject.gpu_uuid for one in away] == ["GPU-1"]
    assert sorted(one.holding.subject.gpu_uuid for one in hidden) == ["GPU-0", "GPU-2"]
    # A finding that appears again keeps its ID and its age.
    third = findings(judged("idle"), former(hidden), 300.0)
    assert [(one.state, one.first_found_seconds) for one in third] == [("still", 100.0)]


def test_findings_are_sorted_by_urgency_then_cost():
    pairs = judged("right", "idle", "idle", "unhealthy")
    pairs[2] = (pairs[2][0], Verdict("idle", "why", waste_per_month=10.0))
    assert [one.holding.subject.gpu_uuid for one in findings(pairs, {}, 0.0)] == ["GPU-3", "GPU-2", "GPU-1", "GPU-0"]


def test_ids_depend_on_subject_and_verdict():
    subjects = [
        GPU,
        replace(GPU, gpu_uuid="GPU-2"),
        replace(GPU, mig_instance="1"),
        replace(GPU, name="a"),
        replace(GPU, host="b"),
    ]
    assert len({finding_id(subject, word) for subject in subjects for word in WORDS}) == len(subjects) * len(WORDS)


def unmeasured(**more):
    """Return an unused instance on a GPU without utilization data per instance."""
    return holding(
        holders=(), processes_now=0.0, busy=None, compute=None, bandwidth=None, tensor=None, memory=stat(0.0),
        **{"processes": stat(0.0), **more},
    )  # fmt: skip


def test_unheld_gpu_is_free_without_measured_activity():
    assert word(unmeasured()) == "free"


@pytest.mark.parametrize(
    "more",
    [
        {"processes": stat(1.0)},
        {"processes": None},
        {"processes": stat(0.0, coverage=0.3)},
        {"holders": (Holder("container", "notebook"),)},
        {"holders": None},
        {"compute": stat(0.2)},
    ],
)
def test_gpu_is_not_free_with_less_evidence(more):
    found = replace(unmeasured(), **more)
    assert word(found) != "free"


@pytest.mark.parametrize(("silent_hours", "expected"), [(2.9, "idle"), (3.1, "no_data")])
def test_gpu_without_recent_samples_is_not_idle(silent_hours, expected):
    assert word(holding(**IDLE, silent_seconds=silent_hours * 3600)) == expected


def test_used_gpu_in_a_long_pause_names_the_pause_and_the_limit():
    paused = Quiet(60 * 3600.0, longest_seconds=40 * 3600.0, held_seconds=TWO_WEEKS)
    verdict = judge(holding(quiet=paused, held_seconds=TWO_WEEKS), seconds=TWO_WEEKS)
    assert verdict.word == "right" and verdict.idle_after_seconds > paused.seconds
    assert (
        "It has been quiet for 2.5 days, and is idle after %.1f days." % (verdict.idle_after_seconds / 86400)
        in verdict.reason
    )
    assert "quiet" not in judge(holding(), seconds=TWO_WEEKS).reason


@pytest.mark.parametrize(
    ("held", "longest", "text"),
    [
        (30, 0, "2 days: the grace period."),
        (30, 20, "2.7 days: a weekend, because it paused for 20 h before."),
        (30, 48, "4 days: 2 times its longest earlier pause of 2 days."),
        (30, 100, "15 days: two weeks and more, because it paused for 4.2 days before."),
        (13, 20, "7.7 days: a week and more, because its history is shorter than 14 days."),
    ],
)
def test_reason_names_the_rule_that_sets_the_limit(held, longest, text):
    # Each group of signals has one measured signal, and the host counted clients.
    signals = ("kernels", "SM activity", "PCIe traffic", "video engines", "power", "CPU time")
    quiet = Quiet(20 * 86400.0, longest_seconds=longest * 3600.0, signals=signals)
    changes = {**IDLE, "quiet": quiet, "held_seconds": held * 86400.0, "holders": WATCHED}
    verdict = judge(holding(**changes), seconds=TWO_WEEKS)
    assert "No sign of work for 20 days. Its limit is %s Signals: kernels" % text in verdict.reason
    fewer = replace(quiet, longest_seconds=0.0, signals=signals[1:])
    reason = judge(holding(**{**changes, "quiet": fewer, "held_seconds": 30 * 86400.0}), seconds=TWO_WEEKS).reason
    assert "2.5 days: the grace period, longer because of signals that are not measured." in reason


def test_start_is_unknown_only_if_neither_server_nor_host_knows_it():
    def reason(**more):
        return judge(holding(**{**IDLE, "held_seconds": None, **more}), seconds=TWO_WEEKS).reason

    assert "start unknown" in reason()
    assert "start unknown" not in reason(holders=(Holder("process", "pid 1 (x)", since_seconds=1.0),))
