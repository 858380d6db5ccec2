# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the scan for holders of GPUs with real processes, files and /proc.

Device nodes are plain files in a folder. If the driver has no device numbers, the scan identifies a node by its name.
Tests that need device numbers or the /proc of another host create them in a folder.
"""

from __future__ import annotations

import getpass
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders.cgroup import Origin, parse_cgroup
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import blocking, find_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Holder, Process
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.bounded_session import hung_children
from tests.unit.module_utils.holders.holder_hosts import OPEN, Proc, gpu, host, instance, named, no_tools, opened

# These tests start programs under the names of real daemons. Other tests that scan /proc at the same time would list
# them.
pytestmark = pytest.mark.alone


@pytest.fixture
def empty_dev():
    """Return a folder that other users can read, unlike pytest's folders."""
    with tempfile.TemporaryDirectory(prefix="openfleet-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def dev(empty_dev) -> Path:
    (empty_dev / "nvidia-caps").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap2"):
        (empty_dev / name).touch()
    return empty_dev


@pytest.fixture
def find(dev, tmp_path):
    """Return a function that finds holders of GPUs among this test's processes."""

    def look(of, *processes) -> list[Holder]:
        pids = {process.pid for process in processes}
        found = find_holders(of, dev=str(dev), run=no_tools, kubelet_directory=str(tmp_path / "kubelet"))
        return [holder for holder in found if holder.pid in pids]

    return look


def test_cpu_time_of_a_process_is_from_the_kernel(dev, find):
    """Sum the CPU time over all threads of a process, in ticks of 10 ms."""
    code = (
        "import sys, threading, time\nfile = open(sys.argv[1])\n"
        "def work():\n    while time.process_time() < 0.3: pass\n"
        "thread = threading.Thread(target=work)\nthread.start(); thread.join()\n"
        "print('done', flush=True)\nsys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code, str(dev / "nvidia1")], **pipes) as process:
        assert process.stdout.readline() == "done\n"
        (holder,) = find(host(gpu(0), gpu(1)), process)
        process.stdin.close()
        _pid, _status, used = os.wait4(process.pid, 0)
        process.returncode = 0
    assert 0.25 <= holder.cpu_seconds <= used.ru_utime + used.ru_stime + 0.05
    assert holder.started_seconds is not None and holder.started_ticks is not None


def test_process_with_an_open_node_holds_the_gpu_until_it_ends(dev, find):
    with opened(dev / "nvidia1") as process:
        (holder,) = find(host(gpu(0), gpu(1)), process)
        assert (holder.gpu_uuid, holder.gpu_instance_id, holder.kind) == ("GPU-1", None, "device_handle")
        assert (holder.pid, holder.user) == (process.pid, getpass.getuser())
        assert holder.command.startswith(sys.executable)
        assert "pid %d" % process.pid in holder.who
        assert holder.blocks()
        assert holder.blocks(3)
    assert find(host(gpu(0), gpu(1)), process) == []


def test_other_nodes_hold_nothing(dev, find):
    with opened(dev / "nvidiactl", dev / "nvidia-uvm", dev / "nvidia-caps/nvidia-cap2") as process:
        assert find(host(gpu(0), gpu(1)), process) == []


def test_capability_holds_only_its_instance(dev, find):
    # NVIDIA's guide gives number 439 to gpu3/gi3/ci3 and 918 to gpu6/gi11/ci5. By the same rule, 156 is gpu1/gi2 and
    # 157 is gpu1/gi2/ci0.
    for minor in (156, 157):
        (dev / "nvidia-caps" / ("nvidia-cap%d" % minor)).touch()
    with opened(dev / "nvidia1", *(dev / "nvidia-caps" / ("nvidia-cap%d" % m) for m in (156, 157))) as process:
        of = host(gpu(0), gpu(1, instance(1, 0), instance(2, 2)))
        (holder,) = find(of, process)
        assert (holder.gpu_uuid, holder.gpu_instance_id, holder.kind) == ("GPU-1", 2, "device_handle")
        assert blocking([holder], "GPU-1", 2) == blocking([holder], "GPU-1") == (holder,)
        assert blocking([holder], "GPU-1", 1) == blocking([holder], "GPU-0") == ()


def test_nvml_process_is_listed_once_with_its_origin(dev, find):
    with opened(dev / "nvidia0") as process:
        listed = [Process(process.pid, "compute", "python", 1 << 30, 1, 0)]
        (holder,) = find(host(gpu(0, instance(1, 0), instance(2, 2), processes=listed)), process)
        assert (holder.kind, holder.gpu_instance_id, holder.user) == ("process", 1, getpass.getuser())
        assert OPEN.replace("\n", "\\x0a") in holder.command


def test_secret_in_a_command_line_is_hidden(dev, find):
    with opened(dev / "nvidia0", "--token=s3cret") as process:
        (holder,) = find(host(gpu(0)), process)
        assert holder.command.endswith(" --token=***")
        assert "s3cret" not in repr(holder)


def test_nvml_process_without_proc_entry_counts(find):
    listed = [Process(2**22 + 1, "graphics", "Xorg")]
    (holder,) = find(host(gpu(0, processes=listed)), listed[0])
    assert (holder.kind, holder.command, holder.user) == ("process", "Xorg", None)


@pytest.mark.skipif(os.geteuid() != 0, reason="who is not root is not believed to be a watcher")
def test_monitoring_blocks_only_a_reset(dev, find, tmp_path):
    watcher = named(tmp_path, "nv-hostengine")
    (dev / "nvidia-caps/nvidia-cap12").touch()
    of = host(gpu(0, instance(1, 0)))
    with opened(dev / "nvidia0", program=watcher) as process:
        (holder,) = find(of, process)
        assert holder.watches
        assert (holder.blocks(), holder.blocks(1)) == (True, False)
    with opened(dev / "nvidia0", dev / "nvidia-caps/nvidia-cap12", program=watcher) as process:
        (holder,) = find(of, process)
        assert holder.gpu_instance_id == 1
        assert holder.blocks(1), "a watcher that went into an instance is in its way"


@pytest.mark.parametrize(
    ("cgroup", "watches"),
    [
        ("0::/system.slice/dcgm-exporter.service", True),
        ("0::/system.slice/nvidia-persistenced.service", True),
        ("0::/system.slice/train.service", False),
        ("0::/system.slice/jupyterhub.service/dcgm-exporter.service", False),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/dcgm-exporter.service", False),
    ],
)
def test_system_monitoring_unit_counts_under_any_user(dev, tmp_path, cgroup, watches):
    proc = Proc(tmp_path / "proc")
    proc.process(7, "python3", dev / "nvidia0", cgroup=cgroup, uid=61234)
    (holder,) = find_holders(host(gpu(0)), str(proc.folder), str(dev), no_tools)
    assert holder.watches == watches


@pytest.mark.parametrize("word", ["metrics", "holders", "keep-serve", "vgpu-agent"])
@pytest.mark.parametrize("name", ["gpu-layout", "gpu-layout-nvml"])
def test_scan_of_the_collection_blocks_no_run(dev, find, tmp_path, word, name):
    program = named(tmp_path, name)
    with opened(dev / "nvidia0", word, program=program) as process:
        assert find(host(gpu(0)), process) == []
    with opened(dev / "nvidia0", "apply", program=program) as process:
        assert [holder.kind for holder in find(host(gpu(0)), process)] == ["device_handle"]


def test_only_killed_unended_children_of_root_count_as_hanging(tmp_path):
    proc = Proc(tmp_path / "proc")
    killed = "SigPnd:\t0000000000000100\n"
    for pid, name, uid, more in (
        (7, "gpu-layout-nvml", 0, killed),
        (8, "gpu-layout-nvml", 0, "SigPnd:\t0000000000000000\n"),
        (9, "gpu-layout-nvml", 1000, killed),
        (10, "train", 0, killed),
    ):
        proc.process(pid, name, uid=uid)
        status = proc.folder / str(pid) / "status"
        status.write_text(status.read_text() + more)
    assert hung_children(str(proc.folder)) == [7]


def test_hanging_scan_holds_and_is_named(dev, tmp_path):
    """List a scan as a holder if it hangs in the driver.

    The scan was killed, but no signal ends a process that hangs in a driver call. So it keeps the GPU open.
    """
    proc = Proc(tmp_path / "proc")
    proc.process(7, "gpu-layout-nvml", dev / "nvidia0", words=("metrics",))
    assert find_holders(host(gpu(0)), str(proc.folder), str(dev), no_tools) == ()
    status = proc.folder / "7" / "status"
    status.write_text(status.read_text() + "SigPnd:\t0000000000000100\nShdPnd:\t0000000000000100\n")
    (holder,) = find_holders(host(gpu(0)), str(proc.folder), str(dev), no_tools)
    assert holder.kind == "device_handle" and holder.pid == 7
    assert "was killed, and hangs in the kernel" in holder.who


def device_node(path, major, minor):
    """Make a character device. Skip the test if that is not permitted."""
    path.unlink(missing_ok=True)
    try:
        os.mknod(path, 0o20600, os.makedev(major, minor))
    except PermissionError:
        pytest.skip("this user or container cannot make device nodes")
    return path


def test_with_a_driver_names_are_no_devices(dev, tmp_path):
    proc = Proc(tmp_path / "proc")
    proc.write("devices", "Character devices:\n195 nvidia-frontend\n511 nvidia-caps\n")
    (dev / "nvidia-caps/nvidia-cap12").touch()
    proc.process(7, "claims", dev / "nvidia0", dev / "nvidia-caps/nvidia-cap12")
    proc.process(8, "has", device_node(dev / "nvidia1", 195, 1))
    found = find_holders(host(gpu(0, instance(1, 0)), gpu(1)), str(proc.folder), str(dev), no_tools)
    assert [(h.pid, h.gpu_uuid) for h in found] == [(8, "GPU-1")]


def test_device_numbers_follow_the_drivers_order(dev, tmp_path):
    proc = Proc(tmp_path / "proc")
    for index, minor in ((0, 1), (1, 0)):
        information = "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-%d\nDevice Minor: \t %d\n" % (index, minor)
        proc.write("driver/nvidia/gpus/0000:%02x:00.0/information" % (0x3B + index), information)
    proc.process(7, "train", device_node(dev / "nvidia0", 195, 0))
    (holder,) = find_holders(host(gpu(0), gpu(1)), str(proc.folder), str(dev), no_tools)
    assert (holder.pid, holder.gpu_uuid) == (7, "GPU-1")
    (proc.folder / "driver/nvidia/gpus/0000:3b:00.0/information").write_text("Model: \t\t NVIDIA H100\n")
    found = find_holders(host(gpu(0), gpu(1)), str(proc.folder), str(dev), no_tools)
    assert [(h.gpu_uuid, h.kind) for h in found] == [("GPU-0", "unknown"), ("GPU-1", "device_handle")]


def test_drivers_list_of_capabilities_takes_precedence(dev, tmp_path):
    proc = Proc(tmp_path / "proc")
    proc.write("driver/nvidia-caps/mig-minors", "config 1\nmonitor 2\ngpu0/gi5/access 3\ngpu0/gi5/ci0/access 4\n")
    for minor, of in ((4, 5), (12, 1)):
        node = dev / "nvidia-caps" / ("nvidia-cap%d" % minor)
        node.touch()
        proc.process(minor + 10, "train", node)
        found = find_holders(host(gpu(0, instance(1, 0), instance(5, 2))), str(proc.folder), str(dev), no_tools)
        assert [h.gpu_instance_id for h in found if h.pid == minor + 10] == [of]


def test_node_is_recognized_by_number_not_name(dev, tmp_path):
    proc = Proc(tmp_path / "proc")
    proc.process(7, "train", device_node(dev / "nvidia0", 195, 1))
    proc.process(8, "other", device_node(dev / "accelerator", 195, 0))
    proc.process(9, "control", device_node(dev / "control", 195, 255))
    found = find_holders(host(gpu(0), gpu(1)), str(proc.folder), str(dev), no_tools)
    assert [(h.pid, h.gpu_uuid) for h in found] == [(8, "GPU-0"), (7, "GPU-1")]


def as_nobody(look, *arguments):
    """Call a function as an unprivileged user.

    If the tests already run as an unprivileged user, call the function as this user.
    """

    def become() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)

    with multiprocessing.get_context("fork").Pool(1, become) as pool:
        return pool.apply(look, arguments)


def test_unreadable_processes_count_as_holders(dev):
    of = host(gpu(0), gpu(1))
    found = as_nobody(find_holders, of, "/proc", str(dev), no_tools)
    unknown = [holder for holder in found if holder.kind == "unknown"]
    # Each GPU has an unknown holder for unreadable processes, and another one if this machine runs containers.
    assert {holder.gpu_uuid for holder in unknown} == {"GPU-0", "GPU-1"}
    for holder in unknown:
        assert "cannot be seen" in holder.who
        assert "Run as root" in holder.who
        assert holder.blocks(1)


def test_without_nodes_none_is_open(empty_dev):
    """Find no holder if no device nodes exist, as with simulated GPUs.

    Without a kernel driver, no open file can be a GPU, not even a file that cannot be read.
    """
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a driver")
    assert as_nobody(find_holders, host(gpu(0)), "/proc", str(empty_dev), no_tools) == ()
    (holder,) = as_nobody(find_holders, host(gpu(0, instance(1, 0))), "/proc", str(empty_dev), no_tools)
    assert "to root only" in holder.who


ID = "3f2a" * 16


@pytest.mark.parametrize(
    ("cgroup", "origin"),
    [
        ("0::/system.slice/train.service", Origin("train.service")),
        ("0::/user.slice/user-1000.slice/session-3.scope", Origin()),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter.service", Origin("user@1000.service")),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-%s.scope/container" % ID,
            Origin("podman@1000 container 3f2a3f2a3f2a", ID),
        ),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/docker-%s.scope" % ID,
            Origin("docker@1000 container 3f2a3f2a3f2a", ID),
        ),
        ("0::/init.scope", Origin()),
        ("0::/system.slice/docker-%s.scope" % ID, Origin("docker container 3f2a3f2a3f2a", ID)),
        ("5:devices:/docker/%s\n0::/" % ID, Origin("docker container 3f2a3f2a3f2a", ID)),
        ("0::/machine.slice/libpod-%s.scope/container" % ID, Origin("podman container 3f2a3f2a3f2a", ID)),
        ("0::/lxc.payload.gpubox/system.slice/x.service", Origin("container gpubox", "gpubox")),
        ("0::/machine.slice/systemd-nspawn@box.service/payload", Origin("container box", "box")),
        ("0::/system.slice/slurmstepd.scope/job_17/step_0/user/task_0", Origin("slurmstepd.scope", job="17")),
        ("5:devices:/slurm/uid_1000/job_17/step_batch\n0::/", Origin(job="17")),
        (
            "0::/kubepods.slice/kubepods-burstable.slice/"
            "kubepods-burstable-pod9a15d2b5_c152_46b9_96e0_d57032629e1f.slice/cri-containerd-%s.scope" % ID,
            Origin("containerd container 3f2a3f2a3f2a", ID, pod="9a15d2b5-c152-46b9-96e0-d57032629e1f"),
        ),
        (
            "5:devices:/kubepods/pod9a15d2b5-c152-46b9-96e0-d57032629e1f/%s\n" % ID,
            Origin("container 3f2a3f2a3f2a", ID, pod="9a15d2b5-c152-46b9-96e0-d57032629e1f"),
        ),
    ],
)
def test_origin_of_a_process_is_from_its_cgroup(cgroup, origin):
    assert parse_cgroup(cgroup + "\n") == origin


