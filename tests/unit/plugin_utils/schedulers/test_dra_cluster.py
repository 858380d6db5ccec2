# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change a cluster for nodes with NVIDIA's DRA driver, and undo this change."""

from __future__ import annotations

import copy
import json
import re

import pytest

from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_changes import kubernetes_changes
from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_mapping import kubernetes_mapping
from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_removal import kubernetes_removal
from ansible_collections.openfleet.gpu.plugins.filter.scheduler_backend import scheduler_backend

pytestmark = pytest.mark.core

GPUS = ["GPU-%08d-0000-4000-8000-000000000000" % number for number in range(4)]
SMALL = {"profile": "1g.10gb", "count": 2}
MIG = {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, SMALL]}
MPS = {
    "gpus": [1],
    "sharing": "mps",
    "mps": {"name": "inference", "clients": 4, "active_thread_percentage": 25, "pinned_memory_limit": "18GiB"},
}
SLICED = {"gpus": [2], "sharing": "time_slicing", "time_slicing": {"slice": "long", "replicas": 4}}
WHOLE = {"gpus": [3], "sharing": "exclusive"}
MIXED = [MIG, MPS, SLICED, WHOLE]
LABEL = "openfleet.gpu/backend"
# These labels keep the GPU operator from changing the layout.
GUARD = {"nvidia.com/gpu.deploy.mig-manager": "false", "nvidia.com/mig.config": "managed-by-openfleet-gpu"}
OWNED = {"app.kubernetes.io/managed-by": "openfleet.gpu"}
SELECTOR = "dra-driver-nvidia-gpu-component=kubelet-plugin"


def mapping(layout=MIXED, instances=(), name="n1"):
    """Return the mapping of a host with four H100.

    `instances` lists the current instances as (GPU, profile, number).
    """
    found = kubernetes_mapping(layout, "nvidia_dra", expected_gpus=["H100-80GB"] * 4, node=name)
    assert not found["problems"], found["problems"]
    # The expected GPUs have no UUIDs, so add the UUIDs that the DRA driver would report.
    text = json.dumps(found)
    partitioned = {gpu for gpu, _profile, _number in instances}
    found = json.loads(text)
    found["devices"] = {GPUS[gpu]: "gpu.nvidia.com" for gpu in range(4) if gpu not in partitioned}
    found["devices"].update({"MIG-%d-%d" % (gpu, number): "mig.nvidia.com/" + p for gpu, p, number in instances})
    for number, request in enumerate(found["requests"]):
        request["template"] = "%s-%d" % (name, number)
    return found


NOW = ((0, "3g.40gb", 1), (0, "1g.10gb", 2), (0, "1g.10gb", 3))


def node(labels=None, allocatable=None, annotations=None, name="n1"):
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    return {"kind": "Node", "metadata": metadata, "status": {"allocatable": allocatable or {}}}


def resource_slice(devices, name="n1", generation=1, pool=None):
    """Return a ResourceSlice with devices by UUID, as the DRA driver writes it."""
    items = []
    for number, (uuid, resource) in enumerate(devices.items()):
        attributes = {"uuid": {"string": uuid}, "type": {"string": "gpu"}}
        if "/" in resource:
            attributes.update(type={"string": "mig"}, profile={"string": resource.partition("/")[2]})
        items.append({"name": "device-%d" % number, "attributes": attributes})
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeName": name,
        "pool": {"name": pool or name, "generation": generation, "resourceSliceCount": 1},
        "devices": items,
    }
    return {"kind": "ResourceSlice", "metadata": {"name": "%s-%d" % (name, generation)}, "spec": spec}


def daemonset(gates="", labels=None):
    environment = [{"name": "NODE_NAME"}, *([{"name": "FEATURE_GATES", "value": gates}] if gates else [])]
    containers = [{"name": "compute-domains"}, {"name": "gpus", "env": environment}]
    metadata = {"labels": labels or {"dra-driver-nvidia-gpu-component": "kubelet-plugin"}}
    return {
        "kind": "DaemonSet",
        "metadata": {"name": "driver", "namespace": "dra"},
        "spec": {"template": {"metadata": metadata, "spec": {"containers": containers}}},
    }


