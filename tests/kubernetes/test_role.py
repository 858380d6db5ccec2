# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run gpu_kubernetes, gpu_drain and site.yml on a real API server.

The account has only the rights of roles/gpu_kubernetes/files/rbac.yml. Hosts are local folders with simulated GPUs.
node_stand_in.NodeStandIn simulates the device plugin and the kubelet.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading

import pytest

from tests.integration.simulated_fleet import Fleet
from tests.kubernetes import api_gate
from tests.kubernetes.node_fleet import NodeFleet, said
from tests.kubernetes.node_stand_in import CONFIG_MAP, LABEL, NAMESPACE, NodeStandIn
from tests.thorough import THOROUGH

pytestmark = pytest.mark.root

MIG_MANAGER = "nvidia.com/gpu.deploy.mig-manager"
PLUGIN_DEPLOYED = "nvidia.com/gpu.deploy.device-plugin"
MIG_CONFIG = "nvidia.com/mig.config"
MIG_STATE = "nvidia.com/mig.config.state"
BEFORE = "openfleet.gpu/labels-before"
CORDONED = "openfleet.gpu/cordoned-for-drain"
#: Upper limit for requests per node in a run that changes nothing.
MOST_CALLS = 5
MIXTURE = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 2}]}]
OTHER_MIXTURE = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "2g.20gb"}]}]
#: The same steps as in a change by site.yml. They evict pods whose devices change.
CHANGE = ("gpu_layout/plan", "gpu_kubernetes/plan", "gpu_kubernetes/prepare", "gpu_layout", "gpu_kubernetes")
DRAINED = {"gpu_layout_on_busy": "drain", "gpu_drain_kubernetes": True, "gpu_drain_poll": 1, "gpu_drain_timeout": 100}
SLICES = [{"gpus": [0], "sharing": "time_slicing", "time_slicing": {"slice": "default", "replicas": 4}}]


def variables(kubeconfig):
    return {
        "gpu_kubernetes_backend": "nvidia_device_plugin",
        "gpu_kubernetes_node": "node-{{ inventory_hostname }}",
        "gpu_kubernetes_kubeconfig": str(kubeconfig),
        # The stand-in reads the ConfigMap directly.
        "gpu_kubernetes_config_delay": 0,
        "gpu_kubernetes_poll": 1,
        "gpu_kubernetes_timeout": 100,
    }


@pytest.fixture
def fleet(library, tmp_path, kubeconfig):
    fleet = NodeFleet(tmp_path, library)
    fleet.more["one"] = variables(kubeconfig)
    return fleet


@pytest.fixture
def gate(fleet, kubeconfig, tmp_path):
    """Return the proxy through which the fleet reaches the API server."""
    with api_gate.opened(kubeconfig, tmp_path) as gate:
        fleet.more["one"]["gpu_kubernetes_kubeconfig"] = str(gate.kubeconfig)
        yield gate


@pytest.fixture
def node(api_server, fleet, config_map):
    labels = {LABEL: "default"}
    with NodeStandIn(api_server, "node-one", fleet.host.seen, labels, fleet.pod_ended) as node:
        yield node


@contextlib.contextmanager
def changing(node):
    """Change the node object repeatedly, as kubelets do on a busy node."""
    ended = threading.Event()

    def change():
        number = 0
        while not ended.wait(0.05):
            number += 1
            node.plane.merge(node.path, {"metadata": {"annotations": {"others": str(number)}}})

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def requests(api_server):
    """Return how often nodes, ConfigMaps and pods were requested, by verb and resource."""
    pattern = r'apiserver_request_total\{[^}]*,resource="(nodes|configmaps|pods)"[^}]*,verb="(\w+)"[^}]*\} ([0-9.e+]+)'
    found = {}
    for resource, verb, count in re.findall(pattern, api_server.kubectl("get", "--raw", "/metrics")):
        found[verb, resource] = found.get((verb, resource), 0) + int(float(count))
    return found