@pytest.mark.parametrize(
    ("cgroup", "origin"),
    [
        ("0::/system.slice/jupyterhub.service/postgresql.service", Origin("jupyterhub.service")),
        ("0::/system.slice/jupyterhub.service/docker-%s.scope" % ID, Origin("jupyterhub.service")),
        ("0::/system.slice/jupyterhub.service/user@0.service/x.service", Origin("jupyterhub.service")),
        ("0::/system.slice/jupyterhub.service/slurmstepd.scope/job_17/step_0", Origin("jupyterhub.service")),
        (
            "0::/system.slice/jupyterhub.service/kubepods/x/pod9a15d2b5-c152-46b9-96e0-d57032629e1f/%s" % ID,
            Origin("jupyterhub.service"),
        ),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_17/step_0",
            Origin("user@1000.service"),
        ),
        ("0::/user.slice/user-1000.slice/session-3.scope/postgresql.service", Origin()),
        ("0::/system.slice/system-jupyter.slice/jupyter@a.service/x.scope", Origin("jupyter@a.service")),
    ],
)
def test_names_below_a_delegated_cgroup_are_no_origin(cgroup, origin):
    assert parse_cgroup(cgroup + "\n") == origin


def test_container_of_the_host_is_no_origin():
    inside = "0::/machine.slice/libpod-%s.scope/system.slice/train.service\n" % ID
    assert parse_cgroup(inside, ID) == Origin("train.service")
    other = "0::/machine.slice/libpod-%s.scope/machine.slice/libpod-%s.scope\n" % (ID, "a" * 64)
    assert parse_cgroup(other, ID) == Origin("podman container aaaaaaaaaaaa", "a" * 64)
    assert parse_cgroup("0::/machine.slice/libpod-%s.scope\n" % ID, ID) == Origin()
