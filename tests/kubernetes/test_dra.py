# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run site.yml on a node with NVIDIA's DRA driver.

The node has MIG, MPS, time slicing and whole GPUs at once. API server, scheduler, kubelet and DRA driver are real.
Requires Debian 13's containerd (LAB_RELEASE=trixie).
"""

from __future__ import annotations

import hashlib
import json
import os
import re

import pytest
import yaml

from tests.kubernetes import cdi, dra
from tests.kubernetes import cluster as clusters
from tests.kubernetes.cluster import REPOSITORY
from tests.kubernetes.dra import NODE

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        os.environ.get("LAB_RELEASE") != "trixie", reason="CDI wants containerd 1.7 (LAB_RELEASE=trixie)"
    ),
]

README = REPOSITORY / "roles" / "gpu_kubernetes" / "README.md"
MIG = {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 2}]}
REST = [
    {
        "gpus": [1],
        "sharing": "mps",
        "mps": {"name": "inference", "clients": 4, "active_thread_percentage": 25, "pinned_memory_limit": "18GiB"},
    },
    {"gpus": [2], "sharing": "time_slicing", "time_slicing": {"slice": "long", "replicas": 4}},
    {"gpus": [3], "sharing": "exclusive"},
]
MIXED = [MIG, *REST]
#: A layout that the device plugin supports too.
OLD = [MIG, {"gpus": [1, 2, 3], "sharing": "exclusive"}]
PLUGIN = dra.MANIFEST.with_name("device-plugin.yml")
#: The change keeps the large instance of the first GPU, and replaces the small ones.
CHANGED = [{**MIG, "mig": [{"profile": "3g.40gb"}, {"profile": "2g.20gb"}]}, *REST]
TEMPLATES = {
    "large": "node1-mig-0-3g.40gb",
    "small": "node1-mig-0-1g.10gb",
    "mps": "node1-mps-1",
    "sliced": "node1-time-slicing-2",
    "whole": "node1-exclusive-3",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if dra.why_not():
        pytest.skip(dra.why_not())
    with dra.running(tmp_path_factory.mktemp("dra") / "plane", MIXED) as found:
        yield found


@pytest.fixture(scope="module")
def site(cluster):
    """Return a function that applies a layout with site.yml.

    The account has the rights of rbac.yml and rbac-dra.yml. The role installs the driver from its manifest.
    """
    kubeconfig = dra.role_kubeconfig(cluster)

    def run(layout, *options, fails=False, **variables):
        given = {
            "gpu_layout": layout,
            "gpu_kubernetes_backend": "nvidia_dra",
            "gpu_kubernetes_kubeconfig": str(kubeconfig),
            "gpu_kubernetes_poll": 1,
            "gpu_kubernetes_plugin_manifest": str(dra.MANIFEST),
            "gpu_kubernetes_plugin_sha256": hashlib.sha256(dra.MANIFEST.read_bytes()).hexdigest(),
            "gpu_kubernetes_plugin_kubeconfig": str(cluster.plane.kubeconfig),
            "gpu_layout_on_busy": "drain",
            "gpu_drain_kubernetes": True,
            **variables,
        }
        return cluster.play(
            "site.yml", *options, "--limit", NODE, "--extra-vars", json.dumps(given), check=not fails
        ).stdout

    return run


def deployment(name, template):
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": dra.claiming(template)},
        },
    }


def pod_of(cluster, name):
    """Wait for a deployment's only pod, and return it."""
    cluster.plane.wait(lambda: len(cluster.pods("app=" + name)) == 1, "a pod of %s" % name)
    return cluster.runs(cluster.pods("app=" + name)[0])


def gpu_nodes(nodes):
    return {node for node in nodes if node[len("/dev/nvidia") :].isdigit()}


def state(pod):
    return pod["metadata"]["uid"], [each["restartCount"] for each in pod["status"]["containerStatuses"]]


