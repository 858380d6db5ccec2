# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Map Slurm's device numbers in gres.conf to the devices' current UUIDs."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders.slurm import DEVICES
from ansible_collections.openfleet.gpu.plugins.module_utils.model import ComputeInstance, GpuInstance, Placement
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.slurm.conf import GresLinesError
from ansible_collections.openfleet.gpu.plugins.module_utils.slurm.mig_devices import DeviceNodes
from ansible_collections.openfleet.gpu.plugins.module_utils.slurm.task_devices import (
    SETTINGS,
    TaskDevicesError,
    write_devices,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.slurm.task_slots import slots

GPUS = [dataclasses.replace(gpu, uuid="GPU-%d" % gpu.index) for gpu in assumed_gpus(["H100-80GB"] * 3)]
MINORS = {"GPU-0": 0, "GPU-1": 1, "GPU-2": 2}
GPU_LINE = "NodeName=gpu-a AutoDetect=off Name=gpu "
LINE = GPU_LINE + "Type=%s MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap%d,/dev/nvidia-caps/nvidia-cap%d"
PAD = GPU_LINE + "Type=pad MultipleFiles=/dev/nvidia-caps/nvidia-cap1,/dev/nvidia-caps/nvidia-cap2"


def cap(instance):
    """Return the number of the capability of an instance of GPU 0.

    The next number is that of its compute instance.
    """
    return 100 + 10 * instance


NODES = DeviceNodes(
    MINORS,
    {
        name: number
        for gi in range(1, 15)
        for name, number in [(f"gpu0/gi{gi}/access", cap(gi)), (f"gpu0/gi{gi}/ci0/access", cap(gi) + 1)]
    },
)


def line(kind, instance):
    return LINE % (kind, cap(instance), cap(instance) + 1)


def partitioned(*instances):
    """Return the GPUs, with these instances of GPU 0.

    An instance is (id, profile, start, UUID).
    """
    made = [
        GpuInstance(number, profile, Placement(start, 1), (ComputeInstance(0, int(profile[0]), Placement(0, 1), uuid),))
        for number, profile, start, uuid in instances
    ]
    return [GPUS[0].with_instances(tuple(made), True), *GPUS[1:]]


LINES = [
    line("3g.40gb", 1), line("1g.10gb", 9), line("1g.10gb", 10),
    GPU_LINE + "Type=h100 File=/dev/nvidia1", GPU_LINE + "Type=h100 File=/dev/nvidia2", PAD,
    "NodeName=gpu-a AutoDetect=off Name=shard File=/dev/nvidia2 Count=4",
]  # fmt: skip
STATE = [(1, "3g.40gb", 4, "MIG-a"), (9, "1g.10gb", 0, "MIG-b"), (10, "1g.10gb", 1, "MIG-c")]


@pytest.fixture
def host(tmp_path):
    """Return a function that lists the devices of GPUs, and returns (UUIDs, messages)."""
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("boot-1\n")
    (tmp_path / "etc/slurm").mkdir(parents=True)

    def set_up(lines):
        text = "\n".join(["# by hand", "NodeName=other " + lines[0].split(" ", 1)[1], *lines, ""])
        (tmp_path / "etc/slurm/gres.conf").write_text(text)
        rows = slots(lines, "gpu-a", (), MINORS)
        settings = {"version": 1, "node": "gpu-a", "gres_file": "/etc/slurm/gres.conf", "slots": rows}
        (tmp_path / SETTINGS).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / SETTINGS).write_text(json.dumps(settings))

    def run(gpus, nodes=NODES, common=False):
        messages = list(write_devices(tmp_path, gpus, nodes, common))
        first, second, third, *rows = (tmp_path / DEVICES).read_text().splitlines()
        assert first.startswith("#") and second == "boot " + boot.read_text().strip() and third == "node gpu-a"
        assert [row.split()[0] for row in rows] == [str(number) for number in range(len(rows))]
        return [row.split()[2] for row in rows], messages

    run.set_up, run.root = set_up, tmp_path
    run.gres_conf = tmp_path / "etc/slurm/gres.conf"
    set_up(LINES)
    return run


def test_devices_have_the_numbers_of_gres_conf(host):
    uuids, messages = host(partitioned(*STATE))
    assert uuids == ["MIG-a", "MIG-b", "MIG-c", "GPU-1", "GPU-2", "-"]
    assert messages == ["/%s written" % DEVICES]
    # Users' jobs read this file. A second write with equal content must not happen.
    assert (host.root / DEVICES).stat().st_mode & 0o777 == 0o644
    assert host(partitioned(*STATE)) == (uuids, [])


def test_gres_conf_identifies_the_devices(host):
    """Take the order of devices from gres.conf.

    It may differ from the order of placements after a change beside a job.
    """
    host.set_up([line("1g.10gb", 10), line("1g.10gb", 9)])
    assert host(partitioned(*STATE))[0] == ["MIG-c", "MIG-b"]


def test_device_keeps_its_number_while_it_exists(host):
    host(partitioned(*STATE))
    kept = [(9, "1g.10gb", 0, "MIG-new"), (10, "1g.10gb", 1, "MIG-c"), (1, "3g.40gb", 4, "MIG-a")]
    assert host(partitioned(*kept))[0][:3] == ["MIG-a", "MIG-new", "MIG-c"]
    # A device keeps its number, even if gres.conf would give this number to another instance.
    swapped = [(9, "1g.10gb", 0, "MIG-c"), (10, "1g.10gb", 1, "MIG-new"), (1, "3g.40gb", 4, "MIG-a")]
    assert host(partitioned(*swapped))[0][:3] == ["MIG-a", "MIG-new", "MIG-c"]


