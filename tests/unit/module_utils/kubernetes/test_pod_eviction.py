# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evict only selected pods from a node, and only if the options allow it."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.kubernetes.pod_eviction import (
    EvictionError,
    Options,
    pods_to_evict,
)

DEFAULT = Options(ignore_daemonsets=True)


DAEMONSET = {"namespace": "ml", "name": "agent", "uid": "uid-agent", "selector": {"matchLabels": {"app": "agent"}}}


def pod(name, owner="ReplicaSet", volumes=(), phase="Running", **metadata):
    reference = {"kind": owner, "name": "agent", "uid": "uid-agent", "controller": True}
    owners = {"ownerReferences": [reference], "labels": {"app": "agent"}} if owner else {}
    return {
        "metadata": {"namespace": "ml", "name": name, "uid": "uid-%s" % name, **owners, **metadata},
        "spec": {"volumes": list(volumes)},
        "status": {"phase": phase},
    }


def chosen(*pods, uids=(), options=DEFAULT, daemonsets=(DAEMONSET,)):
    uids = [each["metadata"]["uid"] for each in pods] if uids == () else uids
    return [str(each) for each in pods_to_evict("n1", pods, uids, options, daemonsets)]


def test_only_named_pods_are_evicted():
    assert chosen(pod("b"), pod("a"), pod("c"), uids=["uid-b", "uid-a", "uid-elsewhere"]) == ["ml/a", "ml/b"]


def test_pods_that_have_ended_hold_nothing():
    assert chosen(pod("a", phase="Succeeded"), pod("b", phase="Failed"), pod("c", phase="Pending")) == ["ml/c"]


def test_terminating_pods_are_awaited():
    pods = [pod("bare", owner=None, deletionTimestamp="2026-01-01T00:00:00Z")]
    (going,) = pods_to_evict("n1", pods, ["uid-bare"], DEFAULT)
    assert going.is_going


@pytest.mark.parametrize(
    ("named", "word", "option"),
    [
        (pod("x", owner=None), "force", "force"),
        (pod("x", volumes=[{"name": "cache", "emptyDir": {}}]), "delete_emptydir_data", "delete_emptydir_data"),
    ],
)
def test_protected_pod_stops_all_evictions_and_names_the_option(named, word, option):
    with pytest.raises(EvictionError, match=r"ml/x .*\(%s\).*No pod was evicted" % word):
        chosen(pod("a"), named)
    assert chosen(pod("a"), named, options=Options(**{option: True})) == ["ml/a", "ml/x"]


def test_pods_of_daemonsets_stay_or_stop_all():
    assert chosen(pod("a"), pod("d", owner="DaemonSet")) == ["ml/a"]
    with pytest.raises(EvictionError, match="ignore_daemonsets"):
        chosen(pod("a"), pod("d", owner="DaemonSet"), options=Options())


def test_a_static_pod_stops_all():
    static = pod("s", owner="Node", annotations={"kubernetes.io/config.mirror": "x"})
    with pytest.raises(EvictionError, match="ml/s cannot be evicted: a static pod"):
        chosen(pod("a"), static, options=Options(True, True, True))


def owned(**changes):
    """Return a pod that names a DaemonSet as its owner."""
    reference = {"kind": "DaemonSet", "name": "agent", "uid": "uid-agent", "controller": True, **changes}
    return pod("a", ownerReferences=[reference])


MADE_UP = {
    "no such DaemonSet": (owned(), []),
    "another uid": (owned(uid="uid-made-up"), [DAEMONSET]),
    "another name": (owned(name="made-up"), [DAEMONSET]),
    "another namespace": (owned(), [{**DAEMONSET, "namespace": "kube-system"}]),
    "not its controller": (owned(controller=False), [DAEMONSET]),
    "a controller by text": (owned(controller="true"), [DAEMONSET]),
    "another selector": (owned(), [{**DAEMONSET, "selector": {"matchLabels": {"app": "other"}}}]),
    "an empty selector": (owned(), [{**DAEMONSET, "selector": {}}]),
    "no selector": (owned(), [{**DAEMONSET, "selector": None}]),
}


@pytest.mark.parametrize(("named", "daemonsets"), MADE_UP.values(), ids=MADE_UP)
def test_forged_daemonset_exempts_no_pod(named, daemonsets):
    """A tenant can name any owner in a pod.

    The pod is treated like one without an owner, because no DaemonSet would recreate it.
    """
    with pytest.raises(EvictionError, match=r"ml/a names a DaemonSet .*\(force\).*No pod was evicted"):
        chosen(named, daemonsets=daemonsets)
    assert chosen(named, daemonsets=daemonsets, options=Options(True, True)) == ["ml/a"]


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        ({"key": "app", "operator": "In", "values": ["x", "agent"]}, True),
        ({"key": "app", "operator": "In", "values": ["x"]}, False),
        ({"key": "app", "operator": "NotIn", "values": ["x"]}, True),
        ({"key": "none", "operator": "NotIn", "values": ["x"]}, True),
        ({"key": "app", "operator": "Exists"}, True),
        ({"key": "none", "operator": "Exists"}, False),
        ({"key": "none", "operator": "DoesNotExist"}, True),
        ({"key": "app", "operator": "Other"}, False),
        ("app", False),
    ],
)
def test_selectors_with_expressions_match_like_the_api(rule, matches):
    daemonset = {**DAEMONSET, "selector": {"matchExpressions": [rule]}}
    assert chosen(owned(), daemonsets=[daemonset], options=Options(True, True)) == ([] if matches else ["ml/a"])


def test_without_uids_all_pods_except_mirror_and_daemonset_pods_are_evicted():
    static = pod("s", owner="Node", annotations={"kubernetes.io/config.mirror": "x"})
    pods = [pod("b"), static, owned(), pod("done", phase="Succeeded")]
    assert chosen(*pods, uids=None) == ["ml/b"]


def test_message_names_few_of_very_many_pods():
    with pytest.raises(EvictionError) as raised:
        chosen(*(pod("p%d" % number, owner=None) for number in range(1000)))
    assert "and 980 more pods" in str(raised.value) and len(str(raised.value)) < 3000
