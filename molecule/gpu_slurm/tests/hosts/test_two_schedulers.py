# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Move a host from Slurm to Kubernetes and back, as the how-to says.

Slurm, the API server and site.yml are real. tests/kubernetes/node_stand_in.py simulates the kubelet and the device plugin.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess

import pytest
import yaml
from slurm_host import INVENTORY, MIXED, NODE, layout

from tests import how_to
from tests.kubernetes import control_plane
from tests.kubernetes.node_stand_in import LABEL, NodeStandIn, install_plugin, role_account
from tests.lab.lab_fixtures import REPOSITORY

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(os.environ.get("KUBERNETES") == "skip" or not shutil.which("go"), reason="no Kubernetes"),
]
PAGE = "slurm-and-kubernetes.md"
OFFERED = {"nvidia.com/gpu": 3, "nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-1g.10gb": 2}
GRES = "gpu:3g.40gb:1,gpu:1g.10gb:2,gpu:h100:3"


@pytest.fixture
def plane(tmp_path):
    with control_plane.running(tmp_path / "api-server") as running:
        running.role_kubeconfig = role_account(running)
        install_plugin(running)
        yield running


@pytest.fixture
def move(plane, tmp_path):
    """Return a function that writes the inventory.

    The function adds the host to the given scheduler's group.
    """
    path = tmp_path / "hosts.yml"
    lab = yaml.safe_load((INVENTORY / "hosts.yml").read_text())["gpu_hosts"]["vars"]
    podman = str(REPOSITORY / ".lab/bin/podman")
    slurm = {name: lab.pop(name) for name in list(lab) if name.startswith("gpu_slurm_")}
    kubernetes = {
        "gpu_kubernetes_backend": "nvidia_device_plugin",
        "gpu_kubernetes_node": NODE,
        "gpu_kubernetes_kubeconfig": str(plane.role_kubeconfig),
        # The stand-in reads the ConfigMap directly.
        "gpu_kubernetes_config_delay": 0,
        "gpu_kubernetes_poll": 1,
    }
    variables = {**lab, "gpu_layout": layout(MIXED), "ansible_podman_executable": podman, "gpu_drain_poll": 1}

    def write(scheduler):
        hosts = {name: {"one": {}} if name == scheduler else {} for name in ("slurm", "kubernetes")}
        groups = {
            "slurm_gpus": {"hosts": hosts["slurm"], "vars": slurm},
            "kubernetes_gpus": {"hosts": hosts["kubernetes"], "vars": kubernetes},
        }
        path.write_text(yaml.safe_dump({"gpu_hosts": {"children": groups, "vars": variables}}))
        return path

    return write


def run(command, inventory, limit="one"):
    """Run a command of the page on the lab's host, and return its output as one line."""
    for name, value in (("hosts.yml", inventory), ("openfleet.gpu.site", "playbooks/site.yml"), ("h100-01", limit)):
        command = command.replace(name, str(value))
    done = subprocess.run(command, shell=True, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return " ".join(done.stdout.split())


def instances_of(host):
    """Return the MIG instances of each GPU as [(profile, start)]."""
    return {
        gpu["index"]: [(one["profile"], one["placement"]["start"]) for one in gpu["mig"]["instances"]]
        for gpu in host.gpus()["gpus"]
    }


def test_host_moves_to_kubernetes_and_back(host, plane, move):
    host.reset(layout(MIXED))
    instances = host.types()
    job, _environment = host.submit("gpu:3g.40gb:1")
    leave_slurm, keep_jobs_off, plan, apply, empty, leave_kubernetes, again, resume = how_to.commands(PAGE, "$")
    inventory = move("slurm")

    # The run drains the node. Then its job ends.
    ends = f"until scontrol -o show node {NODE} | grep -q +DRAIN; do sleep 0.2; done; scancel {job}"
    host.ask(f"systemd-run --quiet sh -c {shlex.quote(ends)}")
    said = run(leave_slurm, inventory)
    assert f"node {NODE}: gres none (was {GRES}" in said and f"all GPU jobs must end first: {job}" in said
    assert host.node()["Gres"] == "(null)"
    host.ask(keep_jobs_off.replace("h100-01", NODE))
    assert host.state(job).startswith("JobState=CANCELLED")

    inventory = move("kubernetes")
    with NodeStandIn(plane, NODE, lambda: instances_of(host), {LABEL: "default"}) as node:
        assert "nvidia.com/mig-1g.10gb" in run(plan, inventory)
        run(apply, inventory)
        assert node.offers() == OFFERED
        node.add_pod("train")
        plane.kubectl(*shlex.split(empty.replace("h100-01", NODE))[1:])
        assert "train" not in node.pods()
        run(leave_kubernetes, inventory)
        assert node.labels()[LABEL] == "default"

    run(again, move("slurm"))
    assert host.node()["Gres"].partition("(")[0] == GRES
    host.ask(resume.replace("h100-01", NODE))
    host.submit("gpu:3g.40gb:1")
    # The same instances exist, with the same UUIDs.
    assert host.types() == instances
    assert not re.search("INVAL|DRAIN", host.node()["State"])