def test_reboot_with_other_instances_corrects_gres_conf(host):
    host(partitioned(*STATE))
    (host.root / "proc/sys/kernel/random/boot_id").write_text("boot-2\n")
    host.gres_conf.chmod(0o640)
    if not os.geteuid():
        os.chown(host.gres_conf, 65534, 65534)
    owner = host.gres_conf.stat().st_uid
    uuids, messages = host(
        partitioned((2, "3g.40gb", 4, "MIG-x"), (1, "1g.10gb", 0, "MIG-y"), (9, "1g.10gb", 1, "MIG-z"))
    )
    # The instance with the capability 9 is still the second device.
    assert uuids == ["MIG-x", "MIG-z", "MIG-y", "GPU-1", "GPU-2", "-"]
    _comment, other, *lines = host.gres_conf.read_text().splitlines()
    assert lines == [line("3g.40gb", 2), line("1g.10gb", 9), line("1g.10gb", 1), *LINES[3:]]
    assert other == "NodeName=other " + LINES[0].split(" ", 1)[1]
    assert (host.gres_conf.stat().st_mode & 0o777, host.gres_conf.stat().st_uid) == (0o640, owner)
    assert messages[0].endswith("gres.conf has the new device nodes of 2 MIG devices")
    assert host(partitioned((2, "3g.40gb", 4, "MIG-x"), (1, "1g.10gb", 0, "MIG-y"), (9, "1g.10gb", 1, "MIG-z"))) == (
        uuids,
        [],
    )


def test_interrupted_correction_is_completed(host):
    after = partitioned((2, "3g.40gb", 4, "MIG-x"), *STATE[1:])
    settings = (host.root / SETTINGS).read_text()
    expected = host(after)[0], host.gres_conf.read_text()
    # The run was interrupted between writing gres.conf and writing the settings.
    (host.root / SETTINGS).write_text(settings)
    uuids, messages = host(after)
    assert (uuids, host.gres_conf.read_text()) == expected
    assert messages == []


def test_gres_conf_without_the_lines_is_reported(host):
    host.gres_conf.write_text("# managed elsewhere\n")
    _uuids, messages = host(partitioned((2, "3g.40gb", 4, "MIG-x"), *STATE[1:]))
    assert "lists other device nodes of 1 MIG devices: run the role gpu_slurm" in messages[0]


def test_missing_devices_are_marked(host):
    uuids, messages = host(partitioned(STATE[1])[:2])
    assert uuids == ["-", "MIG-b", "-", "GPU-1", "-", "-"]
    assert "device 0 (3g.40gb of GPU-0) does not exist now, so its jobs fail" in messages
    # In these two cases, a GPU has left MIG mode, and a GPU has entered it.
    assert host(GPUS)[0] == ["-", "-", "-", "GPU-1", "GPU-2", "-"]
    other = [GPUS[0], GPUS[1].with_instances((), True), GPUS[2]]
    assert host(other)[0] == ["-", "-", "-", "-", "GPU-2", "-"]


def test_profile_of_another_type_does_not_get_the_number(host):
    assert host(partitioned((1, "4g.40gb", 4, "MIG-other"), *STATE[1:]))[0][0] == "-"


def test_numbers_that_change_are_not_listed_until_slurmd_uses_them(host):
    """List changed numbers only after slurmd was restarted.

    Between the change of the files and its restart, slurmd allocates the former numbers.
    """
    host(partitioned(*STATE))
    after = [*STATE[1:], (11, "1g.10gb", 2, "MIG-d")]
    host.set_up([line("1g.10gb", 9), line("1g.10gb", 10), line("1g.10gb", 11), *LINES[3:]])
    assert host(partitioned(*after), common=True)[0] == ["-", "-", "-", "GPU-1", "GPU-2", "-"]
    assert host(partitioned(*after))[0] == ["MIG-b", "MIG-c", "MIG-d", "GPU-1", "GPU-2", "-"]


def test_missing_settings_are_an_error(host):
    (host.root / SETTINGS).unlink()
    with pytest.raises(TaskDevicesError, match=r"settings\.json: it cannot be read"):
        host(GPUS)


# -- gres.conf --


def kinds(lines, types=(), node="gpu-a"):
    return [(slot["type"], slot["gpu"], slot["files"][0]) for slot in slots(lines, node, types, MINORS)]


def test_lines_by_hand():
    """Order hand-written lines by the types of the node, as Slurm does."""
    lines = [
        "# comment", "AutoDetect=off", "NAME=gpu type=h100 File=/dev/nvidia[1-2] Cores=0-3 # whole",
        "NodeName=b Name=gpu File=/dev/nvidia0", "NodeName=gpu-a,gpu-[1-4] Name=gpu Type=old File=/dev/nvidia0",
        "Name=shard Count=4 File=/dev/nvidia1",
    ]  # fmt: skip
    found = [("h100", "GPU-1", "/dev/nvidia1"), ("h100", "GPU-2", "/dev/nvidia2"), ("old", "GPU-0", "/dev/nvidia0")]
    assert kinds(lines) == found
    assert kinds(lines, ["old", "h100"]) == [found[2], *found[:2]]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "no line has Name=gpu"),
        (["AutoDetect=nvml"], "AutoDetect=nvml detects the devices of the node gpu-a"),
        (["NodeName=b Name=gpu File=/dev/nvidia0"], "for the node gpu-a"),
        (["Name=gpu Count=2"], "has no File="),
        (["Name=gpu File=/dev/nvidia7"], "no GPU has the device node /dev/nvidia7"),
    ],
)
def test_lines_without_devices_are_refused(lines, problem):
    with pytest.raises(GresLinesError, match=problem):
        kinds(lines)
