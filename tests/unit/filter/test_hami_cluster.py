# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan changes of a cluster with HAMi.

The tests cover entries of the ConfigMap, the registration, cordons, and the software around the plugin.
"""

from __future__ import annotations

import json
import re

import pytest

from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_changes import kubernetes_changes
from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_mapping import kubernetes_mapping
from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_removal import kubernetes_removal
from ansible_collections.openfleet.gpu.plugins.filter.node_entries import node_entries
from ansible_collections.openfleet.gpu.plugins.filter.scheduler_backend import scheduler_backend
from tests.audit.rightsize_hosts import gpu, state
from tests.kubernetes import hami_recorded as recorded

pytestmark = pytest.mark.core

OWN = "openfleet.gpu/cordoned-devices"
HOST = state(*(gpu("a", index, "H100-80GB") for index in range(3)))
FIRST, SECOND, THIRD = UUIDS = [row["uuid"] for row in HOST["gpus"]]
MIB = HOST["gpus"][0]["memory_total_bytes"] >> 20
SLICED = {"sharing": "time_slicing", "time_slicing": {"slice": "default", "replicas": 4}}
LAYOUT = [{"gpus": [0], "sharing": "exclusive"}, {"gpus": [1, 2], **SLICED}]
MAPPING = kubernetes_mapping(LAYOUT, "hami", state=HOST, node="n1")
ENTRY = MAPPING["config"]["nodeconfig"][0]
INSTALLED = [recorded.daemonset(), recorded.deployment(), recorded.webhook("Fail")]


def row(index, **more):
    return {"id": UUIDS[index], "index": index, "devmem": MIB, **more}


GUARD = {"nvidia.com/gpu.deploy.mig-manager": "false", "nvidia.com/mig.config": "managed-by-openfleet-gpu"}
REGISTERED = recorded.registration(row(1), row(2))


def node(offered=8, register=REGISTERED, handshake="Requesting_2026-11-28 21:30:15", labels=None, **annotations):
    found = {recorded.REGISTER: register, recorded.HANDSHAKE: handshake, **annotations}
    labels = {"gpu": "on", **GUARD, **(labels or {})}
    return {
        "kind": "Node",
        "metadata": {
            "name": "n1",
            "labels": labels,
            "annotations": {key: value for key, value in found.items() if value},
        },
        "status": {"allocatable": {"nvidia.com/gpu": str(offered)}},
    }


def config_map(text=None, *rows):
    return {
        "data": {"config.json": text if text is not None else json.dumps({"nodeconfig": list(rows)}, indent=2) + "\n"}
    }


def changes(found, given=None, objects=INSTALLED, changing=(), mapping=MAPPING):
    names = {"name": "n1", "namespace": "kube-system", "config_map_name": "hami-device-plugin"}
    given = config_map(None, ENTRY) if given is None else given
    return kubernetes_changes(mapping, found, given, objects=objects, changing=list(changing), **names)


def annotations(found):
    return found["metadata"]["annotations"]


def patched(found, operations):
    """Return a copy of a node after a JSON patch of annotations.

    Like the API server, refuse a patch whose test fails.
    """
    found = json.loads(json.dumps(found))
    for operation in operations:
        name = operation["path"].rpartition("/annotations/")[2].replace("~1", "/")
        if operation["op"] == "test":
            assert annotations(found).get(name) == operation["value"], name
        elif operation["op"] == "add":
            annotations(found)[name] = operation["value"]
        else:
            del annotations(found)[name]
    return found


def test_the_filter_describes_hami():
    needs = scheduler_backend("hami")
    assert needs["applies"] and needs["config_key"] == "config.json" and needs["config_label"] == ""
    assert needs["defaults"]["config_map"] == "hami-device-plugin"
    kinds = {each["kind"] for each in needs["reads"]}
    assert kinds == {"DaemonSet", "Deployment", "Pod", "MutatingWebhookConfiguration"}


def test_a_node_as_planned_needs_no_change():
    found = changes(node())
    assert (found["in_step"], found["warnings"], found["lines"]) == (True, [], []), found


# --- Entries of the ConfigMap.


def test_the_first_run_adds_an_entry_and_keeps_those_of_other_nodes():
    other = {"name": "n2", "operatingmode": "mig", "devicesplitcount": 3}
    found = changes(node(), config_map(None, other))
    assert json.loads(found["data"]["config.json"]) == {"nodeconfig": [other, ENTRY]}
    assert found["restart"] and not found["in_step"]
    assert found["lines"] == ["ConfigMap kube-system/hami-device-plugin: write the entry of node n1"]


def test_a_missing_config_map_is_created():
    found = kubernetes_changes(MAPPING, node(), None, name="n1", objects=INSTALLED)
    assert json.loads(found["data"]["config.json"]) == {"nodeconfig": [ENTRY]}


def merged(given, **entries):
    found = node_entries(given, entries=entries, backend="hami")
    assert found["problem"] == ""
    return json.loads(found["content"])


def test_an_entry_keeps_settings_that_the_role_does_not_write():
    present = {"name": "n1", "devicesplitcount": 2, "enablegetpreferredallocation": True, "libcudaloglevel": "3"}
    found = merged(config_map(None, present), n1=ENTRY)["nodeconfig"]
    assert found == [{**ENTRY, "enablegetpreferredallocation": True, "libcudaloglevel": "3"}]


@pytest.mark.parametrize("key", ["FilterDevices", "filterDevices", "FILTERDEVICES"])
def test_keys_with_other_case_are_the_same_keys(key):
    # Go reads keys that differ only in case as one key, and the last one would win.
    present = {"Name": "n1", key: {"uuid": ["GPU-x"]}}
    assert merged({"data": {"config.json": json.dumps({"NodeConfig": [present]})}}, n1=ENTRY) == {"NodeConfig": [ENTRY]}


def test_two_entries_of_a_node_become_one_in_the_first_place():
    rows = [
        {"name": "n0"},
        {"name": "n1", "devicesplitcount": 2},
        {"name": "n2"},
        {"name": "n1", "operatingmode": "mig"},
    ]
    assert merged(config_map(None, *rows), n1=ENTRY)["nodeconfig"] == [{"name": "n0"}, ENTRY, {"name": "n2"}]


def test_entries_of_several_nodes_are_written_together():
    second = {**ENTRY, "name": "n2"}
    assert merged(config_map(None, {"name": "n3"}), n1=ENTRY, n2=second)["nodeconfig"] == [
        {"name": "n3"},
        ENTRY,
        second,
    ]


def test_removal_takes_only_the_entries_of_the_nodes():
    given = config_map(None, {"name": "n3"}, ENTRY, {"name": "n2"})
    assert merged(given, n1=None, n2=None)["nodeconfig"] == [{"name": "n3"}]
    again = node_entries(config_map(None, {"name": "n3"}), entries={"n1": None}, backend="hami")
    assert not again["differs"]


def test_other_keys_and_an_equal_text_are_kept():
    text = '{"other": 1,    "nodeconfig": [%s]}' % json.dumps(ENTRY)
    found = node_entries(config_map(text), entries={"n1": ENTRY}, backend="hami")
    assert found == {"content": text, "differs": False, "problem": ""}
    assert merged(config_map(text), n1={**ENTRY, "devicesplitcount": 9})["other"] == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "not a mapping"),
        ('{"nodeconfig": {}}', "not a list of mappings"),
        ('{"nodeconfig": [1]}', "not a list of mappings"),
        ('{"nodeconfig": [], "NodeConfig": []}', "twice"),
    ],
)
def test_an_unreadable_configuration_is_refused(text, reason):
    found = changes(node(), config_map(text))
    (problem,) = found["problems"]
    assert problem.startswith("node n1: ConfigMap kube-system/hami-device-plugin: config.json is not readable: ")
    assert reason in problem and "Nothing was changed." in problem
    assert found["data"] == {} and not found["in_step"]


@pytest.mark.parametrize("text", ["", '{"nodeconfig": null}', "{}"])
def test_a_configuration_without_nodes_is_readable(text):
    found = changes(node(), config_map(text) if text else {"data": None})
    assert found["problems"] == [] and "n1" in found["data"]["config.json"]


def test_a_node_without_shared_gpus_gets_an_entry_that_filters_all_gpus():
    # Without an entry, HAMi would offer all GPUs of a node that still has the label.
    mapping = kubernetes_mapping([{"gpus": [0, 1, 2], "sharing": "exclusive"}], "hami", state=HOST, node="n1")
    assert "gpu" not in mapping["labels"]
    found = changes(node(0, ""), config_map(None, ENTRY), mapping=mapping)
    (entry,) = json.loads(found["data"]["config.json"])["nodeconfig"]
    assert entry["filterdevices"]["uuid"] == UUIDS
    assert found["pending"] == {}


def test_a_node_that_loses_its_shared_gpus_keeps_the_label():
    # Without the label, HAMi's plugin would leave the node, but its registration would stay.
    mapping = kubernetes_mapping([{"gpus": [0, 1, 2], "sharing": "exclusive"}], "hami", state=HOST, node="n1")
    record = {"openfleet.gpu/labels-before": json.dumps({"gpu": None, **dict.fromkeys(GUARD)})}
    found = changes(node(**record), config_map(None, ENTRY), mapping=mapping)
    assert found["labels"] == {} and found["restart"]


# --- Registration.


@pytest.mark.parametrize(
    ("register", "pending"),
    [
        (recorded.registration(row(1), row(2, devmem=MIB // 2)), {"memory MiB of %s" % THIRD: [MIB, MIB // 2]}),
        (recorded.registration(row(1, count=10), row(2)), {"pods of %s" % SECOND: [4, 10]}),
        (recorded.registration(row(1, devcore=200), row(2)), {"cores of %s" % SECOND: [100, 200]}),
        (recorded.registration(row(1, mode="mig"), row(2)), {"%s in mode hami-core" % SECOND: [1, 0]}),
        (recorded.registration(row(2)), {"registered %s" % SECOND: [1, 0]}),
        (recorded.registration(row(0), row(1), row(2)), {"registered %s" % FIRST: [0, 1]}),
        ("GPU-1,10,32768,100,NVIDIA-V100,0,true:", {"registered %s" % uuid: [1, 0] for uuid in (SECOND, THIRD)}),
        ("[1]", {"registered %s" % uuid: [1, 0] for uuid in (SECOND, THIRD)}),
        ('[{"id": 3}]', {"registered %s" % uuid: [1, 0] for uuid in (SECOND, THIRD)}),
        (None, {"registered %s" % uuid: [1, 0] for uuid in (SECOND, THIRD)}),
        (recorded.registration(row(1, devmem="x"), row(2)), {"memory MiB of %s" % SECOND: [MIB, -1]}),
    ],
)
def test_a_registration_that_differs_restarts_the_plugin(register, pending):
    found = changes(node(register=register))
    assert found["pending"] == pending
    assert found["restart"] and not found["in_step"]


def test_oversubscribed_memory_is_rounded_like_hami():
    tenants = [{"name": "a", "memory": "8GiB", "sm_percent": 30}]
    layout = [
        {
            "gpus": [1],
            "sharing": "vgpu",
            "vgpu": {"oversubscribe": {"memory": 1.3, "sm": 1.1}, "tenants": tenants},
        }
    ]
    mapping = kubernetes_mapping(layout, "hami", state=HOST, node="n1")
    assert mapping["problems"] == []
    assert mapping["registered"][SECOND] == {"count": 10, "devmem": int(MIB * 1.3), "devcore": int(1.1 * 100)}


def test_a_stale_registration_is_reported():
    found = changes(node(offered=0))
    assert found["pending"] == {"nvidia.com/gpu": [8, 0]}
    (warning,) = found["warnings"]
    assert "the registration of HAMi is stale: hami.io/node-nvidia-register lists 2 GPUs" in warning


def test_gpus_that_hami_reports_as_unhealthy_are_named():
    found = changes(node(offered=4, register=recorded.registration(row(1, health=False), row(2))))
    assert any(SECOND in warning and "unhealthy" in warning for warning in found["warnings"])


@pytest.mark.parametrize("handshake", [None, "Reported_2026-11-28", "Deleted_2026.11.28 10:00:00"])
def test_a_node_that_no_scheduler_has_read_is_pending(handshake):
    found = changes(node(handshake=handshake))
    assert found["pending"] == {recorded.HANDSHAKE: [1, 0]}
    assert "HAMi's scheduler has not read the node" in found["pending_text"]
    assert not found["restart"]


# --- Cordons of single GPUs.


def test_a_gpu_that_changes_is_cordoned_and_released():
    before = node()
    found = changes(before, changing=[FIRST, SECOND])
    # HAMi does not offer the first GPU, so only the second one is cordoned.
    assert found["lines"] == ["node n1: cordon %s in HAMi until the change is verified" % SECOND]
    assert not found["in_step"]
    cordoned = patched(before, found["cordon"])
    assert annotations(cordoned)[recorded.CORDON] == SECOND
    assert json.loads(annotations(cordoned)[OWN]) == [SECOND]
    waiting = changes(cordoned, changing=[FIRST, SECOND])
    assert waiting["cordon"] == [] and recorded.HANDSHAKE in waiting["unseen"]
    annotations(cordoned)[recorded.HANDSHAKE] = recorded.handshake("2026-11-28 21:31:00")
    seen = changes(cordoned)
    assert (seen["unseen"], seen["cordoned"]) == ("", [SECOND])
    assert seen["lines"] == ["node n1: release the cordon of %s after the verification" % SECOND]
    released = patched(cordoned, seen["uncordon"])
    assert recorded.CORDON not in annotations(released) and OWN not in annotations(released)
    # The handshake makes the scheduler read the node again. Otherwise the scheduler would keep the cordon.
    assert "Requesting" not in annotations(released)[recorded.HANDSHAKE]


def test_cordons_of_others_are_kept():
    before = node(**{recorded.CORDON: "%s , GPU-x" % SECOND})
    assert changes(before, changing=[SECOND])["cordon"] == []
    cordoned = patched(before, changes(before, changing=[SECOND, THIRD])["cordon"])
    assert annotations(cordoned)[recorded.CORDON] == "%s,GPU-x,%s" % (SECOND, THIRD)
    assert json.loads(annotations(cordoned)[OWN]) == [THIRD]
    released = patched(cordoned, changes(cordoned)["uncordon"])
    assert annotations(released)[recorded.CORDON] == "%s,GPU-x" % SECOND


def test_a_second_run_keeps_the_record_of_the_first():
    cordoned = patched(node(), changes(node(), changing=[SECOND])["cordon"])
    more = patched(cordoned, changes(cordoned, changing=[SECOND, THIRD])["cordon"])
    assert json.loads(annotations(more)[OWN]) == [SECOND, THIRD]


def test_a_cordon_that_was_released_by_hand_is_only_forgotten():
    before = node(**{OWN: json.dumps([SECOND]), recorded.CORDON: "GPU-x"})
    released = patched(before, changes(before)["uncordon"])
    assert annotations(released)[recorded.CORDON] == "GPU-x" and OWN not in annotations(released)


@pytest.mark.parametrize("record", ["{", '"x"', "[3]", "[]"])
def test_a_record_that_is_not_readable_releases_no_cordon_of_others(record):
    before = node(**{OWN: record, recorded.CORDON: SECOND})
    assert annotations(patched(before, changes(before)["uncordon"]))[recorded.CORDON] == SECOND


def test_the_api_server_refuses_a_patch_after_another_cordon():
    before = node()
    operations = changes(before, changing=[SECOND])["cordon"]
    annotations(before)[recorded.CORDON] = "GPU-x"
    with pytest.raises(AssertionError):
        patched(before, operations)


def test_a_pod_that_is_starting_on_a_cordoned_gpu_is_awaited():
    cordoned = patched(node(), changes(node(), changing=[SECOND])["cordon"])
    annotations(cordoned)[recorded.HANDSHAKE] = recorded.handshake()

    def unseen(uuid, phase="allocating", on="n1"):
        pod = {"kind": "Pod", "metadata": {"name": "p", "namespace": "ml", **recorded.starting_pod(on, uuid, phase)}}
        return changes(cordoned, objects=[{**pod, "spec": {"nodeName": on}}])["unseen"]

    assert "ml/p" in unseen(SECOND)
    assert [unseen(THIRD), unseen(SECOND, "success"), unseen(SECOND, on="n2")] == ["", "", ""]


def test_a_removal_releases_the_role_s_cordons():
    cordoned = patched(node(), changes(node(), changing=[SECOND])["cordon"])
    removal = kubernetes_removal("n1", [cordoned], backend="hami")
    assert recorded.CORDON not in annotations(patched(cordoned, removal["uncordon"]))
    assert removal["data"] == {}


@pytest.mark.parametrize(("before", "ends"), [(None, True), ("off", True), ("on", False)])
def test_a_removal_takes_the_registration_of_a_plugin_that_ends(before, ends):
    record = json.dumps({"gpu": before})
    removal = kubernetes_removal("n1", [node(**{"openfleet.gpu/labels-before": record})], backend="hami")
    assert removal["labels"] == {"gpu": before}
    assert bool(removal["leftovers"]) is ends and set(removal["leftovers"].values()) <= {None}
    assert kubernetes_removal("n1", [node()], backend="hami")["leftovers"] == {}


# --- The software around the plugin.


@pytest.mark.parametrize(
    ("objects", "problem"),
    [
        (
            [recorded.daemonset("site"), recorded.deployment()],
            "reads the ConfigMap site. Set gpu_kubernetes_config_map: site",
        ),
        ([recorded.daemonset(selector={"pool": "a"}), recorded.deployment()], "only on nodes with the label pool=a"),
        ([recorded.daemonset()], "no pod of its scheduler is ready"),
        ([recorded.daemonset(), recorded.deployment(ready=0)], "no pod of its scheduler is ready"),
        (
            [recorded.daemonset(), recorded.deployment(arguments=["--node-scheduler-policy=random"])],
            "has no policy random. Use binpack or spread.",
        ),
        (
            [recorded.daemonset(), recorded.deployment(arguments=["--gpu-scheduler-policy=numa,best"])],
            "has no policy best.",
        ),
    ],
)
def test_a_cluster_that_hami_cannot_serve_is_refused(objects, problem):
    (found,) = changes(node(), objects=objects)["problems"]
    assert found.startswith("node n1: ") and problem in found and found.endswith("Nothing was changed.")


@pytest.mark.parametrize("policy", ["binpack", "spread", "topology-aware", "mutex", "numa,binpack", "mutex, spread"])
def test_policies_of_hami_are_accepted(policy):
    deployment = recorded.deployment(arguments=["--gpu-scheduler-policy=%s" % policy])
    assert changes(node(), objects=[recorded.daemonset(), deployment])["problems"] == []


@pytest.mark.parametrize(
    "labels", [{"app.kubernetes.io/name": "nvidia-device-plugin"}, {"app": "nvidia-device-plugin-daemonset"}]
)
def test_nvidias_plugin_on_the_node_is_refused(labels):
    pod = {"kind": "Pod", "metadata": {"name": "p", "namespace": "gpu", "labels": labels}, "spec": {"nodeName": "n1"}}
    (problem,) = changes(node(), objects=[*INSTALLED, pod])["problems"]
    assert "the pod gpu/p of NVIDIA's device plugin offers nvidia.com/gpu" in problem
    elsewhere = {**pod, "spec": {"nodeName": "n2"}}
    assert changes(node(), objects=[*INSTALLED, elsewhere])["problems"] == []


def test_a_node_of_another_backend_is_refused():
    found = changes(node(0, "", "Reported", {"openfleet.gpu/backend": "nvidia_dra"}))
    (problem,) = found["problems"]
    # A run must not assume that the scheduler knows the cordons, or that the node offers its GPUs.
    assert found["unseen"] and len(found["pending"]) == 4 and not found["in_step"]
    assert "the label openfleet.gpu/backend: nvidia_dra belongs to another backend" in problem


def test_a_webhook_that_lets_pods_bypass_hami_is_a_danger():
    (warning,) = changes(node(), objects=[*INSTALLED[:2], recorded.webhook()])["warnings"]
    assert "DANGER: the webhook vgpu.hami.io of hami-webhook has failurePolicy Ignore" in warning
    (warning,) = changes(node(), objects=INSTALLED[:2])["warnings"]
    assert "the cluster has no webhook vgpu.hami.io" in warning
    # HAMi is not installed yet, so it cannot be configured wrongly.
    assert changes(node(), objects=[])["warnings"] == []


@pytest.mark.parametrize("junk", [None, 3, "x", [], {}, {"kind": "Pod"}, {"kind": "Pod", "metadata": {"name": 3}}])
def test_other_objects_are_ignored(junk):
    assert changes(node(), objects=[*INSTALLED, junk])["in_step"]


REFUSED = [
    {"scheduler": {"defaultSchedulerPolicy": {"nodeSchedulerPolicy": "random"}}},
    {"scheduler": {"defaultSchedulerPolicy": {"gpuSchedulerPolicy": "random"}}},
    {"devicePlugin": {"nodeConfiguration": {"config": json.dumps({"nodeconfig": [{"operatingmode": "mig"}]})}}},
]
ACCEPTED = [
    {
        "scheduler": {
            "defaultSchedulerPolicy": {"nodeSchedulerPolicy": "spread", "gpuSchedulerPolicy": "topology-aware"}
        }
    },
    {"devicePlugin": {"nodeConfiguration": {"config": json.dumps({"nodeconfig": [{"operatingmode": "hami-core"}]})}}},
    {"devicePlugin": {"migStrategy": "none"}},
]


@pytest.mark.parametrize(
    ("values", "refused"), [(each, True) for each in REFUSED] + [(each, False) for each in ACCEPTED]
)
def test_settings_of_the_chart_that_may_not_be_installed(values, refused):
    pattern, reason = scheduler_backend("hami")["refused"]
    assert bool(re.search(pattern, json.dumps(values))) is refused
    assert "operatingmode mig" in reason and "binpack" in reason
