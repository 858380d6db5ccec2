# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test holders from Slurm jobs, the kubelet's pods and MPS clients.

data/holders/slurm-*.txt is scontrol output of Slurm 22.05.8 (Debian 12) on a node with four GPUs. Records of other
releases follow https://slurm.schedmd.com/scontrol.html. The kubelet's checkpoint follows kubernetes/kubernetes,
pkg/kubelet/cm/devicemanager/checkpoint. MPS answers follow https://docs.nvidia.com/deploy/mps/.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders import slurm as holders_slurm
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.device_ids import named as named_device
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.devices import Devices
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import find_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.processes import scan
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.slurm import given_on, hostnames, resources
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.disturbance import Disturbance
from tests.unit.module_utils.holders.holder_hosts import Proc, gpu, host, instance, named, no_tools, opened

# Daemons run under their real names, so other tests that scan /proc at the same time would list them.
pytestmark = pytest.mark.alone

DATA = Path(__file__).parents[2] / "data" / "holders"
NODE_IDLE, NODE_USED, JOB = ((DATA / ("slurm-%s.txt" % n)).read_text() for n in ("node-idle", "node-used", "job-1"))
FOUR = host(*(gpu(i) for i in range(4)))


class Slurm:
    """Answer like scontrol and squeue, from prepared records."""

    def __init__(self, node: str = NODE_USED, squeue: str = "1 root\n", name: str = "train\n", **jobs: str) -> None:
        self.node, self.squeue, self.name, self.jobs = node, squeue, name, jobs or {"job1": JOB}
        self.called: list[str] = []

    def __call__(self, command, **_options):
        self.called.append(" ".join(command))
        if command[0] == "squeue" and "--jobs" in command:
            assert command[-2:] == ["--format", "%j"]
            return subprocess.CompletedProcess(command, 0, self.name, "")
        if command[0] == "squeue":
            assert command[command.index("--nodelist") + 1] == "gpu-a"
            return subprocess.CompletedProcess(command, 0, self.squeue, "")
        assert command[:4] == ["scontrol", "--details", "--oneliner", "show"]
        found = self.node if command[4:] == ["node", "gpu-a"] else self.jobs.get("".join(command[4:]))
        if found is None:
            return subprocess.CompletedProcess(command, 1, "", "slurm_load_jobs error: Invalid job id specified\n")
        return subprocess.CompletedProcess(command, 0, found, "")


@pytest.fixture
def slurmd(tmp_path):
    with opened("-N", "gpu-a", program=named(tmp_path, "slurmd")):
        yield


@pytest.fixture
def jobs(tmp_path, slurmd):
    """Return a function that returns the holders from Slurm.

    Containers of this machine, which may use a GPU, are ignored.
    """

    def look(of, run):
        found = find_holders(of, dev=str(tmp_path / "dev"), run=run, kubelet_directory=str(tmp_path))
        return tuple(holder for holder in found if holder.kind in ("slurm", "unknown"))

    (tmp_path / "dev").mkdir()
    return look


def test_job_holds_its_allocated_gpus(jobs):
    found = jobs(FOUR, Slurm())
    assert [(h.gpu_uuid, h.gpu_instance_id, h.kind, h.job, h.user) for h in found] == [
        ("GPU-0", None, "slurm", "1", "root"),
        ("GPU-1", None, "slurm", "1", "root"),
    ]
    assert found[0].who == "Slurm job 1 (train) of user root"


def test_slurmd_of_debian_is_queried(tmp_path):
    """Check that a job holds its GPUs if /usr/sbin/slurmd is a link to slurmd-wlm."""
    proc = Proc(tmp_path / "proc")
    proc.process(5, "slurmd", words=("-N", "gpu-a"))
    (proc.folder / "5" / "exe").unlink()
    (proc.folder / "5" / "exe").symlink_to("/usr/sbin/slurmd-wlm")
    found = find_holders(FOUR, str(proc.folder), str(tmp_path / "dev"), Slurm(), str(tmp_path))
    assert [(h.gpu_uuid, h.kind) for h in found] == [("GPU-0", "slurm"), ("GPU-1", "slurm")]


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """Return a function that writes the list of devices as the role gpu_slurm does."""
    boot, path = tmp_path / "boot_id", tmp_path / "devices"
    boot.write_text("boot-1\n")
    monkeypatch.setattr(holders_slurm, "_BOOT_ID", str(boot))
    monkeypatch.setattr(holders_slurm, "DEVICES", str(path))

    def write(*devices, boot="boot-1", node="gpu-a", mode=0o644):
        rows = "".join(f"{number} {device}\n" for number, device in enumerate(devices))
        path.write_text(f"# devices\nboot {boot}\nnode {node}\n{rows}")
        path.chmod(mode)

    return write


PARTS = host(gpu(0, instance(1, 0), instance(2, 2)), gpu(1, instance(3, 0)), gpu(2), gpu(3))
NODE_MIG = NODE_USED.replace(" Gres=gpu:h100:4 ", " Gres=gpu:3g.40gb:1(S:0),gpu:1g.10gb:2(S:0),gpu:h100:2 ")
DEVICE_ROWS = ("3g.40gb MIG-2", "1g.10gb MIG-1", "1g.10gb MIG-3", "h100 GPU-2", "h100 GPU-3")


