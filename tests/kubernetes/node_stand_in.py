# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate a node's programs: the device plugin, config-manager and the kubelet.

The stand-in for the kubelet only ends pods. The API server is real. Like the real config-manager, this one reacts only
to a changed label. Like the real plugin, this one reads the GPUs when it starts and when its configuration changes.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from pathlib import Path

from tests.kubernetes.control_plane import REPOSITORY, ApiError

#: The role's defaults.
NAMESPACE, CONFIG_MAP = "nvidia-device-plugin", "openfleet-gpu-device-plugin"
LABEL = "nvidia.com/device-plugin.config"
STRATEGIC = "application/strategic-merge-patch+json"
# Labels of the DaemonSets' pods.
SELECTED = {"openfleet-lab": "daemonset"}
#: Status codes of a server that has not read all of its data yet.
_NOT_YET = (429, 500, 503)
RBAC = REPOSITORY / "roles" / "gpu_kubernetes" / "files" / "rbac.yml"


def role_account(plane) -> Path:
    """Create rbac.yml's account, and return a kubeconfig with its token."""
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    # In a complete cluster, the controller manager creates this account in each namespace.
    for namespace in (NAMESPACE, "default"):
        plane.call("POST", "/api/v1/namespaces/%s/serviceaccounts" % namespace, {"metadata": {"name": "default"}})
    plane.kubectl("apply", "-f", str(RBAC))
    return plane.kubeconfig_with_token(NAMESPACE, "openfleet-gpu")


def install_plugin(plane) -> str:
    """Create an installed plugin's ConfigMap, and return its path."""
    path = "/api/v1/namespaces/%s/configmaps" % NAMESPACE
    plane.call("POST", path, {"metadata": {"name": CONFIG_MAP}, "data": {"default": "version: v1\n"}})
    return "%s/%s" % (path, CONFIG_MAP)


