# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the role gpu_kubernetes beside NVIDIA's GPU operator.

The operator, its DaemonSets, the API server and the scheduler are real. The node is a stand-in with simulated GPUs.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.kubernetes import api_gate, control_plane, gpu_operator
from tests.kubernetes.gpu_operator import GPU_LABELS, MIG_MANAGER_APP, PLUGIN_APP, POLICY_PATH
from tests.kubernetes.node_fleet import NodeFleet, said
from tests.kubernetes.node_stand_in import CONFIG_MAP, LABEL
from tests.kubernetes.test_role import BEFORE, CHANGE, DRAINED, MIG_MANAGER, MIG_STATE, MIXTURE, PLUGIN_DEPLOYED

pytestmark = pytest.mark.root

MIG_CONFIG = "nvidia.com/mig.config"
OPERANDS = "nvidia.com/gpu.deploy.operands"
#: The labels with which mig-manager does not change the node.
GUARD = {MIG_MANAGER: "false", MIG_CONFIG: "managed-by-openfleet-gpu"}
#: The labels that the operator writes.
TAKEN = {MIG_MANAGER: "true", MIG_CONFIG: "all-disabled"}


@pytest.fixture(scope="module")
def operator(tmp_path_factory):
    with control_plane.running(tmp_path_factory.mktemp("operator")) as plane:
        # The node controller would evict pods from nodes without a kubelet.
        plane.start_controllers("daemonset-controller,serviceaccount-controller")
        yield gpu_operator.start(plane)


@pytest.fixture(autouse=True)
def no_pods(operator):
    """Remove removed nodes' pods.

    This control plane has no controller that does so.
    """
    yield
    operator.plane.call("DELETE", "/api/v1/namespaces/%s/pods?gracePeriodSeconds=0" % gpu_operator.NAMESPACE)


@pytest.fixture
def gate(operator, tmp_path):
    with api_gate.opened(operator.role_kubeconfig(), tmp_path) as gate:
        yield gate


@pytest.fixture
def fleet(library, tmp_path, gate):
    fleet = NodeFleet(tmp_path, library)
    fleet.more["one"] = {
        "gpu_kubernetes_backend": "nvidia_device_plugin",
        "gpu_kubernetes_node": "node-one",
        "gpu_kubernetes_kubeconfig": str(gate.kubeconfig),
        "gpu_kubernetes_namespace": gpu_operator.NAMESPACE,
        "gpu_kubernetes_plugin_selector": "app=" + PLUGIN_APP,
        # The stand-in reads the ConfigMap directly.
        "gpu_kubernetes_config_delay": 0,
        "gpu_kubernetes_poll": 1,
        "gpu_kubernetes_timeout": 100,
    }
    return fleet


def path_of(node):
    return "/api/v1/nodes/%s" % node


def labels_of(operator, node):
    return operator.plane.call("GET", path_of(node))["metadata"]["labels"]


def label(operator, node, labels):
    operator.plane.merge(path_of(node), {"metadata": {"labels": labels}})


def has(operator, node, labels):
    return labels.items() <= labels_of(operator, node).items()


def fails(run, *messages):
    """Check that a run failed with these messages."""
    assert run.returncode != 0, said(run)
    for message in messages:
        assert message in said(run), said(run)


def run_command(operator, output, pattern):
    """Run the kubectl command in a message.

    The output also has the message as quoted YAML.
    """
    command = re.search(pattern, output)[0]
    words = [word.strip("'") for word in command.split()]
    operator.plane.kubectl(*words[1:])


