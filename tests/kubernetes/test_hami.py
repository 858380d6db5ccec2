# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run gpu_kubernetes and site.yml with the backend hami on a real API server.

The account has only the rights of rbac.yml and rbac-hami.yml. hami_stand_in.HamiStandIn simulates HAMi with recorded answers.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.integration.simulated_fleet import Fleet
from tests.integration.simulated_host import ROOT
from tests.kubernetes import hami_recorded as recorded
from tests.kubernetes import hami_stand_in
from tests.kubernetes.hami_stand_in import HamiStandIn
from tests.kubernetes.node_fleet import NodeFleet, said

pytestmark = pytest.mark.root

RBAC = ROOT / "roles" / "gpu_kubernetes" / "files" / "rbac-hami.yml"
OWN = "openfleet.gpu/cordoned-devices"
SLICED = {"sharing": "time_slicing", "time_slicing": {"slice": "default", "replicas": 4}}
SHARED = [{"gpus": [0], **SLICED}]
EXCLUSIVE = [{"gpus": [0], "sharing": "exclusive"}]
CHANGE = ("gpu_layout/plan", "gpu_kubernetes/plan", "gpu_kubernetes/prepare", "gpu_layout", "gpu_kubernetes")


def variables(kubeconfig):
    return {
        "gpu_kubernetes_backend": "hami",
        "gpu_kubernetes_node": "node-{{ inventory_hostname }}",
        "gpu_kubernetes_kubeconfig": str(kubeconfig),
        "gpu_kubernetes_poll": 1,
        "gpu_kubernetes_timeout": 60,
    }


@pytest.fixture
def hami(api_server, kubeconfig):
    """Install HAMi's objects, and give the role's account its rights."""
    hami_stand_in.install(api_server)
    api_server.kubectl("apply", "--filename=%s" % RBAC)
    yield api_server
    hami_stand_in.uninstall(api_server)


@pytest.fixture
def fleet(library, tmp_path, kubeconfig):
    fleet = NodeFleet(tmp_path, library)
    fleet.more["one"] = variables(kubeconfig)
    return fleet


def gpus_of(host):
    return lambda: host.module("gpu_info")["gpus"]


@pytest.fixture
def node(hami, fleet):
    with HamiStandIn(hami, "node-one", gpus_of(fleet.host), fleet.pod_ended) as node:
        yield node


@pytest.mark.thorough
def test_hosts_of_a_wave_share_the_config_map_and_the_second_run_changes_nothing(hami, library, tmp_path, kubeconfig):
    names = ["one", "two", "three"]
    fleet = Fleet(tmp_path, library, names)
    fleet.more = {name: variables(kubeconfig) for name in names}
    layouts = {"one": SHARED, "two": EXCLUSIVE, "three": [{"gpus": [0], "sharing": "shared"}]}
    with HamiStandIn(hami, "node-one", gpus_of(fleet.hosts["one"])) as one, HamiStandIn(
        hami, "node-two", gpus_of(fleet.hosts["two"])
    ) as two, HamiStandIn(hami, "node-three", gpus_of(fleet.hosts["three"])) as three:
        run = fleet.play(layouts)
        assert run.returncode == 0, said(run)
        # The stand-ins share a chart's example entry, and each plugin has read its own entry.
        found = hami_stand_in.entries(hami)
        assert set(found) == {"your-node-name", "node-one", "node-two", "node-three"}
        assert found["your-node-name"] == {"name": "your-node-name", "devicesplitcount": 10}
        assert one.offers() == {"nvidia.com/gpu": 4} and three.offers() == {"nvidia.com/gpu": 10}
        assert two.offers() == {} and "gpu" not in two.labels()
        assert one.entries_read[-1] == found["node-one"] and three.entries_read[-1] == found["node-three"]
        again = fleet.play(layouts)
        assert again.returncode == 0 and again.stdout.count("changed=0") == 3, said(again)

        for name in ("one", "three"):
            fleet.more[name]["gpu_kubernetes_state"] = "absent"
        removed = fleet.play(layouts)
        assert removed.returncode == 0, said(removed)
        assert set(hami_stand_in.entries(hami)) == {"your-node-name", "node-two"}
        assert "gpu" not in one.labels() and "gpu" not in three.labels()
        # HAMi's scheduler would assign pods to a node from the registration that the plugin has left.
        assert one.offers() == {} and recorded.REGISTER not in one.annotations()