def test_mixed_node_gives_each_pod_exactly_its_devices(cluster, site):
    planned = " ".join(site(MIXED, "--check").split())
    assert "namespace dra-driver-nvidia-gpu: install the DRA driver of %s" % dra.MANIFEST in planned
    assert "node node1: gpu.nvidia.com 3, mig.nvidia.com/3g.40gb 1, mig.nvidia.com/1g.10gb 2" in planned
    assert dra.devices(cluster) == {}
    site(MIXED)
    published = sorted((device["type"], device.get("profile")) for device in dra.devices(cluster).values())
    assert published == [("gpu", None)] * 3 + [("mig", "1g.10gb")] * 2 + [("mig", "3g.40gb")]

    cluster.apply(*(deployment(name, template) for name, template in TEMPLATES.items()))
    uuids = [gpu["uuid"] for gpu in cluster.module(NODE, "openfleet.gpu.gpu_info")["gpus"]]
    expected = {"large": 0, "small": 0, "mps": 1, "sliced": 2, "whole": 3}
    seen = {}
    for name, index in expected.items():
        pod = pod_of(cluster, name)
        device = dra.device_of(cluster, pod)
        assert device.get("parentUUID", device["uuid"]) == uuids[index], name
        seen[name] = cdi.nodes_in(cluster, pod)
        assert gpu_nodes(seen[name]) == {"/dev/nvidia%d" % index}, name
    capabilities = {name: {node for node in nodes if "/nvidia-cap" in node} for name, nodes in seen.items()}
    assert [len(capabilities[name]) for name in expected] == [2, 2, 0, 0, 0]
    assert not capabilities["large"] & capabilities["small"]
    # The claims configure how pods share the GPUs.
    assert "Long" in cluster.run(NODE, "nvidia-smi", "compute-policy", "-l", "-i", "2")
    log = cluster.run(NODE, "sh", "-c", "cat /var/lib/kubelet/plugins/gpu.nvidia.com/mps/*/log/control.log")
    assert "Cmd:set_default_active_thread_percentage 25" in log
    assert "Cmd:set_default_device_pinned_mem_limit %s 18432M" % uuids[1] in log


def test_a_second_run_changes_nothing(cluster, site):
    done = site(MIXED)
    assert re.search(r"^node1 .*changed=0 ", done, re.MULTILINE), done[-3000:]


def test_change_of_one_gpu_evicts_only_pods_on_removed_instances(cluster, site):
    pods = {name: pod_of(cluster, name) for name in TEMPLATES}
    planned = " ".join(site(CHANGED, "--check").split())
    assert "1 pod will be evicted: default/%s" % pods["small"]["metadata"]["name"] in planned
    site(CHANGED)
    profiles = sorted(device.get("profile", "") for device in dra.devices(cluster).values())
    assert profiles == ["", "", "", "2g.20gb", "3g.40gb"]
    for name in ("large", "mps", "sliced", "whole"):
        assert state(pod_of(cluster, name)) == state(pods[name]), name
    assert cluster.pod(pods["small"]["metadata"]["name"]) is None
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
    names = {item["metadata"]["name"] for item in cluster.plane.call("GET", path)["items"]}
    assert names == {*TEMPLATES.values(), "node1-mig-0-2g.20gb"} - {TEMPLATES["small"]}
    done = site(CHANGED)
    assert re.search(r"^node1 .*changed=0 ", done, re.MULTILINE), done[-3000:]


def test_example_of_the_readme_shares_a_gpu_with_limits(cluster, site):
    """Run two pods with the example's claim.

    The claim has the limits of mps-core and mps-memory.
    """
    site(CHANGED)
    cluster.plane.kubectl("delete", "deployment", "mps", "--wait=true")
    cluster.plane.wait(lambda: not cluster.pods("app=mps"), "no pod with the GPU of MPS")
    [example] = re.findall(
        r"```yaml\n(apiVersion: resource\.k8s\.io/v1\nkind: ResourceClaim\n.*?)```", README.read_text(), re.DOTALL
    )
    claim = yaml.safe_load(example)
    cluster.apply({**claim, "metadata": {**claim["metadata"], "namespace": "default"}})
    spec = dra.claiming("")
    spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim["metadata"]["name"]}]
    for name in ("first", "second"):
        metadata = {"name": name, "namespace": "default", "labels": {"app": name}}
        cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    nodes = [gpu_nodes(cdi.nodes_in(cluster, cluster.runs(name))) for name in ("first", "second")]
    assert nodes == [{"/dev/nvidia1"}] * 2
    log = cluster.run(NODE, "sh", "-c", "cat /var/lib/kubelet/plugins/gpu.nvidia.com/mps/*/log/control.log")
    assert "Cmd:set_default_active_thread_percentage 30" in log
    assert re.search(r"Cmd:set_default_device_pinned_mem_limit GPU-\S+ 16384M", log)


