# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""List objects of several kinds from an API server."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("kubernetes")

from ansible_collections.openfleet.gpu.plugins.module_utils.kubernetes.claims import claims_of
from ansible_collections.openfleet.gpu.plugins.module_utils.kubernetes.client import ClusterError
from ansible_collections.openfleet.gpu.plugins.modules.kubernetes_objects import read

EVERY = {"namespace": "", "field_selector": "", "label_selector": "", "names": [], "of_pods": False}
SLICES = {"api_version": "resource.k8s.io/v1", "kind": "ResourceSlice", **EVERY}
PODS = {"api_version": "v1", "kind": "Pod", **EVERY, "field_selector": "spec.nodeName=n1"}
DAEMONSETS = {"api_version": "apps/v1", "kind": "DaemonSet", **EVERY, "namespace": "dra"}
CLAIMS = {"api_version": "resource.k8s.io/v1", "kind": "ResourceClaim", **EVERY, "of_pods": True}
TEMPLATES = {**CLAIMS, "kind": "ResourceClaimTemplate", "of_pods": False, "label_selector": "openfleet.gpu/node=n1"}
POD = {"metadata": {"name": "a", "managedFields": [{}]}, "spec": {"nodeName": "n1"}}
RESOURCES = {
    "/api/v1": [{"name": "pods", "kind": "Pod", "namespaced": True}, {"name": "pods/eviction", "kind": "Eviction"}],
    "/apis/apps/v1": [{"name": "daemonsets", "kind": "DaemonSet", "namespaced": True}],
    "/apis/resource.k8s.io/v1": [
        {"name": "resourceslices", "kind": "ResourceSlice", "namespaced": False},
        {"name": "resourceclaims", "kind": "ResourceClaim", "namespaced": True},
        {"name": "resourceclaimtemplates", "kind": "ResourceClaimTemplate", "namespaced": True},
    ],
}


class Server:
    """An API server.

    `answers` has the status and the body of each path, and `requests` lists the requested paths.
    """

    def __init__(self, folder) -> None:
        self.answers = {path: (200, {"resources": kinds}) for path, kinds in RESOURCES.items()}
        self.requests: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.requests.append(self.path)
                status, body = server.answers.get(self.path, (404, {"message": "the path does not exist"}))
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_arguments):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:%d" % self.http.server_port}}
        contexts = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [cluster]}
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps({**config, "contexts": contexts, "users": [{"name": "u", "user": {}}]}))

    def read(self, *kinds):
        return read({"kubeconfig": str(self.kubeconfig), "context": None, "kinds": list(kinds)})


@pytest.fixture
def server(tmp_path):
    started = Server(tmp_path)
    yield started
    started.http.shutdown()
    started.http.server_close()


def test_objects_of_all_kinds_have_their_kind_and_no_managed_fields(server):
    server.answers["/api/v1/pods?fieldSelector=spec.nodeName%3Dn1"] = (200, {"items": [POD]})
    server.answers["/apis/resource.k8s.io/v1/resourceslices"] = (200, {"items": [{"metadata": {"name": "s"}}]})
    server.answers["/apis/apps/v1/namespaces/dra/daemonsets"] = (200, {"items": []})
    found = server.read(SLICES, PODS, DAEMONSETS)
    assert found["objects"] == [
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"nodeName": "n1"}},
    ]
    assert (found["changed"], found["missing"]) == (False, [])


def test_each_version_of_an_api_is_discovered_once(server):
    server.answers["/apis/resource.k8s.io/v1/resourceslices"] = (200, {"items": []})
    server.read(SLICES, SLICES)
    assert server.requests.count("/apis/resource.k8s.io/v1") == 1


def test_kinds_that_the_api_lacks_are_reported(server):
    """Report a version that the server does not have, and a version without the kind."""
    del server.answers["/apis/resource.k8s.io/v1"]
    found = server.read(SLICES, {**PODS, "kind": "Eviction"}, {**PODS, "kind": "Node"})
    assert found["missing"] == ["resource.k8s.io/v1 ResourceSlice", "v1 Eviction", "v1 Node"]
    assert found["objects"] == []


