# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve a stand-in for a Kubernetes API server, for tests without a cluster.

It supports the API calls of kubernetes.core's k8s_info and k8s_json_patch and of the module kubernetes_eviction:
discovery, one node, its pods, their DaemonSets, and evictions
(https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/). It has no authentication and no watches. A
patch is a JSON patch (https://www.rfc-editor.org/rfc/rfc6902). Like the real server, its operation `test` treats a
missing value as null.
"""

from __future__ import annotations

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

RESOURCES = [
    {"name": "nodes", "kind": "Node", "namespaced": False, "verbs": ["get", "list", "patch"]},
    {"name": "pods", "kind": "Pod", "namespaced": True, "verbs": ["get", "list", "delete"]},
    {"name": "pods/eviction", "kind": "Eviction", "namespaced": True, "verbs": ["create"]},
]


class KubernetesApi:
    """A cluster with the single node n1. `requests` lists the requested changes."""

    def __init__(self, folder: Path) -> None:
        self.unschedulable = False
        self.annotations: dict[str, str] = {}
        #: Changes by other clients. Before each patch that a test requests, the server takes one entry and sets these
        #: attributes on itself.
        self.meanwhile: list[dict] = []
        self.pods: dict[str, dict] = {}
        #: Names of DaemonSets in the namespace `ml`. The uid of each DaemonSet is its name, and its selector is `app:
        #: DaemonSet`.
        self.daemonsets = ["x"]
        self.requests: list[str] = []
        #: Requests of this kind fail with status 500.
        self.broken: str | None = None
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.reply(*api.get(self.path))

            def do_PATCH(self):
                self.reply(*api.change("patch", self.path, self.body()))

            def do_POST(self):
                self.reply(*api.change("evict", self.path, self.body()))

            def body(self):
                return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

            def reply(self, status, content):
                text = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [
                        {"name": "lab", "cluster": {"server": "http://127.0.0.1:%d" % self.server.server_port}}
                    ],
                    "users": [{"name": "lab", "user": {}}],
                    "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
                    "current-context": "lab",
                }
            )
        )

    def add_pod(self, name: str, owner: str | None = "ReplicaSet", protected: int = 0, seconds: float = 0) -> None:
        """Add a pod that takes `seconds` to end after its eviction.

        A disruption budget refuses the first `protected` evictions.
        """
        metadata = {"name": name, "namespace": "ml", "uid": name}
        if owner:
            reference = {"apiVersion": "apps/v1", "kind": owner, "name": "x", "uid": "x", "controller": True}
            metadata.update(ownerReferences=[reference], labels={"app": owner})
        self.pods[name] = {
            "pod": {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata,
                "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
                "status": {"phase": "Running"},
            },
            "protected": protected,
            "seconds": seconds,
            "gone_at": None,
        }

    def let_go(self, name: str) -> None:
        """Remove an evicted pod immediately."""
        self.pods[name]["gone_at"] = time.monotonic()

    def there(self) -> list[str]:
        now = time.monotonic()
        return [name for name, pod in self.pods.items() if pod["gone_at"] is None or pod["gone_at"] > now]

    def get(self, path: str) -> tuple[int, dict]:
        path, _, query = path.partition("?")
        if path == "/version":
            return 200, {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
        if path == "/api":
            return 200, {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": []}
        if path == "/api/v1":
            return 200, {"kind": "APIResourceList", "groupVersion": "v1", "resources": RESOURCES}
        if path == "/api/v1/nodes/n1":
            return 200, self.node()
        daemonset = re.fullmatch("/apis/apps/v1/namespaces/ml/daemonsets/([^/]+)", path)
        if daemonset and daemonset[1] in self.daemonsets:
            metadata = {"namespace": "ml", "name": daemonset[1], "uid": daemonset[1]}
            spec = {"selector": {"matchLabels": {"app": "DaemonSet"}}}
            return 200, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}
        if path == "/api/v1/pods":
            assert query == "fieldSelector=spec.nodeName%3Dn1", query
            pods = [self.pods[name]["pod"] for name in self.there()]
            return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}
        return self.status(404, "NotFound", f"{path} not found")

    def node(self) -> dict:
        metadata = {"name": "n1", "uid": "n1"}
        # The real server omits values that are empty or false.
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        spec = {"unschedulable": True} if self.unschedulable else {}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": {}}

    def change(self, kind: str, path: str, body: dict | list) -> tuple[int, dict]:
        if kind == self.broken:
            return self.status(500, "InternalError", "etcd is away")
        if kind == "patch" and path == "/api/v1/nodes/n1":
            if self.meanwhile:
                vars(self).update(self.meanwhile.pop(0))
            node = self.node()
            problem = next(filter(None, (_operate(node, each) for each in body)), "")
            if problem:
                return self.status(422, "Invalid", problem)
            self.annotations = node["metadata"].get("annotations", {})
            self.unschedulable = node["spec"].get("unschedulable", False)
            self.requests.append("cordon" if self.unschedulable else "uncordon")
            return 200, self.node()
        asked = re.fullmatch("/api/v1/namespaces/ml/pods/([^/]+)/eviction", path)
        if asked and asked[1] in self.there():
            pod = self.pods[asked[1]]
            if pod["protected"]:
                pod["protected"] -= 1
                problem = "Cannot evict pod as it would violate the pod's disruption budget."
                return self.status(429, "TooManyRequests", problem)
            if pod["gone_at"] is None:
                pod["gone_at"] = time.monotonic() + pod["seconds"]
                self.requests.append("evict " + asked[1])
            return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        return self.status(404, "NotFound", f"{path} not found")

    @staticmethod
    def status(code: int, reason: str, message: str) -> tuple[int, dict]:
        answer = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
        return code, dict(answer, message=message)


def _operate(document: dict, operation: dict) -> str:
    """Carry out one operation of a JSON patch.

    Returns "", or the reason why the operation is not possible.
    """
    *folders, name = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    for folder in folders:
        if folder not in document:
            return "%s is missing" % operation["path"]
        document = document[folder]
    if operation["op"] == "add":
        document[name] = operation["value"]
    elif operation["op"] == "test":
        if document.get(name) != operation["value"]:
            return "testing value %s failed" % operation["path"]
    elif name not in document:
        return "%s is missing" % operation["path"]
    else:
        del document[name]
    return ""
