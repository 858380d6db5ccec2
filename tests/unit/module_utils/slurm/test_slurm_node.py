# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the host's Slurm node as the module slurm_info does.

The answers of Slurm's tools have the formats of Slurm 22.05 and 24.11.
"""

from __future__ import annotations

import subprocess

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.slurm.node import SlurmError, read_node
from ansible_collections.openfleet.gpu.plugins.module_utils.slurm.pads import REQUESTS

NODE = "NodeName=gpu-a Arch=x86_64 NodeHostName=one Version=22.05.8 Gres=gpu:h100:4(S:0) State=MIXED"
NODE += " CoresPerSocket=4 Sockets=2 ThreadsPerCore=2 Partitions=main"
CONFIG = "ClusterName             = lab\nGresTypes               = gpu,shard\nSLURM_VERSION           = 24.11.5\n"
CONFIG += "TopologyParam           = (null)\nTopologyPlugin          = topology/tree\n"
JOB = (
    "JobId=%s JobName=train UserId=alice(1000) GroupId=g(1) JobState=RUNNING JOB_GRES=gpu:h100:1 "
    "Nodes=gpu-a CPU_IDs=0 Mem=0 GRES=%s MinCPUsNode=1 WorkDir=/"
)


class Tools:
    """Replace Slurm's tools. An answer is found by the first words of the command."""

    def __init__(self, submit=None, **answers):
        self.tried, self.submit = [], submit or (lambda request: (0, "", "sbatch: Job 8 to start at"))
        self.answers = {"slurmd": "Hostname                 = gpu-a\n", "node": NODE, "config": CONFIG, **answers}

    def __call__(self, command, **_options):
        if command[0] == "squeue":
            key = "name" if "%j" in command else "queue" if "--states=all" in command else "squeue"
        elif command[0] == "sbatch":
            key = " ".join(command[2:])
            self.tried.append(key)
            return subprocess.CompletedProcess(command, *self.submit(key))
        else:
            key = command[command.index("show") + 1]
            key += command[-1] if key == "job" else ""
        answer = self.answers.get(key, "")
        if isinstance(answer, Exception):
            raise answer
        failed = answer.startswith("error")
        return subprocess.CompletedProcess(command, int(failed), "" if failed else answer, answer if failed else "")


def test_jobs_have_the_numbers_of_their_devices():
    tools = Tools(
        squeue="7 alice\n8 bob\n9 eve\n", name="train\n", job7=JOB % (7, "gpu:h100:2(IDX:0,3)"), job8=JOB % (8, ""),
        job9=JOB % (9, "gpu:h100:1(IDX:1)") + " JobState=RUNNING MinCPUsNode=1 Nodes=gpu-a",
    )  # fmt: skip
    found = read_node("", tools, proc="/nonexistent", sys="/nonexistent")
    assert found == {
        "node": "gpu-a", "version": "24.11.5", "node_version": "22.05.8", "gres": "gpu:h100:4(S:0)", "gres_types": "gpu,shard",
        "jobs": [
            {"id": "7", "user": "alice", "gres": [{"name": "gpu", "count": 2, "numbers": (0, 3)}]},
            {"id": "9", "user": "eve", "gres": None},
        ],
        "state": "MIXED", "reason": "", "started": "", "recorded": None, "sockets": 2, "cores_per_socket": 4,
        "topology_plugin": "topology/tree", "cores": [], "minors": [], "capabilities": [], "gres_conf": [],
        "pad_problem": "no job_submit plugin refuses requests for GPUs without a type",
    }  # fmt: skip


def test_node_that_has_not_registered_has_no_version():
    node = "NodeName=gpu-a NodeHostName=one Gres=(null) State=UNKNOWN*"
    found = read_node("gpu-a", Tools(node=node), proc="/nonexistent")
    assert (found["node_version"], found["gres"], found["jobs"]) == (None, "(null)", [])


