# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layouts of nodes as a real kubelet offers them.

What publishes the devices stands in for NVIDIA's device plugin (kube/deviceplugin). So these tests say nothing of its rules; they
say how kubelet and API server take what the mapping has.
"""

from __future__ import annotations

import json

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_mapping import kubernetes_mapping

#: The nodes' GPUs, as inventory/group_vars says.
GPUS = ["H100-80GB"] * 4
CONFIG_MAP = "/api/v1/namespaces/nvidia-device-plugin/configmaps/openfleet-gpu-device-plugin"

EXCLUSIVE = [{"gpus": "all", "sharing": "exclusive"}]
SLICED = [{"gpus": "all", "sharing": "time_slicing", "time_slicing": {"slice": "default", "replicas": 3}}]
MIXED = [
    {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 2}]},
    {"gpus": [1], "sharing": "mig", "mig": [{"profile": "2g.20gb", "count": 3}, {"profile": "1g.10gb+me"}]},
    {"gpus": [2, 3], "sharing": "exclusive"},
]
UNIFORM = [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]


def mapped(layout, node, mig_strategy="mixed"):
    mapping = kubernetes_mapping(
        layout, "nvidia_device_plugin", expected_gpus=GPUS, node=node, mig_strategy=mig_strategy
    )
    assert not mapping["problems"]
    return mapping


def lay_out(cluster, node, layout, mig_strategy="mixed"):
    """Bring the node to the layout, give it the mapping's configuration, and return once the node offers what it says."""
    mapping = mapped(layout, node, mig_strategy)
    cluster.play("tests/kubernetes/layout.yml", "--limit", node, "--extra-vars", json.dumps({"gpu_layout": layout}))
    configure(cluster, node, mapping)
    restart_plugin(cluster, node)
    cluster.offers(node, mapping["resources"])


def configure(cluster, node, mapping):
    """Write the configuration to the ConfigMap, wait until the node's volume has the key, and move the label to it."""
    key = mapping["config_name"]
    cluster.plane.merge(CONFIG_MAP, {"data": {key: yaml.safe_dump(mapping["config"])}})
    volume = "/var/lib/kubelet/pods/*/volumes/kubernetes.io~configmap/configs/%s" % key
    cluster.plane.wait(
        lambda: cluster.run(node, "sh", "-c", "ls %s 2>/dev/null" % volume, check=False), "%s on %s" % (key, node)
    )
    cluster.plane.merge("/api/v1/nodes/%s" % node, {"metadata": {"labels": mapping["labels"]}})


def plugin_pods(cluster, node):
    path = "/api/v1/namespaces/nvidia-device-plugin/pods?fieldSelector=spec.nodeName%3D" + node
    return cluster.plane.call("GET", path)["items"]


def restart_plugin(cluster, node):
    """Delete the node's pod of the plugin, as NVIDIA says to do after a change of MIG; the DaemonSet makes another."""
    for pod in plugin_pods(cluster, node):
        name = pod["metadata"]["name"]
        cluster.plane.call("DELETE", "/api/v1/namespaces/nvidia-device-plugin/pods/%s?gracePeriodSeconds=0" % name)


@pytest.mark.parametrize(
    ("layout", "strategy"),
    [(EXCLUSIVE, "mixed"), (SLICED, "mixed"), (MIXED, "mixed"), (UNIFORM, "single")],
    ids=["exclusive", "time slicing", "mixed", "single"],
)
def test_a_node_offers_what_the_mapping_says(cluster, plugin, layout, strategy):
    lay_out(cluster, "node1", layout, strategy)


def test_a_moved_label_changes_what_a_node_offers_without_a_restart(cluster, plugin):
    lay_out(cluster, "node1", EXCLUSIVE)
    lay_out(cluster, "node2", EXCLUSIVE)
    before = plugin_pods(cluster, "node1")
    sliced = mapped(SLICED, "node1")
    configure(cluster, "node1", sliced)
    cluster.offers("node1", sliced["resources"])
    cluster.offers("node2", mapped(EXCLUSIVE, "node2")["resources"])
    after = plugin_pods(cluster, "node1")
    assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in before]
    assert [each["restartCount"] for pod in after for each in pod["status"]["containerStatuses"]] == [0]
