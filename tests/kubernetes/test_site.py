# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run site.yml on a real cluster, with only the rights of the role's manifest.

API server, scheduler, controllers, kubelets and device plugin are real.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from tests.kubernetes.cluster import sleeper, sleeping

PLUGIN = Path(__file__).with_name("device-plugin.yml")
NAMESPACE = "nvidia-device-plugin"

FIRST = [
    {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]},
    {"gpus": [1], "sharing": "mig", "mig": [{"profile": "2g.20gb", "count": 3}]},
    {"gpus": [2, 3], "sharing": "exclusive"},
]
SECOND = [FIRST[0], {"gpus": [1], "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]}, FIRST[2]]


@pytest.fixture(scope="module")
def site(cluster, plugin):
    """Return a function that applies a layout to nodes with site.yml.

    The account has only the rights of rbac.yml.
    """
    kubeconfig = cluster.role_kubeconfig()

    def run(layout, nodes="gpu_hosts", check=False, fails=False, **variables):
        given = {
            "gpu_layout": layout,
            "gpu_kubernetes_kubeconfig": str(kubeconfig),
            # The kubelet of this node applies a new key within 5 s (node/kubelet.yml).
            "gpu_kubernetes_config_delay": 10,
            "gpu_kubernetes_poll": 1,
            "gpu_layout_on_busy": "drain",
            "gpu_drain_kubernetes": True,
            **variables,
        }
        options = ["--check"] if check else []
        options += ["--limit", nodes, "--extra-vars", json.dumps(given)]
        return cluster.play("site.yml", *options, check=not fails).stdout

    return run


def deployment(name, resources):
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": sleeping(resources)},
        },
    }


def test_change_evicts_only_the_pod_on_its_device(cluster, site):
    site(FIRST)
    offered = {"nvidia.com/gpu": 2, "nvidia.com/mig-3g.40gb": 2, "nvidia.com/mig-2g.20gb": 3}
    for node in ("node1", "node2"):
        cluster.offers(node, offered)
    # Both pods start on the node that changes. The other node has room for evicted pods.
    cluster.plane.kubectl("cordon", "node2")
    cluster.apply(sleeper("stays", {"nvidia.com/mig-3g.40gb": 1}), deployment("moves", {"nvidia.com/mig-2g.20gb": 1}))
    stays = cluster.runs("stays")
    cluster.plane.wait(lambda: cluster.pods("app=moves"), "a pod of the deployment")
    [moves] = cluster.pods("app=moves")
    cluster.runs(moves)
    cluster.plane.kubectl("uncordon", "node2")
    try:
        site(SECOND, nodes="node1")
        cluster.offers("node1", {"nvidia.com/gpu": 2, "nvidia.com/mig-3g.40gb": 2, "nvidia.com/mig-1g.10gb": 7})
        after = cluster.runs("stays")
        assert after["metadata"]["uid"] == stays["metadata"]["uid"]
        assert [each["restartCount"] for each in after["status"]["containerStatuses"]] == [0]
        cluster.plane.wait(
            lambda: cluster.pods("app=moves") not in ([], [moves]), "a pod in the place of the evicted one"
        )
        [moved] = cluster.pods("app=moves")
        assert cluster.runs(moved)["spec"]["nodeName"] == "node2"
        assert not cluster.node("node1")["spec"].get("unschedulable")
    finally:
        cluster.plane.kubectl("delete", "deployment", "moves", "--wait=false")
        cluster.delete_pods()


def test_a_second_run_writes_nothing_to_the_cluster(cluster, site):
    site(FIRST, nodes="node1")
    labels = cluster.node("node1")["metadata"]["labels"]
    plugin = cluster.pods("app.kubernetes.io/name=nvidia-device-plugin", "nvidia-device-plugin")
    done = site(FIRST, nodes="node1")
    assert re.search(r"^node1 .*changed=0 ", done, re.MULTILINE), done[-1500:]
    assert cluster.node("node1")["metadata"]["labels"] == labels
    assert cluster.pods("app.kubernetes.io/name=nvidia-device-plugin", "nvidia-device-plugin") == plugin


