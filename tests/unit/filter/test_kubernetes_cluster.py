# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan changes of a cluster for a node's mapping, and for the mapping's removal."""

from __future__ import annotations

import json

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.filter.daemonset_pods import daemonset_pods
from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_changes import kubernetes_changes
from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_mapping import kubernetes_mapping
from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_removal import kubernetes_removal
from ansible_collections.openfleet.gpu.plugins.filter.missing_collections import missing_collections

pytestmark = pytest.mark.core

CONFIG, MIG_MANAGER = "nvidia.com/device-plugin.config", "nvidia.com/gpu.deploy.mig-manager"
MIG_CONFIG, NO_CONFIG = "nvidia.com/mig.config", "managed-by-openfleet-gpu"
# These labels keep the GPU operator from changing the layout.
GUARD = {MIG_MANAGER: "false", MIG_CONFIG: NO_CONFIG}
BEFORE = "openfleet.gpu/labels-before"
LAYOUT = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 2}]}]
MAPPING = kubernetes_mapping(LAYOUT, "nvidia_device_plugin", expected_gpus=["H100-80GB"], node="n1")
KEY = MAPPING["config_name"]
PLANNED = {"nvidia.com/mig-3g.40gb": "1", "nvidia.com/mig-1g.10gb": "2"}


def node(labels=None, allocatable=None, annotations=None, name="n1"):
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {}, "status": {"allocatable": {"cpu": "8", **(allocatable or {})}}}


def changes(found, config_map=None):
    return kubernetes_changes(MAPPING, found, config_map, name="n1", namespace="ns", config_map_name="cm")


def removed(*nodes, config_map=None, policies=()):
    return kubernetes_removal("n1", nodes, config_map, backend="nvidia_device_plugin", policies=policies)


def test_new_node_gets_labels_with_a_record_and_a_configuration():
    found = changes(node({CONFIG: "default"}))
    assert found["labels"] == {CONFIG: KEY, **GUARD}
    assert json.loads(found["annotations"][BEFORE]) == {CONFIG: "default", MIG_MANAGER: None, MIG_CONFIG: None}
    assert list(found["data"]) == [KEY]
    assert yaml.safe_load(found["data"][KEY]) == MAPPING["config"]
    assert found["pending"] == {"nvidia.com/mig-3g.40gb": [1, 0], "nvidia.com/mig-1g.10gb": [2, 0]}
    assert found["lines"] == [
        "node n1: label %s: %s (was default)" % (CONFIG, KEY),
        "node n1: label %s: false (new; keeps the GPU operator's mig-manager off the node)" % MIG_MANAGER,
        "node n1: label %s: %s (new; no MIG configuration, so that mig-manager changes nothing if it is enabled later)"
        % (MIG_CONFIG, NO_CONFIG),
        "ConfigMap ns/cm: write key %s" % KEY,
    ]
    assert not found["in_step"]
    # config-manager notices the changed label, so the plugin needs no restart.
    assert not found["restart"]


def test_mig_manager_is_disabled_before_the_layout_with_its_label_recorded():
    found = changes(node({CONFIG: "default", MIG_MANAGER: "true", MIG_CONFIG: "all-balanced"}))["opt_out"]
    assert found["labels"] == GUARD
    before = {MIG_MANAGER: "true", MIG_CONFIG: "all-balanced"}
    assert json.loads(found["annotations"][BEFORE]) == before
    # A later step changes the config label too. The value right before that step is recorded.
    later = changes(node({CONFIG: "other", **GUARD}, annotations=found["annotations"]))
    assert later["opt_out"] == {}
    assert json.loads(later["annotations"][BEFORE]) == {CONFIG: "other", **before}


@pytest.mark.parametrize("value", ["", "all-disabled", "all-balanced"])
def test_node_of_an_earlier_release_gets_the_label_that_stops_mig_manager(value):
    """Replace all-disabled, which the operator writes even without mig-manager."""
    record = {BEFORE: json.dumps({CONFIG: "default", MIG_MANAGER: None})}
    found = changes(node({CONFIG: KEY, MIG_MANAGER: "false", MIG_CONFIG: value}, PLANNED, annotations=record))
    assert found["labels"] == found["opt_out"]["labels"] == {MIG_CONFIG: NO_CONFIG}
    recorded = json.loads(found["opt_out"]["annotations"][BEFORE])
    assert recorded == {CONFIG: "default", MIG_MANAGER: None, MIG_CONFIG: value}


