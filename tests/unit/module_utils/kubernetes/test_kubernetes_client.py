# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that requests to an unresponsive API server time out, for every verb."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.kubernetes import client
from ansible_collections.openfleet.gpu.plugins.module_utils.kubernetes.client import ClusterError, core_api, pods_of
from ansible_collections.openfleet.gpu.plugins.module_utils.kubernetes.pod_eviction import EvictionError, Options, Pod
from ansible_collections.openfleet.gpu.plugins.modules.kubernetes_eviction import Cluster

pytest.importorskip("kubernetes")
POD = Pod("ml", "train", "uid-1")
#: A request that does not time out fails the test after this time.
PATIENCE_SECONDS = 60


@pytest.fixture(name="kubeconfig")
def of_a_silent_server(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "REQUEST_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        path = tmp_path / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:%d" % server.getsockname()[1]}}],
                    "users": [{"name": "u", "user": {}}],
                }
            )
        )
        yield str(path)


def ended(question) -> BaseException:
    """Make a request in a thread, because it may hang. Return its error."""
    errors = []

    def ask():
        try:
            question()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), "the request has no limit"
    (error,) = errors
    return error


@pytest.mark.parametrize("disable_eviction", [False, True], ids=["create", "delete"])
def test_an_eviction_ends(kubeconfig, disable_eviction):
    options = Options(disable_eviction=disable_eviction)
    error = ended(lambda: Cluster(kubeconfig, None).evict(POD, options))
    assert isinstance(error, EvictionError)
    assert error.problem == "it cannot be evicted: the API server did not answer within 1 s"


def test_a_list_of_pods_ends(kubeconfig):
    error = ended(lambda: pods_of(core_api(kubeconfig, None), "n1"))
    assert isinstance(error, ClusterError)
    assert error.problem == "its pods cannot be listed: the API server did not answer within 1 s"


@pytest.mark.parametrize("call", ["list_node", "read_node", "patch_node", "replace_node", "delete_node"])
def test_any_other_verb_ends(kubeconfig, call):
    arguments = {"list_node": [], "patch_node": ["n1", {}], "replace_node": ["n1", {}]}.get(call, ["n1"])
    ended(lambda: getattr(core_api(kubeconfig, None), call)(*arguments))
