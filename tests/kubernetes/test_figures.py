# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The figures of `make bench BENCH=kubernetes` that need a cluster, once and small, on one of the cluster's nodes."""

from __future__ import annotations

import sys

import cluster as clusters
import pytest


@pytest.fixture
def one_node(cluster):
    """Let pods start on the node of the benchmark alone."""
    others = [name for name in clusters.NODES if name != "node1"]
    cluster.plane.kubectl("cordon", *others)
    yield cluster
    cluster.delete_pods()
    cluster.plane.kubectl("uncordon", *others)


def test_each_figure_of_a_cluster_is_measured(one_node, monkeypatch):
    tests = clusters.REPOSITORY / "tests"
    monkeypatch.setattr(sys, "path", [*sys.path, str(tests / "benchmark"), str(tests / "lab")])
    import bench_kubernetes

    figures = list(bench_kubernetes.on_cluster(one_node, clusters, transitions=1))
    assert [name for name, _value, _unit in figures] == list(bench_kubernetes.ON_CLUSTER)
    assert not [figure for figure in figures if figure[1] is None]