def test_operator_keeps_only_labels_that_have_a_value(operator):
    """Check the operator's behavior on which the role relies."""
    plane = operator.plane
    nodes = {"bare": {}, "without-mig-manager": {MIG_MANAGER: "false"}, "protected": GUARD}
    for name, labels in nodes.items():
        metadata = {"name": name, "labels": {**GPU_LABELS, **labels}}
        plane.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        gpu_operator.admit_pods(plane, name)
    plane.wait(lambda: operator.pods(PLUGIN_APP) == sorted(nodes), "the operator deploys the device plugin")
    plane.wait(lambda: has(operator, "bare", TAKEN), "the operator enables mig-manager")
    # The node is safe only until mig-manager is enabled.
    plane.wait(
        lambda: has(operator, "without-mig-manager", {MIG_MANAGER: "false", MIG_CONFIG: "all-disabled"}),
        "the operator selects a MIG configuration",
    )
    plane.wait(lambda: operator.pods(MIG_MANAGER_APP) == ["bare"], "mig-manager runs on one node")
    # An operator that finds no GPU for a moment removes its labels in the same way.
    label(operator, "protected", {OPERANDS: "false"})
    plane.wait(lambda: MIG_MANAGER not in labels_of(operator, "protected"), "the operator removes its labels")
    # Without a default in the policy, the operator selects no configuration.
    plane.merge(POLICY_PATH, {"spec": {"migManager": {"config": {"default": ""}}}})
    label(operator, "bare", {MIG_CONFIG: None})
    label(operator, "protected", {OPERANDS: None})
    plane.wait(lambda: operator.pods(MIG_MANAGER_APP) == ["bare", "protected"], "mig-manager runs on two nodes")
    operator.reconciles()
    assert MIG_CONFIG not in labels_of(operator, "bare")
    assert has(operator, "protected", {**GUARD, MIG_MANAGER: "true"})
    plane.merge(POLICY_PATH, {"spec": {"migManager": {"config": {"default": "all-disabled"}}}})
    plane.wait(lambda: has(operator, "bare", TAKEN), "the operator selects a MIG configuration")
    assert has(operator, "protected", {**GUARD, MIG_MANAGER: "true"})
    for name in nodes:
        plane.call("DELETE", path_of(name))


def test_role_adopts_a_node_of_the_operator_and_pauses_its_device_plugin(operator, fleet):
    plane = operator.plane
    labels = {LABEL: "default", **GPU_LABELS}
    with fleet.with_nodes() as watch, gpu_operator.Node(
        plane, "node-one", fleet.host.seen, labels, fleet.pod_ended, watch
    ) as node:
        plane.wait(lambda: operator.pods(MIG_MANAGER_APP) == ["node-one"], "mig-manager runs on the node")
        assert has(operator, "node-one", TAKEN)

        # The labels that an interrupted mig-manager leaves. They remove the device plugin's pod.
        label(operator, "node-one", {MIG_STATE: "pending", PLUGIN_DEPLOYED: "paused-for-mig-change"})
        plane.wait(lambda: operator.pods(PLUGIN_APP) == [], "the device plugin leaves the node")
        refused = fleet.run_roles(MIXTURE, "gpu_kubernetes/plan", "gpu_kubernetes/prepare")
        fails(
            refused,
            "one: node node-one: the GPU operator's device plugin reads no ConfigMap.",
            "mig-manager is changing its GPUs (label %s: pending). Wait until it is done" % MIG_STATE,
        )
        assert has(operator, "node-one", TAKEN) and BEFORE not in node.get()["metadata"].get("annotations", {})
        run_command(operator, said(refused), r"kubectl label node [^`]*")
        run_command(operator, said(refused), r"kubectl patch clusterpolicy [^)]*")
        label(operator, "node-one", {MIG_STATE: "success"})
        plane.wait(lambda: operator.pods(PLUGIN_APP) == ["node-one"], "the device plugin runs on the node")
        plane.wait(lambda: fleet.watching, "the plugin keeps the GPU open")

        # The change of the MIG mode requires that the plugin's pod ends.
        starts = node.starts
        run = fleet.run_roles(MIXTURE, *CHANGE, **DRAINED)
        assert run.returncode == 0, said(run)
        danger = "label %s is true (planned: false), so the GPU operator runs mig-manager on the node"
        assert "node node-one: GPU operator detected" in said(run) and danger % MIG_MANAGER in said(run)
        assert "node node-one: label %s: %s (was all-disabled; no MIG" % (MIG_CONFIG, GUARD[MIG_CONFIG]) in said(run)
        assert operator.pods(MIG_MANAGER_APP) == []
        assert node.starts > starts
        assert node.offers() == {"nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-1g.10gb": 2}
        assert json.loads(node.get()["metadata"]["annotations"][BEFORE]) == {LABEL: "default", **TAKEN}
        operator.reconciles()
        assert has(operator, "node-one", {**GUARD, PLUGIN_DEPLOYED: "true"})
        again = fleet.run_roles(MIXTURE, *CHANGE, **DRAINED)
        assert again.returncode == 0 and "changed=0" in again.stdout, said(again)


