# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calculate use by Slurm jobs, users and accounts with a real Prometheus.

The exporter labelled some jobs' devices, as with dcgm_exporter_hpc_job_mapping_dir.
"""

from __future__ import annotations

import time

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import report_html
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.make import Order, make
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.prometheus import Access
from tests.audit.fleet_history import GIB, Device, prometheus, use

HOURS = 50
HOUR = 3600.0


def labelled(*jobs):
    """Return the exporter's job label over time, for jobs (ID, first hour, last hour)."""
    return {
        ("gpu:info", "workload", str(job)): lambda hour, first=first, last=last: 1 if first <= hour < last else None
        for job, first, last in jobs
    }


def course(values):
    """Return a course of (from this hour, value) pairs."""
    return lambda hour: next(value for start, value in reversed(values) if hour >= start)


#: GPU 0 runs job 7 and then job 8. GPU 1 has no job label. Node `mig` has one GPU with one instance.
BUSY = {
    **use(8, 0.1),
    "gpu:compute_active_ratio:avg5m": course([(0, 0.1), (20, 0.9)]),
    "gpu:memory_used_bytes:max5m": course([(0, 8 * GIB), (20, 70 * GIB)]),
}
FLEET = [
    Device("n1", 0, series=BUSY, labelled=labelled((7, 10, 20), (8, 20, 30))),
    Device("n1", 1, series=use(4, 0.5)),
    Device("mig", 0, "7", "1g.10gb", series=use(2, 0.25, 10)),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with prometheus(FLEET, HOURS, tmp_path_factory.mktemp("slurm")) as url:
        yield url


@pytest.fixture(scope="module")
def begin():
    return int(time.time()) // 300 * 300 - HOURS * HOUR


def job(begin, number, first, last, tres="gres/gpu=1,gres/gpu:h100=1", **more):
    times = {"start": "%d" % (begin + first * HOUR), "end": "Unknown" if last is None else "%d" % (begin + last * HOUR)}
    state = "RUNNING" if last is None else "COMPLETED"
    return {
        "id": str(number), "array_id": str(number), "user": "alice", "account": "team-a", "state": state, "suspended": "",
        "tres": tres, "nodes": "n1", **times, **more,
    }  # fmt: skip


def audited(server, begin, *jobs, **more):
    result = {"source": "sacct", "since_seconds": begin, "records": len(jobs), "jobs": list(jobs)}
    order = Order((HOURS - 1) * HOUR, Access(server), jobs={"login": result}, nodes={"n1": "n1"}, **more)
    return make(order, time.time())


def test_jobs_get_the_use_of_their_devices(server, begin):
    audit = audited(
        server, begin, job(begin, 7, 10, 20), job(begin, 8, 20, 30),
        job(begin, 9, 10, 30, account="team-b", user="bob"),
        job(begin, 10, 12, 22, "gres/gpu=1,gres/gpu:1g.10gb=1", nodes="mig", account="team-b"),
    )  # fmt: skip
    found = {one.name: one for one in audit.usage.jobs}
    assert {name: one.evidence for name, one in found.items()} == {
        "7": "exporter", "8": "exporter", "9": "", "10": "whole node",
    }  # fmt: skip
    assert found["7"].efficiency_ratio == pytest.approx(0.1, abs=0.02)
    assert found["8"].efficiency_ratio == pytest.approx(0.9, abs=0.02)
    assert found["10"].efficiency_ratio == pytest.approx(0.25, abs=0.01)
    # A five-minute roll-up reaches into the next job, so the test compares the memory for jobs without a successor.
    assert (found["8"].memory_max_bytes, found["10"].memory_max_bytes) == (70 * GIB, 2 * GIB)
    assert found["9"].used_gpu_seconds is None
    # A job's first and last interval may contain another job.
    assert found["7"].measured_gpu_seconds == pytest.approx(10 * HOUR, abs=2 * 900)
    totals = {total.name: total for total in audit.usage.accounts}
    assert totals["team-b"].held_gpu_seconds == 30 * HOUR
    assert totals["team-b"].measured_gpu_seconds == pytest.approx(10 * HOUR, abs=2 * 900)
    assert not [text for text in audit.sources.missing if "Slurm" in text or "jobs" in text]
    page = report_html.to_text(audit)
    assert "cannot tell which: Slurm" in page and "known from: exporter" in page


def test_use_is_unknown_if_prometheus_fails_later(server, begin, monkeypatch):
    monkeypatch.setattr(
        "ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.job_series._LABELLED", "not PromQL %s %d"
    )
    audit = audited(server, begin, job(begin, 7, 10, 20))
    assert audit.usage.jobs[0].held_gpu_seconds == 10 * HOUR
    assert any("The devices of ended jobs are unknown" in text for text in audit.sources.missing)
