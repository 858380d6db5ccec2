# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the resources that nodes offer for a layout, and pods that request them.

NVIDIA's device plugin and the kubelet are real.
"""

from __future__ import annotations

import json

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_changes import kubernetes_changes
from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_mapping import kubernetes_mapping
from tests.kubernetes.cluster import NODES, sleeper

#: The nodes' GPUs in inventory/group_vars.
GPUS = ["H100-80GB"] * 4
CONFIG_MAP = "/api/v1/namespaces/nvidia-device-plugin/configmaps/openfleet-gpu-device-plugin"

EXCLUSIVE = [{"gpus": "all", "sharing": "exclusive"}]
SLICED = [{"gpus": "all", "sharing": "time_slicing", "time_slicing": {"slice": "default", "replicas": 3}}]
MIXED = [
    {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 2}]},
    {"gpus": [1], "sharing": "mig", "mig": [{"profile": "2g.20gb", "count": 3}]},
    {"gpus": [2, 3], "sharing": "exclusive"},
]
MEDIA = [
    {"gpus": [0], "sharing": "mig", "mig": [{"profile": "1g.10gb+me"}, {"profile": "1g.10gb", "count": 2}]},
    {"gpus": [1, 2, 3], "sharing": "exclusive"},
]
UNIFORM = [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]


@pytest.fixture
def pods(cluster):
    """Return a function that creates pods.

    The fixture deletes the pods after the test.
    """

    created = []

    def create(*wanted):
        for pod in wanted:
            made = cluster.plane.call("POST", "/api/v1/namespaces/default/pods", pod)
            created.append(made["metadata"]["uid"])

    yield create
    cluster.delete_pods()
    # The kubelet keeps a pod's folder for a moment. Until then, the pod's devices count as held.
    folders = "ls -d $(printf '/var/lib/kubelet/pods/%%s ' %s) 2>/dev/null" % " ".join(created)
    for node in NODES if created else ():
        cluster.plane.wait(
            lambda node=node: not cluster.run(node, "sh", "-c", folders, check=False),
            "no pods of the test on %s" % node,
        )


def mapped(layout, node, mig_strategy="mixed"):
    mapping = kubernetes_mapping(
        layout, "nvidia_device_plugin", expected_gpus=GPUS, node=node, mig_strategy=mig_strategy
    )
    assert not mapping["problems"]
    return mapping


def lay_out(cluster, node, layout, mig_strategy="mixed", offered=None):
    """Apply the layout and the mapping's configuration, and wait for the node's offer.

    `offered` replaces the expected resources.
    """
    mapping = mapped(layout, node, mig_strategy)
    offered = offered or mapping["resources"]
    cluster.play("tests/kubernetes/layout.yml", "--limit", node, "--extra-vars", json.dumps({"gpu_layout": layout}))
    configure(cluster, node, mapping)
    restart_plugin(cluster, node)
    registers(cluster, node, len(offered))
    cluster.offers(node, offered)


def configure(cluster, node, mapping):
    """Write the configuration to the ConfigMap, and select it with the node's label.

    The ConfigMap's key is the name of the configuration. The label is set after the volume on the node has this key.
    """
    key = mapping["config_name"]
    cluster.plane.merge(CONFIG_MAP, {"data": {key: yaml.safe_dump(mapping["config"])}})
    volume = "/var/lib/kubelet/pods/*/volumes/kubernetes.io~configmap/configs/%s" % key
    cluster.plane.wait(
        lambda: cluster.run(node, "sh", "-c", "ls %s 2>/dev/null" % volume, check=False), "%s on %s" % (key, node)
    )
    cluster.plane.merge("/api/v1/nodes/%s" % node, {"metadata": {"labels": mapping["labels"]}})


def discovered(cluster, node, mapping):
    """Return the resources that NVIDIA's feature discovery reports in its labels.

    The labels are those for the mapping's configuration.
    """
    config = "/var/lib/kubelet/pods/*/volumes/kubernetes.io~configmap/configs/%s" % mapping["config_name"]
    words = "--oneshot --no-timestamp --use-node-feature-api=false --output-file=/run/gfd/labels"
    script = "mkdir -p /run/gfd; %s %s --config-file=$(ls %s | head -n 1) >&2; cat /run/gfd/labels" % (
        "/opt/openfleet-lab/kubernetes/gpu-feature-discovery",
        words,
        config,
    )
    labels = dict(line.split("=", 1) for line in cluster.run(node, "sh", "-ec", script).splitlines())
    counts = {name[: -len(".count")]: int(value) for name, value in labels.items() if name.endswith(".count")}
    # For GPUs in MIG mode, the number of replicas is 0, which means that pods do not share them.
    return {name: count * (int(labels["%s.replicas" % name]) or 1) for name, count in counts.items()}


def plugin_pods(cluster, node):
    path = "/api/v1/namespaces/nvidia-device-plugin/pods?fieldSelector=spec.nodeName%3D" + node
    return cluster.plane.call("GET", path)["items"]


def restart_plugin(cluster, node):
    """Delete the node's pod of the plugin, so that the DaemonSet creates another one.

    NVIDIA's documentation requires this after a change of MIG.
    """
    for pod in plugin_pods(cluster, node):
        name = pod["metadata"]["name"]
        cluster.plane.call("DELETE", "/api/v1/namespaces/nvidia-device-plugin/pods/%s?gracePeriodSeconds=0" % name)


def registers(cluster, node, resources):
    """Wait until the node's plugin pod has registered these numbers of resources.

    Until then the node still has the values of the previous pod, and refuses pods that request them.
    """

    def registered():
        pods = [pod["metadata"] for pod in plugin_pods(cluster, node) if "deletionTimestamp" not in pod["metadata"]]
        if len(pods) != 1:
            return False
        folder = "/var/log/pods/nvidia-device-plugin_%s_%s/nvidia-device-plugin-ctr" % (pods[0]["name"], pods[0]["uid"])
        log = cluster.run(node, "sh", "-c", "cat %s/*.log" % folder, check=False)
        return log.count("Registered device plugin for") >= resources

    cluster.plane.wait(registered, "the plugin on %s registers %d resources" % (node, resources))


def holders(cluster, node):
    """Return the GPU holders of kind kubelet as (GPU UUID, GPU instance, description)."""
    info = cluster.module(node, "openfleet.gpu.gpu_info", {"holders": True})
    return [
        (gpu["uuid"], holder["gpu_instance_id"], holder["job"], holder["who"])
        for gpu in info["gpus"]
        for holder in gpu["holders"]
        if holder["kind"] == "kubelet"
    ]


def mig_devices(cluster, node):
    """Return (GPU UUID, GPU instance, profile) for each MIG device by UUID."""
    info = cluster.module(node, "openfleet.gpu.gpu_info")
    return {
        compute["mig_uuid"]: (gpu["uuid"], instance["id"], instance["profile"])
        for gpu in info["gpus"]
        for instance in gpu["mig"]["instances"]
        for compute in instance["compute_instances"]
    }


@pytest.mark.parametrize(
    ("layout", "strategy"),
    [(EXCLUSIVE, "mixed"), (SLICED, "mixed"), (MIXED, "mixed"), (UNIFORM, "single")],
    ids=["exclusive", "time slicing", "mixed", "single"],
)
def test_node_offers_the_mapped_resources(cluster, plugin, layout, strategy):
    lay_out(cluster, "node1", layout, strategy)
    mapping = mapped(layout, "node1", strategy)
    promised = mapping["resources"]
    if layout is MIXED:
        # Feature discovery counts GPUs in MIG mode as whole GPUs too.
        promised = {**promised, "nvidia.com/gpu": len(GPUS)}
    assert discovered(cluster, "node1", mapping) == promised


def test_plugin_that_miscounts_media_extensions_is_reported(cluster, plugin):
    """Report a plugin that miscounts media extensions.

    Releases before 0.20 do so on real GPUs too: https://github.com/NVIDIA/k8s-device-plugin/issues/1462.
    """
    lay_out(cluster, "node1", MEDIA, offered={"nvidia.com/gpu": 3, "nvidia.com/mig-1g.10gb": 3})
    found = kubernetes_changes(mapped(MEDIA, "node1"), cluster.node("node1"), name="node1")
    assert found["pending"] == {"nvidia.com/mig-1g.10gb": [2, 3], "nvidia.com/mig-1g.10gb.me": [1, 0]}
    assert "the device plugin before release 0.20 counts instances" in found["pending_text"]


def test_changed_label_changes_the_offer_without_a_restart(cluster, plugin):
    lay_out(cluster, "node1", EXCLUSIVE)
    lay_out(cluster, "node2", EXCLUSIVE)
    before = plugin_pods(cluster, "node1")
    sliced = mapped(SLICED, "node1")
    configure(cluster, "node1", sliced)
    cluster.offers("node1", sliced["resources"])
    cluster.offers("node2", mapped(EXCLUSIVE, "node2")["resources"])
    after = plugin_pods(cluster, "node1")
    assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in before]
    plugin = [each for pod in after for each in pod["status"]["containerStatuses"] if each["name"].endswith("-ctr")]
    assert [each["restartCount"] for each in plugin] == [0]


def test_pod_gets_its_requested_instance(cluster, plugin, pods):
    lay_out(cluster, "node1", MIXED)
    # The other node offers only whole GPUs, so the scheduler has no choice.
    lay_out(cluster, "node2", EXCLUSIVE)
    pods(sleeper("large", {"nvidia.com/mig-3g.40gb": 1}), sleeper("medium", {"nvidia.com/mig-2g.20gb": 1}))
    devices = mig_devices(cluster, "node1")
    held = []
    for name, profile in (("large", "3g.40gb"), ("medium", "2g.20gb")):
        pod = cluster.runs(name)
        assert pod["spec"]["nodeName"] == "node1"
        [uuid] = cluster.visible_devices(pod)
        gpu, instance, found = devices[uuid]
        assert found == profile
        held.append((gpu, instance, pod["metadata"]["uid"], "default/%s" % name))
    seen = [
        (gpu, instance, job, who.partition("of pod ")[2].split(" ")[0])
        for gpu, instance, job, who in holders(cluster, "node1")
    ]
    assert sorted(seen) == sorted(held)
    assert holders(cluster, "node2") == []


def test_pod_waits_until_its_node_offers_the_request(cluster, plugin, pods):
    lay_out(cluster, "node1", MIXED)
    there = {"kubernetes.io/hostname": "node1"}
    pods(sleeper("first", {"nvidia.com/mig-3g.40gb": 1}, nodeSelector=there))
    cluster.runs("first")
    pods(sleeper("second", {"nvidia.com/mig-3g.40gb": 1}, nodeSelector=there))

    def refused():
        conditions = cluster.pod("second")["status"].get("conditions", [])
        return any("Insufficient nvidia.com/mig-3g.40gb" in each.get("message", "") for each in conditions)

    cluster.plane.wait(refused, "the scheduler refuses the second")
    cluster.plane.call("DELETE", "/api/v1/namespaces/default/pods/first")
    cluster.runs("second")


def test_replicas_of_a_gpu_are_reported_as_the_gpu(cluster, plugin, pods):
    lay_out(cluster, "node1", SLICED)
    lay_out(cluster, "node2", MIXED)
    names = ["replica-%d" % number for number in range(12)]
    pods(*(sleeper(name, {"nvidia.com/gpu": 1}, nodeName="node1") for name in names))
    given = [cluster.visible_devices(cluster.runs(name)) for name in names]
    gpus = {gpu["uuid"] for gpu in cluster.module("node1", "openfleet.gpu.gpu_info")["gpus"]}
    assert sorted(uuid for uuids in given for uuid in uuids) == sorted([*gpus] * 3)
    assert sorted(gpu for gpu, _instance, _job, _who in holders(cluster, "node1")) == sorted([*gpus] * 3)


def test_old_resources_are_zero_after_a_change_and_other_pods_stay(cluster, plugin, pods):
    lay_out(cluster, "node1", MIXED)
    pods(sleeper("stays", {"nvidia.com/mig-3g.40gb": 1}, nodeName="node1"))
    before = cluster.runs("stays")
    changed = [MIXED[0], {"gpus": [1], "sharing": "mig", "mig": [{"profile": "4g.40gb"}]}, MIXED[2]]
    lay_out(cluster, "node1", changed)
    offered = cluster.allocatable("node1")
    assert offered["nvidia.com/mig-4g.40gb"] == 1
    assert offered.get("nvidia.com/mig-2g.20gb", 0) == 0
    after = cluster.runs("stays")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [each["restartCount"] for each in after["status"]["containerStatuses"]] == [0]
    assert [job for _gpu, _instance, job, _who in holders(cluster, "node1")] == [before["metadata"]["uid"]]


def test_layout_that_destroys_a_pods_device_is_refused(cluster, plugin, pods):
    lay_out(cluster, "node1", MIXED)
    pods(sleeper("holds", {"nvidia.com/mig-3g.40gb": 1}, nodeName="node1"))
    cluster.runs("holds")
    wanted = json.dumps({"gpu_layout": [{"gpus": [0], "sharing": "exclusive"}, *MIXED[1:]]})
    done = cluster.play("tests/kubernetes/layout.yml", "--limit", "node1", "--extra-vars", wanted, check=False)
    assert done.returncode != 0 and "default/holds" in done.stdout
    assert cluster.allocatable("node1")["nvidia.com/mig-3g.40gb"] == 1


#: Files for the kubelet's option --config-dir, in the order in which it reads them.
DROP_INS = {
    "10-site.conf": {"topologyManagerPolicy": "restricted", "topologyManagerScope": "pod"},
    "20-node.conf": {"topologyManagerPolicy": "best-effort"},
}
ACTIVE = """
import json, ssl, urllib.request
with urllib.request.urlopen("https://127.0.0.1:10250/configz", context=ssl._create_unverified_context()) as answer:
    print(json.dumps(json.load(answer)["kubeletconfig"]))
