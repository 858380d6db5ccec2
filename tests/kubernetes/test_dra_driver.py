# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run gpu_kubernetes with NVIDIA's DRA driver on an API server without nodes.

Driver and API server are real. The test starts no pod, so containerd needs no CDI. test_dra.py runs pods.
"""

from __future__ import annotations

import hashlib
import re
import urllib.parse

import pytest

from tests.kubernetes import dra
from tests.kubernetes.dra_node import DraNode
from tests.kubernetes.node_fleet import NodeFleet, said

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(dra.why_not()), reason="Go is too old for the DRA driver")]

TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
GPUS = [{"model": "H100-80GB", "count": 3}]
REST = [
    {"gpus": [1], "sharing": "time_slicing", "time_slicing": {"slice": "default", "replicas": 4}},
    {"gpus": [2], "sharing": "exclusive"},
]
FIRST = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 2}]}, *REST]
SECOND = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "2g.20gb"}]}, *REST]


@pytest.fixture
def fleet(api_server, library, tmp_path, kubeconfig):
    fleet = NodeFleet(tmp_path, library)
    fleet.host.create(GPUS)
    dra.permit(api_server)
    fleet.more["one"] = {
        "gpu_kubernetes_backend": "nvidia_dra",
        "gpu_kubernetes_node": "dra-one",
        "gpu_kubernetes_kubeconfig": str(kubeconfig),
        "gpu_kubernetes_poll": 1,
        "gpu_kubernetes_timeout": 100,
        "gpu_kubernetes_plugin_manifest": str(dra.MANIFEST),
        "gpu_kubernetes_plugin_sha256": hashlib.sha256(dra.MANIFEST.read_bytes()).hexdigest(),
        "gpu_kubernetes_plugin_kubeconfig": str(api_server.kubeconfig),
    }
    yield fleet
    items = api_server.call("GET", TEMPLATES)["items"]
    for item in items:
        api_server.call("DELETE", "%s/%s" % (TEMPLATES, item["metadata"]["name"]))
    api_server.kubectl("delete", "--ignore-not-found", "--wait=false", "--filename=%s" % dra.MANIFEST)


@pytest.fixture
def node(api_server, fleet):
    with DraNode(api_server, "dra-one", fleet.host.environment, fleet.host.library) as started:
        yield started


def names(api_server, plural):
    return {item["metadata"]["name"] for item in api_server.call("GET", "/apis/resource.k8s.io/v1/" + plural)["items"]}


def follow(fleet, layout, *entries):
    """Apply the layout to the GPUs, and then run these entry points of the role."""
    fleet.share(layout)
    run = fleet.run_roles(layout, *entries)
    assert run.returncode == 0, said(run)[-4000:]
    return run.stdout


def test_template_of_someone_else_is_refused(api_server, fleet, node):
    """Read a template that the plan names.

    The template lacks the label of the node.
    """
    template = {"metadata": {"name": "dra-one-exclusive-2"}, "spec": {"spec": {"devices": {}}}}
    api_server.call("POST", TEMPLATES, template)
    fleet.share(FIRST)
    refused = fleet.run_roles(FIRST, "gpu_kubernetes/plan")
    assert refused.returncode != 0
    problem = "the ResourceClaimTemplate default/dra-one-exclusive-2 exists, and the role did not write it"
    assert problem in said(refused), said(refused)[-4000:]


def test_driver_publishes_the_layout_and_is_restarted_only_for_a_change(api_server, fleet, node):
    follow(fleet, FIRST, "gpu_kubernetes/plan", "gpu_kubernetes/prepare", "gpu_kubernetes")
    assert node.devices() == [("gpu", "")] * 2 + [("mig", "1g.10gb")] * 2 + [("mig", "3g.40gb")]
    assert {"mig-1g.10gb.openfleet.gpu", "mig-3g.40gb.openfleet.gpu"} <= names(api_server, "deviceclasses")
    templates = {"dra-one-mig-0-3g.40gb", "dra-one-mig-0-1g.10gb", "dra-one-time-slicing-1", "dra-one-exclusive-2"}
    assert templates <= names(api_server, "resourceclaimtemplates")
    starts = node.starts

    follow(fleet, SECOND, "gpu_kubernetes")
    assert node.devices() == [("gpu", "")] * 2 + [("mig", "2g.20gb"), ("mig", "3g.40gb")]
    assert node.starts == starts + 1
    remaining = names(api_server, "resourceclaimtemplates") & {*templates, "dra-one-mig-0-2g.20gb"}
    assert remaining == {*templates, "dra-one-mig-0-2g.20gb"} - {"dra-one-mig-0-1g.10gb"}

    requests = len(api_server.requests_of_role())
    again = follow(fleet, SECOND, "gpu_kubernetes")
    assert re.search(r"^one .*changed=0 ", again, re.MULTILINE), again[-3000:]
    assert node.starts == starts + 1
    # The API server selects the templates of the node. A fleet has many more.
    paths = [path for _verb, path in api_server.requests_of_role()[requests:] if "templates" in path]
    assert paths and {urllib.parse.urlparse(path).query for path in paths} == {
        "labelSelector=openfleet.gpu%2Fnode%3Ddra-one"
    }