GATED = daemonset("MPSSupport=true,TimeSlicingSettings=true,")


def changes(found, at, *objects, namespaces=("team",), name="n1"):
    return kubernetes_changes(
        found,
        at,
        None,
        name=name,
        namespace="dra",
        selector=SELECTOR,
        claim_namespaces=list(namespaces),
        objects=objects,
    )


def written(found):
    """Return the objects of a first run as the API stores them."""
    return copy.deepcopy([each for each in found["write"] if each["kind"] != "DaemonSet"])


def follows(found):
    """Return a node, a ResourceSlice and other objects that match the mapping."""
    first = changes(found, node(), GATED)
    ready = node({LABEL: "nvidia_dra", **GUARD}, annotations=first["annotations"])
    return ready, [resource_slice(found["devices"]), GATED, *written(first)]


def named(objects):
    return ["%s %s" % (each["kind"], each["metadata"]["name"]) for each in objects]


def test_new_node_gets_labels_classes_and_templates():
    found = changes(mapping(), node(), daemonset())
    assert found["labels"] == {**GUARD, LABEL: "nvidia_dra"}
    assert named(found["write"]) == [
        "DeviceClass mig-3g.40gb.openfleet.gpu",
        "DeviceClass mig-1g.10gb.openfleet.gpu",
        *("ResourceClaimTemplate n1-%d" % number for number in range(5)),
        "DaemonSet driver",
    ]
    assert found["pending"] == {
        "gpu.nvidia.com": [3, 0],
        "mig.nvidia.com/3g.40gb": [1, 0],
        "mig.nvidia.com/1g.10gb": [2, 0],
    }
    (gates,) = found["write"][-1]["spec"]["template"]["spec"]["containers"]
    assert gates == {
        "name": "gpus",
        "env": [{"name": "FEATURE_GATES", "value": "MPSSupport=true,TimeSlicingSettings=true"}],
    }
    assert found["restart"]
    assert "write ResourceClaimTemplate team/n1-0" in found["lines"]


def test_a_template_has_the_claim_of_its_entry():
    planned = mapping()
    found = changes(planned, node(), GATED)
    templates = [each for each in found["write"] if each["kind"] == "ResourceClaimTemplate"]
    assert [each["spec"]["spec"] for each in templates] == [request["claim"] for request in planned["requests"]]
    assert {each["metadata"]["namespace"] for each in templates} == {"team"}


@pytest.mark.parametrize(("name", "label"), [("n1", "n1"), ("n" * 62 + ".example", "n" * 62)])
def test_a_template_has_a_label_of_its_node(name, label):
    """Shorten a long node name to a label value.

    A label value has at most 63 characters, and ends with a letter or digit.
    """
    found = changes(mapping(name=name), node(name=name), GATED, name=name)
    templates = [each["metadata"] for each in found["write"] if each["kind"] == "ResourceClaimTemplate"]
    assert {each["labels"]["openfleet.gpu/node"] for each in templates} == {label}
    assert {each["annotations"]["openfleet.gpu/node"] for each in templates} == {name}


def test_matching_node_needs_nothing():
    planned = mapping(instances=NOW)
    ready, objects = follows(planned)
    # The API adds defaults to the objects that it stores.
    objects[-1]["spec"]["spec"]["devices"]["requests"][0]["exactly"].update(allocationMode="ExactCount", count=1)
    found = changes(planned, ready, *objects)
    assert found["in_step"] and found["lines"] == [] and not found["restart"]


