# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the patches that start and end the drain of a Kubernetes node."""

from __future__ import annotations

import copy
import json

import pytest

from ansible_collections.openfleet.gpu.plugins.filter.drain_patch import drain_patch

pytestmark = pytest.mark.core

CORDONED, BEFORE = "openfleet.gpu/cordoned-for-drain", "openfleet.gpu/labels-before-drain"
LABELS = {"x/plugin": "paused", "x/exporter": "paused"}


class RefusedError(Exception):
    """Raised if a test operation in the patch fails."""


def patched(node, operations):
    """Apply a JSON patch of test, add and remove operations, like the API server.

    A missing object counts as null.
    """
    node = copy.deepcopy(node)
    for operation in operations:
        *path, name = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        parent = node
        for part in path:
            parent = parent[part]
        if operation["op"] == "test":
            if parent.get(name) != operation["value"]:
                raise RefusedError(operation)
        elif operation["op"] == "add":
            parent[name] = copy.deepcopy(operation["value"])
        else:
            del parent[name]
    return node


def node(labels=None, annotations=None, **spec):
    metadata = {
        "name": "n1",
        **({"labels": labels} if labels else {}),
        **({"annotations": annotations} if annotations else {}),
    }
    return {"metadata": metadata, "spec": spec}


def drained(found, labels=LABELS):
    return drain_patch(found, state="drained", host="h1", labels=labels)["operations"]


def resumed(found, labels=LABELS):
    return drain_patch(found, state="resumed", host="h1", labels=labels)


@pytest.mark.parametrize("annotations", [None, {"others": "1"}])
def test_changes_of_a_drain_are_undone(annotations):
    before = node({"x/plugin": "true", "y": "1"}, annotations)
    during = patched(before, drained(before))
    assert during["spec"]["unschedulable"] is True
    assert during["metadata"]["labels"] == {"x/plugin": "paused", "y": "1"}, "a label that the node lacks is left"
    assert during["metadata"]["annotations"][CORDONED] == "h1"
    assert json.loads(during["metadata"]["annotations"][BEFORE]) == {"x/plugin": "true"}
    assert drained(during) == [], "a continued drain has nothing to do"
    after = patched(during, resumed(during)["operations"])
    assert after["metadata"] == {"annotations": {}, **before["metadata"]}
    assert not after["spec"]["unschedulable"]
    assert resumed(after) == {"operations": [], "paused": []}


def test_node_cordoned_by_others_stays_cordoned_and_labels_are_restored():
    before = node({"x/plugin": "true"}, unschedulable=True)
    during = patched(before, drained(before))
    assert CORDONED not in during["metadata"]["annotations"]
    after = patched(during, resumed(during)["operations"])
    assert (after["spec"], after["metadata"]["labels"]) == (before["spec"], before["metadata"]["labels"])


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found["spec"].update(unschedulable=True),
        lambda found: found["metadata"]["labels"].update({"x/plugin": "false"}),
        lambda found: found["metadata"].update(annotations={"others": "1"}),
    ],
    ids=["cordon", "label", "first annotation"],
)
def test_change_after_the_read_refuses_the_drain(change):
    found = node({"x/plugin": "true"})
    operations = drained(found)
    change(found)
    with pytest.raises(RefusedError):
        patched(found, operations)


def test_label_changed_by_others_during_the_drain_stays():
    during = patched(
        node({"x/plugin": "true", "x/exporter": "true"}), drained(node({"x/plugin": "true", "x/exporter": "true"}))
    )
    during["metadata"]["labels"]["x/plugin"] = "false"
    after = patched(during, resumed(during)["operations"])
    assert after["metadata"]["labels"] == {"x/plugin": "false", "x/exporter": "true"}
    assert BEFORE not in after["metadata"]["annotations"]


def test_label_paused_later_is_added_to_the_record():
    first = node({"x/plugin": "true", "x/exporter": "1"})
    during = patched(first, drained(first, {"x/plugin": "paused"}))
    during = patched(during, drained(during))
    assert json.loads(during["metadata"]["annotations"][BEFORE]) == {"x/plugin": "true", "x/exporter": "1"}
    after = patched(during, resumed(during)["operations"])
    assert after["metadata"]["labels"] == first["metadata"]["labels"]


@pytest.mark.parametrize(
    "written",
    [
        None,
        "no JSON",
        "[]",
        json.dumps({"x/plugin": 1}),
        json.dumps({"x/plugin": "no value of a label"}),
        json.dumps({"x/plugin": "paused"}),
        json.dumps({"node-restriction.kubernetes.io/trusted": "true"}),
    ],
)
def test_node_can_change_only_labels_that_the_inventory_pauses(written):
    """A compromised kubelet may write the node, so it can forge the annotation."""
    annotations = {BEFORE: written} if written is not None else None
    during = node({"x/plugin": "paused", "node-restriction.kubernetes.io/trusted": "false"}, annotations)
    found = resumed(during)
    assert found["paused"] == ["x/plugin"]
    after = patched(during, found["operations"])
    assert after["metadata"]["labels"] == during["metadata"]["labels"]


@pytest.mark.parametrize("form", [None, [], {}, {"metadata": 3, "spec": []}])
def test_malformed_nodes_have_nothing_to_restore(form):
    assert resumed(form) == {"operations": [], "paused": []}