def test_capabilities_without_a_device_node_are_left_out(tmp_path):
    # If gres.conf names a file that does not exist, slurmd ends.
    gpu = tmp_path / "proc/driver/nvidia/gpus/0000:1a:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-1\nDevice Minor: \t 2\n")
    listed = tmp_path / "proc/driver/nvidia-caps"
    listed.mkdir()
    (listed / "mig-minors").write_text(
        "config 1\nmonitor 2\ngpu2/gi1/access 282\ngpu2/gi1/ci0/access 283\ngpu2/gi2/access 291\n"
    )
    (tmp_path / "dev/nvidia-caps").mkdir(parents=True)
    for number in (1, 2, 282, 283):
        (tmp_path / "dev/nvidia-caps" / f"nvidia-cap{number}").touch()
    found = read_node("gpu-a", Tools(), str(tmp_path / "proc"), str(tmp_path / "dev"), str(tmp_path / "sys"))
    assert found["minors"] == [{"uuid": "GPU-1", "minor": 2, "local_cpus": ""}]
    names = [(row["name"], row["number"]) for row in found["capabilities"]]
    assert names == [("config", 1), ("monitor", 2), ("gpu2/gi1/access", 282), ("gpu2/gi1/ci0/access", 283)]


def test_lines_of_the_node_come_from_gres_conf_and_its_includes(tmp_path):
    (tmp_path / "gres.conf").write_text(
        "# GPUs\nNodeName=gpu-b Name=gpu File=/dev/nvidia0\nNodeName=gpu-[1-2],gpu-a Name=gpu Type=h100 \\\n  File=/dev/nvidia0\n"
        "include openfleet/gres.conf\nName=nic File=/dev/nic0\nAutoDetect=off\n"
    )
    (tmp_path / "openfleet").mkdir()
    (tmp_path / "openfleet/gres.conf").write_text(
        "NodeName=gpu-a Name=gpu Type=pad File=/dev/zero # 1\nName=shard Count=4\n"
    )
    config = CONFIG + "SLURM_CONF              = %s/slurm.conf\n" % tmp_path
    assert read_node("gpu-a", Tools(config=config), proc="/nonexistent")["gres_conf"] == [
        "NodeName=gpu-[1-2],gpu-a Name=gpu Type=h100 File=/dev/nvidia0",
        "NodeName=gpu-a Name=gpu Type=pad File=/dev/zero",
        "AutoDetect=off",
    ]
    (tmp_path / "openfleet/gres.conf").unlink()
    assert read_node("gpu-a", Tools(config=config), proc="/nonexistent")["gres_conf"] == []
    (tmp_path / "gres.conf").write_text("Include gres.conf\n")
    assert read_node("gpu-a", Tools(config=config), proc="/nonexistent")["gres_conf"] == []


# -- Pads --

RULE = CONFIG + "JobSubmitPlugins        = lua\n"
REFUSED = (1, "", "sbatch: error: Request GPUs with a type, for example --gres=gpu:h100:1.\nallocation failure\n")


def queued(number, **fields):
    """Return a line of squeue for a job with requests per node, job, socket and task."""
    return "%-20s" % number + "".join("%-120s" % fields.get(key, "N/A") for key in ("node", "job", "socket", "task"))


def test_every_kind_of_request_is_tried_in_every_partition():
    tools = Tools(lambda request: REFUSED, config=RULE, node=NODE + ",night", queue=queued(1, node="gres:gpu:h100:1"))
    assert read_node("gpu-a", tools, proc="/nonexistent")["pad_problem"] == ""
    assert len(tools.tried) == 2 * len(REQUESTS)


@pytest.mark.parametrize(
    ("submit", "problem"),
    [
        # slurmctld also accepts a request if the submit script fails.
        (lambda request: (0, "", "sbatch: Job 8 to start at"), "partition main does not refuse --gres=gpu:1"),
        (
            lambda request: REFUSED if "gpus-per-task" not in request else (0, "", ""),
            "does not refuse --gpus-per-task=1",
        ),
        (lambda request: REFUSED if "pad" not in request else (0, "", ""), "does not refuse --gres=gpu:pad:1"),
        (lambda request: REFUSED if "night" not in request else (0, "", ""), "partition night does not refuse"),
        # This error does not refuse the request for good. slurmctld may accept it later.
        (
            lambda request: (1, "", "allocation failure: Requested node configuration is not available"),
            "does not refuse",
        ),
    ],
)
def test_request_that_is_not_refused_is_a_problem(submit, problem):
    tools = Tools(submit, config=RULE, node=NODE + ",night")
    assert problem in read_node("gpu-a", tools, proc="/nonexistent")["pad_problem"]


