# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the kubelet's topology policies with the requested policy."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.filter.kubelet_topology import kubelet_topology

pytestmark = pytest.mark.core

FILE = "/var/lib/kubelet/config.yaml"
GPUS = [{"index": number, "uuid": "GPU-%d" % number, "numa_node": number // 2} for number in range(4)]


def kubelet(topology="single-numa-node", cpu="static", running=True):
    return {"running": running, "config": FILE, "topology_policy": topology, "cpu_policy": cpu}


def compared(found, policy="single-numa-node", **options):
    return kubelet_topology(found, policy=policy, node="n1", **options)


def test_a_matching_kubelet_has_no_problem():
    assert compared(kubelet())["problems"] == []
    assert compared(kubelet("none", "none"), policy="none", gpus=GPUS) == {"problems": [], "lines": []}


def test_another_policy_is_a_problem_with_file_and_fix():
    [problem] = compared(kubelet("none"))["problems"]
    assert problem == (
        "node n1: the kubelet has topologyManagerPolicy none, and gpu_kubernetes_topology_policy is single-numa-node. Set it in "
        "%s, drain the node, delete /var/lib/kubelet/cpu_manager_state and restart the kubelet. Nothing was changed."
        % FILE
    )


def test_a_kubelet_with_a_drop_in_folder_is_changed_there():
    found = {**kubelet("none"), "config_dir": "/etc/kubernetes/kubelet.conf.d"}
    assert "Set it in the last file of /etc/kubernetes/kubelet.conf.d, drain the node" in compared(found)["problems"][0]


def test_cpus_that_are_not_assigned_are_a_problem():
    [problem] = compared(kubelet(cpu="none"))["problems"]
    assert problem.startswith("node n1: the kubelet has cpuManagerPolicy none, so no pod gets exclusive CPUs")


def test_a_host_without_a_kubelet_is_a_problem():
    [problem] = compared(kubelet("", "", running=False))["problems"]
    assert "the host has no kubelet process of root" in problem


def test_the_plan_names_the_largest_request():
    [line] = compared(kubelet(), gpus=GPUS)["lines"]
    assert line == (
        "node n1: NUMA node 0: gpus 0, 1, NUMA node 1: gpus 2, 3. "
        "A container with more GPUs than one NUMA node has (2) is rejected"
    )
    assert compared(kubelet("best-effort"), policy="best-effort", gpus=GPUS)["lines"] == []
    assert compared(kubelet(), gpus=GPUS[:2])["lines"] == []


def test_the_plan_names_gpus_without_a_numa_node():
    gpus = [GPUS[0], {"index": 1, "uuid": "GPU-1", "numa_node": -1}, {"index": 2, "uuid": "GPU-2", "numa_node": None}]
    [line] = compared(kubelet(), gpus=gpus)["lines"]
    assert line == "node n1: not aligned, because the kernel reports no NUMA node: gpu 1 (GPU-1), gpu 2 (GPU-2)"


def test_the_plan_says_that_claims_are_not_aligned():
    [line] = compared(kubelet(), gpus=GPUS, uses_claims=True)["lines"]
    assert "TopologyManager ignores GPUs of claims" in line
