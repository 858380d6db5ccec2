# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run NVIDIA's mig-manager on a node with a layout.

mig-manager, mig-parted, the kubelet and the API server are real, and the GPUs are simulated.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.go_programs import GoModule
from tests.kubernetes.test_nodes import mig_devices

pytestmark = pytest.mark.thorough

NODE = "node1"
APP = "app=nvidia-mig-manager"
DEPLOYED, CONFIG, STATE = "nvidia.com/gpu.deploy.mig-manager", "nvidia.com/mig.config", "nvidia.com/mig.config.state"
GUARD = {DEPLOYED: "false", CONFIG: "managed-by-openfleet-gpu"}
LAYOUT = [
    {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 2}]},
    {"gpus": [1, 2, 3], "sharing": "exclusive"},
]
_PARTED = "github.com/NVIDIA/mig-parted"
_NAMES = ("nvidia-mig-manager", "nvidia-mig-parted")


@pytest.fixture(scope="module")
def mig_manager(cluster, plugin):
    """Install mig-manager with NVIDIA's example configurations.

    mig-manager runs on nodes with the operator's label.
    """
    module = GoModule("mig_manager", cgo=True)
    for name in _NAMES:
        shutil.copy(module.build("%s/cmd/%s" % (_PARTED, name)) / name, cluster.folder)
    shutil.copy(module.source(_PARTED) / "examples" / "config.yaml", cluster.folder / "mig-parted.yaml")
    cluster.apply(*yaml.safe_load_all(Path(__file__).with_name("mig-manager.yml").read_text()))
    yield
    set_labels(cluster, {DEPLOYED: None, CONFIG: None, STATE: None})
    cluster.plane.kubectl("delete", "namespace", "gpu-operator", "--wait=false")


def set_labels(cluster, labels):
    cluster.plane.merge("/api/v1/nodes/%s" % NODE, {"metadata": {"labels": labels}})


def labels_of(cluster):
    return cluster.node(NODE)["metadata"]["labels"]


def play(cluster, playbook, **variables):
    given = json.dumps({"gpu_layout": LAYOUT, **variables})
    return cluster.play(playbook, "--limit", NODE, "--extra-vars", given).stdout


def log_of(cluster):
    logs = "cat /var/log/pods/gpu-operator_nvidia-mig-manager-*/*/*.log"
    return cluster.run(NODE, "sh", "-c", logs, check=False)[-5000:]


def reaches(cluster, state):
    """Wait until mig-manager reports a state."""
    seen = [""]

    def holds():
        seen[0] = labels_of(cluster).get(STATE, "")
        return seen[0] == state

    try:
        cluster.plane.wait(holds, "mig-manager reports %s" % state)
    except AssertionError as error:
        raise AssertionError(
            "%s; it is %s\n%s\n%s" % (error, seen[0], log_of(cluster), cluster.diagnosis(NODE))
        ) from None


def test_mig_manager_destroys_a_layout_and_cannot_after_the_role(cluster, mig_manager):
    play(cluster, "tests/kubernetes/layout.yml")
    assert len(mig_devices(cluster, NODE)) == 3
    # The labels that the GPU operator writes.
    set_labels(cluster, {DEPLOYED: "true", CONFIG: "all-disabled"})
    reaches(cluster, "success")
    assert mig_devices(cluster, NODE) == {}, log_of(cluster)

    # The role finds a node on which mig-manager runs.
    kubernetes = {"gpu_kubernetes_kubeconfig": str(cluster.role_kubeconfig()), "gpu_kubernetes_poll": 1}
    output = " ".join(play(cluster, "site.yml", gpu_kubernetes_config_delay=10, **kubernetes).split())
    danger = "node node1: label %s is all-disabled (planned: %s), so mig-manager, if it runs on the node, applies all-disabled"
    assert danger % (CONFIG, GUARD[CONFIG]) in output
    assert cluster.pods(APP, "gpu-operator") == [] and GUARD.items() <= labels_of(cluster).items()
    devices = mig_devices(cluster, NODE)
    assert len(devices) == 3

    # Someone enables mig-manager on the node.
    set_labels(cluster, {DEPLOYED: "true", STATE: None})
    reaches(cluster, "failed")
    assert cluster.pods(APP, "gpu-operator") and mig_devices(cluster, NODE) == devices
    cluster.offers(NODE, {"nvidia.com/gpu": 3, "nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-1g.10gb": 2})
