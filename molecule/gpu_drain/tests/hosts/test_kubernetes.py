# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test kubernetes.core's real modules with a stand-in for the API server.

Services and records are on the real host.
"""

from __future__ import annotations

import pytest
from drained_host import RECORD, RUNNING

from tests.lab.kubernetes_api import KubernetesApi

ALL = set(RUNNING)


@pytest.fixture
def cluster(tmp_path):
    api = KubernetesApi(tmp_path)
    yield api
    api.server.shutdown()


@pytest.fixture
def drained(cluster):
    return {
        "gpu_drain_kubernetes": True,
        "gpu_drain_kubernetes_node": "n1",
        "gpu_drain_kubernetes_kubeconfig": str(cluster.kubeconfig),
        "gpu_drain_services": ["lab-a"],
        "gpu_drain_commands_after": ["touch /run/lab-after"],
    }


@pytest.mark.thorough
def test_next_resume_restores_after_a_lost_controller(host, run, cluster, drained):
    cluster.add_pod("training", seconds=600)
    dry = run("drain", "--check", "--diff", **drained)
    assert dry.changed() >= 1
    assert "-Kubernetes node n1: schedulable +Kubernetes node n1: cordoned" in dry.told
    assert cluster.requests == []
    drain = run("drain", **drained)
    drain.wait_for("FAILED - RETRYING")
    # The drain stops services only after the pods are gone.
    assert host.active() == ALL
    drain.kill()
    assert cluster.unschedulable
    assert run("resume", "--check", "--diff", **drained).changed() == 1
    assert cluster.unschedulable
    run("resume", **drained).changed()
    assert not cluster.unschedulable
    assert not host.host.file(RECORD).exists


def test_node_is_cordoned_then_pods_evicted_then_uncordoned(host, run, cluster, drained):
    cluster.add_pod("training", seconds=600)
    cluster.add_pod("budgeted", protected=1)
    cluster.add_pod("device-plugin", owner="DaemonSet")
    drain = run("drain", **drained)
    drain.wait_for("FAILED - RETRYING")
    cluster.let_go("training")
    drain.changed()
    assert cluster.there() == ["device-plugin"]
    assert cluster.requests == ["cordon", "evict training", "evict budgeted"]
    assert host.active() == ALL - {"lab-a.service"}
    assert run("drain", **drained).changed() == 0
    cluster.broken = "patch"
    said = run("resume", **drained).failed()
    assert "Kubernetes node n1 is still cordoned, because uncordoning failed" in said
    assert "kubectl uncordon n1" in said
    # The services are running again, because they do not depend on the Kubernetes node.
    assert host.active() == ALL
    assert not host.host.file("/run/lab-after").exists
    cluster.broken = None
    run("resume", **drained).changed()
    assert cluster.requests[3:] == ["uncordon"]
    assert not cluster.unschedulable
    assert host.active() == ALL
    assert host.host.file("/run/lab-after").exists
    assert not host.host.file(RECORD).exists


@pytest.mark.thorough
def test_slow_pods_are_named_and_cordoned_node_stays_cordoned(host, run, cluster, drained):
    cluster.unschedulable = True
    cluster.add_pod("training", seconds=600)
    said = run("drain", gpu_drain_timeout=2, **drained).failed()
    assert "after 2 s the GPUs are still in use by pod ml/training. The drain was rolled back." in said
    assert cluster.requests == ["evict training"]
    assert cluster.unschedulable
    assert host.active() == ALL
    assert host.host.file("/run/lab-after").exists
    assert not host.host.file(RECORD).exists


def test_pod_without_owner_fails_the_drain_before_evictions(host, run, cluster, drained):
    cluster.add_pod("training")
    cluster.add_pod("bare", owner=None)
    said = run("drain", **drained).failed()
    assert "ml/bare" in said
    assert cluster.there() == ["training", "bare"]
    assert cluster.requests == ["cordon", "uncordon"]
    assert not host.host.file(RECORD).exists


def test_unknown_node_is_an_error_with_a_fix(host, run, cluster, drained):
    said = run("drain", **{**drained, "gpu_drain_kubernetes_node": "n2"}).failed()
    assert "The cluster has no node n2. Set gpu_drain_kubernetes_node" in said
    assert host.active() == ALL
