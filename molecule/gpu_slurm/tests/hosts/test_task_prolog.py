# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the environment of jobs with the TaskProlog: UUIDs and MPS daemons."""

from __future__ import annotations

import re

import pytest
from slurm_host import MIXED, SHARED, SLICED, TASK_PROLOG, layout

DEVICES, SETTINGS = "/etc/openfleet-gpu/slurm/devices", "/etc/openfleet-gpu/slurm/settings.json"
DAEMONS, TENANTS = "/etc/openfleet-gpu/mps", "/etc/openfleet-gpu/vgpu"


@pytest.fixture(scope="module", autouse=True)
def without_prolog(host):
    """Remove the TaskProlog after the tests."""
    yield
    host.set_task_prolog("")


@pytest.fixture
def files(host):
    """Use the TaskProlog, and remove the files that a test wrote.

    Resetting the host installs the TaskProlog.
    """
    host.set_task_prolog(TASK_PROLOG)
    yield
    host.ask(f"rm -rf {DAEMONS}/lab.client.env {TENANTS}/lab")


@pytest.fixture
def kinds(host, files):
    """Return each device's type on a node with MIG, by UUID."""
    host.reset(layout(MIXED))
    return host.types()


def write(host, path, *lines):
    """Write the environment file of an MPS daemon or a tenant."""
    host.ask(f"mkdir -p $(dirname {path}); printf '%s\\n' {' '.join(lines)} > {path}")


def run(host, options, command="echo $CUDA_VISIBLE_DEVICES", environment=""):
    """Run a job step, and return (exit status, output).

    The output has no messages of srun, for example that the step waits for slurmd after `scontrol reconfigure`.
    """
    done = host.host.run(f"cd /; {environment} timeout 100 srun --quiet {options} sh -c '{command}' </dev/null 2>&1")
    return done.rc, done.stdout.strip()


def test_jobs_see_the_uuids_of_their_devices(host, kinds):
    given = [host.submit(gres)[1]["CUDA_VISIBLE_DEVICES"] for gres in ("gpu:1g.10gb:1", "gpu:h100:2", "gpu:3g.40gb:1")]
    status, last = run(host, "--gres=gpu:1g.10gb:1")
    assert status == 0
    found = [[kinds[uuid] for uuid in uuids.split(",")] for uuids in (*given, last)]
    assert found == [["1g.10gb"], ["h100", "h100"], ["3g.40gb"], ["1g.10gb"]]
    assert len(set(",".join([*given, last]).split(","))) == 5


def test_steps_see_the_devices_of_the_step(host, kinds):
    """Check that inherited variables of other jobs have no effect."""
    leaked = "CUDA_VISIBLE_DEVICES=0 SLURM_STEP_GPUS=0 SLURM_JOB_GPUS=1"
    for options in ("--gres=gpu:h100:2", "--gres=gpu:h100:2 --gpu-bind=single:1 -n2"):
        status, text = run(host, options, environment=leaked)
        assert status == 0
        assert [kinds[uuid] for uuid in re.split("[,\n]", text)] == ["h100", "h100"], options
        assert len(set(re.split("[,\n]", text))) == 2
    script = f"export {leaked}; sbatch --wait --chdir=/ --array=1-2 --gres=gpu:1g.10gb:1 --output=/tmp/array-%a --wrap "
    host.ask(f"{script} 'echo $CUDA_VISIBLE_DEVICES; srun sh -c \"echo \\$CUDA_VISIBLE_DEVICES\"'")
    tasks = host.ask("cat /tmp/array-1 /tmp/array-2").split()
    assert [kinds[uuid] for uuid in tasks] == ["1g.10gb"] * 4
    assert tasks[0] == tasks[1] != tasks[2] == tasks[3]


def test_job_without_a_gpu_runs_even_without_the_list(host, kinds):
    host.ask(f"rm {DEVICES}")
    assert run(host, "", environment="CUDA_VISIBLE_DEVICES=0") == (0, "")
    status, text = run(host, "--gres=gpu:h100:1", "echo started")
    assert status != 0 and "started" not in text
    assert f"openfleet-gpu: gpu-a: the job has a GPU, and {DEVICES} is missing" in text
    # Each start of slurmd writes the list, before jobs start.
    host.restart()
    host.in_service()
    assert [kinds[uuid] for uuid in run(host, "--gres=gpu:h100:1")[1].split(",")] == ["h100"]