class NodeStandIn:
    """A node of the cluster, and the thread that does its work until `pause`.

    `seen` returns the current instances (SimulatedHost.seen). The thread calls `pod_ended` with each pod's UID before
    the pod ends, and `plugin_began` with the UID of each new plugin pod. `selector` is the node selector of the
    plugin's DaemonSet.
    """

    #: Namespace of the plugin and its ConfigMap.
    namespace = NAMESPACE

    def __init__(self, plane, name, seen, labels=None, pod_ended=None, plugin_began=None, selector=None):
        self.plane, self.name, self.seen = plane, name, seen
        self.pod_ended, self.plugin_began = pod_ended or (lambda uid: None), plugin_began or (lambda uid: None)
        self.selector = selector or {}
        self.path = "/api/v1/nodes/%s" % name
        #: If false, the plugin does not start again.
        self.comes_back = True
        #: Labels that config-manager has applied, and how often the plugin's pod has started.
        self.followed: list[str] = []
        self.starts = 0
        self.failed: Exception | None = None
        metadata = {"name": name, "labels": dict(labels or {})}
        plane.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def get(self):
        return self.plane.call("GET", self.path)

    def labels(self):
        return self.get()["metadata"].get("labels", {})

    def offers(self):
        """Return the plugin's allocatable resources, except those with the value 0."""
        return {name: int(count) for name, count in self._allocatable().items() if count != "0"}

    def add_pod(self, name, namespace="default", owner="ReplicaSet", selector=None, **metadata):
        """Create a pod on the node, and return its UID.

        An eviction ends the pod.
        """
        if owner:
            uid = self._daemonset(namespace) if owner == "DaemonSet" else "x"
            reference = {"apiVersion": "apps/v1", "kind": owner, "name": "x", "uid": uid, "controller": True}
            metadata["ownerReferences"] = [reference]
        if owner == "DaemonSet":
            metadata["labels"] = {**metadata.get("labels", {}), **SELECTED}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, **metadata},
            "spec": {"nodeName": self.name, "nodeSelector": selector, "containers": [{"name": "c", "image": "none"}]},
        }
        path = "/api/v1/namespaces/%s/pods" % namespace
        uid = self.plane.call("POST", path, pod)["metadata"]["uid"]
        # Disruption budgets protect only running pods.
        running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.plane.call("PATCH", "%s/%s/status" % (path, name), {"status": running}, STRATEGIC)
        return uid

    def _daemonset(self, namespace):
        """Create the DaemonSet x in a namespace, and return its UID.

        The DaemonSet selects pods with the labels SELECTED.
        """
        path = "/apis/apps/v1/namespaces/%s/daemonsets" % namespace
        template = {"metadata": {"labels": SELECTED}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
        spec = {"selector": {"matchLabels": SELECTED}, "template": template}
        metadata = {"name": "x", "namespace": namespace}
        daemonset = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}
        existing = self.plane.find(path + "/x")
        if existing is None:
            try:
                existing = self.plane.call("POST", path, daemonset)
            except ApiError as error:
                # Another of the test's nodes has created the DaemonSet meanwhile.
                if error.status != 409:
                    raise
                existing = self.plane.call("GET", path + "/x")
        return existing["metadata"]["uid"]

    def pods(self):
        items = self.plane.call("GET", "/api/v1/pods?fieldSelector=spec.nodeName%%3D%s" % self.name)["items"]
        return sorted(pod["metadata"]["name"] for pod in items)

    def pause(self):
        self._stopped.set()
        self._thread.join()
        assert self.failed is None, self.failed

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        try:
            self.pause()
        finally:
            # If a node stayed, all later tests would fail.
            for pod in self.plane.call("GET", "/api/v1/pods?fieldSelector=spec.nodeName%%3D%s" % self.name)["items"]:
                self._end(pod)
            self.plane.call("DELETE", self.path)

    def _work(self):
        plugin = None
        while not self._stopped.wait(0.2):
            try:
                labels = self.labels()
                label = labels.get(LABEL)
                moved = label is not None and label != (self.followed or [None])[-1]
                if moved:
                    self.followed.append(label)
                plugin, started = self._kubelet(plugin, self.selector.items() <= labels.items())
                if self.comes_back and (moved or started):
                    self._publish(label)
            except (OSError, http.client.HTTPException):
                # The API server does not respond.
                continue
            except ApiError as error:
                # The API server has just started.
                if error.status not in _NOT_YET:
                    self.failed = error
                    return
            except Exception as error:
                self.failed = error
                return

    def _allocatable(self):
        allocatable = self.get().get("status", {}).get("allocatable", {})
        return {name: count for name, count in allocatable.items() if name.startswith("nvidia.com/")}

    def _kubelet(self, plugin, selected):
        """End pods that are being deleted.

        Return the UID of the plugin's pod, and whether the pod is new. If the node is not `selected`, remove the
        plugin's pod and return no UID.
        """
        own = None
        for pod in self.plane.call("GET", "/api/v1/pods?fieldSelector=spec.nodeName%%3D%s" % self.name)["items"]:
            is_plugins = pod["metadata"]["namespace"] == NAMESPACE
            if pod["metadata"].get("deletionTimestamp") or (is_plugins and not selected):
                self._end(pod)
            elif is_plugins:
                own = pod["metadata"]["uid"]
        if own is None and selected:
            self.starts += 1
            labels = {"app.kubernetes.io/name": "nvidia-device-plugin"}
            name = "plugin-%s-%d" % (self.name, self.starts)
            own = self.add_pod(name, NAMESPACE, "DaemonSet", self.selector, labels=labels)
            self.plugin_began(own)
        return own or plugin, own is not None and plugin is not None and own != plugin

    def _end(self, pod):
        metadata = pod["metadata"]
        # The kubelet ends a pod's processes before it removes the pod.
        self.pod_ended(metadata["uid"])
        path = "/api/v1/namespaces/%s/pods/%s" % (metadata["namespace"], metadata["name"])
        if self.plane.find(path):
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
            self.plane.call("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})

    def _publish(self, label):
        """Offer the GPUs as the plugin does with the label's configuration."""
        path = "/api/v1/namespaces/%s/configmaps/%s" % (self.namespace, CONFIG_MAP)
        data = self.plane.call("GET", path)["data"]
        # The real config-manager exits if the key is missing.
        config = json.loads(data[label]) if label and label.startswith("openfleet-") else {}
        mixed = config.get("flags", {}).get("migStrategy") == "mixed"
        sharing = config.get("sharing", {}).get("timeSlicing", {})
        replicas = sharing["resources"][0]["replicas"] if sharing else 1
        found = Counter()
        for instances in self.seen().values():
            if not instances:
                found["nvidia.com/gpu"] += replicas
            for profile, _start in instances if mixed else ():
                found["nvidia.com/mig-%s" % profile.replace("+", ".")] += 1
        # The kubelet keeps removed resources with the value 0.
        resources = {**dict.fromkeys(self._allocatable(), "0"), **{name: str(count) for name, count in found.items()}}
        status = {"status": {"capacity": resources, "allocatable": resources}}
        self.plane.call("PATCH", self.path + "/status", status, STRATEGIC)
