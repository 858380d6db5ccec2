# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure layout changes on Kubernetes.

The figures are the time until a new layout is offered, disturbed pods, and API requests. The cluster is the same as in
tests/kubernetes, with one node. The API server, scheduler, kubelet and NVIDIA's device plugin are real, and the GPUs
are simulated. A second cluster, with a node of Debian 13, has NVIDIA's DRA driver instead of the device plugin.
site.yml runs with the role's defaults and the permissions of the role's manifest. SEED selects the transitions of the
eviction plan and of the DRA driver, and CASES sets the number of the former.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

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
# A small run's delays in seconds. A test node's kubelet sees a new key within 5 s.
QUICK_DELAYS = {"gpu_kubernetes_config_delay": 10, "gpu_kubernetes_poll": 1}
PLANNED_TRANSITIONS = 1_000
#: The second GPU's instances in successive layouts, in addition to one that stays.
RESTS = (
    [{"profile": "2g.20gb"}],
    [{"profile": "1g.10gb", "count": 2}],
    [{"profile": "2g.20gb"}, {"profile": "1g.10gb"}],
    [{"profile": "1g.10gb", "count": 3}],
)
KINDS = ("mig", "mps", "time_slicing", "exclusive")
#: Share of the transitions that exchange two GPUs.
EXCHANGES = 0.4
APPLIED = "openfleet.gpu.gpu_layout : Apply the layout"
OFFERED = "openfleet.gpu.gpu_kubernetes : Read the resources of the node"
_NUMBERS = itertools.count()
READING = ("get", "list", "watch")
MIG = "nvidia.com/mig-%s"


def figures(options):
    """Yield (name, value, unit) or (name, None, reason)."""
    count = amount(options, PLANNED_TRANSITIONS, 50, "CASES")
    seed = int(options.get("SEED") or 1)
    needless, evicted, others = planned_evictions(seed, count)
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
    yield from ((name, None, missing) for name in WITH_DRA) if missing else with_dra(dra, seed, TRANSITIONS)


def why_no_cluster() -> str:
    """Say why this machine can start no cluster.

    Return `""` if it can start one.
    """
    if os.environ.get("KUBERNETES") == "skip":
        return "KUBERNETES=skip"
    if not shutil.which("go"):
        return "there is no Go to build Kubernetes with"
    return "" if os.geteuid() == 0 else "the nodes are containers that need root"


# -- The eviction plan -------------------------------------------------------------------------------------------------


def planned_evictions(seed: int, count: int) -> tuple[int, int, int]:
    """Return the pods evicted without need, all evicted pods, and the remaining pods.

    Each instance in use has one pod. A controller must evict a pod if and only if the plan destroys its instance.
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
    """Return a pod in the API's format."""
    owners = [{"kind": "ReplicaSet", "name": "app"}]
    metadata = {"namespace": "default", "name": "app-%s" % uid[-12:], "uid": uid, "ownerReferences": owners}
    return {"metadata": metadata, "spec": {}, "status": {"phase": "Running"}}


# -- The cluster -------------------------------------------------------------------------------------------------------


