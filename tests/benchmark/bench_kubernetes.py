# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure layout changes on Kubernetes.

The figures are the time until a new layout is offered, disturbed pods, and API requests. The cluster is that of
tests/kubernetes with one node. The API server, scheduler, kubelet and NVIDIA's device plugin are real, and the GPUs are
simulated. A second cluster, with a node of Debian 13, has NVIDIA's DRA driver instead of the device plugin.
site.yml runs with the role's defaults and the permissions of the role's manifest. SEED selects the
transitions of the eviction plan, and CASES sets their number.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_mapping import kubernetes_mapping
from ansible_collections.openfleet.gpu.plugins.module_utils.change import planner
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.model import KUBELET
from ansible_collections.openfleet.gpu.plugins.module_utils.kubernetes.pod_eviction import Options, pods_to_evict
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Holder
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.steps import DestroyGpuInstance
from tests.benchmark.amounts import amount
from tests.benchmark.mig_cases import random_cases

HERE = Path(__file__).resolve().parent

ON_CLUSTER = (
    "kubernetes_seconds_to_allocatable",
    "kubernetes_seconds_to_allocatable_config_manager",
    "kubernetes_pods_disturbed_needlessly",
    "kubernetes_api_calls_noop",
    "kubernetes_api_writes_noop",
)
WITH_DRA = ("dra_seconds_to_slices", "dra_pods_disturbed_needlessly")
FIGURES = (*ON_CLUSTER, "kubernetes_pods_disturbed_needlessly_planned", *WITH_DRA)
NODE = "node1"
GPUS = ["H100-80GB"] * 4
TRANSITIONS = 10
# Delays in seconds for a small run. The kubelet of a test node sees a new key within 5 s.
QUICK_DELAYS = {"gpu_kubernetes_config_delay": 10, "gpu_kubernetes_poll": 1}
PLANNED_TRANSITIONS = 1_000
#: Instances of the second GPU in successive layouts, in addition to one that stays.
RESTS = (
    [{"profile": "2g.20gb"}],
    [{"profile": "1g.10gb", "count": 2}],
    [{"profile": "2g.20gb"}, {"profile": "1g.10gb"}],
    [{"profile": "1g.10gb", "count": 3}],
)
APPLIED = "openfleet.gpu.gpu_layout : Apply the layout"
OFFERED = "openfleet.gpu.gpu_kubernetes : Read the resources of the node"
READING = ("get", "list", "watch")
MIG = "nvidia.com/mig-%s"


def figures(options):
    """Yield (name, value, unit) or (name, None, reason)."""
    count = amount(options, PLANNED_TRANSITIONS, 50, "CASES")
    needless, evicted, others = planned_evictions(int(options.get("SEED") or 1), count)
    print(f"bench: {count} planned transitions evict {evicted} pods and leave {others}", file=sys.stderr)
    yield "kubernetes_pods_disturbed_needlessly_planned", needless, "count"
    missing = why_no_cluster()
    if missing:
        yield from ((name, None, missing) for name in (*ON_CLUSTER, *WITH_DRA))
        return
    from tests.kubernetes import cluster as clusters

    with tempfile.TemporaryDirectory(prefix="openfleet-bench-") as folder, clusters.running(
        Path(folder) / "plane", [NODE]
    ) as cluster:
        yield from on_cluster(
            cluster, clusters, amount(options, TRANSITIONS, 1), QUICK_DELAYS if options.get("SMALL") else {}
        )
    if options.get("SMALL"):
        yield from ((name, None, "SMALL=1 builds no image of Debian 13") for name in WITH_DRA)
        return
    from tests.kubernetes import dra

    missing = dra.why_not()
    yield from ((name, None, missing) for name in WITH_DRA) if missing else with_dra(dra, TRANSITIONS)


def why_no_cluster() -> str:
    """Return why no cluster can be started here. Empty if one can."""
    if os.environ.get("KUBERNETES") == "skip":
        return "KUBERNETES=skip"
    if not shutil.which("go"):
        return "there is no Go to build Kubernetes with"
    return "" if os.geteuid() == 0 else "the nodes are containers that need root"


