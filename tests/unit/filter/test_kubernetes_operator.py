# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recognize the GPU operator on a node, and its parts that block a layout."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.filter.gpu_operator import gpu_operator

pytestmark = pytest.mark.core

DEPLOYED, CONFIG = "nvidia.com/gpu.deploy.mig-manager", "nvidia.com/mig.config"
OFF = {DEPLOYED: "false"}
GUARD = {**OFF, CONFIG: "managed-by-openfleet-gpu"}


def find(labels, *policies):
    return gpu_operator({"metadata": {"labels": labels}}, policies, name="n1", config_map_name="cm")


def policy(**plugin):
    return {"metadata": {"name": "policy"}, "spec": {"devicePlugin": plugin}}


def test_node_without_the_operator():
    found = find({"nvidia.com/gpu.present": "true", **GUARD})
    assert found == {"is_there": False, "problems": [], "dangers": [], "pausing": {}}


@pytest.mark.parametrize("labels", [{}, {"nvidia.com/gpu.deploy.driver": "true"}])
def test_operator_is_found_by_policy_and_labels(labels):
    policies = [] if labels else [policy(config={"name": "cm"})]
    found = find(labels, *policies)
    assert (found["is_there"], found["problems"]) == (True, [])
    # NVIDIA's mig-manager also removes the pods of these clients before it changes a MIG mode.
    clients = ("dcgm", "dcgm-exporter", "device-plugin", "gpu-feature-discovery", "nvsm")
    assert found["pausing"] == {"nvidia.com/gpu.deploy.%s" % name: "paused-for-openfleet-gpu" for name in clients}
    assert find(found["pausing"], *policies)["problems"] == [], "an interrupted drain is no problem"


@pytest.mark.parametrize("state", ["pending", "rebooting"])
def test_working_mig_manager_is_awaited(state):
    labels = {"nvidia.com/mig.config.state": state, "nvidia.com/gpu.deploy.mig-manager": "true"}
    (problem,) = find(labels)["problems"]
    assert "mig-manager is changing its GPUs" in problem and "Wait until it is done" in problem
    assert find({**labels, **OFF})["problems"] == []
    assert find({**labels, "nvidia.com/mig.config.state": "success"})["problems"] == []


@pytest.mark.parametrize(
    ("labels", "dangers"),
    [
        (GUARD, []),
        (
            {**GUARD, DEPLOYED: "true"},
            ["label %s is true (planned: false), so the GPU operator runs mig-manager on the node" % DEPLOYED],
        ),
        (
            {**GUARD, CONFIG: "all-balanced"},
            [
                "label %s is all-balanced (planned: managed-by-openfleet-gpu), so mig-manager, if it runs on the node, "
                "applies all-balanced and removes all other MIG instances" % CONFIG
            ],
        ),
        (
            {},
            [
                "label %s is missing (planned: false), so the GPU operator runs mig-manager on the node" % DEPLOYED,
                "label %s is missing (planned: managed-by-openfleet-gpu), so mig-manager, if it runs on the node, "
                "applies all-disabled and removes all other MIG instances" % CONFIG,
            ],
        ),
    ],
    ids=["protected", "enabled", "configured", "without labels"],
)
def test_labels_that_do_not_protect_the_layout_are_dangers(labels, dangers):
    assert find(labels)["dangers"] == ["node n1: " + danger for danger in dangers]


@pytest.mark.parametrize(("spec", "later"), [({}, ""), ({"migManager": {"enabled": False}}, " once it is enabled")])
def test_danger_says_whether_mig_manager_is_enabled(spec, later):
    (danger,) = find({**GUARD, DEPLOYED: "true"}, {"spec": spec})["dangers"]
    assert danger.endswith("so the GPU operator runs mig-manager on the node" + later)


@pytest.mark.parametrize("value", ["false", "paused-for-mig-change"])
def test_disabled_device_plugin_is_named(value):
    (problem,) = find({"nvidia.com/gpu.deploy.device-plugin": value})["problems"]
    assert "kubectl label node n1 nvidia.com/gpu.deploy.device-plugin=true --overwrite" in problem


def test_device_plugin_must_read_the_config_map():
    (none,) = find({}, policy())["problems"]
    assert "reads no ConfigMap. Set it to cm (kubectl patch clusterpolicy policy --type merge" in none
    (other,) = find({}, policy(config={"name": "theirs"}))["problems"]
    assert "reads the ConfigMap theirs" in other and "or set gpu_kubernetes_config_map: theirs" in other
    assert find({}, policy(enabled=False))["problems"] == []


def test_a_backend_without_a_config_map_does_not_need_its_device_plugin():
    node = {"metadata": {"labels": {"nvidia.com/gpu.deploy.device-plugin": "false"}}}
    assert gpu_operator(node, [policy()], name="n1", config_map_name="")["problems"] == []


@pytest.mark.parametrize("form", [None, [], {"spec": 3, "metadata": []}, {"spec": {"devicePlugin": {"config": [1]}}}])
def test_malformed_policies_count_as_empty(form):
    (problem,) = find({}, form)["problems"]
    assert "clusterpolicy cluster-policy" in problem