def test_matching_node_needs_nothing():
    config_map = {"data": changes(node())["data"]}
    found = changes(node({CONFIG: KEY, **GUARD}, PLANNED), config_map)
    assert found["in_step"]
    assert (found["labels"], found["annotations"], found["data"], found["lines"]) == ({}, {}, {}, [])


def test_the_first_record_counts():
    record = {BEFORE: json.dumps({CONFIG: "default", MIG_MANAGER: None, MIG_CONFIG: None})}
    found = changes(node({CONFIG: "openfleet-0123456789abcdef", **GUARD}, annotations=record))
    assert found["labels"] == {CONFIG: KEY}
    assert found["annotations"] == {}


def test_edited_key_is_written_again():
    found = changes(node({CONFIG: KEY}), {"data": {KEY: "version: v1\n", "default": "version: v1\n"}})
    assert list(found["data"]) == [KEY]


def test_old_resources_must_be_gone():
    labels = {CONFIG: KEY, **GUARD}
    found = changes(
        node(labels, {**PLANNED, "nvidia.com/gpu": "1", "nvidia.com/mig-7g.80gb": "0", "nvidia.com/hostdev": "4"})
    )
    assert found["pending"] == {"nvidia.com/gpu": [0, 1]}
    assert found["pending_text"] == "nvidia.com/gpu 1 (planned 0)"
    assert found["restart"]
    assert not found["in_step"]


@pytest.mark.parametrize(
    ("planned", "offered", "is_told"),
    [
        ({"mig-1g.10gb": 2, "mig-1g.10gb.me": 1}, {"mig-1g.10gb": 3}, True),
        (
            {"mig-1g.24gb-me": 1, "mig-1g.24gb.me.all": 1, "mig-2g.48gb.gfx": 1},
            {"mig-1g.24gb": 2, "mig-2g.48gb": 1},
            True,
        ),
        ({"mig-1g.10gb.me": 1}, {}, False),
        ({"mig-1g.10gb.me": 1}, {"mig-1g.20gb": 1}, False),
        ({"mig-1g.10gb": 1}, {"mig-1g.10gb.me": 1}, False),
    ],
    ids=["with and without", "several", "nothing is offered", "another size", "the other way round"],
)
def test_plugin_that_merges_profile_variants_is_reported(planned, offered, is_told):
    mapping = {**MAPPING, "resources": {"nvidia.com/" + name: number for name, number in planned.items()}}
    found = node(allocatable={"nvidia.com/" + name: str(number) for name, number in offered.items()})
    text = kubernetes_changes(mapping, found, name="n1")["pending_text"]
    assert ("before release 0.20" in text) is is_told


def test_unknown_node_is_named_with_the_fix():
    found = changes(None)
    (problem,) = found["problems"]
    assert {name: numbers[0] for name, numbers in found["pending"].items()} == MAPPING["resources"]
    assert problem.startswith("The cluster has no node n1. Set gpu_kubernetes_node to the node name")


@pytest.mark.parametrize(
    "record", ["", "[]", "{", '{"x": "y"}', '{"%s": 3}' % CONFIG, '{"kubernetes.io/hostname": "other"}']
)
def test_foreign_record_stops_the_role(record):
    found = node({CONFIG: "default"}, annotations={BEFORE: record})
    assert "not readable" in changes(found)["problems"][0]
    # The problem must not make a wait for the resources end.
    assert changes(found)["pending"] == changes(node({CONFIG: "default"}))["pending"] != {}
    assert "not readable" in removed(found)["problems"][0]
    assert (changes(found)["labels"], removed(found)["labels"]) == ({}, {})


@pytest.mark.parametrize(
    "form", [{}, {"metadata": None}, {"metadata": {"labels": ["x"]}, "status": {"allocatable": 7}}]
)
def test_malformed_objects_count_as_empty(form):
    assert changes(form, form)["labels"] == {CONFIG: KEY, **GUARD}
    assert removed(form, config_map=form) == {
        "problems": [],
        "labels": {},
        "annotations": {},
        "data": {},
        "delete": [],
        "uncordon": [],
        "leftovers": {},
    }
    assert daemonset_pods([form]) == []


