# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who counts as using a GPU: real processes that open real files, this machine's own /proc, real Host values.

Device nodes are ordinary files in a folder here: the look at them goes by name where a node has no number of the
driver's. What needs such numbers, or a /proc of another host, builds one in a folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders import Holder, blocking, find_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.model import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    Host,
    Mig,
    Placement,
    Process,
)

OPEN = "import sys\nfiles = [open(f) for f in sys.argv[1:]]\nprint('open', flush=True)\nsys.stdin.read()"


def instance(number: int, start: int, size: int = 2) -> GpuInstance:
    compute = ComputeInstance(0, size, Placement(0, size), "MIG-%d" % number)
    return GpuInstance(number, "%dg" % size, Placement(start, size), (compute,))


def gpu(index: int, *instances: GpuInstance, processes=()) -> Gpu:
    mig = Mig(True, bool(instances), bool(instances), (), instances)
    address = "0000:%02x:00.0" % (0x3B + index)
    return Gpu(index, "GPU-%d" % index, "NVIDIA H100 80GB HBM3", address, 80 << 30, mig, processes=tuple(processes))


def host(*gpus: Gpu) -> Host:
    return Host("580.65.06", "13.580.65.06", "13.0", True, gpus)


def no_tools(command, **_options):
    raise FileNotFoundError(2, "No such file or directory", command[0])


@contextlib.contextmanager
def opened(*files: Path, program: str = sys.executable):
    """A process that has these files open; ends with the block."""
    command = [program, "-c", OPEN, *map(str, files)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        yield process
        process.stdin.close()


@pytest.fixture
def dev(tmp_path) -> Path:
    folder = tmp_path / "dev"
    (folder / "nvidia-caps").mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap2"):
        (folder / name).touch()
    return folder


@pytest.fixture
def find(dev, tmp_path):
    """find_holders on this machine's processes, of those holders that are this test's."""

    def look(of: Host, *processes) -> list[Holder]:
        pids = {process.pid for process in processes}
        found = find_holders(of, dev=str(dev), run=no_tools, kubelet_directory=str(tmp_path / "kubelet"))
        return [holder for holder in found if holder.pid in pids]

    return look


def test_a_process_that_has_a_node_open_holds_the_gpu_until_it_ends(dev, find):
    with opened(dev / "nvidia1") as process:
        (holder,) = find(host(gpu(0), gpu(1)), process)
        assert (holder.gpu_uuid, holder.gpu_instance_id, holder.kind) == ("GPU-1", None, "device_handle")
        assert (holder.pid, holder.user) == (process.pid, getpass.getuser())
        assert holder.command.startswith(sys.executable)
        assert "pid %d" % process.pid in holder.who
        assert holder.blocks()
        assert holder.blocks(3)
    assert find(host(gpu(0), gpu(1)), process) == []


def test_nodes_of_no_gpu_hold_nothing(dev, find):
    with opened(dev / "nvidiactl", dev / "nvidia-uvm", dev / "nvidia-caps/nvidia-cap2") as process:
        assert find(host(gpu(0), gpu(1)), process) == []


def test_a_capability_holds_its_instance_and_no_other(dev, find):
    # The example of NVIDIA's guide: gpu3/gi3/ci3 is 439 and gpu6/gi11/ci5 is 918; here gpu1/gi2 and gpu1/gi2/ci0.
    for minor in (156, 157):
        (dev / "nvidia-caps" / ("nvidia-cap%d" % minor)).touch()
    with opened(dev / "nvidia1", *(dev / "nvidia-caps" / ("nvidia-cap%d" % m) for m in (156, 157))) as process:
        of = host(gpu(0), gpu(1, instance(1, 0), instance(2, 2)))
        (holder,) = find(of, process)
        assert (holder.gpu_uuid, holder.gpu_instance_id, holder.kind) == ("GPU-1", 2, "device_handle")
        assert blocking([holder], "GPU-1", 2) == blocking([holder], "GPU-1") == (holder,)
        assert blocking([holder], "GPU-1", 1) == blocking([holder], "GPU-0") == ()


def test_one_in_nvml_is_named_once_and_by_what_the_system_knows(dev, find):
    with opened(dev / "nvidia0") as process:
        listed = [Process(process.pid, "compute", "python", 1 << 30, 1, 0)]
        (holder,) = find(host(gpu(0, instance(1, 0), instance(2, 2), processes=listed)), process)
        assert (holder.kind, holder.gpu_instance_id, holder.user) == ("process", 1, getpass.getuser())
        assert OPEN in holder.command


def test_one_in_nvml_counts_though_proc_does_not_show_it(find):
    listed = [Process(2**22 + 1, "graphics", "Xorg")]
    (holder,) = find(host(gpu(0, processes=listed)), dataclasses.replace(listed[0]))
    assert (holder.kind, holder.command, holder.user) == ("process", "Xorg", None)


def test_a_watcher_is_in_the_way_of_a_reset_only(dev, find, tmp_path):
    watcher = tmp_path / "nv-hostengine"
    watcher.symlink_to(sys.executable)
    (dev / "nvidia-caps/nvidia-cap12").touch()
    of = host(gpu(0, instance(1, 0)))
    with opened(dev / "nvidia0", program=str(watcher)) as process:
        (holder,) = find(of, process)
        assert holder.watches
        assert (holder.blocks(), holder.blocks(1)) == (True, False)
    with opened(dev / "nvidia0", dev / "nvidia-caps/nvidia-cap12", program=str(watcher)) as process:
        (holder,) = find(of, process)
        assert holder.gpu_instance_id == 1
        assert holder.blocks(1), "a watcher that went into an instance is in its way"
