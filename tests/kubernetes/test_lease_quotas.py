# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limit the leases of a namespace with ResourceQuota and with Kueue 0.17.

API server, scheduler, controllers and Kueue are real. The node is only an object.
"""

from __future__ import annotations

import json

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.openfleet_dra.backend import LEASES, device_class
from tests.kubernetes import kueue
from tests.kubernetes.beside import install_kinds
from tests.kubernetes.control_plane import ApiError, ControlPlane, build
from tests.kubernetes.leased_node import API, CLAIMS, LeasedNode
from tests.unit.module_utils.leases.lease_world import World

pytestmark = pytest.mark.thorough

QUEUES = "/apis/kueue.x-k8s.io/v1beta2"
COUNTED = "gpu.openfleet.io/leases"


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """Start a control plane with the feature gate, for nodes without a kubelet."""
    plane = ControlPlane(tmp_path_factory.mktemp("quotas") / "plane", build(), "DRAConsumableCapacity=true")
    try:
        plane.start()
        plane.start_controllers("*,-node-lifecycle-controller")
        plane.call("POST", API + "/deviceclasses", device_class(LEASES))
        yield plane
    finally:
        plane.stop()


@pytest.fixture
def node(plane, tmp_path):
    made = LeasedNode(plane, tmp_path, World(tmp_path))
    made.plugin.tick()
    yield made
    made.close()


def claim(name, memory="1Gi"):
    exactly = {"deviceClassName": LEASES, "capacity": {"requests": {"memory": memory, "smPercent": "1"}}}
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}


def test_resource_quota_limits_devices_of_a_class_and_not_their_memory(plane, node):
    quotas = "/api/v1/namespaces/default/resourcequotas"
    counted = "%s.deviceclass.resource.k8s.io/devices" % LEASES
    plane.call("POST", quotas, {"metadata": {"name": "leases"}, "spec": {"hard": {counted: "2"}}})
    try:
        plane.wait(
            lambda: plane.call("GET", quotas + "/leases").get("status", {}).get("used", {}).get(counted) == "0",
            "the quota is counted",
        )
        plane.call("POST", CLAIMS, claim("small"))
        plane.call("POST", CLAIMS, claim("large", "30Gi"))
        with pytest.raises(ApiError, match="exceeded quota: leases"):
            plane.call("POST", CLAIMS, claim("third"))
    finally:
        plane.call("DELETE", quotas + "/leases")


@pytest.fixture
def queue(plane, node):
    """Run Kueue with a quota of two devices of the class."""
    if kueue.why_not():
        pytest.skip(kueue.why_not())
    install_kinds(plane, kueue.kinds())
    flavor = {"name": "gpus", "resources": [{"name": COUNTED, "nominalQuota": "2"}]}
    group = {"coveredResources": [COUNTED], "flavors": [flavor]}
    specs = {
        "ResourceFlavor": ("gpus", {}),
        "ClusterQueue": ("team", {"namespaceSelector": {}, "resourceGroups": [group]}),
        "LocalQueue": ("default", {"clusterQueue": "team"}),
    }
    for kind, (name, spec) in specs.items():
        metadata = {"name": name, **({"namespace": "default"} if kind == "LocalQueue" else {})}
        made = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec}
        plane.kubectl("apply", "--filename=-", text=json.dumps(made))
    mapping = {"name": COUNTED, "deviceClassNames": [LEASES]}
    with kueue.running(plane, {"DynamicResourceAllocation": True}, resources={"deviceClassMappings": [mapping]}):
        yield
        plane.kubectl("delete", "jobs,resourceclaimtemplates", "--all", "--namespace=default", "--wait=true")


def submit(plane, name, memory, **devices):
    """Create a Job whose pod has a claim of this size."""
    spec = {"devices": {**claim(name, memory)["spec"]["devices"], **devices}}
    path = API + "/namespaces/default/resourceclaimtemplates"
    plane.call("POST", path, {"metadata": {"name": name}, "spec": {"spec": spec}})
    pod = {
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
    }
    plane.call("POST", "/apis/batch/v1/namespaces/default/jobs", kueue.job(name, "default", pod))


def conditions(plane, name):
    """Return the (type, status, message) that Kueue wrote for a job."""
    return [
        (each["type"], each["status"], each["message"])
        for item in plane.call("GET", QUEUES + "/namespaces/default/workloads")["items"]
        if item["metadata"]["name"].startswith("job-%s-" % name)
        for each in item.get("status", {}).get("conditions", [])
    ]


def admitted(plane, name):
    return any(row[:2] == ("Admitted", "True") for row in conditions(plane, name))


def refused(plane, name):
    """Wait until Kueue does not admit a job, and return the reason."""

    def reason():
        return [text for kind, status, text in conditions(plane, name) if (kind, status) == ("QuotaReserved", "False")]

    plane.wait(reason, "Kueue refuses %s" % name)
    return reason()[0]


def test_kueue_counts_devices_and_not_memory(plane, queue):
    """Kueue 0.17 has DRA behind an alpha feature gate."""
    submit(plane, "small", "1Gi")
    submit(plane, "large", "30Gi")
    for name in ("small", "large"):
        plane.wait(lambda name=name: admitted(plane, name), "Kueue admits %s" % name)
    submit(plane, "third", "1Gi")
    assert "insufficient unused quota for %s" % COUNTED in refused(plane, "third")


def test_kueue_refuses_claims_for_several_gpus_with_a_constraint(plane, queue):
    distinct = {"requests": ["gpu"], "distinctAttribute": "gpu.openfleet.io/uuid"}
    submit(plane, "pair", "1Gi", constraints=[distinct])
    assert "device constraints (MatchAttribute) are not supported" in refused(plane, "pair")
