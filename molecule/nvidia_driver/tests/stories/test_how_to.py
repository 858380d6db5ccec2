# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow the how-to page about driver upgrades while Slurm runs jobs on the GPUs."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
import yaml
from driver_runs import INVENTORY

from tests import how_to
from tests.lab.fleet import play_quietly
from tests.lab.lab_fixtures import REPOSITORY

PAGE, HOST, NODE = "upgrade-the-driver.md", "gpu-01", "gpu-a"
#: The current version, and the version that replaces the page's. The mirror has no other versions.
OLD, NEW, VERSION_OF_PAGE = "580.95.05", "580.105.08", "580.178.04"
#: Seconds for a job to start.
START_SECONDS = 120
LOADED = "/sys/module/nvidia/version"
#: A job that uses a GPU until its node is drained, and then writes the version of the driver.
FIRST = f"exec 3</dev/nvidia0; until scontrol show node {NODE} | grep -q DRAIN; do sleep 0.2; done; cat {LOADED} >/srv/first"
#: A job that waits for all GPUs.
SECOND = f"cat {LOADED} >/srv/second"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return a function that runs a command of the page for one host.

    The inventory has the variables of the page, and Slurm runs on the host.
    """
    folder = tmp_path_factory.mktemp("site")
    (folder / "group_vars").mkdir()
    variables = {}
    for name in ("all.yml", "gpu_hosts.yml"):
        variables.update(yaml.safe_load((INVENTORY / "group_vars" / name).read_text()))
    variables.update(lab_directory=str(REPOSITORY / ".lab"), gpu_layout=[{"gpus": "all", "sharing": "shared"}])
    (folder / "group_vars" / "all.yml").write_text(yaml.safe_dump(variables))
    (text,) = how_to.blocks(PAGE, "yaml")
    # The page asks the reader to add services that use GPUs.
    asked = {"gpu_drain_services: [": "gpu_drain_services: [client, ", VERSION_OF_PAGE: NEW}
    for words, others in asked.items():
        assert words in text
        text = text.replace(words, others)
    (folder / "group_vars" / "gpu_hosts.yml").write_text(text)
    (folder / "hosts.yml").write_text(yaml.safe_dump({"gpu_hosts": {"hosts": {HOST: {"lab_slurm_node": NODE}}}}))
    play_quietly("tests/lab/slurm.yml", "slurm.log", "-i", str(folder / "hosts.yml"))

    def run(command: str, status: int = 0) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env={**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stdout
        return " ".join(done.stdout.split())

    return run


def wait_until(host, command: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while host.run(command).rc != 0:
        assert time.monotonic() < deadline, host.run("squeue; sinfo").stdout
        time.sleep(0.2)


@pytest.mark.thorough
def test_the_driver_is_upgraded_between_two_jobs(site, lab_host):
    host = lab_host(HOST)
    plan, canary, fleet, verify = how_to.commands(PAGE, "$")
    host.check_output("rm -f /srv/first /srv/second")
    host.check_output(f"sbatch --gres=gpu:1 --wrap '{FIRST}'")
    wait_until(host, "squeue --noheader --states=running | grep -q wrap")
    host.check_output(f"sbatch --gres=gpu:4 --wrap '{SECOND}'")

    host.check_output("systemd-run --quiet --unit=training sh -c 'exec sleep infinity </dev/nvidia1'")
    refused = site(plan, status=2)
    assert "whose driver would change, is in use by pid " in refused and "training.service" in refused
    assert "Slurm job" not in refused
    host.check_output("systemctl stop training")

    planned = site(plan)
    assert f"+upgrade nvidia-driver-cuda {OLD}-1 to {NEW}-1" in planned
    assert f"+reboot: the loaded kernel module is {OLD}" in planned
    assert host.check_output(f"cat {LOADED}") == OLD
    assert host.run("test -e /srv/first").rc != 0

    site(canary)
    assert host.check_output(f"cat {LOADED}") == NEW
    # The first job ended before the change, and the second one started after it.
    wait_until(host, "test -s /srv/second")
    assert host.check_output("cat /srv/first /srv/second").split() == [OLD, NEW]
    assert host.service("client").is_running
    assert f"{HOST} : ok=" in site(fleet)
    assert f"nothing to do: {HOST}" in site(verify)