@pytest.mark.parametrize(
    ("line", "is_problem"),
    [
        (queued(7, node="gres:gpu:h100:1"), False),
        (queued(7, node="gres/gpu:3g.40gb:1", task="cpu:2,gres/gpu:h100=1"), False),
        (queued(7, node="gres/shard:1"), False),
        (queued(7, node="gres:gpu:1"), True),
        (queued(7, job="gres/gpu"), True),
        (queued(7, task="cpu:2,gres/gpu=1"), True),
        (queued(7, socket="gres:gpu:h100:1,gres:gpu:2"), True),
        (queued(7, node="gres:gpu:2,gres:nic:1"), True),
        (queued(7, node="gres/nic:%s" % ("1" * 130))[:500], True),
    ],
)
def test_job_that_was_submitted_before_the_rule_is_a_problem(line, is_problem):
    found = read_node("gpu-a", Tools(lambda request: REFUSED, config=RULE, queue=line), proc="/nonexistent")
    assert found["pad_problem"] == ("job 7 requests GPUs without a type" if is_problem else "")


def test_queue_that_cannot_be_read_is_a_problem():
    tools = Tools(lambda request: REFUSED, config=RULE, queue="error: slurm_load_jobs")
    assert "slurm_load_jobs" in read_node("gpu-a", tools, proc="/nonexistent")["pad_problem"]


def test_cores_and_close_cpus_are_read_from_sysfs(tmp_path):
    gpu = tmp_path / "proc/driver/nvidia/gpus/0000:1A:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("GPU UUID: \t GPU-1\nDevice Minor: \t 0\n")
    device = tmp_path / "sys/bus/pci/devices/0000:1a:00.0"
    device.mkdir(parents=True)
    (device / "local_cpulist").write_text("1,3\n")
    for cpu, (package, siblings) in enumerate([(0, "0,2"), (1, "1,3"), (0, "0,2"), (1, "1,3")]):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{package}\n")
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    # An offline CPU has no topology. The folder cpufreq is among the folders of CPUs.
    (tmp_path / "sys/devices/system/cpu/cpu4").mkdir()
    (tmp_path / "sys/devices/system/cpu/cpufreq").mkdir()
    found = read_node("gpu-a", Tools(), str(tmp_path / "proc"), "/nonexistent", str(tmp_path / "sys"))
    assert found["cores"] == [{"package": 0, "cpus": "0,2"}, {"package": 1, "cpus": "1,3"}]
    assert found["minors"] == [{"uuid": "GPU-1", "minor": 0, "local_cpus": "1,3"}]


@pytest.mark.parametrize(
    ("name", "answers", "problem"),
    [
        ("-x", {}, "gpu_slurm_node: '-x' is not a valid name"),
        ("gpu-b", {"node": "error: Node gpu-b not found"}, "Slurm node gpu-b: .* Set gpu_slurm_node"),
        ("gpu-a", {"node": "error: Unable to contact slurm controller"}, "Slurm node gpu-a: .*scontrol ping"),
        ("gpu-a", {"config": "error: Unable to contact slurm controller"}, "Slurm node gpu-a: .*scontrol ping"),
        ("gpu-a", {"squeue": "error: slurm_load_jobs"}, "Slurm node gpu-a: .*scontrol ping"),
        ("gpu-a", {"node": FileNotFoundError(2, "", "scontrol")}, "this host: scontrol is not installed"),
    ],
)
def test_error_names_the_node_and_the_fix(name, answers, problem):
    with pytest.raises(SlurmError, match=problem):
        read_node(name, Tools(**answers), proc="/nonexistent")
