# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change objects that the nodes of a cluster share.

Such objects are quotas, HyperNodes, and the ConfigMaps of Volcano's scheduler and vGPU plugin.
"""

from __future__ import annotations

import copy
import json

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_changes import kubernetes_changes
from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_cluster import kubernetes_cluster
from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_mapping import kubernetes_mapping
from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_removal import kubernetes_removal
from ansible_collections.openfleet.gpu.plugins.filter.node_entries import node_entries

pytestmark = pytest.mark.core

OWNED = {"app.kubernetes.io/managed-by": "openfleet.gpu"}
MIG = [
    {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 4}]},
    {"gpus": [1], "sharing": "exclusive"},
]
SHARED = [{"gpus": [0, 1], "sharing": "time_slicing", "time_slicing": {"slice": "default", "replicas": 4}}]
SMALL = "nvidia.com/mig-1g.10gb"
QUOTAS = {
    "team-a": {"namespaces": ["a", "a-dev"], "resources": {SMALL: 3}},
    "team-b": {"namespaces": ["b"], "resources": {SMALL: 1, "nvidia.com/gpu": 1}, "borrow": True},
}
HANDSHAKE = "volcano.sh/node-vgpu-handshake"
CONF = """\
# the site's comment
actions: "enqueue, allocate, backfill"  # in this order
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
- plugins:
  - name: drf
  - name: binpack
    arguments:
      binpack.weight: 10   # more than spread