def test_listed_devices_determine_the_instances_of_a_job(jobs, listed):
    """Check that a job without a process holds exactly its instances."""
    assert len(jobs(PARTS, Slurm(node=NODE_MIG))) == 4
    listed(*DEVICE_ROWS)
    found = jobs(PARTS, Slurm(node=NODE_MIG))
    assert sorted((h.gpu_uuid, h.gpu_instance_id, h.job) for h in found) == [("GPU-0", 1, "1"), ("GPU-0", 2, "1")]


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (DEVICE_ROWS, {"boot": "boot-0"}),
        (DEVICE_ROWS, {"node": "gpu-b"}),
        (DEVICE_ROWS, {"mode": 0o666}),
        # The types of these devices differ from those of the node, so slurmd does not use them.
        (DEVICE_ROWS[:-1], {}),
        ((DEVICE_ROWS[1], DEVICE_ROWS[0], *DEVICE_ROWS[2:]), {}),
        # The list has no UUID for the job's device because it is changing, or it has the UUID of a missing device.
        (("3g.40gb -", *DEVICE_ROWS[1:]), {}),
        (("3g.40gb MIG-9", *DEVICE_ROWS[1:]), {}),
        ((), {}),
    ],
)
def test_other_lists_are_no_evidence(jobs, listed, rows, options):
    listed(*rows, **options)
    assert [h.gpu_uuid for h in jobs(PARTS, Slurm(node=NODE_MIG))] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]


@pytest.mark.parametrize(
    ("pending", "mode", "held"),
    [
        (True, 0o600, [("GPU-0", 1), ("GPU-0", 2)]),
        # The devices may have changed since the last change ended, and only root's record is evidence.
        (False, 0o600, [(f"GPU-{i}", None) for i in range(4)]),
        (True, 0o666, [(f"GPU-{i}", None) for i in range(4)]),
    ],
)
def test_record_of_a_change_determines_the_instances_of_a_job(tmp_path, jobs, monkeypatch, pending, mode, held):
    """Check the first run of the role, before it lists the devices."""
    monkeypatch.setattr(holders_slurm, "_RECORD_OF", str(tmp_path / "slurm-%s.json"))
    devices = [dict(zip(("type", "uuid"), row.split())) for row in DEVICE_ROWS]
    record = {"schema": 1, "pending": pending, "former": None, "devices": devices}
    path = tmp_path / "slurm-gpu-a.json"
    path.write_text(json.dumps(record))
    path.chmod(mode)
    found = jobs(PARTS, Slurm(node=NODE_MIG))
    assert sorted((h.gpu_uuid, h.gpu_instance_id) for h in found) == held


def test_idle_node_needs_one_query(jobs):
    run = Slurm(node=NODE_IDLE)
    assert jobs(FOUR, run) == ()
    assert len(run.called) == 1


def test_undeterminable_gpus_are_all_held(jobs):
    found = jobs(host(*(gpu(i) for i in range(5))), Slurm())
    assert [(h.gpu_uuid, h.job) for h in found] == [("GPU-%d" % i, "1") for i in range(5)]
    assert "of unknown GPUs" in found[0].who
    unsaid = JOB.replace("(IDX:0-1)", "")
    assert len(jobs(FOUR, Slurm(job1=unsaid))) == 4


def test_with_mig_devices_are_determined_by_processes(tmp_path):
    of = host(gpu(0, instance(1, 0), instance(2, 2)), gpu(1, instance(3, 0)), gpu(2), gpu(3))
    job = {"cgroup": "0::/system.slice/slurmstepd.scope/job_1/step_0/user/task_0"}
    for step, devices, held in (
        ({}, "", [(f"GPU-{i}", None) for i in range(4)]),
        (job, "MIG-2,MIG-3", [("GPU-0", 2), ("GPU-1", 3)]),
        # If a step has one of a job's two devices, the other device is unknown.
        (job, "MIG-2", [(f"GPU-{i}", None) for i in range(4)]),
        # A process with the job's variable, but outside the job's cgroup, is not part of the job.
        (
            {"cgroup": "0::/user.slice/user-1000.slice/session-1.scope"},
            "MIG-2,MIG-3",
            [(f"GPU-{i}", None) for i in range(4)],
        ),
    ):
        proc = Proc(tmp_path / ("proc" + devices + str(len(step))))
        proc.process(5, "slurmd", words=("-N", "gpu-a"))
        proc.process(7, "python3", variables=(("SLURM_JOB_ID", "1"), ("CUDA_VISIBLE_DEVICES", devices)), **step)
        found = find_holders(of, str(proc.folder), str(tmp_path / "dev"), Slurm(), str(tmp_path))
        assert [(h.gpu_uuid, h.gpu_instance_id) for h in found if h.kind == "slurm"] == held
        shutil.rmtree(proc.folder)


@pytest.mark.parametrize(
    ("name", "uid", "words"),
    [
        ("slurmd", 1000, ("-N", "gpu-a")),
        ("slurmd", 0, ("-N", "--help")),
        ("slurmd", 0, ("-N", "gpu a;x")),
        ("nvidia-cuda-mps-control", 1000, ()),
    ],
)
def test_daemon_not_of_root_is_not_queried(tmp_path, name, uid, words):
    proc = Proc(tmp_path / "proc")
    proc.process(5, name, uid=uid, words=words, variables=(("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mine"),))
    assert find_holders(FOUR, str(proc.folder), str(tmp_path / "dev"), never, str(tmp_path)) == ()