def test_published_devices_of_removed_instances_need_a_restart():
    # The slice lists removed instances. The new instances have the same profiles and numbers.
    planned = mapping(instances=NOW)
    ready, objects = follows(planned)
    stale = resource_slice(mapping(instances=((0, "3g.40gb", 1), (0, "1g.10gb", 2), (0, "1g.10gb", 7)))["devices"])
    found = changes(planned, ready, stale, *objects[1:])
    assert found["pending"] == {"mig.nvidia.com/1g.10gb": [2, 1]}
    assert found["restart"] and not found["in_step"]


@pytest.mark.parametrize("surplus", ["gpu.nvidia.com", "mig.nvidia.com/1g.10gb", "mig.nvidia.com/7g.80gb"])
def test_a_published_device_that_the_host_lacks_is_pending(surplus):
    planned = mapping(instances=NOW)
    ready, objects = follows(planned)
    more = resource_slice({**planned["devices"], "GPU-old": surplus})
    found = changes(planned, ready, more, *objects[1:])
    number = planned["resources"].get(surplus, 0)
    assert found["pending"] == {surplus: [number, number + 1]}


def test_only_the_newest_slices_of_the_node_count():
    planned = mapping(instances=NOW)
    ready, objects = follows(planned)
    old = resource_slice({"GPU-old": "gpu.nvidia.com"}, generation=0)
    other = resource_slice({"GPU-other": "gpu.nvidia.com"}, name="n2", generation=9)
    assert changes(planned, ready, old, other, *objects)["in_step"]


def test_template_of_an_earlier_layout_is_deleted_and_a_changed_one_is_recreated():
    planned = mapping(instances=NOW)
    ready, objects = follows(planned)
    old = copy.deepcopy(objects[-1])
    old["metadata"]["name"] = "n1-mig-5"
    other = copy.deepcopy(old)
    other["metadata"].update(name="n2-mig-5", annotations={"openfleet.gpu/node": "n2"})
    objects[-1]["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "mig.nvidia.com"
    found = changes(planned, ready, *objects, old, other)
    assert named(found["delete"]) == ["ResourceClaimTemplate n1-mig-5", "ResourceClaimTemplate n1-4"]
    assert all(each["metadata"]["namespace"] == "team" for each in found["delete"])
    assert named(found["write"]) == ["ResourceClaimTemplate n1-4"]
    assert not found["in_step"]


def test_template_of_a_namespace_that_is_no_longer_listed_is_deleted():
    planned = mapping(instances=NOW)
    ready, objects = follows(planned)
    found = changes(planned, ready, *objects, namespaces=())
    assert len(found["delete"]) == 5 and found["write"] == []


@pytest.mark.parametrize("kind", ["DeviceClass", "ResourceClaimTemplate"])
def test_object_of_someone_else_is_not_changed(kind):
    planned = mapping(instances=NOW)
    ready, objects = follows(planned)
    foreign = next(each for each in objects if each["kind"] == kind)
    foreign["metadata"]["labels"] = {}
    found = changes(planned, ready, *objects)
    (problem,) = found["problems"]
    assert re.match(
        r"node n1: the %s \S+ exists, and the role did not write it\. Rename or delete it\." % kind, problem
    )
    assert (found["write"], found["delete"], found["labels"]) == ([], [], {})


@pytest.mark.parametrize("gates", ["DynamicMIG=true", "MPSSupport=true, DynamicMIG=True,"])
def test_dynamic_mig_is_refused_beside_mig(gates):
    found = changes(mapping(), node(), daemonset(gates))
    (problem,) = found["problems"]
    assert found["pending"] and not found["write"]
    assert "the DaemonSet dra/driver has the feature gate DynamicMIG" in problem
    assert "Remove the gate (featureGates of the chart" in problem
    assert changes(mapping([dict(WHOLE, gpus=[0, 1, 2, 3])]), node(), daemonset(gates))["problems"] == []


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("FEATURE_GATES=DynamicMIG=true", True),
        ('{"featureGates": {"DynamicMIG": true}}', True),
        ("- name: FEATURE_GATES\n  value: MPSSupport=true,DynamicMIG=True", True),
        ("featureGates:\n  DynamicMIG : true", True),
        ("DynamicMIG=false,MPSSupport=true", False),
        ('{"DynamicMIG": false}', False),
    ],
)
def test_dynamic_mig_is_never_installed(text, is_refused):
    pattern, reason = scheduler_backend("nvidia_dra")["refused"]
    assert bool(re.search(pattern, text)) is is_refused
    assert "DynamicMIG" in reason


