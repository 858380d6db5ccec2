# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node without a kubelet, with the plugin that gives leases to pods.

The node is only an object of a real API server. The tests call the plugin as the kubelet would.
"""

from __future__ import annotations

import sys

from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.openfleet_dra.backend import LEASES
from tests.kubernetes.control_plane import REPOSITORY
from tests.unit.module_utils.leases.lease_socket import LeaseSocket

sys.path.insert(0, str(REPOSITORY / "roles" / "gpu_kubernetes" / "files"))

from openfleet_dra.cluster import Cluster, ClusterError
from openfleet_dra.lease_client import Leases
from openfleet_dra.plugin import Plugin

__all__ = ["API", "CLAIMS", "NODE", "SLICES", "Cluster", "ClusterError", "LeasedNode"]

API = "/apis/resource.k8s.io/v1"
SLICES, CLAIMS = API + "/resourceslices", API + "/namespaces/default/resourceclaims"
NODE = "leased"
_PODS = "/api/v1/namespaces/default/pods"
_STRATEGIC = "application/strategic-merge-patch+json"


class LeasedNode:
    """A node, and its plugin. `world` is its lease service."""

    def __init__(self, plane, folder, world) -> None:
        self.plane, self.world, self.log = plane, world, []
        self.kubeconfig = plane.kubeconfig_of("system:node:%s" % NODE, ["system:nodes"])
        self._leases = LeaseSocket(folder / "leases.sock", world.ask_as_plugin)
        leases = Leases(self._leases.path)
        self.plugin = Plugin(NODE, Cluster(self.kubeconfig), leases, folder, self.log.append)
        plane.call("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        room = {"pods": "100", "cpu": "8", "memory": "8Gi"}
        ready = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
        plane.call("PATCH", "/api/v1/nodes/%s/status" % NODE, {"status": ready}, _STRATEGIC)

    def close(self):
        self._leases.close()
        for kind in (_PODS, CLAIMS):
            for item in self.plane.call("GET", kind)["items"]:
                self.plane.merge("%s/%s" % (kind, item["metadata"]["name"]), {"metadata": {"finalizers": None}})
                if self.plane.find("%s/%s" % (kind, item["metadata"]["name"])):
                    self.plane.call("DELETE", "%s/%s?gracePeriodSeconds=0" % (kind, item["metadata"]["name"]))
        for item in self.plane.call("GET", SLICES)["items"]:
            self.plane.call("DELETE", "%s/%s" % (SLICES, item["metadata"]["name"]))
        self.plane.call("DELETE", "/api/v1/nodes/%s" % NODE)

    def devices(self):
        items = self.plane.call("GET", SLICES)["items"]
        return {device["name"]: device for item in items for device in item["spec"].get("devices", [])}

    def start(self, name, memory=None, percent=None, priority_class=None, **exactly):
        """Create a claim and a pod with the claim."""
        capacity = {"capacity": {"requests": {"memory": memory, "smPercent": str(percent)}}} if memory else {}
        request = {"name": "gpu", "exactly": {"deviceClassName": LEASES, **capacity, **exactly}}
        self.plane.call("POST", CLAIMS, {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}})
        spec = {
            **({"priorityClassName": priority_class} if priority_class else {}),
            "tolerations": [{"operator": "Exists"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        }
        self.plane.call("POST", _PODS, {"metadata": {"name": name}, "spec": spec})

    def scheduled(self, name):
        """Wait until the pod has a node, and return what the scheduler has allocated."""
        self.plane.wait(lambda: self.plane.call("GET", "%s/%s" % (_PODS, name))["spec"].get("nodeName"), name)
        return self.plane.call("GET", "%s/%s" % (CLAIMS, name))["status"]["allocation"]["devices"]["results"]

    def pending(self, name):
        """Wait until the pod cannot be scheduled, and return the reason."""

        def reason():
            conditions = self.plane.call("GET", "%s/%s" % (_PODS, name))["status"].get("conditions", [])
            return next((each["message"] for each in conditions if each.get("reason") == "Unschedulable"), "")

        self.plane.wait(reason, "%s is pending" % name)
        return reason()

    def prepare(self, name):
        """Prepare the claim as the kubelet does, and return its answer."""
        uid = self.plane.call("GET", "%s/%s" % (CLAIMS, name))["metadata"]["uid"]
        [answer] = self.plugin.prepare({"claims": [{"namespace": "default", "name": name, "uid": uid}]})[
            "claims"
        ].values()
        return answer

    def unprepare(self, name):
        uid = self.plane.call("GET", "%s/%s" % (CLAIMS, name))["metadata"]["uid"]
        return self.plugin.unprepare({"claims": [{"namespace": "default", "name": name, "uid": uid}]})["claims"][uid]