def on_cluster(cluster, clusters, transitions, delays):
    """Change the layout several times, and yield the results of ON_CLUSTER in order.

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


def with_dra(dra, seed, transitions):
    """Change the layout of a node with the DRA driver several times.

    Yields the figures of WITH_DRA. A pod runs on each GPU and on each instance. If a transition creates or removes no
    device, there is no time until its slices.
    """
    os.environ["LAB_RELEASE"] = "trixie"
    build = HERE.parent / "lab" / "image" / "build"
    subprocess.run([str(build), "kubernetes"], check=True, stdout=sys.stderr)
    moves = random_moves(seed, transitions)
    with tempfile.TemporaryDirectory(prefix="openfleet-bench-") as folder, dra.running(
        Path(folder) / "plane", mixed(moves[0])
    ) as cluster:
        yield from dra_transitions(dra, cluster, moves)


def dra_transitions(dra, cluster, moves):
    """Apply each layout of `moves` in turn, and yield the results that WITH_DRA names."""
    variables = {
        "gpu_kubernetes_backend": "nvidia_dra",
        "gpu_kubernetes_kubeconfig": str(dra.role_kubeconfig(cluster)),
        "gpu_kubernetes_plugin_manifest": str(dra.MANIFEST),
        "gpu_kubernetes_plugin_sha256": hashlib.sha256(dra.MANIFEST.read_bytes()).hexdigest(),
        "gpu_kubernetes_plugin_kubeconfig": str(cluster.plane.kubeconfig),
    }
    site(cluster, variables, mixed(moves[0]))
    pods = with_claims(dra, cluster, moves[0], {})
    seconds, needless = [], 0
    for number, (old, new) in enumerate(itertools.pairwise(moves), 1):
        present = devices(cluster)
        ends = ends_of(site(cluster, variables, mixed(new)))
        remaining = devices(cluster)
        took = (ends[OFFERED] - ends[APPLIED]).total_seconds() if OFFERED in ends else 0.0
        if remaining != present:
            seconds.append(took)
        disturbed, kept = [], {}
        for name, pod in pods.items():
            same = state(cluster.pod(name)) == pod.state
            if pod.uuid not in remaining:
                if same:
                    raise AssertionError(f"transition {number}: the pod {name} runs, and its device does not exist")
            elif old[pod.gpu]["sharing"] == new[pod.gpu]["sharing"]:
                if not same or uuid_of(dra, cluster, name) != pod.uuid:
                    disturbed.append(name)
                else:
                    kept[name] = pod
            elif same:
                # The way of sharing changed. The pod still holds the GPU, so new pods could not start on it.
                delete(cluster, name)
        needless += len(disturbed)
        print(
            f"bench: DRA transition {number} of {len(moves) - 1}: {took:.1f} s, {len(present - remaining)} devices removed, "
            f"{len(remaining - present)} created, {len(kept)} of {len(pods)} pods kept, "
            f"disturbed without need: {disturbed or 'none'}",
            file=sys.stderr,
        )
        for name in disturbed:
            delete(cluster, name)
        pods = with_claims(dra, cluster, new, kept)
    yield (
        WITH_DRA[0],
        statistics.median(seconds) if seconds else None,
        "s" if seconds else "no transition changes a device",
    )
    yield WITH_DRA[1], needless, "count"


class Claiming(NamedTuple):
    """A pod with a claim, and its GPU's number.

    `uuid` is the device's UUID.
    """

    gpu: int
    template: str
    uuid: str
    state: tuple


def random_moves(seed, count):
    """Return one node's count + 1 layouts, each as a list with each GPU's entry.

    Each layout has MIG, MPS, time slices and a whole GPU. A move exchanges two GPUs, or changes the instances, the
    limits or the time slice. The same seed returns the same layouts.
    """
    rng = random.Random(seed)
    entries = [_entry(kind, rng) for kind in KINDS]
    moves = [list(entries)]
    while len(moves) <= count:
        changed = list(moves[-1])
        first, second = rng.sample(range(len(changed)), 2)
        if rng.random() < EXCHANGES:
            changed[first], changed[second] = changed[second], changed[first]
        else:
            changed[first] = _entry(changed[first]["sharing"], rng)
        if changed != moves[-1]:
            moves.append(changed)
    return moves


def _entry(kind, rng):
    """Return an entry without its GPU."""
    if kind == "mig":
        return {"sharing": kind, "mig": [{"profile": "3g.40gb"}, *rng.choice(RESTS)]}
    if kind == "mps":
        clients = rng.choice((2, 4))
        limits = {"active_thread_percentage": 100 // clients, "pinned_memory_limit": "%dGiB" % (72 // clients)}
        return {"sharing": kind, "mps": {"name": "inference", "clients": clients, **limits}}
    if kind == "time_slicing":
        return {"sharing": kind, "time_slicing": {"slice": rng.choice(("short", "medium", "long")), "replicas": 4}}
    return {"sharing": kind}


def mixed(entries):
    """Return the layout with these entries.

    Each entry is for one GPU.
    """
    return [{"gpus": [number], **entry} for number, entry in enumerate(entries)]


def with_claims(dra, cluster, entries, kept):
    """Start a pod on each device without one, and return the pods by name."""
    used = Counter(pod.template for pod in kept.values())
    pods, created = dict(kept), {}
    for gpu, entry in enumerate(entries):
        numbers = Counter()
        for each in entry.get("mig", ()):
            numbers["mig-%d-%s" % (gpu, each["profile"])] += each.get("count", 1)
        if not numbers:
            numbers["%s-%d" % (entry["sharing"].replace("_", "-"), gpu)] = 1
        for template, number in numbers.items():
            for _pod in range(number - used[template]):
                name = "pod-%d" % next(_NUMBERS)
                create(cluster, claiming(dra, name, template))
                created[name] = (gpu, template)
    for name, (gpu, template) in created.items():
        pod = cluster.runs(name)
        pods[name] = Claiming(gpu, template, dra.device_of(cluster, pod)["uuid"], state(pod))
    return pods


def uuid_of(dra, cluster, name):
    """Return the UUID of the pod's device.

    Return None if the pod does not exist, or if the node does not publish the device.
    """
    pod = cluster.pod(name)
    try:
        return dra.device_of(cluster, pod)["uuid"] if pod else None
    except KeyError:
        return None


def delete(cluster, name) -> None:
    """Delete a pod if it exists, and wait until it no longer exists."""
    if cluster.pod(name):
        cluster.plane.call("DELETE", "/api/v1/namespaces/default/pods/%s?gracePeriodSeconds=0" % name)
        cluster.plane.wait(lambda: cluster.pod(name) is None, "no pod %s" % name)


def claiming(dra, name, template):
    """Return a pod with a claim from the node's template."""
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

    The time starts when the GPUs change, and ends when the node offers the new resources.
    """
    ends = ends_of(site(cluster, variables, layout))
    planned = kubernetes_mapping(layout, "nvidia_device_plugin", expected_gpus=GPUS, node=NODE)["resources"]
    offered = {name: number for name, number in cluster.allocatable(NODE).items() if number}
    if offered != planned:
        raise AssertionError(f"the node offers {offered}, planned are {planned}")
    return (ends[OFFERED] - ends[APPLIED]).total_seconds()


def ends_of(told) -> dict[str, datetime]:
    """Return when each of a run's tasks ended on the node."""
    ends = {}
    for play in told["plays"]:
        for task in play["tasks"]:
            if task["hosts"].get(NODE, {}).get("skipped") is not True and "end" in task["task"]["duration"]:
                ends[task["task"]["name"]] = datetime.fromisoformat(task["task"]["duration"]["end"].rstrip("Z"))
    return ends