def test_nodes_follow_their_layouts_in_waves_and_second_run_only_reads(
    api_server, library, tmp_path, kubeconfig, config_map
):
    fleet = Fleet(tmp_path, library, ["one", "two"])
    fleet.more = {name: variables(kubeconfig) for name in fleet.hosts}
    seen = {name: fleet.hosts[name].seen for name in fleet.hosts}
    layouts = {"one": MIXTURE, "two": SLICES}
    with NodeStandIn(api_server, "node-one", seen["one"], {LABEL: "default"}) as one, NodeStandIn(
        api_server, "node-two", seen["two"]
    ) as two:
        run = fleet.play(layouts, waves=[1, "100%"])
        assert run.returncode == 0, said(run)
        assert "node node-one: label %s: openfleet-" % LABEL in said(run)
        assert one.offers() == {"nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-1g.10gb": 2}
        assert two.offers() == {"nvidia.com/gpu": 4}
        assert one.labels()[MIG_MANAGER] == two.labels()[MIG_MANAGER] == "false"
        assert json.loads(one.get()["metadata"]["annotations"][BEFORE]) == {
            LABEL: "default",
            MIG_MANAGER: None,
            MIG_CONFIG: None,
        }
        data = api_server.call("GET", config_map)["data"]
        assert set(data) == {"default", one.labels()[LABEL], two.labels()[LABEL]}
        one.pause()
        two.pause()
        before = requests(api_server)
        again = fleet.play(layouts, waves=[1, "100%"])
        asked = {key: count - before.get(key, 0) for key, count in requests(api_server).items()}
        assert again.returncode == 0 and again.stdout.count("changed=0") == 2, said(again)
    assert 0 < sum(count for (verb, _resource), count in asked.items() if verb == "GET") <= 2 * MOST_CALLS, asked
    # The API server itself writes its own ConfigMaps with PUT, and reads objects with LIST and WATCH.
    reads = {("PUT", "configmaps"), *((verb, resource) for verb, resource in asked if verb in ("GET", "LIST", "WATCH"))}
    assert not any(count for key, count in asked.items() if key not in reads), asked


def test_change_with_the_same_label_restarts_the_plugin_and_can_be_removed(api_server, fleet, node, config_map):
    fleet.share(MIXTURE)
    first = fleet.run_roles(MIXTURE, "gpu_kubernetes")
    assert first.returncode == 0, said(first)
    label, starts = node.labels()[LABEL], node.starts
    fleet.share(OTHER_MIXTURE)
    second = fleet.run_roles(OTHER_MIXTURE, "gpu_kubernetes")
    assert second.returncode == 0, said(second)
    assert (node.labels()[LABEL], node.starts) == (label, starts + 1)
    assert node.offers() == {"nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-2g.20gb": 1}
    node.comes_back = False
    fleet.share(MIXTURE)
    third = fleet.run_roles(MIXTURE, "gpu_kubernetes", gpu_kubernetes_timeout=2)
    assert third.returncode != 0
    differs = "nvidia.com/mig-1g.10gb 0 (planned 2), nvidia.com/mig-2g.20gb 1 (planned 0)"
    assert "one: node node-one does not offer the planned resources after 2 s: %s." % differs in said(third)
    assert re.search(r"The device plugin: (no pod|pod plugin-node-one-\d+: ready)", said(third))
    gone = fleet.run_roles(MIXTURE, "gpu_kubernetes", gpu_kubernetes_state="absent")
    assert gone.returncode == 0, said(gone)
    assert (node.labels()[LABEL], {MIG_MANAGER, MIG_CONFIG} & set(node.labels())) == ("default", set())
    assert BEFORE not in node.get()["metadata"].get("annotations", {})
    assert set(api_server.call("GET", config_map)["data"]) == {"default"}


def test_forged_daemonset_does_not_keep_a_pod_on_a_changing_device(api_server, fleet, node):
    """Evict a pod on a changing device despite a forged DaemonSet.

    The API server accepts a pod whatever owner it names.
    """
    fleet.share(MIXTURE)
    devices = fleet.devices()
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "made-up", "uid": "made-up", "controller": True}
    agent, miner = node.add_pod("agent", owner="DaemonSet"), node.add_pod("miner", owner=None, ownerReferences=[owner])
    fleet.give({agent: devices["3g.40gb"][0], miner: devices["1g.10gb"][0]})
    refused = fleet.run_roles(OTHER_MIXTURE, *CHANGE, **DRAINED)
    assert refused.returncode != 0
    assert "default/miner names a DaemonSet as its owner that does not exist" in said(refused)
    assert fleet.devices() == devices and "miner" in node.pods()
    force = {"gpu_drain_kubernetes_delete_options": {"force": True, "ignore_daemonsets": True}}
    with changing(node):
        run = fleet.run_roles(OTHER_MIXTURE, *CHANGE, **DRAINED, **force)
    assert run.returncode == 0, said(run)
    assert "agent" in node.pods() and "miner" not in node.pods()