# -- The eviction plan -------------------------------------------------------------------------------------------------


def planned_evictions(seed: int, count: int) -> tuple[int, int, int]:
    """Return the pods evicted without need, all evicted pods, and the remaining pods.

    Each instance in use has one pod. A pod must be evicted if the plan destroys its instance, and left alone otherwise.
    """
    needless = evicted = left = 0
    for number, case in enumerate(random_cases(seed, count)):
        gpu = with_pods(case.gpu, number)
        plan = planner.plan_gpu(gpu, case.target)
        destroyed = {step.gpu_instance_id for step in plan.steps if isinstance(step, DestroyGpuInstance)}
        pods = {uid_of(number, each.id): each.id for each in gpu.mig.instances if each.held_by}
        wanted = sorted({uid for each in plan.disturbs for uid in each.pods})
        chosen = pods_to_evict("node", [as_pod(uid) for uid in pods], wanted, Options(ignore_daemonsets=True))
        going = {pods[pod.uid] for pod in chosen}
        missed = destroyed & set(pods.values()) - going
        if missed:
            raise AssertionError(f"transition {number}: the pods on instances {sorted(missed)} are not evicted")
        needless += len(going - destroyed)
        evicted += len(going)
        left += len(pods) - len(going)
    return needless, evicted, left


def with_pods(gpu, number):
    """Return the GPU with one pod as the holder of each instance in use."""
    instances = []
    for instance in gpu.mig.instances:
        uid = uid_of(number, instance.id)
        held = (Holder(gpu.uuid, instance.id, KUBELET, "pod %s" % uid, job=uid),) if instance.processes else ()
        parts = [dataclasses.replace(part, held_by=held) for part in instance.compute_instances]
        instances.append(dataclasses.replace(instance, held_by=held, compute_instances=tuple(parts)))
    return dataclasses.replace(gpu, mig=dataclasses.replace(gpu.mig, instances=tuple(instances)))


def uid_of(number: int, instance: int) -> str:
    return "00000000-0000-4000-8000-%06x%06x" % (number, instance)


def as_pod(uid: str) -> dict:
    """Return a pod in the format of the API."""
    owners = [{"kind": "ReplicaSet", "name": "app"}]
    metadata = {"namespace": "default", "name": "app-%s" % uid[-12:], "uid": uid, "ownerReferences": owners}
    return {"metadata": metadata, "spec": {}, "status": {"phase": "Running"}}


# -- The cluster -------------------------------------------------------------------------------------------------------


def on_cluster(cluster, clusters, transitions, delays):
    """Change the layout several times. Yield the figures of ON_CLUSTER in order.

    `delays` are variables of site.yml that replace the role's defaults.
    """
    import yaml

    manifest = HERE.parent / "kubernetes" / "device-plugin.yml"
    cluster.apply(*yaml.safe_load_all(manifest.read_text()))
    variables = {"gpu_kubernetes_kubeconfig": str(cluster.role_kubeconfig()), **delays}
    print("bench: first layout of the node, by its label", file=sys.stderr)
    by_label = run_site(cluster, variables, layout_with(RESTS[0]))
    staying = {"whole": "nvidia.com/gpu", **{"large-%d" % number: MIG % "3g.40gb" for number in range(3)}}
    for name, resource in staying.items():
        create(cluster, clusters.sleeper(name, {resource: 1}))
    before = {name: state(cluster.runs(name)) for name in staying}
    restarted, needless = [], 0
    for number, (old, new) in enumerate(itertools.pairwise(itertools.islice(itertools.cycle(RESTS), transitions + 1))):
        name = "moves-%d" % number
        create(cluster, clusters.sleeper(name, {MIG % old[-1]["profile"]: 1}))
        [device] = cluster.visible_devices(cluster.runs(name))
        restarted.append(run_site(cluster, variables, layout_with(new)))
        gone = cluster.pod(name) is None
        survives = device in devices(cluster)
        if not survives and not gone:
            raise AssertionError(f"the pod {name} is there, and its instance is not")
        disturbed = [each for each in staying if state(cluster.pod(each)) != before[each]]
        needless += len(disturbed) + (survives and gone)
        print(
            f"bench: transition {number + 1} of {transitions}: {restarted[-1]:.1f} s to allocatable, "
            f"{'evicted' if gone else 'left'} {name}, disturbed without need: {disturbed or 'none'}",
            file=sys.stderr,
        )
        if not gone:
            cluster.plane.call("DELETE", "/api/v1/namespaces/default/pods/%s?gracePeriodSeconds=0" % name)
    asked = calls_of_run_without_changes(cluster, variables, layout_with(RESTS[transitions % len(RESTS)]))
    writes = [request for request in asked if request[0] not in READING]
    print(*("bench: no-change run: %s %s" % request for request in asked), sep="\n", file=sys.stderr)
    values = (statistics.median(restarted), by_label, needless, len(asked), len(writes))
    units = ("s", "s", "count", "count per node", "count per node")
    yield from zip(ON_CLUSTER, values, units)


