# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the pods that hold GPUs.

The tests check which clusters are queried, which answers are used, and which are missing.
"""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.kubernetes.client import ClusterError
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import pods
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.holdings import holdings, hosts_of
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import Holder, Pod

UID, OTHER = "3f0c8b9a-0b1d-4c58-9f0e-0d9f1c8a7b11", "5b6b0a51-2a34-4b6e-8c55-6a1d5a7c9e02"
KUBELET = {"kind": "kubelet", "who": "container c of pod a/told-by-the-host (nvidia.com/gpu)", "job": UID}
HELD = {"gpus": [{"uuid": "GPU-1", "index": 0, "name": "NVIDIA L4", "holders": [KUBELET], "mig": {"instances": []}}]}
SLURM = {"gpus": [{"uuid": "GPU-1", "index": 0, "holders": [{"kind": "slurm", "who": "job 17", "job": "17"}]}]}
HERE = {"a": pods.Place("node-a", "/etc/kubeconfig")}


def item(uid=UID, name="web-6d4cf56db6-x2x7k", labels=None, owner=None):
    metadata = {"namespace": "team", "name": name, "uid": uid, "labels": labels}
    if owner:
        metadata["ownerReferences"] = [{"kind": "Other", "name": "none"}, {"controller": True, **owner}]
    return {"metadata": metadata}


@pytest.fixture
def asked(monkeypatch):
    """Return the list of the nodes that were queried.

    The simulated API server takes the pods of a node from a dictionary. If the value is an error, the server raises it.
    """
    nodes, answers = [], {}

    def pods_of(api, node):
        nodes.append((*api, node))
        answer = answers.get(node, [])
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(pods, "core_api", lambda kubeconfig, context: (kubeconfig, context))
    monkeypatch.setattr(pods, "pods_of", pods_of)
    monkeypatch.setattr(pods, "has_client", lambda: True)
    return nodes, answers


def test_pod_of_a_deployment_is_named_by_the_deployment():
    labels = {"pod-template-hash": "6d4cf56db6", "app": "web"}
    pod = pods.pod_of(item(labels=labels, owner={"kind": "ReplicaSet", "name": "web-6d4cf56db6"}))
    assert (str(pod), pod.labels) == ("pod team/web-6d4cf56db6-x2x7k of Deployment/web", labels)


@pytest.mark.parametrize(
    ("owner", "told"),
    [
        (None, ""),
        ({"kind": "StatefulSet", "name": "db"}, "StatefulSet/db"),
        ({"kind": "ReplicaSet", "name": "made-by-hand"}, "ReplicaSet/made-by-hand"),
    ],
)
def test_other_owners_are_named_directly(owner, told):
    assert pods.pod_of(item(labels={"pod-template-hash": "6d4cf56db6"}, owner=owner)).owner == told
    assert pods.pod_of(item(owner=owner)).owner == told


def test_only_pods_on_nodes_with_gpu_holders_are_read(asked):
    nodes, answers = asked
    answers["node-a"] = [item(), item(OTHER, "not-on-a-gpu")]
    where = {**HERE, "b": pods.Place("node-b"), "c": pods.Place("node-c")}
    found, missing = pods.look_up({"a": HELD, "b": SLURM, "d": HELD}, where)
    assert nodes == [("/etc/kubeconfig", "", "node-a")]
    assert missing == []
    assert {host: list(by_uid) for host, by_uid in found.items()} == {"a": [UID]}


def test_host_cannot_name_pods_of_another_node(asked):
    asked[1]["node-a"] = [item(OTHER)]
    assert pods.look_up({"a": HELD}, HERE) == ({"a": {}}, [])


def test_unreachable_cluster_is_reported_and_others_are_read(asked):
    _, answers = asked
    answers.update(
        {"node-a": [item()], "node-b": ClusterError("Kubernetes node node-b", "its pods cannot be listed: gone")}
    )
    where = {**HERE, "b": pods.Place("node-b"), "c": pods.Place("node-c", delegate_to="bastion")}
    found, missing = pods.look_up(dict.fromkeys(where, HELD), where)
    assert list(found) == ["a"]
    assert [text.partition(" are unknown")[0] for text in missing] == [
        "Owners and labels of pods on c",
        "Owners and labels of pods on b",
    ]
    assert "gpu_kubernetes_delegate_to" in missing[0]
    assert "Kubernetes node node-b: its pods cannot be listed: gone" in missing[1]


def test_audit_continues_without_the_kubernetes_package(asked, monkeypatch):
    monkeypatch.setattr(pods, "has_client", lambda: False)
    found, missing = pods.look_up({"a": HELD}, HERE)
    assert found == {}
    assert "Install the Python package kubernetes on the controller." in missing[0]
    assert pods.look_up({"a": SLURM}, HERE) == ({}, [])


def test_nodes_are_those_of_hosts_with_a_backend():
    given = {
        "backend": {"a": "nvidia_device_plugin", "b": "", "c": "hami"},
        "node": {"a": "node-a", "c": ""},
        "kubeconfig": {"a": "/k"},
        "delegate_to": {"a": "bastion"},
    }
    assert pods.places(given) == {"a": pods.Place("node-a", "/k", delegate_to="bastion"), "c": pods.Place("c")}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"nod": {}}, "kubernetes: unknown key 'nod'"),
        ({"backend": {"a": 3}}, "kubernetes.backend of a: 3 is not text"),
    ],
)
def test_wrong_node_mapping_is_reported(given, told):
    with pytest.raises(pods.PlaceError, match=told):
        pods.places(given)


def test_holder_has_the_apis_pod_or_else_the_hosts():
    pod = Pod("team", "web", "Deployment/web", {"app": "web", "a": "b"})
    (known,) = holdings(None, hosts_of({"a": HELD}, {"a": {UID: pod}}))
    (unknown,) = holdings(None, hosts_of({"a": HELD}, {"b": {UID: pod}}))
    assert list(map(str, known.holders)) == ["pod team/web of Deployment/web"]
    assert known.holders[0].pod.labels_text == "a=b,app=web"
    assert list(map(str, unknown.holders)) == ["kubelet container c of pod a/told-by-the-host (nvidia.com/gpu)"]
    assert (
        str(Holder("process", "pid 5 (python3)", pod=pod)) == "process pid 5 (python3), pod team/web of Deployment/web"
    )


def test_right_sizing_uses_pod_names_of_the_api():
    process = {"kind": "process", "who": "pid 5 (python3)", "job": UID}
    unknown = {"kind": "kubelet", "who": "container c of pod b/other (nvidia.com/gpu)", "job": OTHER}
    instance = {"id": 1, "profile": "3g.40gb", "holders": [process, unknown]}
    state = {"gpus": [*HELD["gpus"], {"uuid": "GPU-2", "index": 1, "holders": None, "mig": {"instances": [instance]}}]}
    pod = Pod("team", "web", "Deployment/web")
    found = pods.named({"a": state, "b": SLURM}, {"a": {UID: pod}, "b": {}})
    assert found["b"] == SLURM
    whole, split = found["a"]["gpus"]
    assert [row["who"] for row in whole["holders"]] == ["pod team/web of Deployment/web"]
    assert split["holders"] is None
    assert [row["who"] for row in split["mig"]["instances"][0]["holders"]] == [
        "pid 5 (python3), pod team/web of Deployment/web",
        unknown["who"],
    ]
