# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give teams quotas with site.yml and Kueue.

API server, scheduler, controllers, kubelet, device plugin and Kueue are real. The test does not use Kueue's webhooks.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.kubernetes import kueue
from tests.kubernetes.beside import install_kinds
from tests.kubernetes.cluster import REPOSITORY, sleeping

pytestmark = pytest.mark.thorough

NODE = "node1"
SMALL = "nvidia.com/mig-1g.10gb"
LAYOUT = [
    {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 3}]},
    {"gpus": [1, 2, 3], "sharing": "exclusive"},
]
QUOTAS = {
    "team-a": {"namespaces": ["kueue-a"], "resources": {SMALL: 1}},
    "team-b": {"namespaces": ["kueue-b"], "resources": {SMALL: 1}, "borrow": True},
}
RIGHTS = REPOSITORY / "roles" / "gpu_kubernetes" / "files" / "rbac-cluster.yml"


@pytest.fixture(scope="module")
def site(cluster, plugin):
    """Return a function that runs site.yml with quotas on one node.

    The account has the rights of rbac.yml and rbac-cluster.yml.
    """
    if kueue.why_not():
        pytest.skip(kueue.why_not())
    for name in ("kueue-a", "kueue-b", "volcano-system"):
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    kubeconfig = cluster.role_kubeconfig()
    cluster.plane.kubectl("apply", "--filename=%s" % RIGHTS)

    def run(*options, fails=False, **variables):
        given = {
            "gpu_layout": LAYOUT,
            "gpu_kubernetes_kubeconfig": str(kubeconfig),
            "gpu_kubernetes_config_delay": 10,
            "gpu_kubernetes_poll": 1,
            "gpu_kubernetes_quotas": QUOTAS,
            **variables,
        }
        return cluster.play(
            "site.yml", *options, "--limit", NODE, "--extra-vars", json.dumps(given), check=not fails
        ).stdout

    return run


def submit(cluster, name, namespace, count=1):
    """Create a Job that also requests a CPU and memory, as a user would."""
    spec = sleeping({SMALL: count, "cpu": "10m", "memory": "16Mi"}, nodeSelector={"kubernetes.io/hostname": NODE})
    cluster.apply(kueue.job(name, namespace, spec))


def pod_of(cluster, name, namespace):
    """Wait for a Job's pod, and return it when it runs."""
    cluster.plane.wait(lambda: cluster.pods("app=" + name, namespace), "Kueue starts the job %s" % name)
    return cluster.runs(cluster.pods("app=" + name, namespace)[0], namespace)


def waits(cluster, name, namespace):
    """Wait until Kueue reports that a job has to wait, and return the reason."""

    def reason():
        path = "/apis/kueue.x-k8s.io/v1beta2/namespaces/%s/workloads" % namespace
        return [
            condition["message"]
            for item in cluster.plane.call("GET", path)["items"]
            if item["metadata"]["name"].startswith("job-%s-" % name)
            for condition in item.get("status", {}).get("conditions", [])
            if (condition["type"], condition["status"]) == ("QuotaReserved", "False")
        ]

    cluster.plane.wait(reason, "Kueue lets the job %s wait" % name)
    assert not cluster.pods("app=" + name, namespace)
    return reason()[0]


def test_a_cluster_without_kueue_is_not_changed(cluster, site):
    planned = " ".join(site("--check", fails=True).split())
    assert "has no kueue.x-k8s.io/v1beta2 ResourceFlavor. Install Kueue 0.15 or later" in planned
    assert not cluster.allocatable(NODE).get(SMALL)


@pytest.fixture(scope="module")
def kinds(cluster, site):
    install_kinds(cluster.plane, kueue.kinds())


def test_a_job_beyond_the_quota_waits_until_another_one_has_ended(cluster, site, kinds):
    planned = " ".join(site("--check").split())
    assert "write ClusterQueue team-a" in planned and "write LocalQueue kueue-a/default" in planned
    site()
    done = site()
    assert re.search(r"^node1 .*changed=0 ", done, re.MULTILINE), done[-3000:]
    with kueue.running(cluster.plane):
        submit(cluster, "first", "kueue-a")
        running = pod_of(cluster, "first", "kueue-a")
        assert len(cluster.visible_devices(running)) == 1
        submit(cluster, "second", "kueue-a")
        assert "insufficient" in waits(cluster, "second", "kueue-a")
        # A team that may borrow gets everything that no team uses, although its own quota is smaller.
        submit(cluster, "large", "kueue-b", count=1)
        pod_of(cluster, "large", "kueue-b")
        cluster.plane.kubectl("--namespace=kueue-a", "delete", "job", "first", "--wait=true")
        pod_of(cluster, "second", "kueue-a")
        # Kueue writes the objects in its own notation. This is no change.
        done = site()
        assert re.search(r"^node1 .*changed=0 ", done, re.MULTILINE), done[-3000:]
        cluster.plane.kubectl("--namespace=kueue-a", "delete", "job", "second", "--wait=true")
        submit(cluster, "borrowing", "kueue-b")
        pod_of(cluster, "borrowing", "kueue-b")
        # The lender's quota is in use until the borrower's job has ended.
        submit(cluster, "third", "kueue-a")
        waits(cluster, "third", "kueue-a")
        for namespace in ("kueue-a", "kueue-b"):
            cluster.plane.kubectl("--namespace=" + namespace, "delete", "job", "--all", "--wait=true")


def test_a_wrong_resource_is_refused_before_anything_changes(cluster, site, kinds):
    wrong = {"team-a": {"namespaces": ["kueue-a"], "resources": {"nvidia.com/mig-7g.80gb": 1}}}
    failed = " ".join(site(gpu_kubernetes_quotas=wrong, fails=True).split())
    assert "gpu_kubernetes_quotas.team-a.resources.nvidia.com/mig-7g.80gb: no node of the cluster offers" in failed


def test_removal_leaves_no_quota(cluster, site, kinds):
    with kueue.running(cluster.plane):
        site(gpu_kubernetes_state="absent")
        kinds_of_role = "resourceflavors,clusterqueues,localqueues"
        cluster.plane.wait(
            lambda: not cluster.plane.kubectl("get", kinds_of_role, "--all-namespaces", "--output=name"),
            "Kueue releases the deleted queues",
        )