def site(cluster, variables, layout) -> dict:
    """Run site.yml on the node, and return the output of the callback `json`."""
    given = {
        "gpu_layout": layout,
        "gpu_layout_on_busy": "drain",
        "gpu_drain_kubernetes": True,
        # This benchmark's pods have no owner, so the drain must force their eviction.
        "gpu_drain_kubernetes_delete_options": {"ignore_daemonsets": True, "force": True},
        **variables,
    }
    by_json = {"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"}
    done = cluster.play("site.yml", "--limit", NODE, "--extra-vars", json.dumps(given), environment=by_json)
    return json.JSONDecoder().raw_decode(done.stdout)[0]


def calls_of_run_without_changes(cluster, variables, layout) -> list[tuple[str, str]]:
    """Return the role's API requests in a run without changes.

    Each is a pair (verb, path).
    """
    before = len(cluster.plane.requests_of_role())
    told = site(cluster, variables, layout)
    if told["stats"][NODE]["changed"]:
        raise AssertionError("the run was to change nothing, and did")
    return cluster.plane.requests_of_role()[before:]


def create(cluster, pod) -> None:
    cluster.plane.call("POST", "/api/v1/namespaces/default/pods", pod)


def state(pod) -> tuple | None:
    """Return a pod's UID and restart count.

    Both stay the same if nothing disturbs the pod.
    """
    if pod is None:
        return None
    return pod["metadata"]["uid"], sum(each["restartCount"] for each in pod["status"]["containerStatuses"])


def devices(cluster) -> set[str]:
    """Return the UUIDs of the node's MIG devices and whole GPUs."""
    gpus = cluster.module(NODE, "openfleet.gpu.gpu_info")["gpus"]
    whole = {gpu["uuid"] for gpu in gpus if not gpu["mig"]["enabled"]}
    instances = [instance for gpu in gpus for instance in gpu["mig"]["instances"]]
    return whole | {part["mig_uuid"] for instance in instances for part in instance["compute_instances"]}
