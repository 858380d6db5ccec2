# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the files of MPS daemons.

molecule/sharing tests them with systemd, Podman and the real daemon.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import files as mps_files
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import unit as mps_unit
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.model import (
    MpsDaemon,
    MpsPlace,
    from_data,
    unit_of,
)

GIB = 2**30
DEVICES = ("GPU-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d", "GPU-0b1f2c3d-4aac-4bd7-8d0f-2bb3ae2f1f0e")
BOTH = MpsDaemon("inference", tuple(MpsPlace(uuid) for uuid in DEVICES), 4, 25, 18 * GIB)
INSIDE = MpsDaemon("small-gpu0-4", (MpsPlace(DEVICES[0], "2g.20gb", 4),), 3, 33)
MIG = ("MIG-31d0b6cc-0d48-5a5b-9a33-d3ee1d8a6b3f",)


def settings(text: str) -> dict[str, str]:
    """Parse the file as systemd does for environment files, and podman for --env-file."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = [line.split("=", 1) for line in lines]
    assert all(re.fullmatch("[A-Z_]+", name) and not re.search(r"[\s\"'\\$#]", value) for name, value in pairs)
    return dict(pairs)


@pytest.mark.parametrize(("daemon", "devices"), [(BOTH, DEVICES), (INSIDE, MIG)])
def test_spec_names_its_daemon(daemon, devices):
    text = mps_files.files(daemon, devices)[mps_files.spec_path(daemon.name)]
    assert from_data(json.loads(text)) == (daemon, devices)


@pytest.mark.parametrize(("daemon", "devices"), [(BOTH, DEVICES), (INSIDE, MIG)])
def test_daemon_and_clients_agree(daemon, devices):
    files = mps_files.files(daemon, devices)
    own = settings(files["etc/openfleet-gpu/mps/%s.env" % daemon.name])
    client = settings(files["etc/openfleet-gpu/mps/%s.client.env" % daemon.name])
    assert own["CUDA_VISIBLE_DEVICES"] == client["CUDA_VISIBLE_DEVICES"] == ",".join(devices)
    pipes = "/run/openfleet-mps/%s" % daemon.name
    assert own["CUDA_MPS_PIPE_DIRECTORY"] == client["CUDA_MPS_PIPE_DIRECTORY"] == pipes
    assert own["CUDA_MPS_LOG_DIRECTORY"] == "/var/log/openfleet-mps/%s" % daemon.name
    assert own["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(daemon.active_thread_percentage)
    # All other variables could only lower a client's limits below the default of the daemon, which applies anyway.
    assert set(client) == {"CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"}


def test_memory_limits_follow_the_order_of_devices():
    assert mps_files.files(BOTH, DEVICES)["etc/openfleet-gpu/mps/inference.limits"].splitlines() == [
        "set_default_active_thread_percentage 25",
        "set_default_device_pinned_mem_limit 0 18432M",
        "set_default_device_pinned_mem_limit 1 18432M",
    ]
    assert mps_files.files(INSIDE, MIG)["etc/openfleet-gpu/mps/small-gpu0-4.limits"].splitlines() == [
        "set_default_active_thread_percentage 33"
    ]


def test_cdi_specification_is_valid():
    """The rules are from SPEC.md of the Container Device Interface.

    They cover keys, names, mounts and variables.
    """
    spec = json.loads(mps_files.files(INSIDE, MIG)["etc/cdi/openfleet-mps-small-gpu0-4.json"])
    assert set(spec) == {"cdiVersion", "kind", "devices"}
    assert re.fullmatch(r"0\.[3-9]\.[0-9]", spec["cdiVersion"])
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]", spec["kind"])
    (device,) = spec["devices"]
    assert set(device) == {"name", "containerEdits"} and device["name"] == "small-gpu0-4"
    edits = device["containerEdits"]
    assert set(edits) == {"env", "mounts"}
    assert edits["env"] == ["CUDA_MPS_PIPE_DIRECTORY=/run/openfleet-mps/small-gpu0-4"]
    assert all(set(mount) == {"hostPath", "containerPath", "options"} for mount in edits["mounts"])
    paths = [(mount["hostPath"], mount["containerPath"]) for mount in edits["mounts"]]
    assert paths == [(path, path) for path in ("/run/openfleet-mps/small-gpu0-4", "/dev/shm")]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("a", None),
        ("inference-gpu0-4", None),
        ("A_b.c", None),
        ("x" * 69, None),
        ("x" * 70, "70 characters"),
        ("x-", "ends in -"),
        ("x.", "ends in ."),
    ],
)
def test_names(name, wrong):
    problem = mps_files.name_problem(name)
    assert (problem is None) if wrong is None else (wrong in str(problem) and name in str(problem))


def test_the_longest_name_leaves_room_for_the_longest_socket():
    # unix(7): sun_path has 108 bytes, including the null at the end.
    path = mps_files.pipe_directory("x" * mps_files.LONGEST_NAME) + "/control_privileged"
    assert len(path) == 107


def test_unit_uses_the_files():
    unit = mps_unit.shared_files(selinux=False)[mps_unit.UNIT_PATH]
    for path in mps_files.files(BOTH, DEVICES):
        if path.endswith(("/inference.env", ".limits")):
            assert "/" + path.replace("inference", "%i") in unit
    assert "RuntimeDirectory=openfleet-mps/%i\n" in unit and mps_files.pipe_directory("%i") == "/run/openfleet-mps/%i"
    assert "LogsDirectory=openfleet-mps/%i\n" in unit and mps_files.log_directory("%i") == "/var/log/openfleet-mps/%i"
    assert Path(mps_unit.UNIT_PATH).name == unit_of("")
    assert "@" not in re.sub(r"openfleet-mps@|@system-service", "", unit)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("inference", r"run-openfleet\x2dmps-inference.mount"),
        ("A_b.c-1", r"run-openfleet\x2dmps-A_b.c\x2d1.mount"),
    ],
)
def test_the_pipe_directory_has_a_file_system_of_limited_size(name, unit):
    folder = mps_files.limited_folder(name)
    assert folder.unit == unit and "/" + folder.path == mps_files.pipe_directory(name)
    options = re.search(r"^Options=(.*)$", folder.unit_text, re.MULTILINE)[1].split(",")
    assert {"nosuid", "nodev", "noexec", "mode=0700"} <= set(options)
    sizes = dict(option.split("=") for option in options if "=" in option)
    assert int(sizes["size"].rstrip("M")) <= 64 and int(sizes["nr_inodes"]) <= 65536
    # The unit must not mount over the sockets of a running daemon. The unit of each daemon has the folder mounted
    # before it starts.
    assert "ConditionDirectoryNotEmpty=!/%s\n" % folder.path in folder.unit_text
    assert "RequiresMountsFor=%t/openfleet-mps/%i\n" in mps_unit.shared_files(False)[mps_unit.UNIT_PATH]


def test_systemd_knows_the_unit_by_the_same_name():
    try:
        escape = ["systemd-escape", "--path", "--suffix=mount", "/run/openfleet-mps/A_b.c-1"]
        done = subprocess.run(escape, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("systemd-escape is not installed")
    assert done.stdout.strip() == mps_files.limited_folder("A_b.c-1").unit


@pytest.fixture
def driver(tmp_path):
    """Make the driver's files in /proc, and replace nvidia-modprobe.

    The replacement records its arguments.
    """
    proc = tmp_path / "unloaded"
    for address, minor in (("0000:3b:00.0", 0), ("0000:d8:00.0", 11)):
        (proc / "gpus" / address).mkdir(parents=True)
        (proc / "gpus" / address / "information").write_text(
            "Model: \t\t NVIDIA A100-PCIE-40GB\nIRQ:   \t\t 86\nDevice Minor: \t %d\nGPU Excluded:\t No\n" % minor
        )
    for name in ("mig/config", "gpu0/mig/gi2/access", "gpu0/mig/gi2/ci0/access", "gpu11/mig/gi0/access"):
        path = proc / "capabilities" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("DeviceFileMinor: 3\n")
    tool = tmp_path / "nvidia-modprobe"
    (tmp_path / "proc/driver").mkdir(parents=True)
    load = '[ "$1" = -u ] || [ -e proc/driver/nvidia ] || mv unloaded proc/driver/nvidia'
    tool.write_text('#!/bin/sh\ncd %s; echo "$@" >>called\n%s\n' % (tmp_path, load))
    tool.chmod(0o755)
    return tmp_path


def run_as_systemd_does(line: str, root: Path) -> None:
    """Run the command of an ExecStartPre=-+/bin/sh -c '…' as systemd would.

    The replacement of nvidia-modprobe runs. Sources: systemd.service(5) and systemd.syntax(7).
    """
    script = re.fullmatch(r"ExecStartPre=-\+/bin/sh -c '([^']*)'", line.replace("\\\n", " "))[1]
    assert not re.search(r"[\\%]|(?<!\$)\$(?!\$)", script)
    script = script.replace("$$", "$").replace("/proc/", "%s/proc/" % root)
    script = script.replace("/usr/bin/nvidia-modprobe", str(root / "nvidia-modprobe"))
    subprocess.run(["/bin/sh", "-c", script], check=False, capture_output=True)


def test_device_nodes_of_every_gpu_and_mig_device_are_created(driver):
    """Compare the calls with nvidia-modprobe(1), and /proc with the MIG user guide.

    The section of the guide is "Device Nodes and Capabilities".
    """
    unit = mps_unit.shared_files(selinux=False)[mps_unit.UNIT_PATH]
    (line,) = [text for text in re.findall(r"^\w+=(?:.*\\\n)*.*$", unit, re.MULTILINE) if "nvidia-modprobe" in text]
    run_as_systemd_does(line, driver)
    capabilities = "%s/proc/driver/nvidia/capabilities" % driver
    # nvidia-modprobe is called for nvidia-uvm with nvidia-uvm-tools, for nvidiactl, for each GPU by its own number, and
    # for each instance.
    assert sorted((driver / "called").read_text().splitlines()) == sorted(
        ["-u -c 0", "-c 255", "-c 0", "-c 11"]
        + ["-f %s/%s/access" % (capabilities, name) for name in ("gpu0/mig/gi2", "gpu0/mig/gi2/ci0", "gpu11/mig/gi0")]
    )


def test_containers_may_use_the_pipe_directory_under_selinux():
    without, under = (mps_unit.shared_files(selinux=s)[mps_unit.UNIT_PATH].splitlines() for s in (False, True))
    (line,) = [line for line in under if line not in without]
    assert line == "ExecStartPre=-+/usr/bin/chcon --type=container_file_t %t/openfleet-mps/%i"
    # The directory must get its SELinux type before files are created in it, because files inherit the type.
    assert under.index(line) > max(i for i, text in enumerate(under) if "find " in text)
    assert [line for line in under if line in without] == without


@pytest.mark.parametrize(("name", "version"), [("lab-7", "0.3.0"), ("7-lab", "0.5.0")])
def test_specification_has_the_oldest_version_with_such_names(name, version):
    daemon = MpsDaemon(name, (MpsPlace(DEVICES[0]),), 4, 25)
    assert json.loads(mps_files.files(daemon, DEVICES[:1])[mps_files.cdi_path(name)])["cdiVersion"] == version