def test_role_detects_changed_labels_and_returns_the_node_to_the_operator(operator, fleet, gate):
    plane = operator.plane
    update = ("gpu_kubernetes/plan", "gpu_kubernetes/prepare", "gpu_kubernetes")
    plane.merge(POLICY_PATH, {"spec": {"devicePlugin": {"config": {"name": CONFIG_MAP}}}})
    fleet.share(MIXTURE)
    with gpu_operator.Node(plane, "node-one", fleet.host.seen, {LABEL: "default", **GPU_LABELS, **GUARD}) as node:
        plane.wait(lambda: operator.pods(PLUGIN_APP) == ["node-one"], "the device plugin runs on the node")
        # The operator enables mig-manager. The other label still protects the layout.
        label(operator, "node-one", {OPERANDS: "false"})
        plane.wait(lambda: MIG_MANAGER not in node.labels(), "the operator removes its labels")
        label(operator, "node-one", {OPERANDS: None})
        plane.wait(lambda: operator.pods(MIG_MANAGER_APP) == ["node-one"], "mig-manager runs on the node")
        assert has(operator, "node-one", {**GUARD, MIG_MANAGER: "true"})

        # The layout does not change while mig-manager's pod is on the node.
        node.hanging = MIG_MANAGER_APP
        refused = fleet.run_roles(MIXTURE, *update, gpu_kubernetes_timeout=2)
        fails(refused, "mig-manager still runs on the node after 2 s (pod gpu-operator/nvidia-mig-manager-")
        assert has(operator, "node-one", {LABEL: "default", **GUARD})
        node.hanging = ""

        # Another program changes the other label whenever the role writes labels.
        def revert(write):
            if write.path == node.path:
                label(operator, "node-one", {MIG_CONFIG: "all-disabled"})

        gate.after = revert
        reverted = fleet.run_roles(MIXTURE, *update)
        gate.after = lambda _write: None
        changed = (
            "one: another program changed labels of node node-one that this run had set: %s. node node-one: label %s is"
        )
        fails(reverted, changed % (MIG_CONFIG, MIG_CONFIG))
        repaired = fleet.run_roles(MIXTURE, *update)
        assert repaired.returncode == 0, said(repaired)
        assert has(operator, "node-one", GUARD) and operator.pods(MIG_MANAGER_APP) == []
        before = {LABEL: "default", MIG_MANAGER: "true", MIG_CONFIG: "all-disabled"}
        assert json.loads(node.get()["metadata"]["annotations"][BEFORE]) == before

        refused = fleet.run_roles(MIXTURE, "gpu_kubernetes", gpu_kubernetes_state="absent")
        fails(
            refused, "the GPU operator runs mig-manager, which applies all-disabled and removes all other MIG instances"
        )
        assert has(operator, "node-one", GUARD)
        run_command(operator, said(refused), r"kubectl patch clusterpolicy [^)]*")
        removed = fleet.run_roles(MIXTURE, "gpu_kubernetes", gpu_kubernetes_state="absent")
        assert removed.returncode == 0, said(removed)
        operator.reconciles()
        assert has(operator, "node-one", before)
        assert BEFORE not in node.get()["metadata"].get("annotations", {})
        assert operator.pods(MIG_MANAGER_APP) == []
        data = plane.call("GET", "/api/v1/namespaces/%s/configmaps/%s" % (gpu_operator.NAMESPACE, CONFIG_MAP))["data"]
        assert set(data) == {"default"}
