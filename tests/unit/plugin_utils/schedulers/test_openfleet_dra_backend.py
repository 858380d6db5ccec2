# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the backend that leases quotas of GPUs to pods."""

from __future__ import annotations

import json

import pytest

from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_changes import kubernetes_changes
from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_mapping import kubernetes_mapping
from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_removal import kubernetes_removal

TENANT = {"name": "serving", "memory": "8GiB", "sm_percent": 30, "gpu": 1}
LEASED = {
    "gpus": [0, 1],
    "sharing": "vgpu",
    "vgpu": {"tenants": [TENANT]},
    "leases": {"by": "kubernetes", "most": {"memory": "20GiB", "sm_percent": 50}},
}
OTHERS = [
    {"gpus": [2], "sharing": "exclusive"},
    {"gpus": [3], "sharing": "vgpu", "vgpu": {}, "leases": {"by": "host", "groups": ["ml"]}},
]
LABELS = {
    "nvidia.com/gpu.deploy.mig-manager": "false",
    "nvidia.com/mig.config": "managed-by-openfleet-gpu",
    "openfleet.gpu/backend": "openfleet_dra",
}
OWNED = {"app.kubernetes.io/managed-by": "openfleet.gpu"}
CLASSES = ["lease.gpu.openfleet.io", "tenant.gpu.openfleet.io"]


def mapping(layout=(LEASED, *OTHERS), backend="openfleet_dra"):
    found = kubernetes_mapping(list(layout), backend, expected_gpus=["H100-80GB"] * 4, node="n1")
    return json.loads(json.dumps(found))


def device(name, kind, uuid=None):
    attributes = {"type": {"string": kind}, **({"uuid": {"string": uuid}} if uuid else {})}
    return {"name": name, "attributes": attributes}