def with_dra(dra, transitions):
    """Change the layout of a node with the DRA driver several times.

    Yields the figures of WITH_DRA. A pod runs on each kind of sharing. Only the pod on a changed instance may end.
    """
    os.environ["LAB_RELEASE"] = "trixie"
    build = HERE.parent / "lab" / "image" / "build"
    subprocess.run([str(build), "kubernetes"], check=True, stdout=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="openfleet-bench-") as folder, dra.running(
        Path(folder) / "plane", mixed_with(RESTS[0])
    ) as cluster:
        variables = {
            "gpu_kubernetes_backend": "nvidia_dra",
            "gpu_kubernetes_kubeconfig": str(dra.role_kubeconfig(cluster)),
            "gpu_kubernetes_plugin_manifest": str(dra.MANIFEST),
            "gpu_kubernetes_plugin_sha256": hashlib.sha256(dra.MANIFEST.read_bytes()).hexdigest(),
            "gpu_kubernetes_plugin_kubeconfig": str(cluster.plane.kubeconfig),
        }
        site(cluster, variables, mixed_with(RESTS[0]))
        staying = {"large": "mig-0-3g.40gb", "mps": "mps-1", "sliced": "time-slicing-2", "whole": "exclusive-3"}
        for name, template in staying.items():
            create(cluster, claiming(dra, name, template))
        before = {name: state(cluster.runs(name)) for name in staying}
        seconds, needless = [], 0
        pairs = itertools.pairwise(itertools.islice(itertools.cycle(RESTS), transitions + 1))
        for number, (old, new) in enumerate(pairs):
            name = "moves-%d" % number
            create(cluster, claiming(dra, name, "mig-0-%s" % old[-1]["profile"]))
            uuid = dra.device_of(cluster, cluster.runs(name))["uuid"]
            ends = ends_of(site(cluster, variables, mixed_with(new)))
            seconds.append((ends[OFFERED] - ends[APPLIED]).total_seconds())
            gone, survives = cluster.pod(name) is None, uuid in devices(cluster)
            if not survives and not gone:
                raise AssertionError(f"the pod {name} exists, and its instance does not")
            disturbed = [each for each in staying if state(cluster.pod(each)) != before[each]]
            needless += len(disturbed) + (survives and gone)
            print(
                f"bench: DRA transition {number + 1} of {transitions}: {seconds[-1]:.1f} s to slices, "
                f"disturbed without need: {disturbed or 'none'}",
                file=sys.stderr,
            )
            if not gone:
                cluster.plane.call("DELETE", "/api/v1/namespaces/default/pods/%s?gracePeriodSeconds=0" % name)
    yield WITH_DRA[0], statistics.median(seconds), "s"
    yield WITH_DRA[1], needless, "count"