def test_list_follows_recreated_instances(host, kinds):
    """Replace the instances by others of the same types, as after a reboot."""
    host.apply(layout())
    host.ask("systemctl start openfleet-slurm-devices")
    assert "which does not exist" in run(host, "--gres=gpu:3g.40gb:1")[1]
    host.apply(layout(MIXED))
    # Before the change, the instances had other capability numbers.
    number = host.ask("head -n 1 /etc/slurm/openfleet_gres.conf").rpartition("-cap")[2].strip()
    files = f"/etc/slurm/openfleet_gres.conf {SETTINGS}"
    host.ask(f"sed -i 's/nvidia-cap{number}\\>/nvidia-cap2/' {files}; chown slurm /etc/slurm/openfleet_gres.conf")
    host.restart()
    host.in_service()
    current = host.types()
    assert current[run(host, "--gres=gpu:3g.40gb:1")[1]] == "3g.40gb"
    assert [current[uuid] for uuid in run(host, "--gres=gpu:1g.10gb:2")[1].split(",")] == ["1g.10gb"] * 2
    assert host.mapping(layout(MIXED))["gres_conf"] == host.ask("cat /etc/slurm/openfleet_gres.conf").splitlines()
    assert (
        host.ask("stat --format %U /etc/slurm/openfleet_gres.conf; chown root /etc/slurm/openfleet_gres.conf")
        == "slurm"
    )


def test_job_on_a_served_instance_is_a_client(host, kinds):
    (large,) = [uuid for uuid, kind in kinds.items() if kind == "3g.40gb"]
    pipe = "CUDA_MPS_PIPE_DIRECTORY=/run/openfleet-mps/lab"
    write(host, f"{DAEMONS}/lab.client.env", pipe, f"CUDA_VISIBLE_DEVICES={large}")
    shown = "echo $CUDA_VISIBLE_DEVICES $CUDA_MPS_PIPE_DIRECTORY"
    assert run(host, "--gres=gpu:3g.40gb:1", shown) == (0, f"{large} /run/openfleet-mps/lab")
    status, text = run(host, "--gres=gpu:1g.10gb:1", shown, pipe)
    assert (status, kinds[text]) == (0, "1g.10gb")


def test_second_run_changes_nothing_and_a_site_prolog_can_call_it(host, kinds):
    found = host.mapping(layout(MIXED))
    again = host.list_devices(found)
    assert (again["changed"], again["advice"]) == (False, "")
    script = f"#!/bin/sh\\necho export SITE=1\\nexec {TASK_PROLOG}\\n"
    host.ask(f"printf '{script}' > /etc/slurm/site-prolog; chmod 755 /etc/slurm/site-prolog")
    host.set_task_prolog("/etc/slurm/site-prolog")
    status, text = run(host, "--gres=gpu:3g.40gb:1", "echo $SITE $CUDA_VISIBLE_DEVICES")
    assert (status, text.split()[0], kinds[text.split()[1]]) == (0, "1", "3g.40gb")


def test_job_on_a_shard_is_the_tenant_of_its_account(host, files):
    host.reset(layout(SHARED, SLICED), "gpu,shard")
    gpu = host.module("gpu_info", telemetry=False, holders=False)["gpus"][1]["uuid"]
    write(host, f"{TENANTS}/lab/env", "OPENFLEET_VGPU=lab", f"CUDA_VISIBLE_DEVICES={gpu}")
    shown = "echo $CUDA_VISIBLE_DEVICES $OPENFLEET_VGPU"
    assert run(host, "--gres=shard:1 --account=lab", shown) == (0, f"{gpu} lab")
    status, text = run(host, "--gres=shard:1 --account=other", shown, "OPENFLEET_VGPU=lab")
    assert status != 0 and f"the account other is not a tenant of the GPU {gpu}" in text
    assert run(host, "--gres=gpu:h100:1 --account=other", "echo started") == (0, "started")


def test_job_with_a_share_is_a_client(host, files):
    daemon = {"sharing": "mps", "mps": {"name": "lab", "clients": 4, "active_thread_percentage": 25}}
    # The MPS daemon does not run, because the layout is not applied.
    host.apply(layout())
    host.reset(layout(daemon), "gpu,mps", apply=False)
    served = host.module("gpu_info", telemetry=False, holders=False)["gpus"][0]["uuid"]
    write(
        host,
        f"{DAEMONS}/lab.client.env",
        "CUDA_MPS_PIPE_DIRECTORY=/run/openfleet-mps/lab",
        f"CUDA_VISIBLE_DEVICES={served}",
    )
    shown = "echo $CUDA_VISIBLE_DEVICES $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
    assert run(host, "--gres=mps:20", shown) == (0, f"{served} /run/openfleet-mps/lab 20")
