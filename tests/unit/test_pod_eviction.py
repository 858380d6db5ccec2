# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pods of a node are evicted: those that were named, where the options allow it."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.pod_eviction import EvictionError, Options, pods_to_evict

DEFAULT = Options(ignore_daemonsets=True)


def pod(name, owner="ReplicaSet", volumes=(), phase="Running", **metadata):
    owners = {"ownerReferences": [{"kind": owner}]} if owner else {}
    return {
        "metadata": {"namespace": "ml", "name": name, "uid": "uid-%s" % name, **owners, **metadata},
        "spec": {"volumes": list(volumes)},
        "status": {"phase": phase},
    }


def chosen(*pods, uids=None, options=DEFAULT):
    uids = [each["metadata"]["uid"] for each in pods] if uids is None else uids
    return [str(each) for each in pods_to_evict("n1", pods, uids, options)]


def test_only_named_pods_go():
    assert chosen(pod("b"), pod("a"), pod("c"), uids=["uid-b", "uid-a", "uid-elsewhere"]) == ["ml/a", "ml/b"]


def test_pods_that_have_ended_hold_nothing():
    assert chosen(pod("a", phase="Succeeded"), pod("b", phase="Failed"), pod("c", phase="Pending")) == ["ml/c"]


def test_pods_that_are_going_are_awaited_whatever_they_are():
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
def test_a_pod_that_may_not_go_stops_all_and_names_the_option(named, word, option):
    with pytest.raises(EvictionError, match=r"ml/x .*\(%s\).*No pod was evicted" % word):
        chosen(pod("a"), named)
    assert chosen(pod("a"), named, options=Options(**{option: True})) == ["ml/a", "ml/x"]


def test_pods_of_daemonsets_stay_or_stop_all():
    assert chosen(pod("a"), pod("d", owner="DaemonSet")) == ["ml/a"]
    with pytest.raises(EvictionError, match="ignore_daemonsets"):
        chosen(pod("a"), pod("d", owner="DaemonSet"), options=Options())


def test_a_static_pod_stops_all():
    static = pod("s", owner="Node", annotations={"kubernetes.io/config.mirror": "x"})
    with pytest.raises(EvictionError, match="ml/s is a static pod"):
        chosen(pod("a"), static, options=Options(True, True, True))