def test_daemon_is_recognized_by_its_executable(tmp_path):
    proc = Proc(tmp_path / "proc")
    for pid, name in ((5, "slurmd"), (6, "nvidia-cuda-mps-control")):
        proc.process(pid, name)
        (proc.folder / str(pid) / "exe").unlink()
        (proc.folder / str(pid) / "exe").symlink_to("/usr/bin/sleep")
    assert find_holders(FOUR, str(proc.folder), str(tmp_path / "dev"), never, str(tmp_path)) == ()


def test_process_without_an_open_gpu_is_not_ended_by_a_servers_answer(tmp_path):
    dev = tmp_path / "dev"
    dev.mkdir()
    (dev / "nvidia0").touch()
    proc = Proc(tmp_path / "proc")
    proc.process(5, "nvidia-cuda-mps-control")
    proc.process(6, "nvidia-cuda-mps-server", dev / "nvidia0", uid=1000, parent=5)
    proc.process(7, "postgres", uid=70, cgroup="0::/system.slice/postgresql.service")
    proc.process(8, "train", dev / "nvidia0", uid=1000)
    answers = {"get_server_list\n": "6\n", "get_client_list 6\n": "7\n8\n"}

    def control(command, input, env):
        return subprocess.CompletedProcess(command, 0, answers[input], "")

    found = find_holders(host(gpu(0)), str(proc.folder), str(dev), control, str(tmp_path))
    assert {(h.pid, h.kind, h.unit_or_container) for h in found} == {
        (None, "mps", None),
        (6, "device_handle", None),
        (8, "mps", None),
    }
    (named_only,) = (h for h in found if h.pid is None)
    assert "pid 7 (postgres" in named_only.who and "has no GPU open" in named_only.who


NOT_KNOWN = "may not be a client of this server and is not ended"


@pytest.mark.parametrize(
    ("server", "uid", "parent", "opened", "problem"),
    [
        ("nvidia-cuda-mps-server", 2000, 5, "nvidia0", None),
        # An MPS server that runs as root serves all users.
        ("nvidia-cuda-mps-server", 0, 5, "nvidia0", None),
        # Root in a client's container can answer in place of the daemon and name a process that uses another GPU.
        ("nvidia-cuda-mps-server", 0, 5, "nvidia1", "has none of the server's GPUs open and is not ended"),
        ("nvidia-cuda-mps-server", 1000, 5, "nvidia0", NOT_KNOWN),
        # This process is not a child of the daemon. Any user can start a process with this name.
        ("nvidia-cuda-mps-server", 2000, 1, "nvidia0", NOT_KNOWN),
        ("nvidia-cuda-mps-server", 0, 1, "nvidia0", NOT_KNOWN),
        ("nvidia-persistenced", 0, 5, "nvidia0", NOT_KNOWN),
        (None, None, None, "nvidia0", "has none of the server's GPUs open and is not ended"),
    ],
)
def test_client_is_ended_only_if_the_kernel_confirms_it(tmp_path, server, uid, parent, opened, problem):
    dev = tmp_path / "dev"
    dev.mkdir()
    for name in ("nvidia0", "nvidia1"):
        (dev / name).touch()
    proc = Proc(tmp_path / "proc")
    proc.process(5, "nvidia-cuda-mps-control")
    if server:
        proc.process(6, server, dev / "nvidia0", uid=uid, parent=parent)
    proc.process(7, "train", dev / opened, uid=2000)
    answers = {"get_server_list\n": "6\n", "get_client_list 6\n": "7\n"}

    def control(command, input, env):
        return subprocess.CompletedProcess(command, 0, answers[input], "")

    found = find_holders(host(gpu(0), gpu(1)), str(proc.folder), str(dev), control, str(tmp_path))
    named_by_server = [h for h in found if h.kind == "mps"]
    assert named_by_server and {h.pid for h in named_by_server} == ({None} if problem else {7})
    assert not problem or problem in named_by_server[0].who
    # A process with open files of a GPU is a holder, whatever an MPS server reports.
    assert (("GPU-1" if opened == "nvidia1" else "GPU-0"), 7) in {(h.gpu_uuid, h.pid) for h in found}


def test_implausibly_long_answer_of_a_daemon_is_ignored(tmp_path):
    proc = Proc(tmp_path / "proc")
    proc.process(5, "nvidia-cuda-mps-control")

    def control(command, input, env):
        assert input == "get_server_list\n"
        return subprocess.CompletedProcess(command, 0, "\n".join(map(str, range(100, 600))), "")

    (holder,) = find_holders(host(gpu(0)), str(proc.folder), str(tmp_path / "dev"), control, str(tmp_path))
    assert holder.kind == "unknown" and "it names 500 servers" in holder.who


ALL_GPUS = " Nodes=gpu-a CPU_IDs=0 Mem=1 GRES=gpu:h100:4(IDX:0-3)"