"""


def test_policies_are_those_of_the_running_kubelet(cluster):
    folder = "/etc/kubernetes/kubelet.conf.d"
    for name, fields in DROP_INS.items():
        data = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", **fields}
        text = yaml.safe_dump(data)
        cluster.run("node1", "sh", "-c", 'printf %%s "$1" >%s/%s' % (folder, name), "sh", text)

    def active():
        """Return the kubelet's own answer, or an empty mapping until it responds."""
        return json.loads(cluster.run("node1", "python3", "-c", ACTIVE, check=False) or "{}")

    try:
        cluster.run("node1", "systemctl", "restart", "kubelet")
        cluster.plane.wait(lambda: active().get("topologyManagerScope") == "pod", "the kubelet reads the files")
        found = cluster.module("node1", "openfleet.gpu.kubelet_info")
        assert (found["config"], found["config_dir"]) == ("/etc/kubernetes/kubelet.yml", folder)
        fields = ("topologyManagerPolicy", "topologyManagerScope", "cpuManagerPolicy", "memoryManagerPolicy")
        policies = ("topology_policy", "topology_scope", "cpu_policy", "memory_policy")
        assert [found[name] for name in policies] == [active()[name] for name in fields]
        assert found["topology_policy"] == "best-effort"
    finally:
        cluster.run("node1", "sh", "-c", "rm %s/*.conf && systemctl restart kubelet" % folder)
        cluster.plane.wait(lambda: active().get("topologyManagerScope") == "container", "the kubelet starts again")