def test_gates_of_other_nodes_stay_enabled():
    once = mapping([dict(WHOLE, gpus=[0, 1, 3]), SLICED])
    found = changes(once, node(), daemonset("MPSSupport=true,ContextualLogging=false"))
    (entry,) = found["write"][-1]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert entry["value"] == "ContextualLogging=false,MPSSupport=true,TimeSlicingSettings=true"


def test_another_daemonset_of_the_namespace_is_left_alone():
    found = changes(mapping(), node(), daemonset(labels={"app": "other"}))
    assert "DaemonSet driver" not in named(found["write"])


def test_gpus_are_not_offered_by_two_components():
    (problem,) = changes(mapping(), node(allocatable={"nvidia.com/gpu": "4", "nvidia.com/mig-1g.10gb": "0"}), GATED)[
        "problems"
    ]
    assert problem.startswith("node n1: the device plugin offers nvidia.com/gpu 4, and the DRA driver would offer")


def test_label_of_the_earlier_backend_gets_its_earlier_value():
    """Move a node from the device plugin to the DRA driver, and restore its label."""
    config, record = "nvidia.com/device-plugin.config", "openfleet.gpu/labels-before"
    key = "openfleet-26e351e766763919"
    before = {config: "default", **dict.fromkeys(GUARD)}
    labels = {config: key, **GUARD, LABEL: "none"}
    moving = node(labels, annotations={record: json.dumps(before)})
    found = changes(mapping(), moving, GATED)
    assert found["problems"] == []
    assert found["labels"] == {LABEL: "nvidia_dra", config: "default"}
    assert json.loads(found["annotations"][record]) == {LABEL: "none", **dict.fromkeys(GUARD)}
    assert "node n1: label %s: default (was %s)" % (config, key) in found["lines"]
    # A label that the plugin added is removed. A label that someone else has changed is kept.
    new = node(labels, annotations={record: json.dumps({**before, config: None})})
    assert changes(mapping(), new, GATED)["labels"][config] is None
    other = node({**labels, config: "mine"}, annotations={record: json.dumps(before)})
    assert config not in changes(mapping(), other, GATED)["labels"]


def test_pods_with_gpus_of_the_device_plugin_must_end_first():
    pod = {
        "kind": "Pod",
        "metadata": {"name": "train", "namespace": "team", "uid": "u1"},
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}]},
        "status": {"phase": "Running"},
    }
    without = {**pod, "metadata": {"name": "web", "namespace": "team", "uid": "u2"}, "spec": {"containers": [{}]}}
    found = changes(mapping(), node(), GATED, pod, without)
    assert (found["replaced"], found["in_step"]) == ([["u1", "team/train"]], False)
    ended = {**pod, "status": {"phase": "Succeeded"}}
    assert changes(mapping(), node(), GATED, ended)["replaced"] == []


def claim(device, node="n1", name="claim-1"):
    results = [{"driver": "gpu.nvidia.com", "pool": node, "device": device, "request": "gpu"}]
    status = {"allocation": {"devices": {"results": results}}}
    return {"kind": "ResourceClaim", "metadata": {"name": name, "namespace": "team"}, "status": status}


def pod_with(claim_name="claim-1", phase="Pending", by_template=True):
    metadata = {"name": "train", "namespace": "team", "uid": "u1"}
    spec, status = {"resourceClaims": [{"name": "gpu"}]}, {"phase": phase}
    if by_template:
        status["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": claim_name}]
    else:
        spec["resourceClaims"][0]["resourceClaimName"] = claim_name
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