def test_only_pods_on_devices_that_change_are_evicted_and_budgets_are_respected(api_server, fleet, node):
    fleet.share(MIXTURE)
    devices = fleet.devices()
    stays, goes = node.add_pod("stays"), node.add_pod("goes", labels={"app": "goes"})
    fleet.give({stays: devices["3g.40gb"][0], goes: devices["1g.10gb"][0]})
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "goes"}}}
    budget = api_server.call("POST", budgets, {"metadata": {"name": "goes"}, "spec": spec})
    # The controller manager would write this status.
    status = {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
    status["observedGeneration"] = budget["metadata"]["generation"]
    api_server.merge("%s/goes/status" % budgets, {"status": status})
    refused = fleet.run_roles(OTHER_MIXTURE, *CHANGE, **{**DRAINED, "gpu_drain_timeout": 2})
    assert refused.returncode != 0
    assert "node node-one: 1 pod will be evicted: default/goes" in said(refused)
    assert "pod default/goes; default/goes: Cannot evict pod as it would violate the pod's disruption budget" in said(
        refused
    )
    assert not node.get()["spec"].get("unschedulable")
    assert fleet.devices() == devices
    api_server.call("DELETE", "%s/goes" % budgets)
    with changing(node):
        run = fleet.run_roles(OTHER_MIXTURE, *CHANGE, **DRAINED)
    assert run.returncode == 0, said(run)
    assert "stays" in node.pods() and "goes" not in node.pods()
    assert fleet.devices()["3g.40gb"] == devices["3g.40gb"]
    assert not node.get()["spec"].get("unschedulable")
    assert node.offers() == {"nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-2g.20gb": 1}


def test_audit_reports_owners_and_labels_of_pods_with_gpus(api_server, fleet, node, tmp_path):
    fleet.share(MIXTURE)
    devices = fleet.devices()
    labels = {"app": "web", "pod-template-hash": "6d4cf56db6"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-6d4cf56db6", "uid": "x", "controller": True}
    web = node.add_pod("web-6d4cf56db6-x2x7k", owner=None, ownerReferences=[owner], labels=labels)
    alone = node.add_pod("alone", owner=None)
    node.add_pod("without-a-gpu")
    # The API server has no pod with the UID in this line.
    small = devices["1g.10gb"]
    fleet.give({web: devices["3g.40gb"][0], alone: small[0], "5b6b0a51-2a34-4b6e-8c55-6a1d5a7c9e02": small[1]})
    variables = ["gpu_audit_dir=%s" % tmp_path, "gpu_audit_keep=0"]
    options = [word for variable in variables for word in ("-e", variable)]
    run = fleet.play({"one": MIXTURE}, *options, playbook="playbooks/audit.yml")
    assert run.returncode == 0, said(run)
    findings = json.loads((tmp_path / "audit.json").read_text())["findings"]
    pods = [holder["pod"] for found in findings for holder in found["holding"]["holders"]]
    assert len(pods) == 3 and None in pods
    assert {pod["name"]: (pod["namespace"], pod["owner"], pod["labels"]) for pod in pods if pod} == {
        "web-6d4cf56db6-x2x7k": ("default", "Deployment/web", labels),
        "alone": ("default", "", {}),
    }
    page = (tmp_path / "audit.html").read_text()
    assert "pod default/web-6d4cf56db6-x2x7k of Deployment/web" in page and "app=web,pod-template-hash" in page
    api_server.stop_program("kube-apiserver")
    try:
        away = fleet.play({"one": MIXTURE}, *options, playbook="playbooks/audit.yml")
    finally:
        api_server.start_api_server()
    assert away.returncode == 0, said(away)
    assert "Owners and labels of pods on one are unknown. Kubernetes node node-one: its pods cannot be listed" in said(
        away
    )


PAUSED_BEFORE = "openfleet.gpu/labels-before-drain"


def test_plugin_is_paused_for_a_change_of_the_mig_mode(api_server, fleet, config_map, gate):
    """Pause the plugin for a change of the MIG mode.

    The change requires that every handle is closed. The DaemonSet recreates its pod unless a label prevents it.
    """

    def cut_off(write):
        if PAUSED_BEFORE.partition("/")[2] in write.body:
            gate.after = lambda _write: None
            fleet.kill()

    def is_back():
        found = node.get()
        annotations = found["metadata"]["annotations"]
        assert found["metadata"]["labels"][PLUGIN_DEPLOYED] == "true"
        assert not found["spec"].get("unschedulable") and not {PAUSED_BEFORE, CORDONED} & set(annotations)

    selector = {PLUGIN_DEPLOYED: "true"}
    labels = {LABEL: "default", **selector}
    with fleet.with_nodes() as watch, NodeStandIn(
        api_server, "node-one", fleet.host.seen, labels, fleet.pod_ended, watch, selector
    ) as node:
        api_server.wait(lambda: fleet.watching, "the plugin keeps the GPU open")
        refused = fleet.run_roles(MIXTURE, *CHANGE, **DRAINED, gpu_drain_kubernetes_labels={})
        assert refused.returncode != 0
        assert re.search(r"in use by pid \d+ [^:]+, which only watches the GPU: ", said(refused)), said(refused)
        assert "in gpu_drain_kubernetes_labels" in said(refused)
        starts = node.starts
        # The label shows that the GPU operator manages the node. The role pauses the operator's clients by default.
        run = fleet.run_roles(MIXTURE, *CHANGE, **DRAINED)
        assert run.returncode == 0, said(run)
        assert node.starts > starts
        assert node.offers() == {"nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-1g.10gb": 2}
        is_back()
        if not THOROUGH:
            return
        # The controller is killed after it has paused the clients on the node.
        fleet.killable, gate.after = True, cut_off
        killed = fleet.run_roles(SLICES, *CHANGE, **DRAINED)
        assert killed.returncode != 0 and node.labels()[PLUGIN_DEPLOYED] == "paused-for-openfleet-gpu"
        run = fleet.run_roles(SLICES, *CHANGE, **DRAINED)
        assert run.returncode == 0, said(run)
        assert node.offers() == {"nvidia.com/gpu": 4}
        is_back()


def cordons(write):
    return CORDONED.partition("/")[2] in write.body and '"value": true' in write.body


def test_administrators_cordon_after_the_drains_first_read_stays(api_server, fleet, node, gate):
    def cordon(write):
        gate.before = lambda _write: None
        assert cordons(write)
        api_server.merge(node.path, {"spec": {"unschedulable": True}})

    gate.before = cordon
    run = fleet.run_roles(MIXTURE, "gpu_drain/drain", "gpu_drain/resume", **DRAINED)
    assert run.returncode == 0, said(run)
    assert "Kubernetes node node-one stays cordoned" in said(run)
    found = node.get()
    assert found["spec"]["unschedulable"] and CORDONED not in found["metadata"].get("annotations", {})


def moves_the_label(write):
    return LABEL in write.body and "openfleet-" in write.body


def finish(fleet, node, stepper, *roles, layout=OTHER_MIXTURE, **more):
    """Run roles until a run is not killed, and return that run.

    The first run is killed at an early write to the API, and each further run at a later write.
    """
    for _run in range(30):
        stepper.go_on()
        run = fleet.run_roles(layout, *roles, **more)
        if stepper.killed_at is None:
            return run
        found = node.get()
        metadata, annotations = found["metadata"], found["metadata"].get("annotations", {})
        if metadata["labels"].get(MIG_MANAGER) == "false":
            assert json.loads(annotations[BEFORE])[MIG_MANAGER] is None, stepper.killed_at
        if metadata["labels"][LABEL] != "default":
            assert json.loads(annotations[BEFORE])[LABEL] == "default", stepper.killed_at
        if found["spec"].get("unschedulable"):
            assert CORDONED in annotations and (fleet.folder / "one" / "state.d" / "drain.json").exists()
    raise AssertionError("always killed, last at %s" % (stepper.killed_at,))


@pytest.mark.parametrize("moment", ["after", "before"] if THOROUGH else ["after"])
def test_later_runs_complete_after_a_killed_controller(api_server, fleet, node, gate, moment):
    """Kill the controller before or after each of its writes. A later run must finish.

    `make test` kills it only after the eviction.
    """

    def chosen(write):
        return THOROUGH or write.path.endswith("/eviction")

    fleet.share(MIXTURE)
    devices = fleet.devices()
    stays, goes = node.add_pod("stays"), node.add_pod("goes")
    fleet.give({stays: devices["3g.40gb"][0], goes: devices["1g.10gb"][0]})
    fleet.killable = True
    stepper = api_gate.Stepper(fleet.kill, chosen)
    setattr(gate, moment, stepper)
    run = finish(fleet, node, stepper, *CHANGE, **DRAINED)
    assert run.returncode == 0, said(run)
    assert len(stepper.seen) >= (6 if THOROUGH else 1), stepper.seen
    assert node.offers() == {"nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-2g.20gb": 1}
    assert fleet.devices()["3g.40gb"] == devices["3g.40gb"]
    found = node.get()
    assert json.loads(found["metadata"]["annotations"][BEFORE]) == {
        LABEL: "default",
        MIG_MANAGER: None,
        MIG_CONFIG: None,
    }
    assert not found["spec"].get("unschedulable") and CORDONED not in found["metadata"]["annotations"]
    assert "stays" in node.pods() and "goes" not in node.pods()
    assert not (fleet.folder / "one" / "state.d" / "drain.json").exists()
    if not THOROUGH:
        return
    run = finish(fleet, node, stepper, "gpu_kubernetes", gpu_kubernetes_state="absent")
    assert run.returncode == 0, said(run)
    assert (node.labels()[LABEL], {MIG_MANAGER, MIG_CONFIG} & set(node.labels())) == ("default", set())
    assert BEFORE not in node.get()["metadata"].get("annotations", {})
    path = "/api/v1/namespaces/%s/configmaps/%s" % (NAMESPACE, CONFIG_MAP)
    assert set(api_server.call("GET", path)["data"]) == {"default"}


def test_lost_api_server_is_an_error_with_a_fix_and_next_run_continues(api_server, fleet, node, gate):
    def goes_away(_write):
        gate.before = gate.after = lambda _write: None
        api_server.stop_program("kube-apiserver")
        raise api_gate.CutError

    fleet.share(MIXTURE)
    pod = node.add_pod("goes")
    fleet.give({pod: fleet.devices()["1g.10gb"][0]})
    # The API server cordons the node, but its response does not reach the controller.
    gate.after = lambda write: goes_away(write) if cordons(write) else None
    run = fleet.run_roles(OTHER_MIXTURE, *CHANGE, **DRAINED)
    assert run.returncode != 0
    assert "one: Kubernetes node node-one is still cordoned, because uncordoning failed" in said(run)
    assert "Run again, or uncordon it by hand" in said(run)
    api_server.start_api_server()
    assert node.get()["spec"]["unschedulable"] and fleet.devices().keys() == {"3g.40gb", "1g.10gb"}
    gate.before = lambda write: goes_away(write) if moves_the_label(write) else None
    run = fleet.run_roles(OTHER_MIXTURE, *CHANGE, **DRAINED)
    assert run.returncode != 0
    assert "one: node node-one of the cluster of %s" % gate.kubeconfig in said(run)
    assert "does not follow the layout: " in said(run)
    assert "Run again when the cluster responds: completed steps are skipped." in said(run)
    api_server.start_api_server()
    found = node.get()
    assert found["metadata"]["labels"][LABEL] == "default" and not found["spec"].get("unschedulable")
    assert fleet.devices().keys() == {"3g.40gb", "2g.20gb"} and "goes" not in node.pods()
    run = fleet.run_roles(OTHER_MIXTURE, *CHANGE, **DRAINED)
    assert run.returncode == 0, said(run)
    assert node.offers() == {"nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-2g.20gb": 1}
    found = node.get()["metadata"]
    assert json.loads(found["annotations"][BEFORE]) == {LABEL: "default", MIG_MANAGER: None, MIG_CONFIG: None}
