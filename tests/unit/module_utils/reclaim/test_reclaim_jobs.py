# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test reclaiming of idle Slurm jobs: checks, notices and cancellation."""

from __future__ import annotations

import subprocess

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.keep import notices
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Holder
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim import jobs, stop, tell, wording
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim.jobs import SlurmJob, cancel, read_job
from ansible_collections.openfleet.gpu.plugins.module_utils.reclaim.stop import Policy, Tools, reclaim
from tests.unit.module_utils.reclaim.test_idle_stop import at_rest, host

DAY = 86400.0
NOW = 1.8e9
JOB = {"kind": "job", "name": "12", "runtime": "", "gpus": ["GPU-0"], "quiet_seconds": 30 * DAY}
RUNNING = SlurmJob("12_3", 1, "RUNNING", NOW - 30 * DAY, "alice")
#: squeue prints these lines for `--jobs 12 --array`. The ID 12 belongs to the array and to its last task.
ARRAY = "16 12_1 1 RUNNING 1790000001 alice\n12 12_3 1 RUNNING 1790000003 alice\n"


class Slurm:
    """Slurm's tools on a host.

    scancel removes the task that the command names, or all tasks of an array.
    """

    def __init__(self, listed, fail=None):
        self.listed, self.fail, self.commands = listed, fail or {}, []

    def __call__(self, command, env=None, **_options):
        self.commands.append(command)
        if command[0] in self.fail:
            return subprocess.CompletedProcess(command, 1, "", self.fail[command[0]])
        if command[0] == "scancel":
            rows = [line.split() for line in self.listed.splitlines()]
            kept = [row for row in rows if command[1] not in (row[1], row[1].partition("_")[0])]
            self.listed = "".join(" ".join(row) + "\n" for row in kept)
        return subprocess.CompletedProcess(command, 0, self.listed if command[0] == "squeue" else "", "")


def test_job_is_read_among_the_tasks_of_its_array():
    assert read_job("12", Slurm(ARRAY)) == SlurmJob("12_3", 1, "RUNNING", 1790000003.0, "alice")
    assert read_job("13", Slurm(ARRAY)) is None
    assert read_job("12", Slurm("", {"squeue": "slurm_load_jobs error: Invalid job id specified"})) is None


def test_only_one_task_of_an_array_is_cancelled():
    slurm = Slurm(ARRAY)
    cancel("12", "a reason", slurm)
    assert slurm.listed == "16 12_1 1 RUNNING 1790000001 alice\n"
    assert ["scontrol", "update", "JobId=12_3", "AdminComment=a reason"] in slurm.commands
    assert slurm.commands.index(["scancel", "12_3"]) > 1


def test_job_is_not_cancelled_without_a_recorded_reason():
    slurm = Slurm(ARRAY, {"scontrol": "Access/permission denied"})
    with pytest.raises(FleetError, match=r"Slurm job 12_3: .*denied"):
        cancel("12", "a reason", slurm)
    assert slurm.listed == ARRAY


def test_job_that_does_not_end_is_an_error(monkeypatch):
    monkeypatch.setattr(jobs, "_CANCEL_SECONDS", 0.0)
    monkeypatch.setattr(jobs, "_POLL_SECONDS", 0.0)
    slurm = Slurm("12 12 1 RUNNING 1790000003 alice\n")
    slurm.fail["scancel"] = ""
    with pytest.raises(FleetError, match="Slurm job 12"):
        cancel("12", "a reason", slurm)


@pytest.mark.parametrize("name", ["12; reboot", "-1", "12_3", "", "9" * 20])
def test_other_names_never_reach_slurm(name):
    slurm = Slurm(ARRAY)
    with pytest.raises(FleetError, match="not the ID of a job"):
        read_job(name, slurm)
    assert slurm.commands == []


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (SlurmJob("12+0", 1, "RUNNING", 0.0, "alice"), "it is a part of a heterogeneous job"),
        (SlurmJob("12", 2, "RUNNING", 0.0, "alice"), "it runs on 2 nodes"),
        (SlurmJob("12", 1, "SUSPENDED", 0.0, "alice"), "it is SUSPENDED"),
        (SlurmJob("12", 1, "COMPLETING", 0.0, "alice"), "it is COMPLETING"),
        (SlurmJob("12", 1, "RUNNING", None, "alice"), "its start time is not known"),
        (SlurmJob("12", 1, "RUNNING", NOW - 3600, "alice"), "it started 1.0 h ago; protected for 48 h"),
        (None, "it has ended"),
    ],
)
def test_job_that_may_not_be_cancelled_is_spared(machine, job, why):
    machine.job = job
    done = machine.run(JOB, grace_seconds=2 * DAY)
    assert (done["noticed"], done["spared"]) == ([], [{"kind": "job", "name": "12", "why": why}])