@pytest.mark.parametrize(
    "name",
    [
        "x UserId=victim(7)" + ALL_GPUS,
        "x JOB_GRES=gpu:4 " + ALL_GPUS,
        "x\nUserId=victim(7)" + ALL_GPUS,
        "x\n2 alice y UserId=victim(7)" + ALL_GPUS,
        "train UserId=root(0) GroupId=root(0) MCS_label=N/A JOB_GRES=gpu:h100:4 " + ALL_GPUS,
        "\x1b[2J\u2028\u202e{{ x }}",
    ],
)
def test_job_name_cannot_pose_as_other_fields(jobs, name):
    """Ignore fields of another job in a job name, because any user can choose the name."""
    record = JOB.replace("JobName=train", "JobName=" + name).replace("Command=(null)", "Command=/x" + ALL_GPUS)
    found = jobs(FOUR, Slurm(name=name + "\n", job1=record))
    assert [(h.gpu_uuid, h.kind, h.job, h.user) for h in found] == [
        ("GPU-0", "slurm", "1", "root"),
        ("GPU-1", "slurm", "1", "root"),
    ]
    assert all(holder.who.isprintable() for holder in found)


def test_array_job_has_the_name_of_the_array(jobs):
    record = JOB.replace("JobId=1 ", "JobId=1 ArrayJobId=1 ArrayTaskId=3 ")
    found = jobs(FOUR, Slurm(name="train\n" * 3, job1=record))
    assert [(h.gpu_uuid, h.who) for h in found] == [("GPU-%d" % n, "Slurm job 1 (train) of user root") for n in (0, 1)]


def test_job_with_ambiguous_name_hides_no_other(jobs):
    found = jobs(FOUR, Slurm(name="other\n"))
    assert {h.gpu_uuid for h in found if "the GPUs of Slurm job 1 (other) of user root are not known" in h.who} == {
        "GPU-%d" % n for n in range(4)
    }


def test_job_that_ended_meanwhile_leaves_the_rest_unknown(jobs):
    found = jobs(FOUR, Slurm(squeue="99 alice\n"))
    assert [h.kind for h in found] == ["unknown"] * 4
    assert "2 more GPUs" in found[0].who


def test_incomplete_job_allocation_is_not_trusted(jobs):
    found = jobs(FOUR, Slurm(job1=JOB.replace("GRES=gpu:h100:2(IDX:0-1)", "GRES=gpu:h100:1(IDX:0)")))
    assert [(h.gpu_uuid, h.kind) for h in found] == [("GPU-0", "slurm")] + [("GPU-%d" % i, "unknown") for i in range(4)]


def test_unresponsive_controller_leaves_all_unknown(jobs):
    def hangs(command, **_options):
        raise subprocess.TimeoutExpired(command, 10)

    def down(command, **_options):
        said = "slurm_load_node error: Unable to contact slurm controller (connect failure)\n"
        return subprocess.CompletedProcess(command, 1, "", said)

    for run, words in ((hangs, "timed out"), (down, "Unable to contact"), (no_tools, "scontrol is not installed")):
        found = jobs(FOUR, run)
        assert [(h.gpu_uuid, h.kind) for h in found] == [("GPU-%d" % i, "unknown") for i in range(4)]
        assert words in found[0].who


def never(command, **_options):
    raise AssertionError(command)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a PID namespace")
def test_slurmd_in_a_container_is_ignored(tmp_path):
    with opened("-N", "gpu-a", program=named(tmp_path, "slurmd"), within=["unshare", "--pid", "--fork"]):
        assert find_holders(FOUR, dev=str(tmp_path / "dev"), run=never, kubelet_directory=str(tmp_path)) == ()


def test_without_slurmd_slurm_is_not_queried(tmp_path):
    proc = Proc(tmp_path / "proc")
    assert find_holders(FOUR, str(proc.folder), str(tmp_path), never, str(tmp_path)) == ()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:h100:2(IDX:0-1)", [("gpu", 2, (0, 1))]),
        ("gpu(IDX:0,3-4)", [("gpu", 3, (0, 3, 4))]),
        ("gpu:a100:0(IDX:N/A),gpu:h100:1(IDX:7)", [("gpu", 0, None), ("gpu", 1, (7,))]),
        ("gpu:1,license:2", [("gpu", 1, None)]),
        ("gpu:h100:8(S:0-1)", [("gpu", 8, None)]),
        ("mps:100", [("mps", 100, None)]),
        ("(null)", []),
        ("N/A", []),
        ("", []),
    ],
)
def test_resources(text, found):
    assert resources(text) == found


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu-a", {"gpu-a"}),
        ("gpu[01-03,07]", {"gpu01", "gpu02", "gpu03", "gpu07"}),
        ("rack[1-2]-gpu,login1", {"rack1-gpu", "rack2-gpu", "login1"}),
        ("a1,b[8-10]", {"a1", "b8", "b9", "b10"}),
        ("r[1-2]n[01-02]", {"r1n01", "r1n02", "r2n01", "r2n02"}),
    ],
)
def test_host_lists(text, names):
    assert hostnames(text) == names


def test_a_job_on_several_nodes_is_read_for_this_one():
    record = (
        "JobId=9 JobName=x UserId=a(1) NumNodes=3 Nodes=gpu[01-02] CPU_IDs=0 Mem=1 GRES=gpu:2(IDX:0-1) "
        "Nodes=gpu07 CPU_IDs=4 Mem=1 GRES=gpu(IDX:3) Features=(null)"
    )
    assert given_on(record, "gpu02") == [("gpu", 2, (0, 1))]
    assert given_on(record, "gpu07") == [("gpu", 1, (3,))]
    assert given_on(record, "gpu03") == []


POD = "9a15d2b5-c152-46b9-96e0-d57032629e1f"


