# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the plugin that gives leases to pods with a real API server and scheduler.

The plugin has a kubelet's credentials. The node itself is only an object, and the test calls the plugin as the kubelet
would. test_openfleet_dra.py runs pods.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.leases.record import BookingRecord
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import VgpuSeat, VgpuTenant
from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.openfleet_dra.backend import LEASES, device_class
from tests.kubernetes.control_plane import ControlPlane, build
from tests.kubernetes.leased_node import API, CLAIMS, NODE, SLICES, Cluster, ClusterError, LeasedNode
from tests.unit.module_utils.leases.lease_world import GIB, World


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """Start a control plane with the feature gate, for nodes without a kubelet."""
    plane = ControlPlane(tmp_path_factory.mktemp("shares") / "plane", build(), "DRAConsumableCapacity=true")
    try:
        plane.start()
        plane.start_controllers("*,-node-lifecycle-controller")
        plane.call("POST", API + "/deviceclasses", device_class(LEASES))
        yield plane
    finally:
        plane.stop()


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    world.gpus = 1
    return world


@pytest.fixture
def node(plane, tmp_path, world):
    made = LeasedNode(plane, tmp_path, world)
    yield made
    made.close()


def sizes(world):
    return {number: str(shape) for number, (shape, _places) in world.parts.items()}


def test_priority_class_decides_which_pod_is_online(node, world):
    world.pod_leases = dataclasses.replace(world.pod_leases, online=("inference",))
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    for name in ("inference", "batch"):
        node.plane.call("POST", path, {"metadata": {"name": name}, "value": 1000})
    node.plugin.tick()
    for name, priority_class in (("serve", "inference"), ("train", "batch"), ("other", None)):
        node.start(name, "10Gi", 20, priority_class)
        node.scheduled(name)
        assert not node.prepare(name).get("error")
    online = {each.request.account: each.request.online for each in BookingRecord(world.directory).read().bookings}
    assert online == {"pod:default/serve": True, "pod:default/train": False, "pod:default/other": False}
    for name in ("inference", "batch"):
        node.plane.call("DELETE", "%s/%s" % (path, name))


def test_pods_share_a_gpu_and_a_third_waits_with_the_reason(node, world):
    node.plugin.tick()
    assert set(node.devices()) == {"gpu-0"}
    # The API server returns the slices in another form. This is no change.
    node.plugin.tick()
    assert node.log == ["published 1 devices: gpu-0"]
    node.start("first", "18Gi", 30)
    node.start("second", "20Gi", 50)
    for name in ("first", "second"):
        [result] = node.scheduled(name)
        assert result["device"] == "gpu-0" and result["shareID"]
        [device] = node.prepare(name)["devices"]
        assert device["share_id"] == result["shareID"] and device["pool_name"] == NODE
    assert set(sizes(world).values()) == {"18GiB and 30 %", "20GiB and 50 %"}
    node.start("third", "10Gi", 10)
    assert "cannot allocate all claims" in node.pending("third")
    # Without a size, a claim gets the smallest quota and not the whole GPU.
    node.start("default")
    node.scheduled("default")
    node.prepare("default")
    assert sizes(world)[3] == "1MiB and 1 %"


def test_claim_is_rounded_and_limited_as_the_layout_says(node, world):
    node.plugin.tick()
    node.start("odd", "1000000000", 10)
    node.scheduled("odd")
    node.prepare("odd")
    assert sizes(world) == {1: "954MiB and 10 %"}
    for name, memory, percent in (("large", "31Gi", 1), ("wide", "1Gi", 51)):
        node.start(name, memory, percent)
        assert "cannot allocate all claims" in node.pending(name)


def test_a_gpu_has_no_more_leases_than_seats(node, world):
    node.plugin.tick()
    names = ["seat-%d" % number for number in range(9)]
    for name in names[:8]:
        node.start(name, "1Gi", 1)
        node.scheduled(name)
    node.start(names[8], "1Gi", 1)
    assert "cannot allocate all claims" in node.pending(names[8])


