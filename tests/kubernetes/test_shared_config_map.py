# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test a ConfigMap that another program changes while the role writes it."""

from __future__ import annotations

import json

import pytest

from tests.integration.simulated_host import ROOT
from tests.kubernetes import api_gate
from tests.kubernetes.node_fleet import NodeFleet, said
from tests.kubernetes.node_stand_in import NodeStandIn
from tests.kubernetes.volcano import VgpuPlugin

pytestmark = pytest.mark.root

RIGHTS = ROOT / "roles" / "gpu_kubernetes" / "files" / "rbac-cluster.yml"
CONF = "actions: enqueue, allocate\ntiers:\n- plugins:\n  - name: gang\n"
SHARED = [{"gpus": [0], "sharing": "shared"}]
SCHEDULER = "/api/v1/namespaces/volcano-system/configmaps/volcano-scheduler-configmap"
NODES = "/api/v1/namespaces/kube-system/configmaps/volcano-vgpu-node-config"
ROLES = ("gpu_kubernetes/plan", "gpu_kubernetes/prepare", "gpu_layout", "gpu_kubernetes")
OTHER = {"name": "node-other", "devicesplitcount": 3}


@pytest.fixture
def volcano(api_server, kubeconfig):
    """Create the ConfigMaps of Volcano, and give the role's account its rights."""
    api_server.call("POST", "/api/v1/namespaces", {"metadata": {"name": "volcano-system"}})
    api_server.kubectl("apply", "--filename=%s" % RIGHTS)
    for path, data in ((SCHEDULER, {"volcano-scheduler.conf": CONF}), (NODES, {"other": "kept"})):
        folder, _, name = path.rpartition("/")
        api_server.call("POST", folder, {"metadata": {"name": name}, "data": data})
    yield api_server
    for path in (SCHEDULER, NODES):
        api_server.call("DELETE", path)


def test_keys_and_entries_that_others_write_in_between_are_kept(volcano, library, tmp_path, kubeconfig):
    fleet = NodeFleet(tmp_path, library)
    entries = json.dumps({"nodeconfig": [OTHER]})

    def interfere(write):
        """Change the ConfigMap right before the role writes it for the first time."""
        for path, data in (
            (SCHEDULER, {"volcano-scheduler.conf": CONF + "  - name: priority\n"}),
            (NODES, {"config.json": entries}),
        ):
            if write.path == path and path not in changed:
                changed.append(path)
                volcano.merge(path, {"data": data})

    changed = []
    with api_gate.opened(kubeconfig, tmp_path) as gate, NodeStandIn(volcano, "node-one", fleet.host.seen, {}):
        gate.before = interfere
        fleet.more["one"] = {
            "gpu_kubernetes_backend": "volcano_vgpu",
            "gpu_kubernetes_node": "node-one",
            "gpu_kubernetes_kubeconfig": str(gate.kubeconfig),
        }
        [gpu] = fleet.host.module("gpu_info")["gpus"]
        plugin = VgpuPlugin(volcano, "node-one", {gpu["uuid"]: gpu["memory_total_bytes"] >> 20}, 10)
        plugin.start()
        try:
            run = fleet.run_roles(SHARED, *ROLES)
        finally:
            plugin.pause()
    assert run.returncode == 0, said(run)
    assert changed == [SCHEDULER, NODES]
    conf = volcano.call("GET", SCHEDULER)["data"]["volcano-scheduler.conf"]
    assert conf.startswith(CONF + "  - name: priority\n") and "name: deviceshare" in conf
    data = volcano.call("GET", NODES)["data"]
    assert data["other"] == "kept"
    first, own = json.loads(data["config.json"])["nodeconfig"]
    assert first == OTHER and own["name"] == "node-one"
