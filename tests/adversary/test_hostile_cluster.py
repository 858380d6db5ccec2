# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test hostile texts and endless responses from a cluster.

The attackers are cluster users and a compromised API server.
"""

from __future__ import annotations

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.adversary.attackers import play, said
from tests.integration.warm_ansible import interpreter
from tests.lab.kubernetes_api import KubernetesApi

pytest.importorskip("kubernetes")

from ansible_collections.openfleet.gpu.plugins.module_utils.kubernetes import client
from ansible_collections.openfleet.gpu.plugins.module_utils.kubernetes.client import ClusterError
from ansible_collections.openfleet.gpu.plugins.module_utils.kubernetes.objects import Reader
from ansible_collections.openfleet.gpu.plugins.modules import kubernetes_eviction
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import pods as audit_pods

FORGED = "web\r\n\x1b[2Jgpu-7: right. Nothing to do.\u2028" + "x" * 5000
UID = "3f0c8b9a-0b1d-4c58-9f0e-0d9f1c8a7b11"


class Api:
    """An API server that returns the same status and body for every request."""

    def __init__(self, folder) -> None:
        self.status, self.body, self.paths = 200, b"", []
        #: If set, called to send the body in place of `body`.
        self.send = None
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                api.paths.append(self.path)
                self.send_response(api.status)
                self.send_header("Content-Type", "application/json")
                if api.send is None:
                    self.send_header("Content-Length", str(len(api.body)))
                self.end_headers()
                try:
                    api.send(self.wfile) if api.send else self.wfile.write(api.body)
                except OSError:
                    # The client closed the connection.
                    api.paths.append("closed")
                self.close_connection = True

            do_POST = do_GET

            def log_message(self, *_arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.kubeconfig = str(folder / "kubeconfig")
        cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:%d" % self.server.server_port}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        users = [{"name": "u", "user": {}}]
        config = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"}
        (folder / "kubeconfig").write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))

    def pods(self):
        return client.pods_of(client.core_api(self.kubeconfig, None), "n1")


@pytest.fixture
def api(tmp_path):
    made = Api(tmp_path)
    yield made
    made.server.shutdown()


def is_fit(text: str, most: int) -> bool:
    return text.isprintable() and len(text) <= most


def hostile_pod(uid=UID) -> dict:
    owner = {"kind": FORGED, "name": FORGED, "uid": FORGED, "controller": True}
    labels = {FORGED: FORGED, "pod-template-hash": FORGED}
    metadata = {"namespace": FORGED, "name": FORGED, "uid": uid, "labels": labels, "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": {"volumes": "x"}, "status": {"phase": FORGED}}


def texts_of(value) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for each in pair for text in texts_of(each)]
    if isinstance(value, list):
        return [text for each in value for text in texts_of(each)]
    return [value] if isinstance(value, str) else []


def test_texts_of_pods_are_printable_and_short(api):
    api.body = json.dumps({"items": [hostile_pod()]}).encode()
    (pod,) = api.pods()
    assert texts_of(pod) and all(is_fit(text, 317) for text in texts_of(pod))


def test_owner_name_cannot_forge_report_lines(api):
    api.body = json.dumps({"items": [hostile_pod()]}).encode()
    state = {"gpus": [{"uuid": "GPU-1", "holders": [{"kind": "kubelet", "who": "x", "job": UID}]}]}
    found, missing = audit_pods.look_up({"h": state}, {"h": audit_pods.Place("n1", api.kubeconfig)})
    pod = found["h"][UID]
    assert missing == [] and is_fit(str(pod), 1000) and is_fit(pod.owner, 400)
    assert all(is_fit(key, 317) and is_fit(value, 63) for key, value in pod.labels.items())
    # Also check a pod with a hostile name, which `pods_of` does not return.
    assert is_fit(str(audit_pods.pod_of(hostile_pod())), 1000)


def test_owner_of_50_megabytes_is_shortened(api):
    pod = hostile_pod()
    pod["metadata"]["ownerReferences"][0]["name"] = "x" * (50 << 20)
    api.body = json.dumps({"items": [pod]}).encode()
    (found,) = api.pods()
    assert all(is_fit(text, 317) for text in texts_of(found))


@pytest.mark.parametrize("status", [200, 403, 500])
def test_endless_answer_is_refused(api, monkeypatch, status):
    """Limit the size of an error response too.

    The package kubernetes reads error responses without a limit.
    """
    monkeypatch.setattr(client, "_MOST_BYTES", 1 << 20)
    api.status = status

    def send(file):
        while True:
            file.write(b"x" * 65536)

    api.send = send
    with pytest.raises(ClusterError, match="its answer is larger than 1 MiB") as raised:
        api.pods()
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("status", [200, 403])
def test_trickling_answer_times_out(api, monkeypatch, status):
    """Limit the total time.

    Each byte arrives within the timeout of a single read.
    """
    monkeypatch.setattr(client, "_ANSWER_SECONDS", 1.0)
    api.status, ends = status, threading.Event()

    def send(file):
        while not ends.is_set():
            file.write(b" ")
            file.flush()
            ends.wait(0.05)

    api.send = send
    began = time.monotonic()
    try:
        with pytest.raises(ClusterError, match="its answer took longer than"):
            api.pods()
        assert time.monotonic() - began < 60
    finally:
        ends.set()


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"[" * 100_000, b'{"items": null}', b'{"items": {"a": 1}}', b'{"items": [1]}', b'{"items": [{}]}',
     b'{"items": [{"metadata": {"name": "a"}}]}', b"\xff\xfe"],
)  # fmt: skip
def test_malformed_answer_is_an_error_with_its_place(api, body):
    api.body = body
    with pytest.raises(ClusterError, match="Kubernetes node n1: the API server answers with something other than pods"):
        api.pods()


@pytest.mark.parametrize("name", ["..", "../secrets", "pods?watch=true", "a\r\nb", "", 1, None])
def test_name_of_a_kind_cannot_redirect_a_request(api, name):
    api.body = json.dumps({"resources": [{"name": name, "kind": "Pod"}, "x", None]}).encode()
    assert Reader(core(api)).list("v1", "Pod") is None
    assert api.paths == ["/api/v1"]


def test_endless_list_of_objects_is_refused(api, monkeypatch):
    monkeypatch.setattr(client, "_MOST_BYTES", 1 << 10)
    api.body = json.dumps({"resources": [], "items": ["x" * (1 << 20)]}).encode()
    with pytest.raises(ClusterError, match="v1 Pod: it cannot be read: its answer is larger than"):
        Reader(core(api)).list("v1", "Pod")


@pytest.mark.parametrize("message", [FORGED, ["x"], {"a": FORGED}, "x" * (50 << 20), 1 << 70])
def test_api_server_message_is_one_short_line(api, message):
    api.status, api.body = 403, json.dumps({"message": message}).encode()
    with pytest.raises(ClusterError, match="its pods cannot be listed") as raised:
        api.pods()
    assert is_fit(str(raised.value), 500)


def daemonset_pod(name: str) -> dict:
    owner = {"kind": "DaemonSet", "name": name, "uid": "u", "controller": True}
    metadata = {"namespace": "ml", "name": "pod", "uid": UID, "labels": {"a": "b"}, "ownerReferences": [owner]}
    return client.checked_pod({"metadata": metadata})


def core(api):
    return client.core_api(api.kubeconfig, None)


@pytest.mark.parametrize("name", ["..", "../../secrets/x", "a?watch=true", "A", "", "x" * 400, "a\nb"])
def test_owner_name_cannot_redirect_a_request(api, name):
    assert client.daemonsets_of(core(api), [daemonset_pod(name)]) == []
    assert api.paths == []


def test_only_a_missing_daemonset_is_missing(api):
    api.status, api.body = 404, b'{"message": "not found"}'
    assert client.daemonsets_of(core(api), [daemonset_pod("agent")]) == []
    assert api.paths == ["/apis/apps/v1/namespaces/ml/daemonsets/agent"]
    api.status = 403
    with pytest.raises(ClusterError, match=r"DaemonSet ml/agent: it cannot be read: not found\. .*rbac\.yml"):
        client.daemonsets_of(core(api), [daemonset_pod("agent")])
    api.status, api.body = 200, b'{"metadata": {"uid": "u"}}'
    with pytest.raises(ClusterError, match="something other than a DaemonSet"):
        client.daemonsets_of(core(api), [daemonset_pod("agent")])


def test_disruption_budget_message_is_one_short_line(api):
    api.status, api.body = 429, json.dumps({"message": FORGED}).encode()
    cluster = kubernetes_eviction.Cluster(api.kubeconfig, None)
    pod = kubernetes_eviction.pods_to_evict("n1", [daemonset_pod("x")], None, kubernetes_eviction.Options(force=True))[
        0
    ]
    assert is_fit(cluster.evict(pod, kubernetes_eviction.Options()), 600)


DRAIN = """
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: openfleet.gpu.gpu_drain
"""


@pytest.fixture
def cluster(tmp_path):
    (tmp_path / "cluster").mkdir()
    made = KubernetesApi(tmp_path / "cluster")
    yield made
    made.server.shutdown()


def drain(tmp_path, cluster, **variables):
    """Drain a node with the role, using the modules of kubernetes.core."""
    playbook = tmp_path / "drain.yml"
    playbook.write_text(DRAIN)
    given = {
        "gpu_drain_kubernetes": True,
        "gpu_drain_kubernetes_node": "n1",
        "gpu_drain_kubernetes_kubeconfig": str(cluster.kubeconfig),
        "gpu_drain_state_directory": str(tmp_path / "state"),
        "gpu_drain_poll": 1,
        **variables,
    }
    python = str(interpreter(tmp_path / "python3", also=["kubernetes.dynamic"]))
    hosts = {"localhost": {"ansible_connection": "local", "ansible_python_interpreter": python}}
    return play(tmp_path, playbook, {"all": {"hosts": hosts}}, "-e", json.dumps(given))


@pytest.mark.skipif(os.geteuid() != 0, reason="a drain needs root")
@pytest.mark.parametrize("chosen", [{}, {"gpu_drain__uids": ["agent", "miner"]}], ids=["all pods", "some pods"])
def test_forged_daemonset_does_not_block_eviction(tmp_path, cluster, chosen):
    cluster.add_pod("agent", owner="DaemonSet")
    cluster.add_pod("miner", owner="DaemonSet")
    cluster.pods["miner"]["pod"]["metadata"]["ownerReferences"][0]["uid"] = "made-up"
    done = drain(tmp_path, cluster, **chosen)
    assert done.returncode == 2 and "ml/miner names a DaemonSet as its owner that does not exist" in said(done)
    assert cluster.requests == ["cordon", "uncordon"], "nothing was evicted before that was known"
    options = {"force": True, "ignore_daemonsets": True}
    done = drain(tmp_path, cluster, gpu_drain_kubernetes_delete_options=options, **chosen)
    assert done.returncode == 0, said(done)
    assert cluster.there() == ["agent"]
    assert cluster.requests[2:] == ["cordon", "evict miner"]


@pytest.mark.skipif(os.geteuid() != 0, reason="a drain needs root")
def test_forged_daemonset_is_not_awaited_for_paused_labels(tmp_path, cluster):
    """Check that a tenant's DaemonSet cannot delay a drain until its timeout.

    The DaemonSet's node selector has a label that the drain has paused.
    """
    cluster.add_pod("goes")
    cluster.add_pod("miner", owner="DaemonSet")
    metadata = cluster.pods["miner"]["pod"]["metadata"]
    metadata["ownerReferences"][0]["uid"] = "made-up"
    cluster.pods["miner"]["pod"]["spec"]["nodeSelector"] = {"nvidia.com/gpu.deploy.dcgm": "true"}
    labels = {"nvidia.com/gpu.deploy.dcgm": "paused"}
    done = drain(tmp_path, cluster, gpu_drain_kubernetes_labels=labels, gpu_drain__uids=["goes"], gpu_drain_timeout=30)
    assert done.returncode == 0, said(done)
    assert cluster.there() == ["miner"]