@pytest.fixture
def pods(tmp_path):
    """Return a function: checkpoint entries to the holders of the kubelet."""
    proc, folder = Proc(tmp_path / "proc"), tmp_path / "lib" / "kubelet"
    checkpoint = folder / "device-plugins" / "kubelet_internal_checkpoint"
    checkpoint.parent.mkdir(parents=True)

    def look(of, *entries, text=None):
        data = {"PodDeviceEntries": list(entries), "RegisteredDevices": {"nvidia.com/gpu": ["GPU-0"]}}
        checkpoint.write_text(text or json.dumps({"Data": data, "Checksum": 3660592824}))
        return find_holders(of, str(proc.folder), str(tmp_path), no_tools, str(folder))

    look.proc, look.folder = proc, folder
    (folder / "pods" / POD).mkdir(parents=True)
    return look


def entry(devices, resource="nvidia.com/gpu"):
    return {"PodUID": POD, "ContainerName": "app", "ResourceName": resource, "DeviceIDs": devices, "AllocResp": "Cg=="}


def test_pod_holds_its_allocated_devices(pods):
    of = host(gpu(0), gpu(1, instance(1, 0), instance(2, 2)))
    (holder,) = pods(of, entry({"-1": ["GPU-0"]}), entry({"0": ["0000:00:1f.0"]}, "intel.com/sriov"))
    assert (holder.gpu_uuid, holder.gpu_instance_id, holder.kind) == ("GPU-0", None, "kubelet")
    assert (holder.job, holder.unit_or_container) == (POD, "app")
    # Until Kubernetes 1.19, the device IDs are a list. Later they are grouped by NUMA node. The ID of a replica of a shared
    # GPU ends with a number.
    (holder,) = pods(of, entry(["MIG-2"], "nvidia.com/mig-2g.20gb"))
    assert (holder.gpu_uuid, holder.gpu_instance_id) == ("GPU-1", 2)
    (holder,) = pods(of, entry({"0": ["GPU-0::3"], "1": ["GPU-0::4"]}, "nvidia.com/gpu.shared"))
    assert holder.gpu_uuid == "GPU-0"
    assert pods(of, entry({"0": ["GPU-of-a-board-that-was-taken-out"]})) == ()


A, B = "GPU-3f0dd0a1-7c44-46a1-9e2d-2b6bc5d4b0a1", "GPU-3f0dd0a1-7c44-46a1-9e2d-2b6bc5d4b0a2"
PART = "MIG-7d1a2c11-52f5-5a6a-8a54-0f7d3c0e1b11"


@pytest.fixture
def shared():
    """Return two GPUs with UUIDs. The second has instance 5, which starts at slice 4."""
    split = gpu(1, dataclasses.replace(instance(5, 4), compute_instances=()))
    part = dataclasses.replace(
        split.mig.instances[0],
        compute_instances=(dataclasses.replace(instance(5, 4).compute_instances[0], mig_uuid=PART),),
    )
    split = dataclasses.replace(split, uuid=B, mig=dataclasses.replace(split.mig, instances=(part,)))
    return host(dataclasses.replace(gpu(0), uuid=A), split)


@pytest.mark.parametrize(
    ("resource", "device", "place"),
    [
        ("nvidia.com/gpu", A + "-3", (A, None)),
        ("volcano.sh/vgpu-number", A + "-3", (A, None)),
        ("volcano.sh/vgpu-memory", A + "-memory-17", (A, None)),
        ("volcano.sh/vgpu-cores", A + "-core-99", (A, None)),
        ("volcano.sh/gpu-memory", "1-204", (B, None)),
        ("example.org/our-shares", A + "-12", (A, None)),
        ("aliyun.com/gpu-mem", A + "-_-3", (A, None)),
        ("nvidia.com/gpu.shared", A + "::7", (A, None)),
        ("nvidia.com/mig-2g.20gb", PART, (B, 5)),
        ("nvidia.com/mig-2g.20gb", PART + "::2", (B, 5)),
        ("volcano.sh/vgpu-number", PART + "-2", (B, 5)),
        ("nvidia.com/gpu", "MIG-%s/5/0" % B, (B, 5)),
        ("nvidia.com/gpu", "MIG-%s/5/0-1" % B, (B, 5)),
        ("nvidia.com/gpu", "nvidia0", (A, None)),
        ("nvidia.com/gpu", "nvidia0/vgpu1", (A, None)),
        ("nvidia.com/gpu", "nvidia1/gi5", (B, 5)),
        ("nvidia.com/gpu", "nvidia1/gi5/vgpu0", (B, 5)),
        ("nvidia.com/TU104GL_Tesla_T4", "0000:3b:00.0", (A, None)),
        ("example.org/cards", "0000:3B:00.0", (A, None)),
    ],
)
def test_device_ids_of_all_plugins_name_gpus(pods, shared, resource, device, place):
    (holder,) = pods(shared, entry({"0": [device]}, resource))
    assert (holder.kind, holder.gpu_uuid, holder.gpu_instance_id, holder.job) == ("kubelet", *place, POD)
    # A drain evicts the pod that holds the device.
    assert Disturbance("gpu 0", (holder,)).pods == (POD,)


