# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test holders that are jobs of Slurm.

data/holders/slurm-*.txt is scontrol output of Slurm 22.05.8 (Debian 12) on a node with four GPUs. Records of other
releases follow https://slurm.schedmd.com/scontrol.html.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders import slurm as holders_slurm
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.devices import Devices
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import find_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.processes import scan
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.slurm import given_on, hostnames, resources
from tests.unit.module_utils.holders.holder_hosts import Proc, gpu, host, instance, named, never, no_tools, opened

# These tests start programs under the names of real daemons. Other tests that scan /proc at the same time would list
# them.
pytestmark = pytest.mark.alone


DATA = Path(__file__).parents[2] / "data" / "holders"


NODE_IDLE, NODE_USED, JOB = ((DATA / ("slurm-%s.txt" % n)).read_text() for n in ("node-idle", "node-used", "job-1"))


FOUR = host(*(gpu(i) for i in range(4)))


class Slurm:
    """Answer like scontrol and squeue, with prepared records."""

    def __init__(self, node: str = NODE_USED, squeue: str = "1 root\n", name: str = "train\n", **jobs: str) -> None:
        self.node, self.squeue, self.name, self.jobs = node, squeue, name, jobs or {"job1": JOB}
        #: Lines that squeue prints for the tasks of an array: id, array, number.
        self.tasks = ""
        self.called: list[str] = []

    def __call__(self, command, **_options):
        self.called.append(" ".join(command))
        if command[0] == "squeue" and "--jobs" in command:
            if command[-1] == "%A %F %K":
                return subprocess.CompletedProcess(command, 0, self.tasks, "")
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
    """Return a function that finds the holders of Slurm's jobs.

    The function ignores containers of this machine, which may use a GPU.
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
    """Return a function that writes the list of devices like the role gpu_slurm."""
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
        # The types in this list differ from the types of the node, so slurmd does not use the list.
        (DEVICE_ROWS[:-1], {}),
        ((DEVICE_ROWS[1], DEVICE_ROWS[0], *DEVICE_ROWS[2:]), {}),
        # The list has no UUID for the job's device, because the device is changing.
        (("3g.40gb -", *DEVICE_ROWS[1:]), {}),
        # The list has the UUID of a device that no longer exists.
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
        # The last change has ended, and the devices may have changed since then. Only a record that root wrote is
        # evidence.
        (False, 0o600, [(f"GPU-{i}", None) for i in range(4)]),
        (True, 0o666, [(f"GPU-{i}", None) for i in range(4)]),
    ],
)
def test_record_of_a_change_determines_the_instances_of_a_job(tmp_path, jobs, monkeypatch, pending, mode, held):
    """Check the first run of the role, when there is no list of devices yet."""
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
        # The step uses one of the job's two devices, so the job's other device is unknown.
        (job, "MIG-2", [(f"GPU-{i}", None) for i in range(4)]),
        # This process has the variable of a job, but is outside the job's cgroup. So it does not belong to the job.
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
    """Ignore fields of another job in a job name, because users choose job names."""
    record = JOB.replace("JobName=train", "JobName=" + name).replace("Command=(null)", "Command=/x" + ALL_GPUS)
    found = jobs(FOUR, Slurm(name=name + "\n", job1=record))
    assert [(h.gpu_uuid, h.kind, h.job, h.user) for h in found] == [
        ("GPU-0", "slurm", "1", "root"),
        ("GPU-1", "slurm", "1", "root"),
    ]
    assert all(holder.who.isprintable() for holder in found)


def test_array_job_has_the_name_of_the_array(jobs):
    """Check the last task of an array, whose id selects the records of all tasks."""
    record = JOB.replace("JobId=1 ", "JobId=1 ArrayJobId=1 ArrayTaskId=3 ")
    other = JOB.replace("JobId=1 ", "JobId=2 ArrayJobId=1 ArrayTaskId=1 ").replace("IDX:0-1", "IDX:2-3")
    slurm = Slurm(name="train\n" * 3, job1=other + record, job1_3=record)
    slurm.tasks = "2 1 1\n1 1 3\n"
    found = jobs(FOUR, slurm)
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


# This program refuses network sockets like RestrictAddressFamilies= in a unit, and then prints whether a query is
# possible. The filter compares the number and the first argument of a system call (seccomp(2)).
REFUSED = """
import ctypes, struct, sys
from ansible_collections.openfleet.gpu.plugins.module_utils.holders import slurm
rules = [(0x20, 0, 0, 0), (0x15, 0, 3, int(sys.argv[1])), (0x20, 0, 0, 16), (0x15, 0, 1, 2), (6, 0, 0, 0x50000 | 97),
         (6, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
before = slurm._may_connect()
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0
print(before, slurm._may_connect())
"""
# The number of the system call socket(2) on each architecture.
SOCKET_CALL = {"x86_64": 41, "aarch64": 198}


@pytest.mark.skipif(os.uname().machine not in SOCKET_CALL, reason="the number of socket(2) is unknown")
def test_slurm_is_not_queried_without_network():
    """Do not query Slurm in a unit without network.

    Each query would take 10 s. Such units have RestrictAddressFamilies=.
    """
    command = [sys.executable, "-c", REFUSED, str(SOCKET_CALL[os.uname().machine])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.stdout, done.stderr) == ("True False\n", "")


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


ROW = " JOB_GRES=gpu:h100:2 " + ALL_GPUS.replace(":4", ":2")


@pytest.mark.parametrize(
    ("record", "held"),
    [
        (JOB.replace("Account=(null)", "Account=x" + ROW), {"slurm": 2}),
        (JOB.replace("QOS=(null)", "QOS=(null) WCKey=x" + ROW), {"slurm": 2}),
        (JOB.replace("WorkDir=/tmp", "WorkDir=/x" + ROW), {"slurm": 2}),
        # The job shows two states, one of which is forged. So the holders of the node's GPUs are unknown.
        (JOB.replace("QOS=(null)", "QOS=(null) WCKey=x JobState=RUNNING" + ROW), {"unknown": 8}),
        # This job has no allocation. Its paths contain a text like an allocation, which is ignored.
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
    """Refuse large ranges, which would fill root's memory or end the scan early."""
    assert resources("gpu:1(IDX:%s)" % text) == [("gpu", 1, None)]
    assert hostnames("a[%s]" % text) <= {"a1"}


def test_very_long_list_of_nodes_is_refused():
    assert hostnames("a[1-60000][1-60000],b") == {"b"}


def test_very_many_jobs_are_queried_in_part(tmp_path):
    """Query only a limited number of jobs, so that the scan ends in time.

    The allocations of the other jobs are unknown, so these jobs hold all GPUs.
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