class Machine:
    """A host with a Slurm job and a clock. The host's records are real files."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.now, self.job, self.told, self.cancelled = str(folder), NOW, RUNNING, [], []
        self.seen, self.holders = host(), [Holder("GPU-0", None, "slurm", "Slurm job 12", job="12", user="alice")]
        monkeypatch.setattr(stop.time, "time", lambda: self.now)
        monkeypatch.setattr(tell, "tell", lambda way, row, uid, text: self.told.append(text))
        monkeypatch.setattr(jobs, "cancel", lambda name, reason: self.cancelled.append((name, reason)))

    def run(self, *items, **policy):
        tools = Tools(lambda: (self.seen, self.holders), at_rest(), job=lambda name: self.job)
        with notices.opened(self.folder, DAY) as record:
            return reclaim(items, tools, Policy(record=record, host="ada", ways=["wall"], can_keep=True, **policy))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_idle_job_is_announced_and_cancelled_after_the_notice(machine):
    (row,) = machine.run(JOB)["noticed"]
    assert (row["name"], row["user"], row["stop"], row["keep"], row["stop_after"]) == (
        "12",
        "alice",
        True,
        "",
        NOW + DAY,
    )
    assert (
        "It will be cancelled after 2027-01-16 08:00 UTC" in machine.told[0]
        and "gpu-layout keep" not in machine.told[0]
    )
    machine.now += DAY - 1
    assert machine.run(JOB)["stopped"] == [] and machine.cancelled == []
    machine.now += 1
    (row,) = machine.run(JOB)["stopped"]
    assert (row["name"], row["user"]) == ("12", "alice")
    assert machine.cancelled == [("12", "openfleet.gpu: cancelled because it used none of its GPUs")]
    assert machine.told[1] == "Slurm job 12 on ada was cancelled. It held gpu 0 (GPU-0) without any sign of work.\n"


def test_job_is_only_announced_without_permission_to_cancel_it(machine):
    item = {**JOB, "stop": False}
    (row,) = machine.run(item)["noticed"]
    assert "If you no longer need it, run: scancel 12" in machine.told[0] and "will be" not in machine.told[0]
    assert wording.subject("ada", "noticed", [row]) == "GPU host ada: job 12 idle"
    for _again in range(3):
        machine.now += DAY
        done = machine.run(item)
        assert done["noticed"] == done["stopped"] == []
        assert "the inventory does not allow to stop it" in done["spared"][0]["why"]
    assert machine.cancelled == [] and len(machine.told) == 1
    without_notice = reclaim(
        [item], Tools(lambda: (machine.seen, machine.holders), at_rest(), job=lambda name: RUNNING), Policy()
    )
    assert without_notice["stopped"] == [] and machine.cancelled == []


def test_job_that_may_be_cancelled_from_now_on_gets_a_notice_that_says_so(machine):
    machine.run({**JOB, "stop": False})
    machine.now += 2 * DAY
    (row,) = machine.run(JOB)["noticed"]
    assert row["stop"] and machine.cancelled == []
    assert "It will be cancelled after 2027-01-18 08:00 UTC" in machine.told[1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda machine: setattr(machine, "seen", host(5)), "is in use now"),
        (
            lambda machine: machine.holders.append(Holder("GPU-1", None, "slurm", "Slurm job 12", job="12")),
            "it holds another GPU too",
        ),
        (lambda machine: setattr(machine, "holders", []), "it no longer holds a GPU"),
        (lambda machine: setattr(machine, "job", None), "it has ended"),
    ],
)
def test_job_that_changed_since_its_notice_is_spared(machine, change, why):
    machine.run(JOB)
    machine.now += 2 * DAY
    change(machine)
    done = machine.run(JOB)
    assert why in done["spared"][0]["why"] and machine.cancelled == []


def test_units_with_jobs_are_still_spared(machine):
    machine.holders = [Holder("GPU-0", None, "process", "x", unit_or_container="x.service", job="12")]
    done = machine.run({"kind": "unit", "name": "x.service", "runtime": "", "gpus": ["GPU-0"]})
    assert done["spared"][0]["why"] == "a scheduler started it"