@pytest.mark.parametrize("phase", ["Pending", "Running"])
@pytest.mark.parametrize("by_template", [True, False])
def test_pod_whose_device_is_gone_is_reported(phase, by_template):
    planned = mapping(instances=NOW)
    ready, objects = follows(planned)
    pod = pod_with(phase=phase, by_template=by_template)
    found = changes(planned, ready, *objects, claim("device-77"), pod)
    assert found["lost"] == [["u1", "team/train"]] and not found["in_step"]
    for other in (claim("device-1"), claim("device-77", node="n2"), claim("device-77", name="other")):
        assert changes(planned, ready, *objects, other, pod)["in_step"]
    ended = pod_with(phase="Succeeded", by_template=by_template)
    assert changes(planned, ready, *objects, claim("device-77"), ended)["lost"] == []


def test_no_pod_is_lost_while_published_devices_differ():
    planned = mapping(instances=NOW)
    ready, objects = follows(planned)
    found = changes(planned, ready, resource_slice({}), *objects[1:], claim("device-1"), pod_with())
    assert found["pending"] and found["lost"] == []


@pytest.mark.parametrize(
    "form", [{}, {"kind": "ResourceSlice"}, {"kind": "DaemonSet", "spec": 3}, "x", None, {"kind": "Pod"}]
)
def test_malformed_objects_count_as_absent(form):
    found = changes(mapping(), node(), form)
    assert found["problems"] == [] and len(found["write"]) == 7


def test_removal_deletes_the_objects_of_the_node_and_unused_classes():
    planned = mapping(instances=NOW)
    ready, objects = follows(planned)
    other = resource_slice({"MIG-other": "mig.nvidia.com/1g.10gb"}, name="n2")
    theirs = {"kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"}, "spec": {}}
    found = kubernetes_removal("n1", [ready], backend="nvidia_dra", objects=[*objects, other, theirs])
    assert found["labels"] == dict.fromkeys([*GUARD, LABEL])
    assert named(found["delete"]) == [
        *("ResourceClaimTemplate n1-%d" % number for number in range(5)),
        "DeviceClass mig-3g.40gb.openfleet.gpu",
    ]


def test_classes_that_only_removed_nodes_need_are_deleted():
    _node, objects = follows(mapping(instances=NOW))
    classes = [each for each in objects if each["kind"] == "DeviceClass"]
    others = [resource_slice({"MIG-%s" % name: "mig.nvidia.com/1g.10gb"}, name=name) for name in ("n2", "n3")]
    for removed, names in ((["n2"], []), (["n3"], []), (["n2", "n3"], ["DeviceClass mig-1g.10gb.openfleet.gpu"])):
        found = kubernetes_removal("n1", [], backend="nvidia_dra", objects=[*classes, *others], removed=removed)
        assert sorted(named(found["delete"])) == [*names, "DeviceClass mig-3g.40gb.openfleet.gpu"]


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_removal_is_refused_while_pods_have_claims(phase):
    # The kubelet asks the driver to release a claim, and keeps the pod until the driver answers.
    ready, objects = follows(mapping(instances=NOW))
    pods = [*objects, claim("device-1"), pod_with(phase=phase)]
    found = kubernetes_removal("n1", [ready], backend="nvidia_dra", objects=pods)
    (problem,) = found["problems"]
    assert problem.startswith("node n1: these pods have claims of its GPUs: team/train. Without the DRA driver")
    assert (found["labels"], found["annotations"], found["delete"]) == ({}, {}, [])
    for others in ([claim("device-1"), pod_with(phase="Succeeded")], [claim("device-1", node="n2"), pod_with()]):
        assert not kubernetes_removal("n1", [ready], backend="nvidia_dra", objects=[*objects, *others])["problems"]
