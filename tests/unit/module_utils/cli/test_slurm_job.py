# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the Prolog and Epilog of jobs with leases.

The lease service is real and answers on a socket. The service's host is simulated (lease_world.py). The records of jobs
have the format of `scontrol --details --oneliner show job`.
"""

from __future__ import annotations

import dataclasses
from subprocess import CompletedProcess

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.cli import slurm_job
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.leases.record import BookingRecord
from tests.unit.module_utils.leases.lease_socket import LeaseSocket
from tests.unit.module_utils.leases.lease_world import World

RECORD = (
    "JobId={job} JobName=train UserId=alice(1001) GroupId=alice(1001) MCS_label=N/A Priority=1 Account=(null) QOS=(null) "
    "JobState=RUNNING Reason=None Requeue=1 NodeList=gpu-a JOB_GRES={gres}   Nodes=gpu-a CPU_IDs=0 Mem=0 GRES={gres} "
    "MinCPUsNode=1 Command=(null)\n"
)


class Slurm:
    """Replace Slurm's tools for some jobs, and record the changes of jobs.

    Units have the format of Slurm 24.11, for example quota(CNT:3).
    """

    def __init__(self, **jobs):
        self.jobs = {name[1:]: gres for name, gres in jobs.items()}
        self.changes = []
        self.can_requeue = True
        #: (array, number) of each task, by job id. The id of one task is also the id of the array.
        self.arrays = {}
        self.answers = True

    def __call__(self, command, **_options):
        words = list(command)
        if not self.answers:
            return CompletedProcess(words, 1, "", "Unable to contact slurm controller")
        if words[:2] == ["scontrol", "--details"]:
            selected = [job for job in self.jobs if words[-1] in (job, *self._names(job))]
            return CompletedProcess(words, 0, "".join(map(self._record, selected)), "")
        if words[-1] == "%A %F %K":
            rows = [(job, *self.arrays.get(job, (job, "N/A"))) for job in self.jobs]
            return CompletedProcess(words, 0, "".join("%s %s %s\n" % row for row in rows), "")
        if words[0] == "squeue":
            text = "train\n" if words[-1] == "%j" else "".join("%s alice\n" % job for job in self.jobs)
            return CompletedProcess(words, 0, text, "")
        self.changes.append(words)
        failed = words[1].startswith("requeue") and not self.can_requeue
        return CompletedProcess(words, int(failed), "", "Requested operation is presently disabled" if failed else "")

    def _names(self, job):
        array = self.arrays.get(job)
        return (array[0], "%s_%s" % array) if array else ()

    def _record(self, job):
        begin = "JobId=%s ArrayJobId=%s ArrayTaskId=%s " % (job, *self.arrays[job]) if job in self.arrays else ""
        text = RECORD.format(job=job, gres=self.jobs[job])
        return begin + text.partition(" ")[2] if begin else text

    @property
    def actions(self):
        """Return the recorded changes without their comments."""
        return [" ".join(words) for words in self.changes if words[1] != "update"]


@pytest.fixture
def node(tmp_path):
    found = Node(tmp_path)
    yield found
    found.service.close()


class Node:
    """A Slurm node with the lease service on a socket."""

    def __init__(self, folder):
        self.world = World(folder / "state")
        (folder / "state").mkdir()
        self.slurm, self.folder = Slurm(), folder / "jobs"
        self.service = LeaseSocket(folder / "s", lambda **request: self.world.ask(0, **request))

    def script(self, context, job, **more):
        environment = {
            **more,
            "SLURM_SCRIPT_CONTEXT": context,
            "SLURM_JOB_ID": job,
            "SLURM_JOB_USER": "alice",
            "SLURMD_NODENAME": "gpu-a",
        }
        return slurm_job.run(environment, self.service.path, self.slurm, self.folder)

    def prolog(self, job, **environment):
        assert self.script("prolog_slurmd", job, **environment) == 0
        file = self.folder / job
        return file.read_text() if file.exists() else None

    def epilog(self, job):
        self.slurm.jobs.pop(job, None)
        assert self.script("epilog_slurmd", job) == 0
        assert not (self.folder / job).exists()


def test_job_gets_its_lease_and_gives_it_back(node):
    node.slurm = Slurm(_7="quota(CNT:3)")
    assert node.prolog("7") == "OPENFLEET_QUOTA=12GiB and 30 %\nOPENFLEET_LEASE=1\n"
    assert (node.folder / "7").stat().st_mode & 0o777 == 0o644
    assert node.world.rows() == [(1, "job:alice/7", "active")]
    node.epilog("7")
    assert node.world.rows() == [] and node.slurm.changes == []


def test_partition_of_the_job_decides_whether_its_lease_is_online(node):
    node.world.job_leases = dataclasses.replace(node.world.job_leases, online=("inference",))
    node.slurm = Slurm(_7="quota(CNT:3)", _8="quota(CNT:3)", _9="quota(CNT:3)")
    node.prolog("7", SLURM_JOB_PARTITION="inference")
    node.prolog("8", SLURM_JOB_PARTITION="batch")
    node.prolog("9")
    found = BookingRecord(node.world.directory).read().bookings
    assert [each.request.online for each in found] == [True, False, False]


@pytest.mark.parametrize("gres", ["gpu:h100:1(IDX:0)", "(null)"])
def test_job_without_units_needs_no_lease(node, gres):
    node.slurm = Slurm(_7=gres)
    assert node.prolog("7") is None
    node.epilog("7")
    assert node.world.rows() == []


def test_refused_job_is_requeued_and_the_prolog_succeeds(node):
    node.slurm = Slurm(**{"_%d" % job: "quota(CNT:5)" for job in range(1, 6)})
    for job in "1234":
        assert "OPENFLEET_LEASE" in node.prolog(job)
    assert node.prolog("5").startswith("refused job 5: no GPU has 20GiB and 50 % free now")
    assert node.slurm.actions == ["scontrol requeue 5"]
    node.epilog("5")
    assert len(node.world.rows()) == 4


def test_job_that_never_fits_is_held(node):
    node.slurm = Slurm(_7="quota(CNT:6)", _8="gpu:h100:1(IDX:0),quota(CNT:1)")
    assert "which is 5. Request less." in node.prolog("7")
    assert "it requests gres/quota and other GPUs" in node.prolog("8")
    assert node.slurm.actions == ["scontrol requeuehold 7", "scontrol requeuehold 8"]
    assert node.world.rows() == []


def test_last_task_of_an_array_is_not_the_whole_array(node):
    """Give the last task of an array its own units.

    The id of this task selects all tasks of the array in Slurm's tools.
    """
    node.slurm.jobs = {"8": "quota(CNT:2)", "7": "quota(CNT:1)", "9": "quota(CNT:6)"}
    node.slurm.arrays = {"8": ("7", "1"), "9": ("9", "4"), "7": ("7", "2")}
    assert "OPENFLEET_QUOTA=8GiB and 20 %" in node.prolog("8")
    assert "OPENFLEET_QUOTA=4GiB and 10 %" in node.prolog("7")
    node.prolog("9")
    assert node.slurm.actions == ["scontrol requeuehold 9_4"]


def test_job_that_cannot_be_requeued_is_cancelled(node):
    node.slurm = Slurm(_7="quota(CNT:6)")
    node.slurm.can_requeue = False
    node.prolog("7")
    assert node.slurm.actions == ["scontrol requeuehold 7", "scancel 7"]


def test_leases_of_jobs_whose_epilog_did_not_run_make_room(node):
    node.slurm = Slurm(_1="quota(CNT:5)", _2="quota(CNT:5)", _3="quota(CNT:5)", _4="quota(CNT:5)", _5="quota(CNT:5)")
    for job in "1234":
        node.prolog(job)
    del node.slurm.jobs["2"], node.slurm.jobs["3"]
    assert "OPENFLEET_LEASE" in node.prolog("5")
    assert sorted(row[1] for row in node.world.rows()) == ["job:alice/1", "job:alice/4", "job:alice/5"]


def test_job_does_not_start_without_the_controller(node):
    node.slurm = Slurm(_7="quota(CNT:1)")
    node.slurm.answers = False
    assert node.prolog("7").startswith("refused job 7: its resources are not known")
    assert node.world.rows() == []


def test_program_is_only_for_slurm(node):
    with pytest.raises(FleetError, match="Slurm did not start this program"):
        node.script("", "7")
    with pytest.raises(FleetError, match="Slurm did not start this program"):
        node.script("prolog_slurmd", "../7")