@pytest.mark.parametrize(
    ("resource", "device"),
    [
        ("intel.com/sgx", "epc-3"),
        ("rdma/hca_shared_devices_a", "17"),
        ("nvidia.com/hostdev", "mlx5_4"),
        ("nvidia.com/rdma_shared", "3"),
        ("smarter-devices/fuse", "fuse-1"),
        ("amd.com/gpu", "card0-renderD128"),
        ("volcano.sh/vgpu-number", "GPU-00000000-7c44-46a1-9e2d-2b6bc5d4b0a1-3"),
        ("nvidia.com/mig-2g.20gb", "MIG-00000000-52f5-5a6a-8a54-0f7d3c0e1b11"),
        ("nvidia.com/gpu", "nvidia1/gi6/vgpu0"),
        ("nvidia.com/gpu", "nvidia7"),
        ("nvidia.com/hostdev", "0000:5e:00.2"),
        # This is the UUID of another device, and it starts with the UUID of this GPU.
        ("nvidia.com/gpu", A + "7"),
    ],
)
def test_ids_of_other_or_missing_devices_hold_nothing(pods, shared, resource, device):
    assert pods(shared, entry({"0": [device]}, resource)) == ()


@pytest.mark.parametrize(
    ("resource", "device"),
    [
        ("nvidia.com/gpu", "slot-c"),
        ("nvidia.com/gpu", "0"),
        ("tencent.com/vcuda-core", "tencent.com/vcuda-core-17"),
        ("4pd.io/vgpu", "x"),
        ("nvidia.com/mig-1g.5gb", "part-1"),
    ],
)
def test_unreadable_id_of_a_gpu_resource_blocks_every_gpu(pods, shared, resource, device):
    found = pods(shared, entry({"0": [device]}, resource))
    assert [(h.kind, h.gpu_uuid, h.job) for h in found] == [("unknown", A, POD), ("unknown", B, POD)]
    assert device in found[0].who and resource in found[0].who


def test_allocated_gpu_is_from_the_plugins_answer(pods, shared):
    """The device plugin's answer names the GPU, and the ID in the checkpoint does not.

    The schedulers of HAMi and Volcano choose the GPU, and the kubelet chooses any free ID of the resource.
    """
    value = b"NVIDIA_VISIBLE_DEVICES\x12\x28" + B.encode()
    answer = base64.b64encode(b"\x0a" + bytes([len(value) + 2]) + b"\x0a\x16" + value + b"\x12\x00").decode()
    (holder,) = pods(shared, dict(entry({"0": [A + "-3"]}, "volcano.sh/vgpu-number"), AllocResp=answer))
    assert (holder.kind, holder.gpu_uuid, holder.gpu_instance_id) == ("kubelet", B, None)