def resource_slice(*devices, node="n1", generation=1, driver="gpu.openfleet.io", name="n1-0"):
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices)}
    return {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


GPUS = [device("gpu-0", "gpu", "GPU-0"), device("gpu-1", "gpu", "GPU-1")]
FIXED = device("tenant-serving", "tenant")


def node(labels=None, annotations=None):
    return {"kind": "Node", "metadata": {"name": "n1", "labels": labels or {}, "annotations": annotations or {}}}


def changes(*objects, current=None, **options):
    return kubernetes_changes(mapping(**options), node=current or node(), name="n1", objects=list(objects))


def test_plan_says_which_pods_are_online():
    leases = {"by": "kubernetes", "online": ["inference", "web"]}
    layout = [{"gpus": [0], "sharing": "vgpu", "vgpu": {"policy": "colocate"}, "leases": leases}]
    online = (
        "gpu_layout[0]: Leases of pods with the priority class inference or web are online, and all others are offline."
    )
    assert online in mapping(layout)["notes"]
    assert not any("online" in note for note in mapping()["notes"])


def test_entries_with_leases_are_offered_and_others_are_left_out():
    found = mapping()
    assert found["problems"] == [] and found["labels"] == LABELS
    assert found["resources"] == {CLASSES[0]: 2, CLASSES[1]: 1}
    assert [(each["where"], each["gpus"]) for each in found["left_out"]] == [
        ("gpu_layout[1]", [2]),
        ("gpu_layout[2]", [3]),
    ]
    assert [gpu["index"] for gpu in found["offered"]] == [0, 1]
    lease, tenant = (request["claim"]["devices"]["requests"][0]["exactly"] for request in found["requests"])
    assert lease["capacity"]["requests"] == {"memory": "2048Mi", "smPercent": "50"}
    assert tenant["selectors"][0]["cel"]["expression"].endswith(".tenant == 'serving'")
    assert "20GiB and 50 %" in "".join(found["plan"])


def test_other_backends_name_this_one():
    [problem] = mapping([LEASED], "nvidia_device_plugin")["problems"]
    assert "gpu_layout[0] (gpus 0, 1): it has leases" in problem and problem.endswith(
        "openfleet_dra or openfleet_device_plugin can express it (gpu_kubernetes_backend)."
    )


def test_missing_classes_are_written_and_others_are_kept():
    found = changes(resource_slice(*GPUS, FIXED))
    assert [item["metadata"]["name"] for item in found["write"]] == CLASSES and found["delete"] == []
    assert found["labels"] == LABELS and found["pending"] == {} and not found["restart"]
    again = changes(resource_slice(*GPUS, FIXED), *found["write"])
    assert again["write"] == []
    foreign = {**found["write"][0], "metadata": {"name": CLASSES[0]}}
    [problem] = changes(foreign)["problems"]
    assert "the DeviceClass lease.gpu.openfleet.io exists, and the role did not write it" in problem


def test_node_is_pending_until_its_devices_are_published():
    assert json.loads(json.dumps(changes()["pending"])) == {CLASSES[0]: [2, 0], CLASSES[1]: [1, 0]}
    assert "journalctl -u openfleet-gpu-dra" in changes()["pending_text"]
    other = resource_slice(*GPUS, FIXED, driver="gpu.nvidia.com")
    assert set(changes(other)["pending"]) == set(CLASSES)
    old = resource_slice(*GPUS, FIXED, name="n1-1")
    new = resource_slice(*GPUS, generation=2)
    assert set(changes(old, new)["pending"]) == {CLASSES[1]}


def test_cluster_without_the_gate_offers_tenants_with_a_warning():
    found = changes(resource_slice(FIXED))
    assert found["pending"] == {}
    assert "lacks the feature gate DRAConsumableCapacity" in "".join(found["warnings"])
    assert changes(resource_slice(*GPUS, FIXED))["warnings"] == []


@pytest.mark.parametrize("backend", ["nvidia_device_plugin", "nvidia_dra", "hami", "volcano_vgpu"])
def test_gpus_with_leases_are_not_offered_again(backend):
    layout = [{"gpus": "all", "sharing": "shared"}]
    planned = mapping(layout, backend)
    # The expected GPUs have no UUIDs, so add some.
    for gpu in planned["offered"]:
        gpu["uuid"] = "GPU-%d" % gpu["index"]
    config_map = {"data": {"config.json": '{"nodeconfig": []}'}}
    found = kubernetes_changes(planned, node=node(), config_map=config_map, name="n1", objects=[resource_slice(*GPUS)])
    [problem] = [each for each in found["problems"] if "would offer the same GPUs" in each]
    assert "the plugin for leases offers lease.gpu.openfleet.io 2" in problem


def test_classes_are_removed_with_the_last_node():
    written = changes()["write"]
    annotations = {"openfleet.gpu/labels-before": json.dumps(dict.fromkeys(LABELS))}
    ready = node(LABELS, annotations)
    own, other = resource_slice(*GPUS), resource_slice(*GPUS, node="n2", name="n2-0")

    def removal(*objects, removed=()):
        return kubernetes_removal("n1", [ready], backend="openfleet_dra", objects=list(objects), removed=removed)

    found = removal(own, *written)
    assert found["labels"] == dict.fromkeys(LABELS)
    assert [item["metadata"]["name"] for item in found["delete"]] == CLASSES
    assert removal(own, other, *written)["delete"] == []
    assert removal(own, other, *written, removed=["n2"])["delete"] == found["delete"]
    foreign = [{**item, "metadata": {"name": item["metadata"]["name"]}} for item in written]
    assert removal(own, *foreign)["delete"] == []


@pytest.mark.parametrize(
    "item",
    [
        {"kind": "ResourceSlice", "metadata": {"name": "x"}, "spec": 7},
        resource_slice(7, {"name": 7}, {"attributes": []}),
        resource_slice(generation="new"),
        {**resource_slice(), "spec": {**resource_slice()["spec"], "devices": "all"}},
    ],
    ids=["spec", "devices", "generation", "list"],
)
def test_objects_in_another_format_count_as_absent(item):
    assert set(changes(item)["pending"]) <= set(CLASSES)
