# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove the configuration of several nodes of the DRA driver in one run.

The API server is real. The test writes the objects of the role and of the driver.
"""

from __future__ import annotations

import json

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.plugin_utils.schedulers.nvidia_dra import objects as api
from tests.integration.simulated_fleet import Fleet
from tests.kubernetes import dra
from tests.kubernetes.node_fleet import said

pytestmark = pytest.mark.root

LAYOUT = [{"gpus": "all", "sharing": "exclusive"}]
BACKEND = "openfleet.gpu/backend"
NODES, API = "/api/v1/nodes", "/apis/resource.k8s.io/v1"
SLICES, CLASSES = API + "/resourceslices", API + "/deviceclasses"
TEMPLATES = API + "/namespaces/default/resourceclaimtemplates"
#: The profile that each node publishes. The run does not remove the last node.
PROFILES = {"gone-one": "3g.40gb", "gone-two": "3g.40gb", "stays": "1g.10gb"}


def slice_of(node, profile):
    """Return a ResourceSlice with a MIG device."""
    attributes = {"type": {"string": "mig"}, "uuid": {"string": "MIG-" + node}, "profile": {"string": profile}}
    spec = {
        "driver": api.DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "device-0", "attributes": attributes}],
    }
    return {"metadata": {"name": node}, "spec": spec}


def delete(plane, made):
    """Delete the objects that exist. `made` has their paths and manifests."""
    for path, item in made:
        if plane.find("%s/%s" % (path, item["metadata"]["name"])):
            plane.call("DELETE", "%s/%s" % (path, item["metadata"]["name"]))


@pytest.fixture
def three_nodes(api_server, kubeconfig):
    """Create three nodes whose objects the role and the driver have written."""
    dra.permit(api_server)
    before = json.dumps({BACKEND: None})
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    made = [(CLASSES, api.device_class(profile)) for profile in sorted({*PROFILES.values()})]
    for name, profile in PROFILES.items():
        metadata = {
            "name": name,
            "labels": {BACKEND: "nvidia_dra"},
            "annotations": {"openfleet.gpu/labels-before": before},
        }
        made += [
            (NODES, {"metadata": metadata}),
            (SLICES, slice_of(name, profile)),
            (TEMPLATES, api.template(name + "-0", "default", name, claim)),
        ]
    # Other tests of the session leave DeviceClasses with the same names.
    delete(api_server, made)
    for path, item in made:
        api_server.call("POST", path, item)
    yield api_server
    delete(api_server, made)


def names(plane, path):
    return {item["metadata"]["name"] for item in plane.call("GET", path)["items"]}


def test_classes_of_the_removed_nodes_are_deleted_by_one_of_them(three_nodes, library, tmp_path, kubeconfig):
    hosts = {"one": "gone-one", "two": "gone-two"}
    fleet = Fleet(tmp_path, library, hosts)
    for host, node in hosts.items():
        fleet.more[host] = {
            "gpu_kubernetes_backend": "nvidia_dra",
            "gpu_kubernetes_node": node,
            "gpu_kubernetes_kubeconfig": str(kubeconfig),
        }
    include = {"name": "openfleet.gpu.gpu_kubernetes", "tasks_from": "remove"}
    playbook = tmp_path / "play.yml"
    playbook.write_text(
        yaml.safe_dump(
            [{"hosts": "gpu_hosts", "gather_facts": False, "tasks": [{"ansible.builtin.include_role": include}]}]
        )
    )
    requests = len(three_nodes.requests_of_role())
    run = fleet.play(dict.fromkeys(hosts, LAYOUT), playbook=playbook)
    assert run.returncode == 0, said(run)[-4000:]
    assert names(three_nodes, CLASSES) & {api.class_name(profile) for profile in PROFILES.values()} == {
        api.class_name(PROFILES["stays"])
    }
    assert names(three_nodes, TEMPLATES) & {name + "-0" for name in PROFILES} == {"stays-0"}
    assert names(three_nodes, "%s?labelSelector=%s" % (NODES, BACKEND)) & {*PROFILES} == {"stays"}
    # The number of requests for objects of all nodes does not depend on the number of hosts.
    done = three_nodes.requests_of_role()[requests:]
    assert [path for verb, path in done if verb == "list" and path in (SLICES, CLASSES)] == [SLICES, CLASSES]
