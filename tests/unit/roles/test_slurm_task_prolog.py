# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the TaskProlog of gpu_slurm, which sets the environment for device numbers.

The tests run the real script, with its folder and the boot ID in a temporary directory. Slurm adds the printed lines to
the environment of a task.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "roles" / "gpu_slurm" / "files" / "task-prolog"
BOOT = "3b1f8e1e-0000-4000-8000-000000000001"
DEVICES = f"""\
# Written by openfleet.gpu.
boot {BOOT}
0 3g.40gb MIG-a
1 1g.10gb MIG-b
2 1g.10gb -
3 h100 GPU-1
4 h100 GPU-2
5 pad -
"""
SHELLS = list(filter(None, map(shutil.which, ("dash", "bash"))))


@pytest.fixture(params=SHELLS)
def prolog(request, tmp_path):
    """Return a function that runs the script.

    The function returns the exit status and the printed lines.
    """
    (tmp_path / "boot_id").write_text(BOOT + "\n")
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "devices").write_text(DEVICES)
    text = SCRIPT.read_text()
    for path, replacement in [
        ("settings=/etc/openfleet-gpu\n", f"settings={tmp_path}\n"),
        ("/proc/sys/kernel/random/boot_id", str(tmp_path / "boot_id")),
        ("/proc/$PPID/cmdline", str(tmp_path / "cmdline")),
        ("jobs=/run/openfleet-gpu-jobs\n", f"jobs={tmp_path}/jobs\n"),
    ]:
        assert path in text
        text = text.replace(path, replacement)
    script = tmp_path / "task-prolog"
    script.write_text(text)

    def run(numbers=None, **environment):
        given = {"SLURMD_NODENAME": "gpu-a", **environment}
        if numbers is not None:
            given["CUDA_VISIBLE_DEVICES"] = numbers
        done = subprocess.run(
            [request.param, script], env=given, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()

    run.folder = tmp_path
    return run


def write_daemon(folder, name, devices):
    (folder / "mps").mkdir(exist_ok=True)
    text = f"# For clients\nCUDA_MPS_PIPE_DIRECTORY=/run/openfleet-mps/{name}\nCUDA_VISIBLE_DEVICES={devices}\n"
    (folder / "mps" / f"{name}.client.env").write_text(text)


def write_tenant(folder, name, devices):
    (folder / "vgpu" / name).mkdir(parents=True)
    text = f"# Environment\nOPENFLEET_VGPU={name}\nCUDA_VISIBLE_DEVICES={devices}\nLD_PRELOAD=/usr/lib/openfleet-gpu/vgpu/l.so\n"
    (folder / "vgpu" / name / "env").write_text(text)


def step(folder, title="slurmstepd: [7.0]    "):
    """Make the script a child of a slurmstepd with this title."""
    (folder / "cmdline").write_bytes(title.encode() + b"\0\0\0")


@pytest.mark.parametrize(
    ("numbers", "uuids"),
    [("0", "MIG-a"), ("3", "GPU-1"), ("0,1", "MIG-a,MIG-b"), ("4,3", "GPU-2,GPU-1"), ("3,5", "GPU-1")],
)
def test_numbers_become_uuids(prolog, numbers, uuids):
    assert prolog(numbers) == (0, [f"export CUDA_VISIBLE_DEVICES={uuids}"])


LEASE = """\
CUDA_VISIBLE_DEVICES=GPU-1
LD_PRELOAD=/usr/lib/openfleet-gpu/vgpu/l.so
OPENFLEET_LEASE=3
OPENFLEET_VGPU=lease-3
"""


def write_lease(folder, job, text=LEASE):
    (folder / "jobs").mkdir(exist_ok=True)
    (folder / "jobs" / job).write_text(text)


@pytest.mark.parametrize("title", ["slurmstepd: [7.batch]    ", "slurmstepd: [7.0]"])
def test_job_with_a_lease_gets_its_environment(prolog, title):
    write_lease(prolog.folder, "7")
    write_lease(prolog.folder, "8", LEASE.replace("3", "4"))
    step(prolog.folder, title)
    # The user can name another job in the environment, which must have no effect.
    status, lines = prolog(SLURM_JOB_ID="8", LD_PRELOAD="libm.so.6")
    assert status == 0
    assert lines == [
        "export CUDA_VISIBLE_DEVICES=GPU-1",
        "export LD_PRELOAD=/usr/lib/openfleet-gpu/vgpu/l.so:libm.so.6",
        "export OPENFLEET_LEASE=3",
        "export OPENFLEET_VGPU=lease-3",
    ]
    step(prolog.folder, "slurmstepd: [9.0]")
    assert prolog() == (0, [])


def test_job_whose_lease_was_refused_does_not_start(prolog):
    write_lease(prolog.folder, "7", "refused job 7: no GPU has 8GiB and 10 % free now. Try again later.\n")
    step(prolog.folder)
    status, lines = prolog()
    assert status == 1 and "the job has no lease: job 7: no GPU has 8GiB and 10 % free now." in lines[0]


@pytest.mark.parametrize("title", ["slurmstepd: [../8.0]", "bash", "slurmstepd: []", "slurmstepd: [7"])
def test_no_other_title_names_a_job(prolog, title):
    write_lease(prolog.folder, "7")
    step(prolog.folder, title)
    assert prolog() == (0, [])


def test_script_is_executable_by_any_posix_shell_and_starts_no_program(prolog):
    """Run the script with a PATH in which a shell finds no program."""
    assert prolog("0", PATH="/nonexistent")[0] == 0


@pytest.mark.parametrize("missing", [False, True])
def test_task_without_a_gpu_is_not_changed(prolog, missing):
    if missing:
        (prolog.folder / "slurm" / "devices").unlink()
    assert prolog() == prolog("") == (0, [])
    assert prolog(None, SLURM_JOB_GPUS="0", SLURM_STEP_GPUS="0", OPENFLEET_VGPU="a") == (0, [])


@pytest.mark.parametrize("value", ["abc", "0 1", "*", "$(id)", "0\nexport X=1", "-1", "NoDevFiles", "0;id"])
def test_other_values_are_not_changed(prolog, value):
    assert prolog(value) == (0, [])


def test_missing_file_is_an_error(prolog):
    (prolog.folder / "slurm" / "devices").unlink()
    status, (line,) = prolog("0")
    assert status == 1
    assert line.startswith("print openfleet-gpu: gpu-a: the job has a GPU, and ") and "devices is missing" in line
    assert line.endswith("systemctl start openfleet-slurm-devices")


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ("6", "Slurm gave the job the device 6, and"),
        ("0,99999999999999999999", "the device 99999999999999999999, and"),
        ("2", "the job has the device 2 (1g.10gb), which does not exist, or which is changing"),
        ("5", "Slurm gave the job only pads, which are not GPUs. Request GPUs with a type"),
    ],
)
def test_unknown_device_is_an_error(prolog, numbers, problem):
    status, (line,) = prolog(numbers)
    assert status == 1 and problem in line