def test_removal_waits_for_claims_and_leaves_no_object_of_the_role(cluster, site):
    pod = pod_of(cluster, "whole")
    refused = " ".join(site(CHANGED, fails=True, gpu_kubernetes_state="absent").split())
    assert "these pods have claims of its GPUs: " in refused, refused[-3000:]
    assert "default/%s" % pod["metadata"]["name"] in refused
    assert state(pod_of(cluster, "whole")) == state(pod)
    cluster.plane.kubectl("delete", "deployments,pods", "--all", "--namespace=default", "--wait=true")
    site(CHANGED, gpu_kubernetes_state="absent")
    # The kubelet deletes a driver's ResourceSlices some time after the driver has ended.
    cluster.plane.wait(lambda: dra.devices(cluster) == {}, "no published devices")
    found = cluster.plane.kubectl(
        "get",
        "deviceclasses,resourceclaimtemplates",
        "--all-namespaces",
        "--selector=app.kubernetes.io/managed-by=openfleet.gpu",
        "--output=name",
    )
    assert found == ""
    labels = cluster.node(NODE)["metadata"]["labels"]
    assert not {"openfleet.gpu/backend", "nvidia.com/gpu.deploy.mig-manager"} & set(labels)


def section(title):
    """Return the text of one of the README's sections, for this test's node."""
    text = README.read_text().split("\n## %s\n" % title)[1].split("\n## ")[0]
    return text.replace("h100-01", NODE)


def commands(text):
    """Return the words of each kubectl command in the text."""
    return [line.split() for line in re.findall(r"\$ kubectl (.+)", text)]


def test_node_moves_from_the_device_plugin_as_the_readme_says(cluster, site):
    """Follow the README's section.

    Pods keep running without the plugin. The plan names them, and the run evicts only them.
    """
    cluster.plane.kubectl("delete", "deployments,pods", "--all", "--namespace=default", "--wait=true")
    how_to = section("Move from the device plugin to the DRA driver")
    [affinity] = re.findall(r"```yaml\n(.*?)```", how_to, re.DOTALL)
    plugin = list(yaml.safe_load_all(PLUGIN.read_text()))
    plugin[-1]["spec"]["template"]["spec"]["affinity"] = yaml.safe_load(affinity)
    cluster.apply(*plugin)
    by_plugin = {
        "gpu_kubernetes_backend": "nvidia_device_plugin",
        "gpu_kubernetes_plugin_manifest": "",
        # This node's kubelet applies a new key within 5 s (node/kubelet.yml).
        "gpu_kubernetes_config_delay": 10,
    }
    site(OLD, **by_plugin)
    offered = {"nvidia.com/gpu": 3, "nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-1g.10gb": 2}
    cluster.offers(NODE, offered)
    requests = {"old-whole": {"nvidia.com/gpu": 1}, "old-mig": {"nvidia.com/mig-3g.40gb": 1}, "none": {}}
    for name, resources in requests.items():
        template = {"metadata": {"labels": {"app": name}}, "spec": clusters.sleeping(resources)}
        item = deployment(name, "")
        cluster.apply({**item, "spec": {**item["spec"], "template": template}})
    pods = {name: pod_of(cluster, name) for name in requests}

    take_off, back = commands(how_to)
    cluster.plane.kubectl(*take_off)
    cluster.offers(NODE, {})
    assert {name: state(pod_of(cluster, name)) for name in requests} == {name: state(pods[name]) for name in requests}
    names = sorted("default/%s" % pods[name]["metadata"]["name"] for name in ("old-mig", "old-whole"))
    refused = " ".join(
        site(MIXED, "--check", fails=True, gpu_drain_kubernetes=False, gpu_layout_on_busy="fail").split()
    )
    assert "these pods use GPUs of the device plugin: " in refused, refused[-3000:]
    listed = refused.partition("these pods use GPUs of the device plugin: ")[2].partition(". The DRA driver would")[0]
    assert sorted(listed.split(", ")) == names
    assert {name: state(pod_of(cluster, name)) for name in requests} == {name: state(pods[name]) for name in requests}

    site(MIXED)
    assert sorted(device["type"] for device in dra.devices(cluster).values()) == ["gpu"] * 3 + ["mig"] * 3
    assert state(pod_of(cluster, "none")) == state(pods["none"])
    for name in ("old-whole", "old-mig"):
        assert cluster.pod(pods[name]["metadata"]["name"]) is None
    cluster.apply(deployment("whole", TEMPLATES["whole"]))
    assert gpu_nodes(cdi.nodes_in(cluster, pod_of(cluster, "whole"))) == {"/dev/nvidia3"}

    cluster.plane.kubectl("delete", "deployment", "whole", "--wait=true")
    cluster.plane.wait(lambda: not cluster.pods("app=whole"), "no pod with a claim")
    site(MIXED, gpu_kubernetes_state="absent")
    # The kubelet deletes a driver's ResourceSlices some time after the driver has ended.
    cluster.plane.wait(lambda: dra.devices(cluster) == {}, "no published devices")
    cluster.plane.kubectl(*back)
    site(OLD, **by_plugin)
    cluster.offers(NODE, offered)
    # The evicted pods have waited for the plugin.
    for name in ("old-whole", "old-mig"):
        pod_of(cluster, name)