def test_two_gpus_are_one_lease_and_free_again_afterwards(node, world):
    world.gpus = 2
    node.plugin.tick()
    node.start("pair", "30Gi", 50, count=2)
    assert len(node.scheduled("pair")) == 2
    assert len(node.prepare("pair")["devices"]) == 2
    assert len(world.parts) == 1 and len(world.parts[1][1]) == 2
    assert node.unprepare("pair") == {} and world.parts == {}


def test_layout_change_is_published(node, world):
    node.plugin.tick()
    world.fixed = (VgpuTenant("serving", 8 * GIB, 30, (VgpuSeat("GPU-0", 0),)),)
    world.gpus = 3
    node.plugin.tick()
    assert set(node.devices()) == {"gpu-0", "gpu-1", "gpu-2", "tenant-serving"}
    node.plugin.tick()
    assert len(node.log) == 2, node.log


def test_plugin_can_only_change_slices_of_its_node_and_read_claims_of_its_pods(plane, node):
    node.plugin.tick()
    [own] = plane.call("GET", SLICES)["items"]
    cluster = Cluster(node.kubeconfig)
    spec = {**own["spec"], "nodeName": "other", "pool": {**own["spec"]["pool"], "name": "other"}}
    other = {"metadata": {"name": "other"}, "spec": spec}
    with pytest.raises(ClusterError, match="can only create ResourceSlice with the same NodeName"):
        cluster.send("POST", SLICES, other)
    plane.call("POST", SLICES, other)
    for method in ("PUT", "DELETE"):
        with pytest.raises(ClusterError, match="403"):
            cluster.send(method, SLICES + "/other", other if method == "PUT" else None)
    with pytest.raises(ClusterError, match="403"):
        cluster.send("GET", SLICES)
    plane.call("POST", CLAIMS, {"metadata": {"name": "foreign"}, "spec": {"devices": {}}})
    with pytest.raises(ClusterError, match="403"):
        cluster.find(CLAIMS + "/foreign")
    with pytest.raises(ClusterError, match="403"):
        cluster.send("POST", API + "/deviceclasses", device_class(LEASES))


def test_owner_of_a_namespace_cannot_change_the_size_of_a_lease(plane, node, world):
    """Act as a user who may edit all objects in the namespace."""
    plane.kubectl("create", "rolebinding", "mallory", "--clusterrole=edit", "--user=mallory", "--namespace=default")
    node.plugin.tick()
    node.start("small", "1Gi", 1)
    node.scheduled("small")
    claim = plane.call("GET", CLAIMS + "/small")
    claim["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]["memory"] = "30Gi"
    owner = str(plane.kubeconfig_of("mallory"))

    def attempt(*arguments):
        command = [str(plane.programs / "kubectl"), "--kubeconfig", owner, *arguments]
        text = json.dumps(claim)
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    forged = attempt("replace", "--subresource=status", "--filename=-")
    assert forged.returncode and "orbidden" in forged.stderr
    # Without the subresource, the API server ignores a changed status.
    attempt("replace", "--filename=-")
    changed = json.loads(json.dumps(claim))
    changed["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"] = "30Gi"
    claim = changed
    assert attempt("replace", "--filename=-").returncode
    assert "devices" in node.prepare("small") and sizes(world) == {1: "1GiB and 1 %"}


def test_cluster_without_the_gate_gets_only_fixed_tenants(api_server, tmp_path, world):
    """Use an API server with the default features of Kubernetes 1.34."""
    world.fixed = (VgpuTenant("serving", 8 * GIB, 30, (VgpuSeat("GPU-0", 0),)),)
    node = LeasedNode(api_server, tmp_path, world)
    try:
        for _turn in range(2):
            node.plugin.tick()
            assert set(node.devices()) == {"tenant-serving"}
        assert node.log == ["published 1 devices: tenant-serving"]
    finally:
        node.close()
