# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the Kubernetes part of the demo: `make demo KUBERNETES=1`.

Start the cluster of tests/kubernetes, apply a layout to its two nodes with site.yml, run a pod in a MIG instance, and
change the rest of that node's layout while the pod runs. Then start a node of Debian 13 with NVIDIA's DRA driver, on which MIG,
MPS, time slices and a whole GPU are shared at once. The clusters are removed at the end, because their nodes cannot run without
the API server.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tests.lab.fleet import REPOSITORY

KUBERNETES = REPOSITORY / "tests" / "kubernetes"

KEPT = {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 2}]}
REST = {"gpus": [2, 3], "sharing": "time_slicing", "time_slicing": {"slice": "default", "replicas": 4}}
BEFORE = [KEPT, {"gpus": [1], "sharing": "mig", "mig": [{"profile": "2g.20gb", "count": 3}]}, REST]
AFTER = [KEPT, {"gpus": [1], "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]}, REST]
POD = "training"
#: Two layouts of the node with the DRA driver. The second one changes the first GPU.
MIXED = [
    KEPT,
    {
        "gpus": [1],
        "sharing": "mps",
        "mps": {"name": "inference", "clients": 4, "active_thread_percentage": 25, "pinned_memory_limit": "18GiB"},
    },
    {"gpus": [2], "sharing": "time_slicing", "time_slicing": {"slice": "long", "replicas": 4}},
    {"gpus": [3], "sharing": "exclusive"},
]
CHANGED = [{**KEPT, "mig": [{"profile": "3g.40gb"}, {"profile": "2g.20gb"}]}, *MIXED[1:]]
#: Each pod by name, with the name of the ResourceClaimTemplate that the role writes for it.
CLAIMS = {
    "training": "mig-0-3g.40gb",
    "notebook": "mig-0-1g.10gb",
    "inference": "mps-1",
    "batch": "time-slicing-2",
    "large": "exclusive-3",
}


def show() -> list[str]:
    """Return the checks that failed."""
    if not shutil.which("go"):
        return ["there is no Go to build Kubernetes with: install Debian 13's golang, or leave KUBERNETES=1 out"]
    from tests.kubernetes import cluster as clusters

    say("building Kubernetes and NVIDIA's device plugin, which takes minutes at first (OPENFLEET_GO_CACHE keeps it)")
    with tempfile.TemporaryDirectory(prefix="openfleet-demo-") as folder:
        try:
            clusters.build()
            say("starting the control plane and two nodes")
            with clusters.running(Path(folder) / "plane") as cluster:
                wrong = _story(cluster, clusters)
                say("removing the cluster")
        except AssertionError as error:
            return ["the cluster: %s" % error]
    return wrong + _show_mixed()


def _show_mixed() -> list[str]:
    """Show the node with the DRA driver. Return the checks that failed."""
    from tests.kubernetes import dra

    if dra.why_not():
        say("left out: the node with the DRA driver (%s)" % dra.why_not())
        return []
    say("building the image of Debian 13 and NVIDIA's DRA driver, which takes minutes at first")
    os.environ["LAB_RELEASE"] = "trixie"
    subprocess.run([str(REPOSITORY / "tests" / "lab" / "image" / "build"), "kubernetes"], check=True)
    with tempfile.TemporaryDirectory(prefix="openfleet-demo-") as folder:
        try:
            with dra.running(Path(folder) / "plane", MIXED) as cluster:
                wrong = mixed_story(cluster, dra)
                say("removing the cluster")
        except AssertionError as error:
            return ["the node with the DRA driver: %s" % error]
    return wrong


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S  ") + text, flush=True)


def _story(cluster, clusters) -> list[str]:
    import yaml

    cluster.apply(*yaml.safe_load_all((KUBERNETES / "device-plugin.yml").read_text()))
    kubeconfig = cluster.role_kubeconfig()
    say("site.yml brings both nodes to a layout, and the cluster follows it")
    _site(cluster, kubeconfig, BEFORE)
    _show_nodes(cluster)
    say("a pod asks for nvidia.com/mig-3g.40gb: 1")
    wanted = clusters.sleeper(POD, {"nvidia.com/mig-3g.40gb": 1})
    cluster.plane.call("POST", "/api/v1/namespaces/default/pods", wanted)
    before = cluster.runs(POD)
    node = before["spec"]["nodeName"]
    [device] = cluster.visible_devices(before)
    say("it runs on %s, and sees %s" % (node, device))
    say("site.yml changes GPU 1 of %s: 3x 2g.20gb become 7x 1g.10gb" % node)
    _site(cluster, kubeconfig, AFTER, node)
    _show_nodes(cluster)
    after = cluster.runs(POD)
    same = after["metadata"]["uid"] == before["metadata"]["uid"]
    restarts = sum(each["restartCount"] for each in after["status"]["containerStatuses"])
    say("the pod: %s UID, %d restarts" % ("the same" if same else "ANOTHER", restarts))
    return [] if same and not restarts else ["the change of another GPU disturbed the pod"]


def mixed_story(cluster, dra) -> list[str]:
    """Run a pod on each kind of sharing, and change one GPU.

    Return the checks that failed.
    """
    kubeconfig = dra.role_kubeconfig(cluster)
    driver = {
        "gpu_kubernetes_backend": "nvidia_dra",
        "gpu_kubernetes_plugin_manifest": str(dra.MANIFEST),
        "gpu_kubernetes_plugin_sha256": hashlib.sha256(dra.MANIFEST.read_bytes()).hexdigest(),
        "gpu_kubernetes_plugin_kubeconfig": str(cluster.plane.kubeconfig),
        "gpu_layout_on_busy": "drain",
        "gpu_drain_kubernetes": True,
        # The demo's pods have no controller, so a drain must be allowed to delete them.
        "gpu_drain_kubernetes_delete_options": {"ignore_daemonsets": True, "force": True},
    }
    say("site.yml installs NVIDIA's DRA driver on %s, and shares its four GPUs in four ways" % dra.NODE)
    _site(cluster, kubeconfig, MIXED, dra.NODE, **driver)
    say("five pods, each with a claim of a template that the role wrote")
    for name, template in CLAIMS.items():
        metadata = {"name": name, "namespace": "default"}
        spec = dra.claiming("%s-%s" % (dra.NODE, template))
        cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    before = {name: _device(cluster, dra, name) for name in CLAIMS}
    for name, (_uid, device) in before.items():
        say("  %-10s %s" % (name, device))
    say("site.yml changes GPU 0: 2x 1g.10gb become 1x 2g.20gb")
    _site(cluster, kubeconfig, CHANGED, dra.NODE, **driver)
    wrong = []
    for name, (uid, device) in before.items():
        pod = cluster.pod(name)
        stays = pod is not None and pod["metadata"]["uid"] == uid and device == _device(cluster, dra, name)[1]
        say("  %-10s %s" % (name, "still runs on its device" if stays else "was evicted" if pod is None else "CHANGED"))
        if stays == (name == "notebook"):
            wrong.append("the change of GPU 0 %s the pod %s" % ("did not evict" if stays else "disturbed", name))
    return wrong


def _device(cluster, dra, name) -> tuple[str, str]:
    """Return the UID of a running pod, and its device with the UUID."""
    pod = cluster.runs(name)
    device = dra.device_of(cluster, pod)
    kind = "MIG %s" % device["profile"] if "profile" in device else "GPU"
    return pod["metadata"]["uid"], "%s %s" % (kind, device["uuid"])


def _site(cluster, kubeconfig, layout, nodes="gpu_hosts", **variables) -> None:
    given = {
        "gpu_layout": layout,
        "gpu_kubernetes_kubeconfig": str(kubeconfig),
        # The kubelet of these nodes applies a new key of the ConfigMap within 5 s (tests/kubernetes/node/kubelet.yml).
        "gpu_kubernetes_config_delay": 10,
        "gpu_kubernetes_poll": 1,
        **variables,
    }
    done = cluster.play("site.yml", "--limit", nodes, "--extra-vars", json.dumps(given))
    lines = [line.strip(" \"'-,") for line in done.stdout.splitlines()]
    for line in dict.fromkeys(line for line in lines if line.startswith(("node node", "ConfigMap ", "write "))):
        print("          " + line)


def _show_nodes(cluster) -> None:
    for node in _nodes(cluster):
        offered = {name: number for name, number in sorted(cluster.allocatable(node).items()) if number}
        say("%s offers %s" % (node, ", ".join("%s %d" % pair for pair in offered.items())))


def _nodes(cluster) -> list[str]:
    return sorted(node["metadata"]["name"] for node in cluster.plane.call("GET", "/api/v1/nodes")["items"])