@pytest.mark.thorough
def test_a_gpu_that_changes_is_cordoned_until_the_change_is_verified(hami, fleet, node):
    first = fleet.run_roles(SHARED, *CHANGE)
    assert first.returncode == 0, said(first)
    [uuid] = [gpu["uuid"] for gpu in node.gpus()]
    node.annotate(**{recorded.CORDON: "GPU-of-an-administrator"})
    read = len(node.cordons_read)

    planned = fleet.run_roles(EXCLUSIVE, *CHANGE[:2])
    assert planned.returncode == 0, said(planned)
    assert "node node-one: cordon %s in HAMi until the change is verified" % uuid in said(planned)
    assert OWN not in node.annotations()

    # Without a scheduler, the run stops before it changes the layout.
    node.schedules = False
    fleet.more["one"]["gpu_kubernetes_timeout"] = 3
    refused = fleet.run_roles(EXCLUSIVE, *CHANGE)
    assert refused.returncode != 0
    assert "could not be cordoned in HAMi: HAMi's scheduler has not read the annotations of node node-one" in said(
        refused
    )
    assert "The layout of the host was not changed. Cordoned GPUs stay cordoned" in said(refused)
    assert node.gpus()[0]["compute_mode"] == "default"
    assert node.annotations()[recorded.CORDON] == "GPU-of-an-administrator,%s" % uuid

    node.schedules = True
    fleet.more["one"]["gpu_kubernetes_timeout"] = 60
    done = fleet.run_roles(EXCLUSIVE, *CHANGE)
    assert done.returncode == 0, said(done)
    assert node.gpus()[0]["compute_mode"] == "exclusive_process"
    assert hami_stand_in.entries(hami)["node-one"]["filterdevices"]["uuid"] == [uuid]
    assert node.offers() == {}
    assert json.loads(node.annotations()[recorded.REGISTER]) == []
    assert node.annotations()[recorded.CORDON] == "GPU-of-an-administrator" and OWN not in node.annotations()
    cordoned = [uuid in each for each in node.cordons_read[read:]]
    assert True in cordoned and cordoned[-1] is False

    again = fleet.run_roles(EXCLUSIVE, *CHANGE)
    assert again.returncode == 0 and again.stdout.count("changed=0") == 1, said(again)


@pytest.mark.thorough
def test_a_failed_verification_keeps_the_cordon_and_the_next_run_completes(hami, fleet, node):
    assert fleet.run_roles(SHARED, *CHANGE).returncode == 0
    [uuid] = [gpu["uuid"] for gpu in node.gpus()]
    fleet.more["one"]["gpu_kubernetes_timeout"] = 3
    node.comes_back = False
    failed = fleet.run_roles(EXCLUSIVE, *CHANGE)
    assert failed.returncode != 0
    assert "node node-one does not offer the planned resources after 3 s" in said(failed)
    assert "Cordoned GPUs stay cordoned in HAMi until a run has verified the change. Run again." in said(failed)
    assert node.annotations()[recorded.CORDON] == uuid

    node.comes_back = True
    fleet.more["one"]["gpu_kubernetes_timeout"] = 60
    done = fleet.play({"one": EXCLUSIVE})
    assert done.returncode == 0, said(done)
    assert recorded.CORDON not in node.annotations() and OWN not in node.annotations()


@pytest.mark.thorough
def test_a_pod_that_is_starting_on_the_gpu_is_awaited(hami, fleet, node):
    assert fleet.run_roles(SHARED, *CHANGE).returncode == 0
    [uuid] = [gpu["uuid"] for gpu in node.gpus()]
    node.add_pod("starting", **recorded.starting_pod("node-one", uuid))
    fleet.more["one"]["gpu_kubernetes_timeout"] = 3
    refused = fleet.run_roles(EXCLUSIVE, *CHANGE)
    assert refused.returncode != 0
    assert "pods are starting on cordoned GPUs: default/starting" in said(refused)
    assert node.gpus()[0]["compute_mode"] == "default"


def test_states_of_the_cluster_are_refused_or_reported(hami, fleet, node):
    webhook = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hami-webhook"
    hami.call("PUT", webhook, {**hami.find(webhook), "webhooks": recorded.webhook("Ignore")["webhooks"]})
    planned = fleet.run_roles(SHARED, "gpu_kubernetes/plan")
    assert planned.returncode == 0, said(planned)
    assert "DANGER: the webhook vgpu.hami.io of hami-webhook has failurePolicy Ignore" in said(planned)

    deployment = "/apis/apps/v1/namespaces/kube-system/deployments/hami-scheduler"
    hami.merge(deployment + "/status", {"status": {"readyReplicas": None}})
    refused = fleet.run_roles(SHARED, "gpu_kubernetes/plan")
    assert refused.returncode != 0
    assert re.search("one: node node-one: HAMi is installed, and no pod of its scheduler is ready", said(refused))
    assert "gpu" not in node.labels()