def test_refused_request_names_the_kind_and_the_reason(server):
    server.answers["/apis/resource.k8s.io/v1/resourceslices"] = (403, {"message": "openfleet-gpu may not list it"})
    with pytest.raises(ClusterError) as raised:
        server.read(SLICES)
    assert "resource.k8s.io/v1 ResourceSlice: it cannot be read: openfleet-gpu may not list it" in str(raised.value)


@pytest.mark.parametrize("body", [[], "text", {}, {"items": {}}, {"items": None}])
def test_answer_without_a_list_is_an_error(server, body):
    server.answers["/apis/resource.k8s.io/v1/resourceslices"] = (200, body)
    with pytest.raises(ClusterError, match="ResourceSlice: the API server answers with something other than"):
        server.read(SLICES)


def test_entries_that_are_not_objects_are_omitted(server):
    server.answers["/apis/resource.k8s.io/v1/resourceslices"] = (200, {"items": ["x", 1, {"metadata": "x"}]})
    [found] = server.read(SLICES)["objects"]
    assert found == {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": "x"}


def test_only_the_claims_of_listed_pods_are_read(server):
    """Read claims that a pod names, and claims that Kubernetes created for it.

    One claim was deleted meanwhile.
    """
    made = [{"name": "two", "resourceClaimName": "a-two-x7"}, {"name": "three", "resourceClaimName": "gone"}]
    pod = {
        "metadata": {"name": "a", "namespace": "team"},
        "spec": {"resourceClaims": [{"name": "one", "resourceClaimName": "one"}, {"name": "two"}, {"name": "three"}]},
        "status": {"resourceClaimStatuses": made},
    }
    server.answers["/api/v1/pods?fieldSelector=spec.nodeName%3Dn1"] = (200, {"items": [POD, pod]})
    folder = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/"
    for name in ("one", "a-two-x7", "another"):
        server.answers[folder + name] = (200, {"metadata": {"name": name, "namespace": "team", "managedFields": []}})
    found = server.read(PODS, CLAIMS)
    claims = [item for item in found["objects"] if item["kind"] == "ResourceClaim"]
    assert [item["metadata"] for item in claims] == [
        {"name": "a-two-x7", "namespace": "team"},
        {"name": "one", "namespace": "team"},
    ]
    assert found["missing"] == []
    assert not [path for path in server.requests if path.endswith(("/resourceclaims", "/another"))]


def test_objects_are_read_by_label_and_further_objects_by_name(server):
    """Read an object by its name if the label has not selected it.

    One name does not exist.
    """
    folder = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaimtemplates/"
    for name in ("n1-a", "n1-b", "n2-a"):
        server.answers[folder + name] = (200, {"metadata": {"name": name, "namespace": "team"}})
    listed = "/apis/resource.k8s.io/v1/resourceclaimtemplates?labelSelector=openfleet.gpu%2Fnode%3Dn1"
    server.answers[listed] = (200, {"items": [{"metadata": {"name": "n1-a", "namespace": "team"}}, {"metadata": "x"}]})
    found = server.read({**TEMPLATES, "names": ["team/n1-a", "team/n1-b", "team/n1-c"]})
    names = [item["metadata"]["name"] for item in found["objects"] if item["metadata"] != "x"]
    assert (names, found["missing"]) == (["n1-a", "n1-b"], [])
    assert server.requests == ["/apis/resource.k8s.io/v1", listed, folder + "n1-b", folder + "n1-c"]


def test_claims_are_missing_where_the_api_lacks_them(server):
    server.answers["/api/v1/pods?fieldSelector=spec.nodeName%3Dn1"] = (200, {"items": [POD]})
    del server.answers["/apis/resource.k8s.io/v1"]
    assert server.read(PODS, CLAIMS)["missing"] == ["resource.k8s.io/v1 ResourceClaim"]


@pytest.mark.parametrize(
    "pod",
    [
        None,
        {"metadata": {"namespace": 1}, "spec": {"resourceClaims": [{"resourceClaimName": "x"}]}},
        {"metadata": {"namespace": "t"}, "spec": {"resourceClaims": {"resourceClaimName": "x"}}},
        {"metadata": {"namespace": "t"}, "spec": {"resourceClaims": [1, {"resourceClaimName": 1}, {"name": "x"}]}},
        {"metadata": {"namespace": "t"}, "spec": [], "status": {"resourceClaimStatuses": "x"}},
    ],
)
def test_pods_without_valid_claims_have_none(pod):
    assert claims_of(pod) == []