def test_removal_restores_previous_labels():
    before = {CONFIG: "default", MIG_MANAGER: None, MIG_CONFIG: "all-disabled"}
    found = removed(node({CONFIG: KEY, **GUARD}, annotations={BEFORE: json.dumps(before)}))
    assert found["labels"] == before
    assert found["annotations"] == {BEFORE: None}


def policy(**mig_manager):
    return {"metadata": {"name": "policy"}, "spec": {"migManager": mig_manager} if mig_manager else {}}


@pytest.mark.parametrize(
    ("before", "given", "applied"),
    [
        ({MIG_MANAGER: None, MIG_CONFIG: None}, policy(), "all-disabled"),
        ({MIG_MANAGER: "true", MIG_CONFIG: None}, policy(enabled=True), "all-disabled"),
        ({MIG_MANAGER: "true", MIG_CONFIG: "all-balanced"}, policy(config={"default": ""}), "all-balanced"),
        # An earlier release configured this node, and its record lacks the operator's label.
        ({MIG_MANAGER: None}, policy(enabled=True), NO_CONFIG),
    ],
    ids=["no labels", "enabled", "another configuration", "earlier release"],
)
def test_removal_that_would_start_mig_manager_is_refused(before, given, applied):
    found = removed(node({CONFIG: KEY, **GUARD}, annotations={BEFORE: json.dumps(before)}), policies=[given])
    (problem,) = found.pop("problems")
    assert (
        "the GPU operator runs mig-manager, which applies %s and removes all other MIG instances" % applied in problem
    )
    assert 'kubectl patch clusterpolicy policy --type merge -p \'{"spec":{"migManager":{"enabled":false}}}\'' in problem
    assert "kubectl label node n1 %s=true --overwrite" % MIG_MANAGER in problem
    assert not any(found.values())


@pytest.mark.parametrize(
    ("labels", "before", "given"),
    [
        (GUARD, {MIG_MANAGER: None, MIG_CONFIG: None}, policy(enabled=False)),
        (GUARD, {MIG_MANAGER: "false", MIG_CONFIG: "all-disabled"}, policy()),
        ({**GUARD, MIG_MANAGER: "true"}, {MIG_MANAGER: None, MIG_CONFIG: None}, policy()),
        (GUARD, {MIG_MANAGER: None, MIG_CONFIG: None}, policy(config={"default": ""})),
    ],
    ids=["mig-manager is disabled", "label disabled it", "administrator enabled it", "no default"],
)
def test_removal_that_does_not_start_mig_manager_continues(labels, before, given):
    found = removed(node({CONFIG: KEY, **labels}, annotations={BEFORE: json.dumps(before)}), policies=[given])
    assert found["problems"] == []
    assert found["labels"] == {name: value for name, value in before.items() if labels[name] == GUARD[name]}


def test_removal_keeps_labels_of_others():
    record = {BEFORE: json.dumps({CONFIG: None})}
    found = removed(node({CONFIG: "theirs", MIG_MANAGER: "false"}, annotations=record))
    assert found["labels"] == {}
    assert found["annotations"] == {BEFORE: None}


def test_removal_deletes_unused_keys():
    old = "openfleet-0123456789abcdef"
    config_map = {"data": dict.fromkeys([KEY, old, "default", "openfleet-mine", "openfleet-00112233445566ff"], "")}
    record = {BEFORE: json.dumps({CONFIG: "default"})}
    nodes = [node({CONFIG: KEY}, annotations=record), node({CONFIG: old}, name="n2")]
    assert removed(*nodes, config_map=config_map)["data"] == {KEY: None, "openfleet-00112233445566ff": None}
    nodes.append(node({CONFIG: KEY}, name="n3"))
    assert removed(*nodes, config_map=config_map)["data"] == {"openfleet-00112233445566ff": None}


def test_only_pods_of_daemonsets_are_restarted():
    def pod(name, *kinds):
        return {"metadata": {"name": name, "ownerReferences": [{"kind": kind, "name": "x"} for kind in kinds]}}

    pods = [pod("plugin-x", "DaemonSet"), pod("bare"), pod("rs", "ReplicaSet"), pod("../x", "DaemonSet")]
    assert daemonset_pods(pods) == ["plugin-x"]


def test_missing_collections_are_listed():
    names = ["openfleet.gpu", "openfleet.none", "none.at_all"]
    assert missing_collections(names) == ["openfleet.none", "none.at_all"]
