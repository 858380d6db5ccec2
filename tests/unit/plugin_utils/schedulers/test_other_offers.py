# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse GPUs that another scheduler or another part of the cluster offers."""

from __future__ import annotations

import json

import pytest

from ansible_collections.openfleet.gpu.plugins.filter.double_offers import double_offers
from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_changes import kubernetes_changes
from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_mapping import kubernetes_mapping
from ansible_collections.openfleet.gpu.plugins.filter.slurm_mapping import slurm_mapping

pytestmark = pytest.mark.core

GPUS = ["GPU-%08d-0000-4000-8000-000000000000" % number for number in range(4)]
SHARED = [{"gpus": [0, 1], "sharing": "exclusive"}, {"gpus": [2, 3], "sharing": "shared"}]
PLUGIN = {"nvidia.com/gpu": "4"}
HAMI = {
    "hami.io/node-nvidia-register": json.dumps([{"id": uuid, "count": 10, "mode": "hami-core"} for uuid in GPUS[2:]])
}
VOLCANO = {
    "volcano.sh/node-vgpu-register": ":".join("%s,10,81559,NVIDIA-H100,true,hami-core" % u for u in GPUS[2:]) + ":"
}


def mapping(backend, layout=SHARED):
    """Return the mapping of a host with four H100, which have UUIDs as with a driver."""
    found = kubernetes_mapping(layout, backend, expected_gpus=["H100-80GB"] * 4, node="n1")
    assert not found["problems"], found["problems"]
    return {**found, "offered": [{**gpu, "uuid": GPUS[gpu["index"]]} for gpu in found["offered"]]}


def node(allocatable=None, annotations=None):
    metadata = {"name": "n1", "labels": {}, "annotations": annotations or {}}
    return {"kind": "Node", "metadata": metadata, "status": {"allocatable": allocatable or {}}}


def device(name, **attributes):
    return {"name": name, "attributes": {key: {"string": value} for key, value in attributes.items()}}


def resource_slice(*devices, name="n1"):
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeName": name,
        "pool": {"name": name, "generation": 1},
        "devices": list(devices),
    }
    return {"kind": "ResourceSlice", "metadata": {"name": "slice"}, "spec": spec}


def problems(backend, seen, objects=(), **options):
    config_map = {"data": {"config.json": '{"nodeconfig": []}'}}
    changes = kubernetes_changes(
        mapping(backend, **options), node=seen, config_map=config_map, name="n1", objects=objects
    )
    assert not changes["in_step"] or not changes["problems"]
    return changes["problems"]


def indexes(gpus):
    return [gpu["index"] for gpu in gpus]


@pytest.mark.parametrize(
    ("backend", "layout", "offered"),
    [
        ("nvidia_device_plugin", SHARED, [0, 1, 2, 3]),
        ("nvidia_dra", SHARED, [0, 1, 2, 3]),
        # HAMi-core does not share exclusive GPUs.
        ("hami", SHARED, [2, 3]),
        ("volcano_vgpu", SHARED, [2, 3]),
        ("nvidia_dra", [{"gpus": [0], "sharing": "mig", "mig": []}], [1, 2, 3]),
    ],
)
def test_mapping_lists_the_offered_gpus(backend, layout, offered):
    assert indexes(mapping(backend, layout)["offered"]) == offered


def test_a_mapping_with_problems_offers_no_gpu():
    found = kubernetes_mapping([{"gpus": [9], "sharing": "exclusive"}], "nvidia_dra", expected_gpus=["H100-80GB"])
    assert found["problems"] and found["offered"] == []


def test_message_names_node_entry_gpu_and_the_other_component():
    [problem] = problems("nvidia_dra", node(PLUGIN))
    assert problem == (
        "node n1: the device plugin offers nvidia.com/gpu 4, and the DRA driver would offer the same GPUs again: "
        "gpu_layout[0] gpu 0 (%s), gpu_layout[0] gpu 1 (%s), gpu_layout[1] gpu 2 (%s), gpu_layout[1] gpu 3 (%s). "
        "Keep the device plugin off the node (roles/gpu_kubernetes/README.md). Nothing was changed." % tuple(GPUS)
    )


@pytest.mark.parametrize("backend", ["nvidia_device_plugin", "volcano_vgpu", "hami"])
def test_published_devices_of_the_dra_driver_are_offers(backend):
    devices = [device("gpu-2", type="gpu", uuid=GPUS[2])]
    [problem] = problems(backend, node(), [resource_slice(*devices)])
    assert "the DRA driver offers gpu.nvidia.com 1, and " in problem
    assert GPUS[2] in problem and GPUS[3] not in problem


def test_an_instance_of_the_dra_driver_is_an_offer_of_its_gpu():
    instance = device("gpu-0-mig-1g10gb-19-0", type="mig", uuid="MIG-1", parentUUID=GPUS[0], profile="1g.10gb")
    [problem] = problems("nvidia_device_plugin", node(), [resource_slice(instance)])
    assert "mig.nvidia.com/1g.10gb 1" in problem and "gpu_layout[0] gpu 0 (%s). Run" % GPUS[0] in problem