def test_role_installs_the_plugin_once(cluster, site, tmp_path):
    manifest = tmp_path / "plugin.yml"
    manifest.write_bytes(PLUGIN.read_bytes())
    installed = {
        "gpu_kubernetes_plugin_manifest": str(manifest),
        "gpu_kubernetes_plugin_sha256": hashlib.sha256(manifest.read_bytes()).hexdigest(),
        "gpu_kubernetes_plugin_kubeconfig": str(cluster.plane.kubeconfig),
    }
    cluster.plane.kubectl("--namespace", NAMESPACE, "delete", "daemonset", "nvidia-device-plugin", "--ignore-not-found")
    path = "/apis/apps/v1/namespaces/%s/daemonsets/nvidia-device-plugin" % NAMESPACE
    cluster.plane.wait(lambda: cluster.plane.find(path) is None, "no device plugin")
    planned = site(FIRST, "node1", check=True, **installed)
    assert "namespace nvidia-device-plugin: install the device plugin of %s" % manifest in " ".join(planned.split())
    assert cluster.plane.find(path) is None
    site(FIRST, "node1", **installed)
    assert cluster.plane.find(path)
    cluster.offers("node1", {"nvidia.com/gpu": 2, "nvidia.com/mig-3g.40gb": 2, "nvidia.com/mig-2g.20gb": 3})
    again = site(FIRST, "node1", **installed)
    assert re.search(r"^node1 .*changed=0 ", again, re.MULTILINE), again[-1500:]
    assert "install the device plugin" not in again


def test_plugin_that_does_not_restart_is_reported_and_next_run_continues(cluster, site):
    site(FIRST, nodes="node1")
    labels = cluster.node("node1")["metadata"]["labels"]
    plugin = "/apis/apps/v1/namespaces/nvidia-device-plugin/daemonsets/nvidia-device-plugin"
    pods = "/api/v1/namespaces/nvidia-device-plugin/pods?fieldSelector=spec.nodeName%3Dnode1"

    def on(node):
        """Run the DaemonSet's pods only on this node, or on all nodes if it is None."""
        selector = {"nodeSelector": {"kubernetes.io/hostname": node} if node else None}
        cluster.plane.merge(plugin, {"spec": {"template": {"spec": selector}}})

    on("node2")
    try:
        cluster.plane.wait(lambda: not cluster.plane.call("GET", pods)["items"], "no plugin on node1")
        failed = " ".join(site(SECOND, nodes="node1", fails=True, gpu_kubernetes_timeout=3).split())
    finally:
        on(None)
    assert "node1: node node1 does not offer the planned resources after 3 s: " in failed
    assert "nvidia.com/mig-1g.10gb 0 (planned 7)" in failed
    assert (
        "The device plugin: no pod. The layout is active on the host, and labels and configuration are kept." in failed
    )
    assert cluster.node("node1")["metadata"]["labels"] == labels
    site(SECOND, nodes="node1")
    cluster.offers("node1", {"nvidia.com/gpu": 2, "nvidia.com/mig-3g.40gb": 2, "nvidia.com/mig-1g.10gb": 7})


@pytest.mark.thorough
def test_crashing_plugin_is_reported_and_next_run_continues(cluster, site):
    site(FIRST, nodes="node1")
    command = "/spec/template/spec/containers/1/command"
    plugin = "/apis/apps/v1/namespaces/%s/daemonsets/nvidia-device-plugin" % NAMESPACE
    container = cluster.plane.call("GET", plugin)["spec"]["template"]["spec"]["containers"][1]
    assert container["name"] == "nvidia-device-plugin-ctr"

    def runs(words):
        patch = [{"op": "replace", "path": command, "value": words}]
        cluster.plane.call("PATCH", plugin, patch, "application/json-patch+json")

    runs(["sh", "-c", "exit 3"])
    try:
        failed = " ".join(site(SECOND, nodes="node1", fails=True, gpu_kubernetes_timeout=30).split())
    finally:
        runs(container["command"])
    assert "node1: node node1 does not offer the planned resources after 30 s: " in failed
    assert re.search(r"container nvidia-device-plugin-ctr (waits \(CrashLoopBackOff|has ended \(Error)", failed), (
        failed[-3000:]
    )
    site(SECOND, nodes="node1")
    cluster.offers("node1", {"nvidia.com/gpu": 2, "nvidia.com/mig-3g.40gb": 2, "nvidia.com/mig-1g.10gb": 7})