def test_file_of_an_earlier_boot_is_an_error(prolog):
    (prolog.folder / "boot_id").write_text("another\n")
    status, (line,) = prolog("0")
    assert status == 1 and "was written before the last boot" in line


@pytest.mark.parametrize("node", ["", "a b", "x\nexport Y=1", "$(id)", "`id`"])
def test_message_contains_no_text_of_the_user(prolog, node):
    _status, (line,) = prolog("6", SLURMD_NODENAME=node)
    assert line.startswith("print openfleet-gpu: this node: ")


# -- ConstrainDevices=yes: CUDA_VISIBLE_DEVICES counts the devices of the task --


@pytest.mark.parametrize(
    ("title", "uuid"),
    [
        ("slurmstepd: [7.0]", "MIG-b"),
        ("slurmstepd: [7.interactive]", "MIG-b"),
        ("slurmstepd: [7.batch]", "GPU-2"),
        ("slurmstepd: [7_3.batch]", "GPU-2"),
        ("/bin/sh /etc/slurm/site-prolog", "MIG-a"),
    ],
)
def test_numbers_of_constrained_devices(prolog, title, uuid):
    """Check that the variable of the other kind of task has no effect.

    The variable may come from the shell in which the user submitted the job.
    """
    step(prolog.folder, title)
    assert prolog("0", SLURM_STEP_GPUS="1", SLURM_JOB_GPUS="4") == (0, [f"export CUDA_VISIBLE_DEVICES={uuid}"])


