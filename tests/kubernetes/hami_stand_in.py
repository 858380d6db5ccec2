# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate HAMi's device plugin and scheduler, and the kubelet, on a node.

The API server is real. The answers come from hami_recorded.py. As in HAMi 2.10, the plugin reads its configuration and
the GPUs only when it starts, and the scheduler reads the node's annotations only if the registration or the handshake
changes.
"""

from __future__ import annotations

import json

from tests.kubernetes import hami_recorded as recorded
from tests.kubernetes.control_plane import ApiError
from tests.kubernetes.node_stand_in import STRATEGIC, NodeStandIn

NAMESPACE, CONFIG_MAP = "kube-system", "hami-device-plugin"
_SELECTED = {"app.kubernetes.io/component": "hami-device-plugin"}
_CONFIG_MAPS = "/api/v1/namespaces/%s/configmaps" % NAMESPACE


class HamiStandIn(NodeStandIn):
    """A node of a cluster with HAMi.

    `gpus` returns the host's rows of gpu_info. `schedules` is false while no scheduler runs.
    """

    def __init__(self, plane, name, gpus, pod_ended=None):
        self.gpus = gpus
        self.schedules = True
        #: GPUs that the scheduler takes as cordoned, in each state that it has read.
        self.cordons_read: list[set[str]] = []
        #: Entries that the plugin has read at its starts, or None if it had no entry.
        self.entries_read: list[dict | None] = []
        self._registration: str | None = None
        super().__init__(plane, name, dict, pod_ended=pod_ended)

    def annotations(self):
        return self.get()["metadata"].get("annotations", {})

    def annotate(self, **annotations):
        self.plane.merge(self.path, {"metadata": {"annotations": annotations}})

    def _kubelet(self, plugin, _selected):
        selected = self.labels().get("gpu") == "on"
        own = None
        for pod in self.plane.call("GET", "/api/v1/pods?fieldSelector=spec.nodeName%%3D%s" % self.name)["items"]:
            is_plugins = pod["metadata"].get("labels", {}).items() >= _SELECTED.items()
            if pod["metadata"].get("deletionTimestamp") or (is_plugins and not selected):
                self._end(pod)
            elif is_plugins:
                own = pod["metadata"]["uid"]
        started = own is None and selected
        if started:
            self.starts += 1
            own = self.add_pod("hami-%s-%d" % (self.name, self.starts), NAMESPACE, "DaemonSet", labels=_SELECTED)
        if own is None and plugin is not None:
            # The kubelet sets an ended plugin's number to 0.
            self._offer(0)
        self._schedule()
        return own, started

    def _publish(self, _label):
        data = self.plane.call("GET", "%s/%s" % (_CONFIG_MAPS, CONFIG_MAP)).get("data") or {}
        rows = json.loads(data.get("config.json", '{"nodeconfig": []}'))["nodeconfig"]
        entry = next((row for row in rows if row["name"] == self.name), None)
        self.entries_read.append(entry)
        entry = entry or {"devicesplitcount": 10, "devicememoryscaling": 1, "filterdevices": {"uuid": [], "index": []}}
        filtered = entry["filterdevices"]
        offered = [
            {
                "id": gpu["uuid"],
                "index": gpu["index"],
                "count": entry["devicesplitcount"],
                "devmem": int((gpu["memory_total_bytes"] >> 20) * entry["devicememoryscaling"]),
            }
            for gpu in self.gpus()
            if gpu["uuid"] not in filtered["uuid"] and gpu["index"] not in filtered["index"]
        ]
        self._offer(sum(gpu["count"] for gpu in offered))
        self.annotate(**{recorded.REGISTER: recorded.registration(*offered)})

    def _offer(self, number):
        resources = {"nvidia.com/gpu": str(number)}
        if self._allocatable() != resources:
            status = {"status": {"capacity": resources, "allocatable": resources}}
            self.plane.call("PATCH", self.path + "/status", status, STRATEGIC)

    def _schedule(self):
        if not self.schedules:
            return
        annotations = self.annotations()
        unread = "Requesting" not in annotations.get(recorded.HANDSHAKE, "")
        if unread:
            self.annotate(**{recorded.HANDSHAKE: recorded.handshake()})
        if unread or annotations.get(recorded.REGISTER) != self._registration:
            self._registration = annotations.get(recorded.REGISTER)
            self.cordons_read.append(set(filter(None, annotations.get(recorded.CORDON, "").split(","))))


def install(plane, failure_policy="Fail"):
    """Create the HAMi chart's objects, and its pods' account."""
    namespace = "/api/v1/namespaces/%s" % NAMESPACE
    plane.wait(lambda: plane.find(namespace), "the namespace %s" % NAMESPACE)
    if not plane.find(namespace + "/serviceaccounts/default"):
        plane.call("POST", namespace + "/serviceaccounts", {"metadata": {"name": "default"}})
    apps = "/apis/apps/v1/namespaces/%s" % NAMESPACE
    plane.call("POST", apps + "/daemonsets", recorded.daemonset())
    deployment = recorded.deployment()
    plane.call("POST", apps + "/deployments", deployment)
    status = {"replicas": 1, "readyReplicas": 1}
    plane.call("PATCH", apps + "/deployments/hami-scheduler/status", {"status": status}, STRATEGIC)
    plane.call("POST", _WEBHOOKS, recorded.webhook(failure_policy))
    data = {"config.json": '{"nodeconfig": [{"name": "your-node-name", "devicesplitcount": 10}]}'}
    plane.call("POST", _CONFIG_MAPS, {"metadata": {"name": CONFIG_MAP}, "data": data})


def uninstall(plane):
    """Delete the HAMi chart's objects."""
    apps = "/apis/apps/v1/namespaces/%s" % NAMESPACE
    for path in (
        apps + "/daemonsets/hami-device-plugin",
        apps + "/daemonsets/x",
        apps + "/deployments/hami-scheduler",
        _WEBHOOKS + "/hami-webhook",
        "%s/%s" % (_CONFIG_MAPS, CONFIG_MAP),
    ):
        try:
            plane.call("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise


def entries(plane):
    """Return the entries of config.json by node."""
    data = plane.call("GET", "%s/%s" % (_CONFIG_MAPS, CONFIG_MAP))["data"]
    return {row["name"]: row for row in json.loads(data["config.json"])["nodeconfig"]}


_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
