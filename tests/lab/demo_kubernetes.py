# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the Kubernetes part of the demo: `make demo KUBERNETES=1`.

Start the cluster of tests/kubernetes, apply a layout to its two nodes with site.yml, run a pod in a MIG instance, and
change the rest of that node's layout while the pod runs. The cluster is removed at the end, because its nodes cannot
run without the API server.
"""

from __future__ import annotations

import json
import shutil
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


def _site(cluster, kubeconfig, layout, nodes="gpu_hosts") -> None:
    given = {
        "gpu_layout": layout,
        "gpu_kubernetes_kubeconfig": str(kubeconfig),
        # The kubelet of these nodes applies a new key of the ConfigMap within 5 s (tests/kubernetes/node/kubelet.yml).
        "gpu_kubernetes_config_delay": 10,
        "gpu_kubernetes_poll": 1,
    }
    done = cluster.play("site.yml", "--limit", nodes, "--extra-vars", json.dumps(given))
    lines = [line.strip(" \"'-,") for line in done.stdout.splitlines()]
    for line in dict.fromkeys(line for line in lines if line.startswith(("node node", "ConfigMap "))):
        print("          " + line)


def _show_nodes(cluster) -> None:
    for node in _nodes(cluster):
        offered = {name: number for name, number in sorted(cluster.allocatable(node).items()) if number}
        say("%s offers %s" % (node, ", ".join("%s %d" % pair for pair in offered.items())))


def _nodes(cluster) -> list[str]:
    return sorted(node["metadata"]["name"] for node in cluster.plane.call("GET", "/api/v1/nodes")["items"])