@pytest.mark.parametrize("numbers", ["", "3,4", "x", "1 2"])
def test_other_number_of_devices_has_no_effect(prolog, numbers):
    step(prolog.folder)
    assert prolog("0", SLURM_STEP_GPUS=numbers) == (0, ["export CUDA_VISIBLE_DEVICES=MIG-a"])


# -- MPS and tenants --


def test_job_on_a_served_device_is_a_client(prolog):
    write_daemon(prolog.folder, "other", "GPU-2")
    write_daemon(prolog.folder, "inside", "MIG-a")
    pipe = "export CUDA_MPS_PIPE_DIRECTORY=/run/openfleet-mps/inside"
    assert prolog("0") == (0, ["export CUDA_VISIBLE_DEVICES=MIG-a", pipe])
    assert prolog("1") == (0, ["export CUDA_VISIBLE_DEVICES=MIG-b"])


def test_job_may_have_some_devices_of_a_daemon(prolog):
    write_daemon(prolog.folder, "both", "GPU-1,GPU-2")
    assert prolog("4")[1][1] == "export CUDA_MPS_PIPE_DIRECTORY=/run/openfleet-mps/both"


def test_daemon_of_some_devices_is_an_error(prolog):
    write_daemon(prolog.folder, "one", "GPU-1")
    status, lines = prolog("3,4")
    assert status == 1 and "an MPS daemon serves only some of the devices GPU-1,GPU-2" in lines[-1]


def test_daemon_of_another_node_is_not_inherited(prolog):
    assert prolog("1", CUDA_MPS_PIPE_DIRECTORY="/run/openfleet-mps/x")[1][1:] == ["unset CUDA_MPS_PIPE_DIRECTORY"]
    assert prolog("1", CUDA_MPS_PIPE_DIRECTORY="/tmp/own")[1][1:] == []


def test_uuids_of_autodetect_are_kept(prolog):
    write_daemon(prolog.folder, "inside", "MIG-a")
    assert prolog("MIG-a") == (0, ["export CUDA_MPS_PIPE_DIRECTORY=/run/openfleet-mps/inside"])


@pytest.mark.parametrize("account", ["team-a", "team-b"])
def test_account_is_the_tenant(prolog, account):
    write_tenant(prolog.folder, "team-a", "GPU-1")
    write_tenant(prolog.folder, "team-b", "GPU-1,GPU-2")
    status, lines = prolog("3", SLURM_JOB_ACCOUNT=account, LD_PRELOAD="", OPENFLEET_VGPU="old")
    assert (status, lines) == (
        0,
        [
            "export CUDA_VISIBLE_DEVICES=GPU-1", "unset OPENFLEET_VGPU", f"export OPENFLEET_VGPU={account}",
            "export LD_PRELOAD=/usr/lib/openfleet-gpu/vgpu/l.so",
        ],
    )  # fmt: skip


@pytest.mark.parametrize("account", ["", "other", "../team-a", "*", "team-a\nexport X=1", "team-b"])
def test_other_accounts_are_refused_on_the_gpu_of_tenants(prolog, account):
    write_tenant(prolog.folder, "team-a", "GPU-1")
    write_tenant(prolog.folder, "team-b", "GPU-2")
    status, lines = prolog("3", SLURM_JOB_ACCOUNT=account)
    assert status == 1 and "is not a tenant of the GPU GPU-1" in lines[-1]
    assert all(line.startswith(("print ", "export CUDA_VISIBLE_DEVICES=")) for line in lines)
    # For GPUs without tenants, the account need not be a tenant.
    assert prolog("0", SLURM_JOB_ACCOUNT=account)[0] == 0


def test_type_of_the_device_may_be_the_tenant(prolog):
    write_tenant(prolog.folder, "h100", "GPU-1")
    assert "export OPENFLEET_VGPU=h100" in prolog("3", SLURM_JOB_ACCOUNT="other")[1]