def mixed_with(rest):
    """Return a layout with four kinds of sharing.

    On the GPU with MIG, the first instance stays.
    """
    limits = {"name": "inference", "clients": 4, "active_thread_percentage": 25, "pinned_memory_limit": "18GiB"}
    return [
        {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, *rest]},
        {"gpus": [1], "sharing": "mps", "mps": limits},
        {"gpus": [2], "sharing": "time_slicing", "time_slicing": {"slice": "long", "replicas": 4}},
        {"gpus": [3], "sharing": "exclusive"},
    ]


def claiming(dra, name, template):
    """Return a pod with a claim of the node's template."""
    metadata = {"name": name, "namespace": "default", "labels": {"app": name}}
    spec = dra.claiming("%s-%s" % (NODE, template))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def layout_with(rest):
    """Return a layout that only changes the second GPU.

    On this GPU, the first instance stays.
    """
    return [
        {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]},
        {"gpus": [1], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, *rest]},
        {"gpus": [2, 3], "sharing": "exclusive"},
    ]


def run_site(cluster, variables, layout) -> float:
    """Apply the layout with site.yml and return a time in seconds.

    The time is from the change of the GPUs until the node offers the new resources.
    """
    ends = ends_of(site(cluster, variables, layout))
    planned = kubernetes_mapping(layout, "nvidia_device_plugin", expected_gpus=GPUS, node=NODE)["resources"]
    offered = {name: number for name, number in cluster.allocatable(NODE).items() if number}
    if offered != planned:
        raise AssertionError(f"the node offers {offered}, planned are {planned}")
    return (ends[OFFERED] - ends[APPLIED]).total_seconds()


def ends_of(told) -> dict[str, datetime]:
    """Return when each task of a run ended on the node."""
    ends = {}
    for play in told["plays"]:
        for task in play["tasks"]:
            if task["hosts"].get(NODE, {}).get("skipped") is not True and "end" in task["task"]["duration"]:
                ends[task["task"]["name"]] = datetime.fromisoformat(task["task"]["duration"]["end"].rstrip("Z"))
    return ends


def site(cluster, variables, layout) -> dict:
    """Run site.yml on the node. Return the output of the callback `json`."""
    given = {
        "gpu_layout": layout,
        "gpu_layout_on_busy": "drain",
        "gpu_drain_kubernetes": True,
        # The pods of this benchmark have no owner, so a drain must be forced.
        "gpu_drain_kubernetes_delete_options": {"ignore_daemonsets": True, "force": True},
        **variables,
    }
    by_json = {"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"}
    done = cluster.play("site.yml", "--limit", NODE, "--extra-vars", json.dumps(given), environment=by_json)
    return json.JSONDecoder().raw_decode(done.stdout)[0]


def calls_of_run_without_changes(cluster, variables, layout) -> list[tuple[str, str]]:
    """Return (verb, path) of the role's API requests in a run without changes."""
    before = len(cluster.plane.requests_of_role())
    told = site(cluster, variables, layout)
    if told["stats"][NODE]["changed"]:
        raise AssertionError("the run was to change nothing, and did")
    return cluster.plane.requests_of_role()[before:]


def create(cluster, pod) -> None:
    cluster.plane.call("POST", "/api/v1/namespaces/default/pods", pod)


def state(pod) -> tuple | None:
    """Return the UID and the restart count of a pod.

    Both stay the same if the pod is left alone.
    """
    if pod is None:
        return None
    return pod["metadata"]["uid"], sum(each["restartCount"] for each in pod["status"]["containerStatuses"])


def devices(cluster) -> set[str]:
    """Return the UUIDs of the node's MIG devices."""
    gpus = cluster.module(NODE, "openfleet.gpu.gpu_info")["gpus"]
    instances = [instance for gpu in gpus for instance in gpu["mig"]["instances"]]
    return {part["mig_uuid"] for instance in instances for part in instance["compute_instances"]}
