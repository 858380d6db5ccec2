# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a pod gets its device nodes through CDI.

The test uses Debian 13's containerd and NVIDIA's device plugin. It runs in `make test-thorough` with
LAB_RELEASE=trixie, because Debian 12's containerd does not support CDI.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_mapping import kubernetes_mapping
from tests.kubernetes import cdi
from tests.kubernetes import cluster as clusters

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        os.environ.get("LAB_RELEASE") != "trixie", reason="CDI wants containerd 1.7 (LAB_RELEASE=trixie)"
    ),
]

NODE = "node1"
#: Path on the node (cluster.Cluster).
HOOK = "/opt/openfleet-lab/kubernetes/nvidia-cdi-hook"
LAYOUT = [
    {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 2}]},
    {"gpus": [1, 2, 3], "sharing": "exclusive"},
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Start a cluster of one node, and add the programs that CDI needs."""
    with clusters.running(tmp_path_factory.mktemp("cdi") / "plane", [NODE]) as found:
        # This playbook also copies NVML's bindings to the node.
        found.play("tests/kubernetes/layout.yml", "--limit", NODE, "--extra-vars", json.dumps({"gpu_layout": LAYOUT}))
        cdi.enable(found, NODE)
        found.apply(*plugin_with_cdi())
        yield found


def plugin_with_cdi():
    """Return the objects of device-plugin.yml with CDI enabled.

    The plugin then returns CDI device names, and sets the variable NVIDIA_VISIBLE_DEVICES as without CDI.
    """
    objects = list(yaml.safe_load_all(Path(__file__).with_name("device-plugin.yml").read_text()))
    spec = copy.deepcopy(objects[-1]["spec"]["template"]["spec"])
    [plugin] = [each for each in spec["containers"] if each["name"] == "nvidia-device-plugin-ctr"]
    given = {"DEVICE_LIST_STRATEGY": "envvar,cdi-cri", "NVIDIA_CDI_HOOK_PATH": HOOK, "DRIVER_ROOT_CTR_PATH": "/"}
    plugin["env"] += [{"name": name, "value": value} for name, value in given.items()]
    plugin["volumeMounts"].append({"name": "cdi", "mountPath": "/var/run/cdi"})
    spec["volumes"].append({"name": "cdi", "hostPath": {"path": "/var/run/cdi", "type": "DirectoryOrCreate"}})
    objects[-1]["spec"]["template"]["spec"] = spec
    return objects


def test_pod_sees_only_device_nodes_of_its_instance(cluster):
    planned = kubernetes_mapping(LAYOUT, "nvidia_device_plugin", expected_gpus=["H100-80GB"] * 4, node=NODE)
    given = {
        "gpu_layout": LAYOUT,
        "gpu_kubernetes_kubeconfig": str(cluster.role_kubeconfig()),
        # This node's kubelet applies a new key within 5 s (node/kubelet.yml).
        "gpu_kubernetes_config_delay": 10,
        "gpu_kubernetes_poll": 1,
    }
    cluster.play("site.yml", "--limit", NODE, "--extra-vars", json.dumps(given))
    cluster.offers(NODE, planned["resources"])
    pods = {}
    for name, resource in (
        ("large", "nvidia.com/mig-3g.40gb"),
        ("small", "nvidia.com/mig-1g.10gb"),
        ("whole", "nvidia.com/gpu"),
    ):
        pod = clusters.sleeper(name, {resource: 1})
        pod["spec"]["containers"][0]["command"] = ["sh", "-c", cdi.LIST_NODES]
        cluster.apply(pod)
        pods[name] = cdi.nodes_in(cluster, cluster.runs(name))
    gpus = {name: {node for node in nodes if node[len("/dev/nvidia") :].isdigit()} for name, nodes in pods.items()}
    capabilities = {name: {node for node in nodes if "/nvidia-cap" in node} for name, nodes in pods.items()}
    assert gpus["large"] == gpus["small"] == {"/dev/nvidia0"}
    assert len(gpus["whole"]) == 1 and gpus["whole"] < {"/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3"}
    # Each pod has one node for its GPU instance and one for its compute instance, and none of its neighbour's nodes.
    assert len(capabilities["large"]) == len(capabilities["small"]) == 2 and not capabilities["whole"]
    assert not capabilities["large"] & capabilities["small"]