def test_devices_of_another_node_or_of_gpus_outside_the_offer_are_no_offers():
    whole = device("gpu-0", type="gpu", uuid=GPUS[0])
    assert problems("volcano_vgpu", node(), [resource_slice(whole)]) == []
    assert problems("nvidia_device_plugin", node(), [resource_slice(whole, name="n2")]) == []


@pytest.mark.parametrize("backend", ["nvidia_device_plugin", "nvidia_dra", "volcano_vgpu"])
def test_hami_is_named_instead_of_the_device_plugin(backend):
    [problem] = problems(backend, node({"nvidia.com/gpu": "20"}, HAMI))
    assert "node n1: HAMi offers nvidia.com/gpu 20, and the " in problem
    assert GPUS[2] in problem and GPUS[0] not in problem


def test_a_registration_that_hami_left_is_no_offer():
    assert problems("nvidia_device_plugin", node(PLUGIN, HAMI)) == []
    assert problems("nvidia_dra", node({"nvidia.com/gpu": "0"}, HAMI)) == []


@pytest.mark.parametrize("backend", ["nvidia_device_plugin", "nvidia_dra", "hami"])
def test_gpus_of_the_vgpu_plugin_are_refused(backend):
    [problem] = problems(backend, node({"volcano.sh/vgpu-number": "20"}, VOLCANO))
    assert "Volcano's vGPU plugin offers volcano.sh/vgpu-number 20" in problem
    assert GPUS[3] in problem and GPUS[0] not in problem


def test_without_a_registration_all_gpus_of_the_node_are_refused():
    [problem] = problems("nvidia_dra", node({"volcano.sh/vgpu-number": "20"}))
    assert all(uuid in problem for uuid in GPUS)


@pytest.mark.parametrize(
    ("backend", "allocatable", "annotations"),
    [
        ("nvidia_device_plugin", PLUGIN, {}),
        ("hami", {"nvidia.com/gpu": "20"}, HAMI),
        # HAMi's plugin offers GPUs even before it registers them.
        ("hami", {"nvidia.com/gpu": "20"}, {}),
        ("volcano_vgpu", {"volcano.sh/vgpu-number": "20"}, VOLCANO),
    ],
)
def test_own_offers_are_not_refused(backend, allocatable, annotations):
    assert problems(backend, node(allocatable, annotations)) == []


def test_own_devices_are_not_refused():
    assert problems("nvidia_dra", node(), [resource_slice(device("gpu-0", type="gpu", uuid=GPUS[0]))]) == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '[{"id": 1, "count": 4}]', '[{"id": "GPU-1", "count": "4"}]', '[{"id": "GPU-1"}]', "[1]"]
)
def test_foreign_text_is_no_offer(text):
    seen = node({"volcano.sh/vgpu-number": text}, {"hami.io/node-nvidia-register": text})
    assert problems("nvidia_dra", seen, [resource_slice({"attributes": text}, text)]) == []


def test_slurm_and_kubernetes_are_refused_on_the_same_gpus():
    slurm = slurm_mapping(SHARED, expected_gpus=["H100-80GB"] * 4)
    [problem] = double_offers(mapping("hami")["offered"], slurm, node="n1")
    assert problem == (
        "node n1: Kubernetes (gpu_kubernetes_backend) and Slurm (gpu_slurm_state) would offer the same GPUs: "
        "gpu_layout[1] gpu 2 (%s), gpu_layout[1] gpu 3 (%s). Set only one of the two variables for the host. "
        "Nothing was changed." % tuple(GPUS[2:])
    )
    assert double_offers([], slurm, node="n1") == []


def test_long_lists_are_shortened():
    offered = [{"where": "gpu_layout[0]", "index": number, "uuid": ""} for number in range(20)]
    [problem] = double_offers(offered, {"offered": offered}, node="n1")
    assert "gpu_layout[0] gpu 15, and 4 more." in problem and "gpu 16" not in problem


@pytest.mark.parametrize("name", ["o'brien", 'a"b', "a b", "{{ a }}", "a%sb"])
@pytest.mark.parametrize("backend", ["nvidia_device_plugin", "nvidia_dra", "hami", "volcano_vgpu"])
def test_a_node_name_with_special_characters_is_printed_unchanged(backend, name):
    config_map = {"data": {"config.json": '{"nodeconfig": []}'}}
    offer = mapping(backend)
    changes = kubernetes_changes(offer, node=None, config_map=config_map, name=name)
    assert changes["problems"][0].startswith("The cluster has no node %s. Set gpu_kubernetes_node" % name)
    taken = {"volcano.sh/vgpu-number": "4", "nvidia.com/mig-1g.10gb": "4"}
    found = kubernetes_changes(offer, node=node(taken), config_map=config_map, name=name)["problems"]
    assert found and all(problem.startswith("node %s: " % name) for problem in found)