# after the tiers
configurations: []
"""


def row(host, layout=None, backend="nvidia_device_plugin", **more):
    """Return the variables of a host with two H100.

    Without a layout, the run makes no plan for the host.
    """
    found = {"inventory_hostname": host, "gpu_kubernetes_backend": backend, **more}
    if layout:
        planned = kubernetes_mapping(layout, backend, expected_gpus=["H100-80GB"] * 2, node=host)
        assert not planned["problems"], planned["problems"]
        found["gpu_kubernetes_planned"] = planned
    return found


class Cluster:
    """The objects of an API server. `missing` has the API versions that it lacks."""

    def __init__(self, *objects, missing=()):
        self.objects, self.missing = list(objects), missing

    def plan(self, rows, **request):
        reads = kubernetes_cluster(rows, host=rows[0]["inventory_hostname"], **request)["reads"]
        results = [
            {
                "item": read,
                "api_found": read["api_version"] not in self.missing,
                "resources": [item for item in self.objects if matches(item, read)],
            }
            for read in reads
        ]
        return kubernetes_cluster(rows, results, host=rows[0]["inventory_hostname"], **request)

    def apply(self, changes):
        assert changes["problems"] == []
        for each in changes["delete"]:
            self.objects = [item for item in self.objects if key(item) != key(each)]
        for each in changes["write"]:
            old = [item for item in self.objects if key(item) == key(each)]
            self.objects = [item for item in self.objects if key(item) != key(each)]
            self.objects.append({**(old[0] if old else {}), **copy.deepcopy(each)})


def key(item):
    metadata = item["metadata"]
    return item["kind"], metadata.get("namespace", ""), metadata["name"]


def matches(item, read):
    wanted = (read["kind"], read["name"], read["namespace"])
    metadata = item["metadata"]
    return wanted == (
        item["kind"],
        metadata["name"] if read["name"] else "",
        metadata.get("namespace", "") if read["namespace"] else "",
    )


def node(name, labels=None, annotations=None, **allocatable):
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"allocatable": allocatable}}


def namespaces(*names):
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names]


def config_map(namespace, name, version="7", **data):
    metadata = {"name": name, "namespace": namespace, "resourceVersion": version}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


@pytest.fixture
def cluster():
    return Cluster(node("n1"), *namespaces("a", "a-dev", "b"))


def test_each_team_gets_a_queue_with_its_quota_and_one_in_each_namespace(cluster):
    changes = cluster.plan([row("n1", MIG)], quotas=QUOTAS)
    assert changes["lines"] == [
        "write ResourceFlavor openfleet-gpu",
        "write ClusterQueue team-a",
        "write ClusterQueue team-b",
        "write LocalQueue a/default",
        "write LocalQueue a-dev/default",
        "write LocalQueue b/default",
    ]
    assert all(item["metadata"]["labels"] == OWNED for item in changes["write"])
    queues = {item["metadata"]["name"]: item["spec"] for item in changes["write"] if item["kind"] == "ClusterQueue"}
    limits = {
        team: {
            each["name"]: (each["nominalQuota"], each.get("borrowingLimit"))
            for each in spec["resourceGroups"][0]["flavors"][0]["resources"]
        }
        for team, spec in queues.items()
    }
    assert limits["team-a"][SMALL] == ("3", "0")
    assert limits["team-a"]["nvidia.com/gpu"] == ("0", "0")
    assert limits["team-b"][SMALL] == ("1", None)
    # Kueue refuses a job that requests a resource which its queue does not cover.
    assert {"cpu", "memory", "ephemeral-storage"} <= set(limits["team-b"])
    assert queues["team-a"]["namespaceSelector"]["matchExpressions"][0]["values"] == ["a", "a-dev"]


def test_a_second_plan_changes_nothing_although_kueue_writes_quantities_in_its_own_notation(cluster):
    rows, quotas = [row("n1", MIG)], {"team-a": {"namespaces": ["a"], "resources": {SMALL: 1000}}}
    cluster.apply(cluster.plan(rows, quotas=quotas))
    text = json.dumps(cluster.objects).replace('"1000"', '"1k"').replace('"1M"', '"1000k"')
    cluster.objects = json.loads(text)
    again = cluster.plan(rows, quotas=quotas)
    assert again["in_step"] and not again["write"]


def test_a_team_that_leaves_loses_its_objects_and_a_namespace_can_change_its_team(cluster):
    rows = [row("n1", MIG)]
    cluster.apply(cluster.plan(rows, quotas=QUOTAS))
    moved = {"team-b": {**QUOTAS["team-b"], "namespaces": ["b", "a"]}}
    changes = cluster.plan(rows, quotas=moved)
    # The team of a LocalQueue cannot be changed, so the queue is created again.
    assert [key(each) for each in changes["delete"]] == [
        ("LocalQueue", "a-dev", "default"),
        ("ClusterQueue", "", "team-a"),
        ("LocalQueue", "a", "default"),
    ]
    cluster.apply(changes)
    assert cluster.plan(rows, quotas=moved)["in_step"]
    changes = cluster.plan(rows, quotas={})
    assert len(changes["delete"]) == 4 and not changes["write"]


def test_without_the_variable_quotas_are_neither_read_nor_changed(cluster):
    cluster.apply(cluster.plan([row("n1", MIG)], quotas=QUOTAS))
    changes = cluster.plan([row("n1", MIG)])
    assert changes["in_step"]
    assert {read["kind"] for read in changes["reads"]} == {"Node"}


def test_removal_of_the_last_node_removes_the_quotas(cluster):
    rows = [row("n1", MIG), row("n2", MIG)]
    cluster.apply(cluster.plan(rows, quotas=QUOTAS))
    cluster.objects.append(node("n2", annotations={"openfleet.gpu/labels-before": "{}"}))
    assert cluster.plan(rows, quotas=QUOTAS, removed=["n1"])["in_step"]
    changes = cluster.plan(rows, quotas=QUOTAS, removed=["n1", "n2"])
    assert len(changes["delete"]) == 6 and not changes["write"]


@pytest.mark.parametrize("missing", ["kueue.x-k8s.io/v1beta2", "topology.volcano.sh/v1alpha1"])
def test_a_cluster_without_the_kinds_is_told_what_to_install(cluster, missing):
    cluster.missing = (missing,)
    changes = cluster.plan([row("n1", MIG, gpu_slurm_switch="tor-a")], quotas=QUOTAS, hypernodes=True)
    [problem] = changes["problems"]
    assert missing in problem
    assert ("Kueue 0.15 or later" in problem) == missing.startswith("kueue") == ("Volcano" not in problem)
    # If there is nothing to remove, this is no problem.
    assert cluster.plan([row("n1", MIG)], quotas={}, hypernodes=True)["in_step"]


def test_a_resource_that_no_node_offers_is_refused_with_its_entry(cluster):
    wrong = {"team-a": {"namespaces": ["a"], "resources": {"nvidia.com/mig-2g.20gb": 1}}}
    [problem] = cluster.plan([row("n1", MIG)], quotas=wrong)["problems"]
    assert problem.startswith("gpu_kubernetes_quotas.team-a.resources.nvidia.com/mig-2g.20gb: no node")
    assert "The nodes offer nvidia.com/gpu, nvidia.com/mig-1g.10gb, nvidia.com/mig-3g.40gb." in problem


def test_nodes_outside_of_the_run_count_with_what_they_offer(cluster):
    quotas = {"team-a": {"namespaces": ["a"], "resources": {SMALL: 6}}}
    [warning] = [line for line in cluster.plan([row("n1", MIG)], quotas=quotas)["lines"] if "add up" in line]
    assert "add up to 6, and the nodes offer 4" in warning
    cluster.objects.append(node("n2", **{SMALL: "7", "cpu": "2"}))
    cluster.objects[0] = node("n1", **{SMALL: "1", "nvidia.com/mig-7g.80gb": "1"})
    assert not [line for line in cluster.plan([row("n1", MIG)], quotas=quotas)["lines"] if "add up" in line]
    old = {"team-a": {"namespaces": ["a"], "resources": {"nvidia.com/mig-7g.80gb": 1}}}
    # This run changes the layout of n1, so the current resources of n1 do not count.
    assert cluster.plan([row("n1", MIG)], quotas=old)["problems"]
    assert not cluster.plan([row("n1")], quotas=old)["problems"]


def test_objects_of_others_are_not_overwritten(cluster):
    cluster.objects.append(
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "team-b"}, "spec": {}}
    )
    [problem] = cluster.plan([row("n1", MIG)], quotas=QUOTAS)["problems"]
    assert problem.startswith("the ClusterQueue team-b exists, and the role did not write it")


def test_a_namespace_that_does_not_exist_is_refused(cluster):
    cluster.objects = [item for item in cluster.objects if item["metadata"]["name"] != "a-dev"]
    [problem] = cluster.plan([row("n1", MIG)], quotas=QUOTAS)["problems"]
    assert problem.startswith("gpu_kubernetes_quotas.team-a.namespaces: the cluster has no namespace a-dev")


@pytest.mark.parametrize(
    ("quotas", "place"),
    [
        ([], "gpu_kubernetes_quotas: it is not a mapping"),
        ({"Team": {}}, "gpu_kubernetes_quotas.Team: 'Team' is not the name of a team"),
        ({"o'brien": {}}, "gpu_kubernetes_quotas.o'brien: \"o'brien\" is not the name of a team"),
        (
            {"t": {"namespaces": ["o'brien"], "resources": {SMALL: 1}}},
            'quotas.t.namespaces[0]: "o\'brien" is not the name',
        ),
        (
            {"t": {"namespaces": ["a"], "resources": {"o'brien/gpu": 1}}},
            "quotas.t.resources.o'brien/gpu: it is not the name",
        ),
        ({"t": {"namespace": ["a"]}}, "gpu_kubernetes_quotas.t: it is not a quota"),
        ({"t": {"namespaces": [], "resources": {SMALL: 1}}}, "gpu_kubernetes_quotas.t.namespaces: it is not a list"),
        ({"t": {"namespaces": ["a/b"], "resources": {SMALL: 1}}}, "gpu_kubernetes_quotas.t.namespaces[0]: 'a/b'"),
        ({"t": {"namespaces": ["a"], "resources": {}}}, "gpu_kubernetes_quotas.t.resources: it has no resource"),
        ({"t": {"namespaces": ["a"], "resources": {"cpu": 1}}}, "gpu_kubernetes_quotas.t.resources.cpu: it is not"),
        ({"t": {"namespaces": ["a"], "resources": {SMALL: True}}}, "resources.%s: True is not a number" % SMALL),
        ({"t": {"namespaces": ["a"], "resources": {SMALL: -1}}}, "resources.%s: -1 is not a number" % SMALL),
        ({"t": {"namespaces": ["a"], "resources": {SMALL: "2"}}}, "resources.%s: '2' is not a number" % SMALL),
        ({"t": {"namespaces": ["a"], "resources": {SMALL: 1}, "borrow": "no"}}, "gpu_kubernetes_quotas.t.borrow: 'no'"),
        (
            {team: {"namespaces": ["a"], "resources": {SMALL: 1}} for team in ("t", "u")},
            "gpu_kubernetes_quotas.u.namespaces: the namespace a is also a namespace of t",
        ),
    ],
)
def test_wrong_quotas_are_refused_with_their_place_before_the_cluster_is_read(quotas, place):
    problems = kubernetes_cluster([row("n1")], host="n1", quotas=quotas)["problems"]
    assert len(problems) == 1 and place in problems[0]


def test_hosts_of_a_cluster_have_the_same_quotas():
    rows = [row("n1", gpu_kubernetes_quotas=QUOTAS), row("n2", gpu_kubernetes_quotas={})]
    [problem] = kubernetes_cluster(rows, host="n1", quotas=QUOTAS)["problems"]
    assert "n1 and n2 of the same cluster have different values" in problem
    rows[1]["gpu_kubernetes_context"] = "other"
    assert kubernetes_cluster(rows, host="n1", quotas=QUOTAS)["problems"] == []


def test_switches_of_the_inventory_become_hyper_nodes(cluster):
    rows = [
        row("h1", gpu_slurm_switch="tor-a", gpu_kubernetes_node="n1"),
        row("n2", gpu_slurm_switch="Tor_B"),
        row("n3", gpu_slurm_switch="tor-a"),
        row("n4"),
        row("n5", gpu_slurm_switch="tor-c", gpu_kubernetes_context="other"),
    ]
    cluster.apply(cluster.plan(rows, hypernodes=True))
    current = {
        item["metadata"]["name"]: (
            item["spec"]["tier"],
            [(each["type"], each["selector"]["exactMatch"]["name"]) for each in item["spec"]["members"]],
        )
        for item in cluster.objects
        if item["kind"] == "HyperNode"
    }
    assert current == {
        "tor-a": (1, [("Node", "n1"), ("Node", "n3")]),
        "tor-b": (1, [("Node", "n2")]),
        "gpu-fleet": (2, [("HyperNode", "tor-a"), ("HyperNode", "tor-b")]),
    }
    assert cluster.plan(rows, hypernodes=True)["in_step"]
    changes = cluster.plan(rows, hypernodes=True, removed=["n2"])
    assert [key(each)[2] for each in changes["delete"]] == ["gpu-fleet", "tor-b"] and not changes["write"]
    cluster.apply(changes)
    cluster.apply(cluster.plan(rows, hypernodes=True, removed=["h1", "n2", "n3"]))
    assert not [item for item in cluster.objects if item["kind"] == "HyperNode"]


@pytest.mark.parametrize("switch", ["gpu_fleet", "-a", "a..b", "a b", "o'brien", 'a"b', "a{{b"])
def test_a_switch_that_cannot_be_a_hyper_node_is_refused(switch):
    [problem] = kubernetes_cluster([row("n1", gpu_slurm_switch=switch)], host="n1", hypernodes=True)["problems"]
    assert problem.startswith("gpu_slurm_switch of n1: ")


SCHEDULER = "volcano-system/volcano-scheduler-configmap"


def volcano(conf=CONF, nodes=("n1",)):
    return Cluster(
        *map(node, nodes),
        config_map("volcano-system", "volcano-scheduler-configmap", **{"volcano-scheduler.conf": conf, "other": "x"}),
    )


def written(changes, name):
    [found] = [item for item in changes["write"] if item["metadata"]["name"] == name]
    return found


def test_deviceshare_is_added_to_the_scheduler_without_other_changes():
    cluster = volcano()
    changes = cluster.plan([row("n1", SHARED, "volcano_vgpu")], scheduler=SCHEDULER)
    found = written(changes, "volcano-scheduler-configmap")
    assert "ConfigMap %s: add the plugin deviceshare" % SCHEDULER in changes["lines"]
    # With this version, the API refuses the request if another program has changed the ConfigMap meanwhile.
    assert found["metadata"]["resourceVersion"] == "7"
    assert list(found["data"]) == ["volcano-scheduler.conf"]
    text = found["data"]["volcano-scheduler.conf"]
    added = [line for line in text.splitlines() if line not in CONF.splitlines()]
    assert [line for line in text.splitlines() if line not in added] == CONF.splitlines()
    assert len(added) == 3
    expected = yaml.safe_load(CONF)
    expected["tiers"][1]["plugins"].append({"name": "deviceshare", "arguments": {"deviceshare.VGPUEnable": True}})
    assert yaml.safe_load(text) == expected
    cluster.apply(changes)
    assert cluster.plan([row("n1", SHARED, "volcano_vgpu")], scheduler=SCHEDULER)["in_step"]


@pytest.mark.parametrize(
    "conf",
    [
        CONF.replace("\n- ", "\n  - ").replace("\n  - name", "\n    - name").replace("\n    ", "\n      "),
        "tiers: [{plugins: [{name: gang}]}]\n",
        "tiers:\n- plugins:\n  - name: gang\n\n\n# end",
        "tiers:\n- plugins:\n  - name: gang",
        "tiers:\n- plugins:\n  - {name: gang}\n  - name: x\n    arguments: {a: |-\n      b}\n",
        'tiers:\n- plugins:\n  - name: x\n    arguments:\n      a: |\n        text\n        more\nactions: "allocate"\n',
        "tiers:\n  -\n    plugins:\n      -\n        name: gang\nactions: allocate\n",
        "tiers:\r\n- plugins:\r\n  - name: gang\r\n",
        "a: &a {name: gang}\ntiers:\n- plugins:\n  - *a\n",
    ],
)
def test_any_configuration_either_gets_only_deviceshare_or_is_refused(conf):
    changes = volcano(conf).plan([row("n1", SHARED, "volcano_vgpu")], scheduler=SCHEDULER)
    if changes["problems"]:
        assert changes["write"] == []
        assert "volcano-scheduler.conf: " in changes["problems"][0]
        return
    text = written(changes, "volcano-scheduler-configmap")["data"]["volcano-scheduler.conf"]
    expected = yaml.safe_load(conf)
    expected["tiers"][-1]["plugins"].append({"name": "deviceshare", "arguments": {"deviceshare.VGPUEnable": True}})
    assert yaml.safe_load(text) == expected


@pytest.mark.parametrize(
    ("conf", "problem"),
    [
        ("tiers: [", "it is not valid YAML in line"),
        ("actions: allocate\n", "it has no tiers with plugins"),
        ("tiers:\n- plugins: [gang]\n", "it has no tiers with plugins"),
        ("tiers: []\n", "it has no tiers with plugins"),
        (CONF.replace("name: drf", "name: deviceshare"), "deviceshare has no deviceshare.VGPUEnable: true"),
        (
            CONF.replace("name: drf", "{name: deviceshare, arguments: {deviceshare.GPUSharingEnable: true}}"),
            "deviceshare has deviceshare.GPUSharingEnable",
        ),
    ],
)
def test_a_configuration_that_cannot_take_deviceshare_is_refused(conf, problem):
    [found] = volcano(conf).plan([row("n1", SHARED, "volcano_vgpu")], scheduler=SCHEDULER)["problems"]
    assert found.startswith("ConfigMap %s, volcano-scheduler.conf: %s" % (SCHEDULER, problem))


def test_without_volcano_its_installation_is_named():
    [problem] = Cluster(node("n1")).plan([row("n1", SHARED, "volcano_vgpu")], scheduler=SCHEDULER)["problems"]
    assert "Install Volcano, or set gpu_kubernetes_volcano_config_map" in problem


def test_deviceshare_of_the_site_is_kept():
    own = CONF.replace("  - name: drf\n", "  - name: deviceshare\n    arguments: {deviceshare.VGPUEnable: true}\n")
    cluster = volcano(own)
    assert cluster.plan([row("n1", SHARED, "volcano_vgpu")], scheduler=SCHEDULER)["in_step"]
    assert cluster.plan([row("n1", SHARED, "volcano_vgpu")], scheduler=SCHEDULER, removed=["n1"])["in_step"]


def test_removal_of_the_last_node_restores_the_scheduler():
    cluster = volcano(nodes=("n1", "n2"))
    rows = [row("n1", SHARED, "volcano_vgpu"), row("n2", SHARED, "volcano_vgpu")]
    cluster.apply(cluster.plan(rows, scheduler=SCHEDULER))
    cluster.objects[1] = node("n2", labels={"openfleet.gpu/backend": "volcano_vgpu"})
    assert cluster.plan(rows, scheduler=SCHEDULER, removed=["n1"])["in_step"]
    changes = cluster.plan(rows, scheduler=SCHEDULER, removed=["n1", "n2"])
    assert written(changes, "volcano-scheduler-configmap")["data"]["volcano-scheduler.conf"] == CONF


def entries(data, **nodes):
    """Return config.json after the role has merged the entries of these nodes."""
    found = node_entries({"data": {"config.json": json.dumps(data)}}, entries=nodes, backend="volcano_vgpu")
    assert found["problem"] == ""
    return json.loads(found["content"])


def test_entries_of_other_nodes_are_kept():
    entry = row("n1", SHARED, "volcano_vgpu")["gpu_kubernetes_planned"]["config"]["nodeconfig"][0]
    others = {"version": 1, "nodeconfig": [{"name": "theirs", "operatingmode": "mig"}]}
    found = entries(others, n1=entry)
    assert found == {"version": 1, "nodeconfig": [*others["nodeconfig"], entry]} and entry["devicesplitcount"] == 4
    assert entries(found, n1=None) == others


def test_entries_are_merged_as_the_plugin_reads_them():
    # If keys differ only in case, Go treats them as equal.
    present = {"NodeConfig": [{"Name": "n1", "deviceSplitCount": 9, "libcudaloglevel": "3"}, {"name": "n1"}]}
    found = changes_of(vgpu_node("Reported"), given=given(present))["data"]
    [entry] = json.loads(found["config.json"])["NodeConfig"]
    assert (entry["name"], entry["devicesplitcount"], entry["libcudaloglevel"]) == ("n1", 4, "3")
    assert not {"Name", "deviceSplitCount"} & entry.keys()


@pytest.mark.parametrize("text", ["{", "[]", '{"nodeconfig": {}}', '{"nodeconfig": [1]}'])
def test_an_unreadable_node_configuration_is_refused(text):
    found = changes_of(vgpu_node("Reported"), given=config_map("ns", "cm", **{"config.json": text}))
    [problem] = found["problems"]
    assert problem.startswith("node n1: ConfigMap ns/cm: config.json is not readable: ")
    assert not found["in_step"] and not found["data"]


def test_a_layout_without_shared_gpus_writes_no_entry():
    found = changes_of(vgpu_node("Reported"), [{"gpus": [0, 1], "sharing": "exclusive"}], given=None)
    assert found["data"] == {}


def given(data):
    return config_map("ns", "cm", **{"config.json": json.dumps(data)})


def vgpu_node(handshake=None, labels=None, number=8):
    memory = 2 * 81559
    offered = {"volcano.sh/vgpu-number": number, "volcano.sh/vgpu-memory": memory, "volcano.sh/vgpu-cores": 200}
    annotations = {} if handshake is None else {HANDSHAKE: handshake}
    return node("n1", labels, annotations, **{name: str(count) for name, count in offered.items()})


def changes_of(current, layout=SHARED, **more):
    """Return the changes of a node.

    If `given` is missing, the ConfigMap already has the node's entry.
    """
    planned = row("n1", layout, "volcano_vgpu")["gpu_kubernetes_planned"]
    present = more["given"] if "given" in more else given(planned["config"])
    return kubernetes_changes(planned, current, present, name="n1", namespace="ns", config_map_name="cm")


def test_a_failed_handshake_is_pending_and_restarts_the_plugin():
    ready = vgpu_node("Reported 2026-11-28 21:00:00")
    labelled = changes_of(ready)["labels"]
    for handshake in ("Reported 2026-11-28 21:00:00", "Requesting_2026.11.28 21:00:00"):
        changes = changes_of(vgpu_node(handshake, labelled))
        assert changes["in_step"] and not changes["restart"]
    for handshake in ("Deleted_2026.11.28 21:00:00", None):
        changes = changes_of(vgpu_node(handshake, labelled))
        assert not changes["in_step"] and changes["restart"]
        assert "cordon the node until the plugin runs" in changes["pending_text"]


def test_a_changed_configuration_restarts_the_plugin():
    labelled = changes_of(vgpu_node("Reported"))["labels"]
    assert labelled["openfleet.gpu/backend"] == "volcano_vgpu"
    other = [{**SHARED[0], "time_slicing": {"slice": "default", "replicas": 8}}]
    changes = changes_of(vgpu_node("Reported", labelled, number=16), other)
    assert list(changes["labels"]) == ["openfleet.gpu/vgpu-config"] and changes["restart"]
    assert not changes_of(vgpu_node("Reported", labelled))["restart"]
    # Another program has changed the entry, but not the label.
    edited = changes_of(vgpu_node("Reported", labelled), given=given({"nodeconfig": [{"name": "n1"}]}))
    assert edited["restart"] and edited["lines"] == ["ConfigMap ns/cm: write the entry of node n1"]


def test_removal_restores_the_labels_of_a_vgpu_node():
    changes = changes_of(vgpu_node("Reported"))
    current = node("n1", changes["labels"], changes["annotations"])
    back = kubernetes_removal("n1", [current], backend="volcano_vgpu")
    assert back["labels"] == dict.fromkeys(changes["labels"]) and not back["problems"]
