# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send requests to the tests' real API server as different users."""

from __future__ import annotations

import json
import subprocess

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "control-plane-test"}}


def kubectl(plane, kubeconfig, *arguments):
    command = [plane.programs / "kubectl", "--kubeconfig", kubeconfig, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_control_plane_is_the_release_of_go_mod(api_server):
    assert api_server.call("GET", "/version")["gitVersion"].startswith("v1.34.")


def test_users_can_do_what_roles_allow(api_server):
    api_server.call("POST", "/api/v1/nodes", NODE)
    kubeconfig = api_server.kubeconfig_of("reader")
    refused = kubectl(api_server, kubeconfig, "get", "nodes")
    assert refused.returncode != 0 and 'User "reader" cannot list resource "nodes"' in refused.stderr
    api_server.kubectl("create", "clusterrole", "node-reader", "--verb=get,list", "--resource=nodes")
    api_server.kubectl("create", "clusterrolebinding", "node-reader", "--clusterrole=node-reader", "--user=reader")
    nodes = json.loads(kubectl(api_server, kubeconfig, "get", "nodes", "-o", "json").stdout)
    assert "control-plane-test" in {node["metadata"]["name"] for node in nodes["items"]}
    assert "forbidden" in kubectl(api_server, kubeconfig, "delete", "node", "control-plane-test").stderr
