# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Schedule pods on GPUs of a layout with Volcano.

API server, kubelet, NVIDIA's device plugin and Volcano are real. Volcano's vGPU plugin is simulated (volcano.VgpuPlugin).
"""

from __future__ import annotations

import json
import re

import pytest

from tests.kubernetes import volcano
from tests.kubernetes.beside import install_kinds
from tests.kubernetes.cluster import REPOSITORY, sleeper

pytestmark = pytest.mark.thorough

WHOLE = [{"gpus": "all", "sharing": "exclusive"}]
SLICED = [
    {"gpus": [0, 1], "sharing": "time_slicing", "time_slicing": {"slice": "default", "replicas": 4}},
    {"gpus": [2, 3], "sharing": "exclusive"},
]
RIGHTS = REPOSITORY / "roles" / "gpu_kubernetes" / "files" / "rbac-cluster.yml"
CONFIG_MAP = "/api/v1/namespaces/volcano-system/configmaps/volcano-scheduler-configmap"
KEY = "volcano-scheduler.conf"


@pytest.fixture(scope="module")
def site(cluster, plugin):
    """Return a function that runs site.yml.

    The account has the rights of rbac.yml and rbac-cluster.yml.
    """
    if volcano.why_not():
        pytest.skip(volcano.why_not())
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "volcano-system"}})
    metadata = {"name": "volcano-scheduler-configmap", "namespace": "volcano-system"}
    data = {KEY: volcano.default_configuration()}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    for folder in volcano.kinds():
        install_kinds(cluster.plane, folder)
    kubeconfig = cluster.role_kubeconfig()
    cluster.plane.kubectl("apply", "--filename=%s" % RIGHTS)

    def run(node, layout, *options, fails=False, **variables):
        given = {
            "gpu_layout": layout,
            "gpu_kubernetes_kubeconfig": str(kubeconfig),
            "gpu_kubernetes_config_delay": 10,
            "gpu_kubernetes_poll": 1,
            **variables,
        }
        return cluster.play(
            "site.yml", *options, "--limit", node, "--extra-vars", json.dumps(given), check=not fails
        ).stdout

    return run


def configuration(cluster):
    return cluster.plane.call("GET", CONFIG_MAP)["data"][KEY]


def pods_of_gang(name, count):
    return [
        sleeper("%s-%d" % (name, number), {"nvidia.com/gpu": 1}, nodeSelector={"kubernetes.io/hostname": "node1"})
        for number in range(count)
    ]


def keep_device_plugin_off(cluster, node):
    """Exclude the node in the affinity of the plugin's DaemonSet."""
    cluster.plane.kubectl("label", "node", node, "lab/without-device-plugin=")
    terms = [{"matchExpressions": [{"key": "lab/without-device-plugin", "operator": "DoesNotExist"}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    path = "/apis/apps/v1/namespaces/nvidia-device-plugin/daemonsets/nvidia-device-plugin"
    cluster.plane.merge(path, {"spec": {"template": {"spec": {"affinity": affinity}}}})


def test_a_gang_runs_only_if_all_its_pods_find_a_gpu(cluster, site):
    site("node1", WHOLE, gpu_kubernetes_hypernodes=True, gpu_slurm_switch="Rack_A")
    cluster.offers("node1", {"nvidia.com/gpu": 4})
    hyper_node = cluster.plane.call("GET", "/apis/topology.volcano.sh/v1alpha1/hypernodes/rack-a")
    names = {each["selector"]["exactMatch"]["name"] for each in hyper_node["spec"]["members"]}
    assert names == {"node1", "node2"}
    with volcano.running(cluster.plane, configuration(cluster)):
        cluster.apply(*volcano.gang("large", 5, pods_of_gang("large", 5)))
        path = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups/large"

        def unschedulable():
            status = cluster.plane.call("GET", path).get("status", {})
            return [each for each in status.get("conditions", []) if each["type"] == "Unschedulable"]

        cluster.plane.wait(unschedulable, "Volcano finds too few GPUs for the gang")
        assert all(not cluster.pod("large-%d" % number)["spec"].get("nodeName") for number in range(5))
        cluster.apply(*volcano.gang("fits", 3, pods_of_gang("fits", 3)))
        devices = {
            device for number in range(3) for device in cluster.visible_devices(cluster.runs("fits-%d" % number))
        }
        assert len(devices) == 3
        # Volcano reports how many nodes the HyperNode has.
        path = "/apis/topology.volcano.sh/v1alpha1/hypernodes/rack-a"
        cluster.plane.wait(
            lambda: cluster.plane.call("GET", path).get("status", {}).get("nodeCount") == 2, "nodes of the HyperNode"
        )
    cluster.delete_pods()


def test_vgpu_node_is_configured_checked_and_restored(cluster, site):
    default = configuration(cluster)
    # This playbook also copies NVML's bindings to the node.
    cluster.play("tests/kubernetes/layout.yml", "--limit", "node2", "--extra-vars", json.dumps({"gpu_layout": SLICED}))
    gpus = {
        gpu["uuid"]: gpu["memory_total_bytes"] >> 20
        for gpu in cluster.module("node2", "openfleet.gpu.gpu_info")["gpus"][:2]
    }
    given = {"gpu_kubernetes_backend": "volcano_vgpu"}
    cluster.offers("node2", {"nvidia.com/gpu": 4})
    refused = " ".join(site("node2", SLICED, "--check", fails=True, **given).split())
    assert "the device plugin offers nvidia.com/gpu 4, and the vGPU plugin would offer the same GPUs again" in refused
    assert all("(%s)" % uuid in refused for uuid in gpus)
    keep_device_plugin_off(cluster, "node2")
    cluster.offers("node2", {})
    plugin = volcano.VgpuPlugin(cluster.plane, "node2", gpus, 4)
    plugin.start()
    planned = " ".join(site("node2", SLICED, "--check", **given).split())
    assert "volcano-scheduler-configmap: add the plugin deviceshare" in planned
    site("node2", SLICED, **given)
    done = site("node2", SLICED, **given)
    assert re.search(r"^node2 .*changed=0 ", done, re.MULTILINE), done[-3000:]
    written = configuration(cluster)
    assert [line for line in written.splitlines() if "openfleet" not in line] == default.splitlines()
    path = "/api/v1/namespaces/kube-system/configmaps/volcano-vgpu-node-config"
    [entry] = json.loads(cluster.plane.call("GET", path)["data"]["config.json"])["nodeconfig"]
    assert entry["name"] == "node2" and len(entry["filterdevices"]["uuid"]) == 2

    with volcano.running(cluster.plane, written):
        for name, memory in (("beyond", 90000), ("small", 20000)):
            limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": memory}
            cluster.apply(sleeper(name, limits, schedulerName=volcano.SCHEDULER))
        allocated = cluster.runs("small")["metadata"]["annotations"]["volcano.sh/vgpu-ids-new"]
        assert any(allocated.startswith("%s,NVIDIA,20000," % uuid) for uuid in gpus), allocated
        assert not cluster.pod("beyond")["spec"].get("nodeName")
        cluster.plane.kubectl("delete", "pod", "beyond", "--wait=true")

        plugin.pause()
        node = "/api/v1/nodes/node2"
        cluster.plane.wait(
            lambda: "Deleted" in cluster.plane.call("GET", node)["metadata"]["annotations"][volcano.HANDSHAKE],
            "Volcano's scheduler gives the plugin up",
        )
        failed = " ".join(site("node2", SLICED, fails=True, gpu_kubernetes_timeout=5, **given).split())
        assert "cordon the node until the plugin runs" in failed
    plugin.start()
    done = site("node2", SLICED, **given)
    assert re.search(r"^node2 .*changed=0 ", done, re.MULTILINE), done[-3000:]
    site("node2", SLICED, gpu_kubernetes_state="absent", **given)
    assert configuration(cluster) == default
    assert json.loads(cluster.plane.call("GET", path)["data"]["config.json"])["nodeconfig"] == []
    assert "openfleet.gpu/backend" not in cluster.node("node2")["metadata"]["labels"]
    plugin.pause()
    cluster.delete_pods()