@pytest.mark.parametrize(
    ("device", "place"),
    [
        ("83b8f4f2-509f-382f-3c1e-e6bfe0fa1001", {(A, None)}),
        ("83b8f4f2-509f-382f-3c1e-e6bfe0fa1002", None),
        ("0000:3b:00.4", {(A, None)}),
        ("17", {(A, None)}),
        ("18", set()),
        ("19", None),
    ],
)
def test_devices_of_virtual_machines_are_found_in_sys(tmp_path, shared, device, place):
    """Three kinds of devices are passed to virtual machines.

    A mediated device is below its GPU, a virtual function links to it, and an IOMMU group lists its devices.
    """
    sys = tmp_path / "sys"
    card = sys / "devices/pci0000:3a/0000:3b:00.0"
    mediated = card / "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
    mediated.mkdir(parents=True)
    for name, target in (("0000:3b:00.0", card), ("0000:3b:00.4", card.parent / "0000:3b:00.4")):
        target.mkdir(exist_ok=True)
        (sys / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (sys / "bus/pci/devices" / name).symlink_to(target)
    (card.parent / "0000:3b:00.4/physfn").symlink_to("../0000:3b:00.0")
    (sys / "bus/mdev/devices").mkdir(parents=True)
    (sys / "bus/mdev/devices" / mediated.name).symlink_to(mediated)
    for group, name in (("17", "0000:3b:00.4"), ("18", "0000:5e:00.0")):
        (sys / "kernel/iommu_groups" / group / "devices" / name).mkdir(parents=True)
    assert named_device(shared, Devices(shared, str(tmp_path)), device, "nvidia.com/GRID_A100-20C", str(sys)) == place


CLAIM = "067798be-454e-4be4-9047-1aa06aea63f7"


def claimed(*devices, driver="gpu.nvidia.com"):
    """Return the kubelet's DRA checkpoint.

    The format is that of kubernetes/kubernetes pkg/kubelet/cm/dra/state since 1.32.
    """
    listed = [
        {"PoolName": "n1", "DeviceName": d, "RequestNames": ["r"], "CDIDeviceIDs": ["k8s.x/d=" + d]} for d in devices
    ]
    state = {"ClaimUID": CLAIM, "ClaimName": "train-gpu", "Namespace": "ml", "PodUIDs": {POD: {}}}
    entries = [dict(state, DriverState={driver: {"Devices": listed}})]
    data = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", "ClaimInfoStateList": entries}
    return json.dumps({"Data": json.dumps(data), "Checksum": 1})


@pytest.mark.parametrize(
    ("state", "place"),
    [
        (claimed("gpu-0"), (A, None)),
        (claimed("gpu-1-mig-2g20gb-14-4"), (B, 5)),
        (claimed("gpu-1-mig-14-4-2"), (B, 5)),
        (
            json.dumps(
                {
                    "version": "v1",
                    "entries": [
                        {
                            "DriverName": "gpu.resource.nvidia.com",
                            "ClaimUID": CLAIM,
                            "ClaimName": "old",
                            "Namespace": "ml",
                            "PodUIDs": {POD: {}},
                            "CDIDevices": {"gpu.resource.nvidia.com": ["k8s.gpu.resource.nvidia.com/gpu=gpu-0"]},
                        }
                    ],
                    "checksum": 1,
                }
            ),
            (A, None),
        ),
    ],
)
def test_claim_of_a_pod_holds_its_device(pods, shared, state, place):
    (pods.folder / "dra_manager_state").write_text(state)
    (holder,) = pods(shared)
    assert (holder.kind, holder.gpu_uuid, holder.gpu_instance_id, holder.job) == ("kubelet", *place, POD)
    assert "claim ml/" in holder.who


def test_devices_of_a_claim_are_from_the_drivers_checkpoint(pods, shared):
    (pods.folder / "dra_manager_state").write_text(claimed("gpu-0"))
    concrete = {"parentMinor": 1, "giId": 5, "ciId": 0, "migUUID": PART, "parentUUID": B}
    prepared = [{"devices": [{"gpu": None, "mig": {"concrete": concrete, "device": {}}}], "configState": {}}]
    (pods.folder / "plugins/gpu.nvidia.com").mkdir(parents=True)
    (pods.folder / "plugins/gpu.nvidia.com/checkpoint.json").write_text(
        json.dumps({"checksum": 1, "v2": {"checksum": 2, "preparedClaims": {CLAIM: {"preparedDevices": prepared}}}})
    )
    (holder,) = pods(shared)
    assert (holder.gpu_uuid, holder.gpu_instance_id) == (B, 5)


def test_claims_of_other_drivers_hold_nothing_and_unknown_devices_all(pods, shared):
    for driver, devices in (("compute-domain.nvidia.com", ["channel-0"]), ("gpu.intel.com", ["0000-03-00-0"])):
        (pods.folder / "dra_manager_state").write_text(claimed(*devices, driver=driver))
        assert pods(shared) == ()
    (pods.folder / "dra_manager_state").write_text(claimed("slice-a"))
    assert [h.kind for h in pods(shared)] == ["unknown", "unknown"]
    (pods.folder / "dra_manager_state").write_text("{")
    found = pods(shared)
    assert [h.kind for h in found] == ["unknown", "unknown"] and "dra_manager_state" in found[0].who


def test_removed_pod_holds_nothing(pods):
    of = host(gpu(0))
    (holder,) = pods(of, entry({"0": ["GPU-0"]}))
    assert "has no running process" in holder.who
    pods.proc.process(70, "python3", cgroup="0::/kubepods.slice/kubepods-pod%s.slice/x" % POD.replace("-", "_"))
    (holder,) = pods(of, entry({"0": ["GPU-0"]}))
    assert "nothing runs" not in holder.who
    (pods.folder / "pods" / POD).rmdir()
    assert len(pods(of, entry({"0": ["GPU-0"]}))) == 1
    pods.proc.write("70/cgroup", "0::/system.slice/other.service\n")
    assert pods(of, entry({"0": ["GPU-0"]})) == ()


def test_allocations_before_the_boot_hold_nothing_until_the_kubelet_runs(pods):
    def booted(seconds_ago):
        pods.proc.write("stat", "cpu 0 0\nbtime %d\n" % (time.time() - seconds_ago))
        pods.proc.write("1/stat", "1 (a (name) S) S " + " ".join(["0"] * 49))
        return pods(host(gpu(0)), entry({"0": ["GPU-0"]}))

    assert len(booted(3600)) == 1
    # The list of devices is one hour older than the boot.
    assert booted(-3600) == ()
    pods.proc.process(80, "kubelet")
    assert len(booted(-3600)) == 1


ROW = " JOB_GRES=gpu:h100:2 " + ALL_GPUS.replace(":4", ":2")


@pytest.mark.parametrize(
    ("record", "held"),
    [
        (JOB.replace("Account=(null)", "Account=x" + ROW), {"slurm": 2}),
        (JOB.replace("QOS=(null)", "QOS=(null) WCKey=x" + ROW), {"slurm": 2}),
        (JOB.replace("WorkDir=/tmp", "WorkDir=/x" + ROW), {"slurm": 2}),
        # The job has two states, and one of them is forged. So the holders of the node's GPUs are unknown.
        (JOB.replace("QOS=(null)", "QOS=(null) WCKey=x JobState=RUNNING" + ROW), {"unknown": 8}),
        # If a job has no allocation, a text in its paths that looks like one is ignored.
        (JOB.replace("Nodes=gpu-a CPU_IDs=0", "").replace("Command=(null)", "Command=" + ROW), {"unknown": 4}),
    ],
    ids=["account", "wckey", "path", "state", "path alone"],
)
def test_other_texts_of_a_job_cannot_pose_as_fields(jobs, record, held):
    found = jobs(FOUR, Slurm(job1=record))
    assert {kind: sum(h.kind == kind for h in found) for kind in {h.kind for h in found}} == held
    assert [h.gpu_uuid for h in found if h.kind == "slurm"] == ["GPU-0", "GPU-1"][: held.get("slurm", 0)]


def test_jobs_of_hidden_partitions_are_queried(jobs):
    run = Slurm()
    jobs(FOUR, run)
    assert all(" --all " in call for call in run.called if call.startswith("squeue"))


@pytest.mark.parametrize(
    "text", ["0-99999999999", "0-999999999", "5-1", "\u00b2", "1-\u00b2", "9" * 5000, "-", "", "1,x"]
)
def test_endless_indexes_and_names_are_refused(text):
    """Large ranges would fill root's memory, or end the scan with a traceback."""
    assert resources("gpu:1(IDX:%s)" % text) == [("gpu", 1, None)]
    assert hostnames("a[%s]" % text) <= {"a1"}


def test_very_long_list_of_nodes_is_refused():
    assert hostnames("a[1-60000][1-60000],b") == {"b"}


def test_pod_has_its_name_from_the_logs(pods, tmp_path):
    (tmp_path / "log" / "pods" / ("ml_train-0_" + POD)).mkdir(parents=True)
    (holder,) = pods(host(gpu(0)), entry({"0": ["GPU-0"]}))
    assert "container app of pod ml/train-0 (nvidia.com/gpu)" in holder.who


def test_unreadable_checkpoint_holds_every_gpu(pods):
    for text in ("{", "{}", '{"Data": {"PodDeviceEntries": [{"PodUID": "x"}]}}'):
        found = pods(host(gpu(0), gpu(1)), text=text)
        assert [h.kind for h in found] == ["unknown", "unknown"]
        assert "kubelet_internal_checkpoint" in found[0].who


def test_mps_client_holds_the_open_gpus_of_its_server(tmp_path):
    dev = tmp_path / "dev"
    (dev / "nvidia-caps").mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidia-caps/nvidia-cap156"):
        (dev / name).touch()
    asked = []

    def control(command, input, env):
        assert command == ["nvidia-cuda-mps-control"]
        asked.append((input, env))
        answers = {"get_server_list\n": "%d\n" % server, "get_client_list %d\n" % server: "%d\n" % client.pid}
        return subprocess.CompletedProcess(command, 0, answers[input], "")

    of = host(gpu(0), gpu(1, instance(1, 0), instance(2, 2)))
    daemon, program = named(tmp_path, "nvidia-cuda-mps-control"), named(tmp_path, "nvidia-cuda-mps-server")
    nodes = (dev / "nvidia1", dev / "nvidia-caps/nvidia-cap156")
    with opened(*nodes) as client:
        starts = [str(daemon), "-c", "import subprocess, sys; subprocess.call(sys.argv[1:])"]
        with opened(*nodes, program=program, within=starts, CUDA_MPS_PIPE_DIRECTORY="/run/mps") as running:
            server = int(Path("/proc/%d/task/%d/children" % (running.pid, running.pid)).read_text())
            found = find_holders(of, dev=str(dev), run=control, kubelet_directory=str(tmp_path))
            (holder,) = (h for h in found if h.pid == client.pid and h.kind == "mps")
            assert (holder.gpu_uuid, holder.gpu_instance_id) == ("GPU-1", 2)
            (holder,) = (h for h in found if h.pid == server)
            assert (holder.gpu_uuid, holder.gpu_instance_id) == ("GPU-1", 2)
            assert [env for _input, env in asked] == [{"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}] * 2
            found = find_holders(of, dev=str(dev), run=no_tools, kubelet_directory=str(tmp_path))
            assert [(h.gpu_uuid, h.kind) for h in found if h.pid == running.pid] == [
                ("GPU-0", "unknown"),
                ("GPU-1", "unknown"),
            ]


def test_mps_daemon_in_a_container_is_ignored(tmp_path):
    daemon = named(tmp_path, "nvidia-cuda-mps-control")
    with opened(program=daemon, within=["unshare", "--pid", "--fork"]):
        assert find_holders(FOUR, dev=str(tmp_path / "dev"), run=never, kubelet_directory=str(tmp_path)) == ()


def test_mps_daemon_is_queried_at_its_own_directory(tmp_path):
    (tmp_path / "own").mkdir()
    directory = str(tmp_path / "pipes")
    asked = []

    def control(command, input, env):
        asked.append(env["CUDA_MPS_PIPE_DIRECTORY"])
        return subprocess.CompletedProcess(command, 0, "", "")

    mount = 'mkdir %s && mount --bind %s %s && exec "$@"' % (directory, tmp_path / "own", directory)
    within = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    daemon = named(tmp_path, "nvidia-cuda-mps-control")
    with opened(program=daemon, within=within, CUDA_MPS_PIPE_DIRECTORY=directory) as running:
        find_holders(FOUR, dev=str(tmp_path / "dev"), run=control, kubelet_directory=str(tmp_path))
        assert set(asked) == {"/proc/%d/root%s" % (running.pid, directory)}


def test_very_many_jobs_are_queried_in_part(tmp_path):
    """Each job is queried separately.

    The allocations of jobs above the limit are unknown, so they hold all GPUs.
    """
    proc = Proc(tmp_path / "proc")
    proc.process(5, "slurmd", words=("-N", "gpu-a"))
    run = Slurm(**{"job%d" % number: JOB for number in range(1, 1001)})
    run.squeue = "".join("%d root\n" % number for number in range(1, 1001))
    clock = iter(range(10**6))
    devices = Devices(FOUR, str(proc.folder), str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holders_slurm.time, "monotonic", lambda: next(clock))
        found = holders_slurm.slurm(FOUR, devices, scan(devices, str(proc.folder)), run, deadline=100)
    assert [(holder.kind, holder.gpu_uuid) for holder in found] == [("unknown", "GPU-%d" % i) for i in range(4)]
    assert "too many jobs here to query in time" in found[0].who and len(run.called) <= 101
