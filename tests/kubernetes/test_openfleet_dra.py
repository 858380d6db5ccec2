# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run site.yml on a node whose pods lease GPU quotas.

API server, scheduler, kubelet, containerd, the lease service and the plugin are real. The control plane has the feature
gate DRAConsumableCapacity. The test requires Debian 13's containerd (LAB_RELEASE=trixie).
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess

import pytest
import testinfra

from tests.kubernetes import cdi, dra
from tests.kubernetes import cluster as clusters
from tests.kubernetes.control_plane import ApiError, ControlPlane
from tests.lab.lab_fixtures import boot_time, reboot, wait_until_up

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        os.environ.get("LAB_RELEASE") != "trixie", reason="CDI wants containerd 1.7 (LAB_RELEASE=trixie)"
    ),
]

NODE = "node1"
KUBECONFIG = "/srv/kubernetes/system-node-node1.kubeconfig"
API = "/apis/resource.k8s.io/v1"
CLAIM = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
LEASED = {
    "gpus": [0, 1],
    "sharing": "vgpu",
    "vgpu": {"policy": "fixed", "tenants": [{"name": "serving", "gpu": 1, "memory": "60GiB", "sm_percent": 80}]},
    "leases": {"by": "kubernetes", "most": {"memory": "60GiB", "sm_percent": 60}},
}
LAYOUT = [LEASED, {"gpus": [2, 3], "sharing": "exclusive"}]
#: Prints the quota of the pod's programs, and their devices.
SHOW = 'cat "/etc/openfleet-gpu/vgpu/$OPENFLEET_VGPU/quota"; ' + cdi.LIST_NODES
#: Creates the device nodes of GPUs at each boot, as udev would, and imports the image of pods: containerd's files are in
#: memory, unlike those of a real node.
BOOT_SCRIPT = """
for name in 0 1 2 3 ctl; do [ -e /dev/nvidia$name ] || mknod -m 666 /dev/nvidia$name c 1 3; done
until ctr version >/dev/null 2>&1; do sleep 0.2; done
ctr --namespace k8s.io images import --snapshotter native /srv/kubernetes/image.tar
"""
BOOT_UNIT = """
[Unit]
After=containerd.service
Before=kubelet.service
[Service]
Type=oneshot
ExecStart=/bin/sh /usr/local/lib/lab-boot
[Install]
WantedBy=multi-user.target
"""
#: Programs of the node that serve pods with leases.
UNITS = ("openfleet-gpu-dra", "kubelet", "gpu-layout-lease")
#: A program that sends a request to a socket: python3 -c ASK SOCKET REQUEST.
ASK = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.sendall(sys.argv[2].encode() + b"\\n")
print(connection.recv(65536).decode().strip())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leases") / "plane"
    with clusters.running(folder, [NODE], "DRAConsumableCapacity=true") as found:
        yield found


@pytest.fixture(scope="module")
def site(cluster):
    """Return a function that applies the layout with site.yml."""
    kubeconfig = dra.role_kubeconfig(cluster)

    def run(*options, layout=LAYOUT, **variables):
        given = {
            "gpu_layout": layout,
            "gpu_kubernetes_backend": "openfleet_dra",
            "gpu_kubernetes_kubeconfig": str(kubeconfig),
            "gpu_kubernetes_kubelet_kubeconfig": KUBECONFIG,
            "gpu_kubernetes_poll": 1,
            "gpu_kubernetes_timeout": 100,
            "vgpu_limiter_source": "controller",
            **variables,
        }
        return cluster.play("site.yml", *options, "--limit", NODE, "--extra-vars", json.dumps(given)).stdout

    return run


@pytest.fixture(scope="module")
def node(cluster, site):
    """Apply the layout, and write CDI devices of whole GPUs.

    The devices are as nvidia-ctk would write them.
    """
    # The driver must exist before the tenants' CDI devices, and this playbook copies NVML's bindings to the node.
    cluster.play("tests/kubernetes/layout.yml", "--limit", NODE, "--extra-vars", json.dumps({"gpu_layout": LAYOUT[1:]}))
    cdi.enable(cluster, NODE)
    site()
    gpus = cluster.module(NODE, "openfleet.gpu.gpu_info")["gpus"]
    devices = [
        {
            "name": gpu["uuid"],
            "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia%d" % gpu["index"]}, {"path": "/dev/nvidiactl"}]},
        }
        for gpu in gpus
    ]
    specification = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    cluster.run(NODE, "sh", "-c", "mkdir -p /etc/cdi; echo '%s' >/etc/cdi/nvidia.json" % json.dumps(specification))
    for path, text in (("/usr/local/lib/lab-boot", BOOT_SCRIPT), ("/etc/systemd/system/lab-boot.service", BOOT_UNIT)):
        cluster.run(NODE, "sh", "-c", 'printf %s "$0" >"$1"', text, path)
    cluster.run(NODE, "systemctl", "enable", "lab-boot")
    return [gpu["uuid"] for gpu in gpus]


def published(cluster):
    items = cluster.plane.call("GET", API + "/resourceslices")["items"]
    return {device["name"]: device for item in items for device in item["spec"].get("devices", [])}


def template(name, memory=None, percent=None, device_class="lease.gpu.openfleet.io", count=1, selector=""):
    exactly = {"deviceClassName": device_class, "count": count}
    if memory:
        exactly["capacity"] = {"requests": {"memory": memory, "smPercent": str(percent)}}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    devices: dict = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if count > 1:
        # Without this constraint, the scheduler may allocate two shares of one GPU.
        devices["constraints"] = [{"requests": ["gpu"], "distinctAttribute": "gpu.openfleet.io/uuid"}]
    spec = {"devices": devices}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": spec},
    }


def pod(name, claim, **spec):
    made = {**dra.claiming(claim), **spec}
    made["containers"][0]["command"] = ["sh", "-c", SHOW]
    metadata = {"name": name, "namespace": "default", "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made}


def start(cluster, name, *arguments, **options):
    cluster.apply(template(name, *arguments, **options), pod(name, name))


def quota(cluster, running):
    """Return the lines of the quota that a pod has printed, and its device nodes."""
    nodes = cdi.nodes_in(cluster, running)
    lines = [line for line in nodes if line.startswith("gpu ")]
    return lines, {line for line in nodes if line.startswith("/dev/nvidia") and line[len("/dev/nvidia") :].isdigit()}


def leases(cluster):
    return json.loads(cluster.run(NODE, "gpu-layout", "lease", "--json", "list"))["leases"]


def tenants(cluster):
    """Return the leases' tenants on the host."""
    return set(cluster.run(NODE, "sh", "-c", "ls /etc/openfleet-gpu/vgpu").split()) - {"serving"}


def why_pending(cluster, name):
    def reason():
        conditions = (cluster.pod(name) or {}).get("status", {}).get("conditions", [])
        return next((each["message"] for each in conditions if each.get("reason") == "Unschedulable"), "")

    cluster.plane.wait(reason, "pod %s is pending" % name)
    return reason()


@pytest.fixture(autouse=True)
def nothing_left(cluster, node):
    """Delete all pods after each test.

    No lease and no quota may remain.
    """
    yield
    cluster.plane.kubectl("delete", "pods,resourceclaimtemplates", "--all", "--namespace=default", "--timeout=100s")
    cluster.plane.wait(lambda: not leases(cluster), "no leases: %s" % leases(cluster))
    assert tenants(cluster) == set()


def test_node_publishes_what_the_layout_leaves(cluster, site, node):
    devices = published(cluster)
    assert set(devices) == {node[0].lower(), node[1].lower(), "tenant-serving"}
    first, second = (devices[uuid.lower()]["capacity"] for uuid in node[:2])
    assert first["smPercent"]["value"] == "100" and second["smPercent"]["value"] == "20"
    assert first["memory"]["requestPolicy"]["validRange"]["max"] == "60Gi"


def test_pods_share_a_gpu_and_a_third_pod_waits(cluster, node):
    on_first = "device.attributes['gpu.openfleet.io'].uuid == '%s'" % node[0]
    start(cluster, "first", "50Gi", 50, selector=on_first)
    start(cluster, "second", "20Gi", 30, selector=on_first)
    lines = {name: quota(cluster, cluster.runs(name)) for name in ("first", "second")}
    [first], [second] = lines["first"][0], lines["second"][0]
    assert first.startswith("gpu %s memory %d sm 50 " % (node[0], 50 << 30))
    assert second.startswith("gpu %s memory %d sm 30 " % (node[0], 20 << 30))
    assert lines["first"][1] == lines["second"][1] == {"/dev/nvidia0"}
    start(cluster, "third", "20Gi", 10, selector=on_first)
    assert "cannot allocate all claims" in why_pending(cluster, "third")
    # The third pod gets its lease after the second pod has returned its own.
    cluster.plane.kubectl("delete", "pod", "second", "--timeout=100s")
    cluster.runs("third")
    assert [row["size"] for row in leases(cluster)] == ["50GiB and 50 %", "20GiB and 10 %"]


def test_pod_gets_a_fixed_tenant_or_two_gpus(cluster, node):
    start(cluster, "tenant", device_class="tenant.gpu.openfleet.io")
    [line], nodes = quota(cluster, cluster.runs("tenant"))
    assert line.startswith("gpu %s memory %d sm 80 " % (node[1], 60 << 30)) and nodes == {"/dev/nvidia1"}
    start(cluster, "pair", "10Gi", 10, count=2)
    lines, nodes = quota(cluster, cluster.runs("pair"))
    assert len(lines) == 2 and nodes == {"/dev/nvidia0", "/dev/nvidia1"}
    assert len(leases(cluster)) == 1


def state(running):
    return running["metadata"]["uid"], [each["restartCount"] for each in running["status"]["containerStatuses"]]


def test_restarts_leave_pods_and_leases_alone(cluster):
    start(cluster, "steady", "10Gi", 10)
    before, rows = state(cluster.runs("steady")), leases(cluster)
    for unit in ("openfleet-gpu-dra", "kubelet", "gpu-layout-lease", "openfleet-gpu-dra"):
        cluster.run(NODE, "systemctl", "kill", "--signal=KILL", "--kill-whom=main", unit, check=False)
        cluster.run(NODE, "systemctl", "restart", unit)
    # A pod that starts afterwards shows that the plugin is registered again.
    start(cluster, "later", "10Gi", 10)
    cluster.runs("later")
    assert state(cluster.runs("steady")) == before
    assert rows[0] in leases(cluster) and len(leases(cluster)) == 2


def test_force_deleted_pod_leaks_nothing(cluster):
    """Delete a pod from the API while its node is down."""
    start(cluster, "lost", "10Gi", 10)
    cluster.runs("lost")
    assert len(tenants(cluster)) == 1
    cluster.run(NODE, "systemctl", "stop", "kubelet")
    cluster.plane.kubectl("delete", "pod", "lost", "--grace-period=0", "--force")
    cluster.run(NODE, "systemctl", "start", "kubelet")
    cluster.plane.wait(lambda: not tenants(cluster), "the lease ends")


def test_lease_of_a_claim_that_the_kubelet_forgot_is_given_back(cluster):
    start(cluster, "forgotten", "10Gi", 10)
    cluster.runs("forgotten")
    cluster.run(NODE, "systemctl", "stop", "kubelet")
    cluster.plane.kubectl("delete", "pod", "forgotten", "--grace-period=0", "--force")
    remove = "ctr -n k8s.io tasks ls -q | xargs -r -n 1 ctr -n k8s.io tasks kill -s KILL; "
    cluster.run(NODE, "sh", "-c", remove + "rm -f /var/lib/kubelet/dra_manager_state")
    cluster.run(NODE, "systemctl", "start", "kubelet")
    cluster.plane.wait(lambda: not tenants(cluster), "the plugin gives the lease back")


def test_rebooted_node_gives_stale_leases_back(cluster):
    """Delete a pod from the API while its node is down."""
    for name in ("stays", "gone"):
        start(cluster, name, "10Gi", 10)
        cluster.runs(name)
    uid, _restarts = state(cluster.pod("stays"))
    cluster.run(NODE, "systemctl", "stop", "kubelet")
    cluster.plane.kubectl("delete", "pod", "gone", "--grace-period=0", "--force")
    reboot(testinfra.get_host("podman://%s" % clusters.container(NODE)))
    cluster.plane.wait(lambda: len(tenants(cluster)) == 1, "one lease is left")
    cluster.plane.wait(lambda: state(cluster.pod("stays"))[1] == [1], "the pod starts again")
    assert state(cluster.runs("stays"))[0] == uid
    assert lost_leases(cluster, {"stays": "10GiB and 10 %"}) == []


def test_claim_beyond_the_limit_waits(cluster):
    start(cluster, "large", "61Gi", 10)
    why_pending(cluster, "large")
    start(cluster, "wide", "1Gi", 61)
    why_pending(cluster, "wide")


# -- Attacks -----------------------------------------------------------------------------------------------------------


def refused(plane: ControlPlane, kubeconfig, *arguments, text=None):
    command = [str(plane.programs / "kubectl"), "--kubeconfig", str(kubeconfig), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    return done.stderr


def test_owner_of_a_pod_cannot_take_more(cluster, node):
    """Act as an editor of a namespace, and as root in a container."""
    plane = cluster.plane
    owner = plane.kubeconfig_of("mallory")
    plane.kubectl("create", "rolebinding", "mallory", "--clusterrole=edit", "--user=mallory", "--namespace=default")
    start(cluster, "victim", "10Gi", 10)
    [victim] = leases(cluster) if cluster.runs("victim") else []
    [claim] = plane.call("GET", API + "/namespaces/default/resourceclaims")["items"]
    # The status's allocation decides the quota, and only the scheduler may write it.
    device = claim["status"]["allocation"]["devices"]["results"][0]
    device["consumedCapacity"]["memory"] = "60Gi"
    change = {"status": {"allocation": claim["status"]["allocation"]}}
    with pytest.raises((ApiError, AssertionError)):
        plane.call(
            "PATCH",
            "%s/namespaces/default/resourceclaims/%s/status" % (API, claim["metadata"]["name"]),
            change,
            "application/merge-patch+json",
        )
    forged = json.dumps({**CLAIM, **claim, "metadata": {**claim["metadata"], "resourceVersion": ""}})
    assert "orbidden" in refused(plane, owner, "replace", "--subresource=status", "--filename=-", text=forged)
    assert "orbidden" in refused(plane, owner, "get", "resourceslices")
    # A root container with the lease service's socket is not the plugin.
    attacker = dra.claiming("victim")
    attacker["volumes"].append({"name": "run", "hostPath": {"path": "/run"}})
    main = attacker["containers"][0]
    main["volumeMounts"].append({"name": "run", "mountPath": "/host-run"})
    requests = [
        {"op": "unprepare", "claim": claim["metadata"]["uid"]},
        {"op": "claims"},
        {"op": "end", "number": victim["number"]},
        {
            "op": "prepare",
            "claim": "0",
            "name": "a/b",
            "shape": {"memory_bytes": 1 << 30, "sm_percent": 1},
            "uuids": [node[0]],
            "priority_class": "",
        },
    ]
    calls = "; ".join(
        "/usr/bin/python3 -c \"$CODE\" /host-run/openfleet-gpu-lease.sock '%s'" % json.dumps(request)
        for request in requests
    )
    main["command"] = ["sh", "-c", "%s; %s" % (calls, cdi.LIST_NODES)]
    main["env"] = [{"name": "CODE", "value": ASK}]
    metadata = {"name": "attacker", "namespace": "default"}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": attacker})
    answers = [json.loads(line) for line in cdi.nodes_in(cluster, cluster.runs("attacker")) if line.startswith("{")]
    problems = sorted(answer["error"]["problem"] for answer in answers)
    # The answers to three requests are equal.
    assert set(problems) == {
        "only openfleet-gpu-dra.service may send it",
        "it belongs to pod:default/%s" % claim["metadata"]["name"],
    }
    assert victim in leases(cluster)


def test_claim_that_is_deleted_under_its_pod_gives_no_second_quota(cluster, node):
    """Remove the finalizer of a claim in use.

    The scheduler then counts its quota as free.
    """
    on_first = "device.attributes['gpu.openfleet.io'].uuid == '%s'" % node[0]
    start(cluster, "first", "50Gi", 50, selector=on_first)
    before = state(cluster.runs("first"))
    [claim] = cluster.plane.call("GET", API + "/namespaces/default/resourceclaims")["items"]
    path = "%s/namespaces/default/resourceclaims/%s" % (API, claim["metadata"]["name"])
    cluster.plane.call("DELETE", path)
    if cluster.plane.find(path):
        cluster.plane.merge(path, {"metadata": {"finalizers": None}})
    cluster.plane.wait(lambda: cluster.plane.find(path) is None, "the claim is deleted")
    start(cluster, "second", "50Gi", 50, selector=on_first)

    def refused_by_the_host():
        events = cluster.plane.call("GET", "/api/v1/namespaces/default/events")["items"]
        return any("second" in each["involvedObject"]["name"] and "free" in each["message"].lower() for each in events)

    cluster.plane.wait(refused_by_the_host, "the lease service refuses the second pod")
    assert state(cluster.pod("first")) == before and lost_leases(cluster, {"first": "50GiB and 50 %"}) == []
    assert len(tenants(cluster)) == 1
    cluster.plane.kubectl("delete", "pod", "first", "--timeout=100s")
    cluster.runs("second")


def test_texts_of_a_pod_select_no_quota(cluster, node):
    """Name the quota of another pod in annotations and in the environment."""
    start(cluster, "victim", "10Gi", 10)
    cluster.runs("victim")
    [victim] = tenants(cluster)
    attacker = pod("attacker", "attacker")
    names = {"cdi.k8s.io/vgpu": "openfleet.io/vgpu=%s" % victim, "cdi.k8s.io/gpu": "nvidia.com/gpu=%s" % node[0]}
    attacker["metadata"]["annotations"] = names
    attacker["spec"].pop("resourceClaims")
    main = attacker["spec"]["containers"][0]
    main["resources"] = {}
    main["env"] = [{"name": "OPENFLEET_VGPU", "value": victim}]
    main["command"] = ["sh", "-c", "ls /etc/openfleet-gpu/vgpu; " + cdi.LIST_NODES]
    cluster.apply(attacker)
    assert not any(victim in line or "nvidia" in line for line in cdi.nodes_in(cluster, cluster.runs("attacker")))
    # With its own claim, a pod has only its own quota.
    other = pod("other", "other")
    other["spec"]["containers"][0]["env"] = [{"name": "OPENFLEET_VGPU", "value": victim}]
    cluster.apply(template("other", "1Gi", 1), other)
    lines, _nodes = quota(cluster, cluster.runs("other"))
    assert [line.split(" memory ")[1].split()[0] for line in lines] == [str(1 << 30)]


def test_node_writes_only_its_own_slices(cluster):
    plane = cluster.plane
    kubelet = plane.kubeconfig_of("system:node:%s" % NODE, ["system:nodes"])
    [own] = plane.call("GET", API + "/resourceslices")["items"]
    spec = {**own["spec"], "nodeName": "node2", "pool": {**own["spec"]["pool"], "name": "node2"}}
    other = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "other"}, "spec": spec}
    assert "orbidden" in refused(plane, kubelet, "create", "--filename=-", text=json.dumps(other))
    plane.call("POST", API + "/resourceslices", {"metadata": {"name": "other"}, "spec": spec})
    try:
        assert "orbidden" in refused(plane, kubelet, "delete", "resourceslice", "other")
    finally:
        plane.call("DELETE", API + "/resourceslices/other")


def test_second_run_changes_nothing(cluster, site):
    again = site()
    assert re.search(r"^node1 .*changed=0 ", again, re.MULTILINE), again[-3000:]


# -- Many pods ---------------------------------------------------------------------------------------------------------


def lost_leases(cluster, sizes):
    """Return the pods that do not have exactly one lease of their size.

    `sizes` has the size of each pod's claim by the name of the pod.
    """
    # A claim has the name of its pod, of the request, and five random letters.
    rows = [(row["account"].partition("/")[2].rsplit("-", 2)[0], row["size"]) for row in leases(cluster)]
    return [name for name, size in sizes.items() if rows.count((name, size)) != 1]


def kill(cluster, unit):
    cluster.run(NODE, "systemctl", "kill", "--signal=KILL", "--kill-whom=main", unit, check=False)


def kill_node(cluster, pods):
    """Kill all processes of the node, and start it.

    Waits until the node has started these pods again.
    """
    host = testinfra.get_host("podman://%s" % clusters.container(NODE))
    before = boot_time(host)
    killed = cluster.run(NODE, "date", "--utc", "+%FT%TZ").strip()
    subprocess.run(["podman", "restart", "--time=0", clusters.container(NODE)], check=True, capture_output=True)
    wait_until_up(host, before)

    def started():
        for name in pods:
            [status] = (cluster.pod(name) or {}).get("status", {}).get("containerStatuses") or [{}]
            if not status.get("ready") or status["state"]["running"]["startedAt"] <= killed:
                return False
        return True

    cluster.plane.wait(started, "the node starts %s after %s" % (pods, killed))


def test_random_pods_with_kills_leak_and_disturb_nothing(cluster):
    """Start and delete random pods while the node or its programs are killed."""
    draw = random.Random(int(os.environ.get("OPENFLEET_LEASE_SEED", "45")))
    number = int(os.environ.get("OPENFLEET_LEASE_PODS", "40"))
    sizes: dict[str, str] = {}
    seen: dict[str, tuple] = {}
    disturbed: list[str] = []
    kills = dict.fromkeys((*UNITS, "node"), 0)
    for count in range(0, number, 4):
        new = ["pod-%d" % each for each in range(count, min(number, count + 4))]
        requests = {name: (draw.randint(1, 9), draw.randint(1, 9)) for name in new}
        objects = [
            (template(name, "%dGi" % memory, percent), pod(name, name)) for name, (memory, percent) in requests.items()
        ]
        cluster.apply(*(each for pair in objects for each in pair))
        sizes.update({name: "%dGiB and %d %%" % request for name, request in requests.items()})
        # Some kills hit the pods while they start, and others while they run.
        if draw.random() < 0.5:
            for name in new:
                seen[name] = state(cluster.runs(name))
        killed = draw.choice(UNITS) if draw.random() < 0.9 else "node"
        kills[killed] += 1
        if killed == "node":
            kill_node(cluster, sorted(sizes))
            # The node starts all containers again. The pods and their leases are the same.
            disturbed += [name for name, (uid, _) in seen.items() if state(cluster.pod(name))[0] != uid]
            seen = {name: state(cluster.pod(name)) for name in sizes}
        else:
            kill(cluster, killed)
        for name in sorted(sizes.keys() - seen.keys()):
            seen[name] = state(cluster.runs(name))
        disturbed += [name for name, before in seen.items() if state(cluster.pod(name)) != before]
        disturbed += lost_leases(cluster, sizes)
        while len(sizes) > 4:
            victim = draw.choice(sorted(sizes))
            options = ("--grace-period=0", "--force") if draw.random() < 0.5 else ("--wait=false",)
            cluster.plane.kubectl("delete", "pod", victim, *options)
            del sizes[victim], seen[victim]
    print("lease_disturbed", len(disturbed), "after", number, "pods and kills of", kills)
    assert disturbed == []
    cluster.plane.kubectl("delete", "pods", "--all", "--namespace=default", "--timeout=100s")
    cluster.plane.wait(lambda: not leases(cluster), "no leases: %s" % leases(cluster))
    leaked = tenants(cluster)
    print("lease_leaked", len(leaked))
    assert leaked == set()


# -- The device plugin API ---------------------------------------------------------------------------------------------

SERVING = "gpu.openfleet.io/tenant-serving"


def tenant_pod(name):
    made = clusters.sleeper(name, {SERVING: 1})
    made["spec"]["containers"][0]["command"] = ["sh", "-c", SHOW]
    return made


@pytest.fixture
def tenants_only(site, cluster):
    """Offer only the fixed tenant, for the last test of the cluster."""
    site(gpu_kubernetes_state="absent")
    cluster.plane.wait(lambda: not published(cluster), "no ResourceSlices")
    requests = len(cluster.plane.requests_of_role())
    site(gpu_kubernetes_backend="openfleet_device_plugin")
    # The role only looks for ResourceSlices of other drivers.
    later = cluster.plane.requests_of_role()[requests:]
    assert {verb for verb, path in later if "resource.k8s.io" in path} <= {"get", "list"}


def test_pod_gets_a_fixed_tenant_by_the_device_plugin_api(cluster, site, node, tenants_only):
    def offered():
        return cluster.node(NODE)["status"]["allocatable"].get(SERVING)

    assert offered() == "1"
    cluster.apply(tenant_pod("first"))
    [line], nodes = quota(cluster, cluster.runs("first"))
    assert line.startswith("gpu %s memory %d sm 80 " % (node[1], 60 << 30)) and nodes == {"/dev/nvidia1"}
    cluster.apply(tenant_pod("second"))
    assert "Insufficient %s" % SERVING in why_pending(cluster, "second")
    before = state(cluster.pod("first"))
    for unit in ("openfleet-gpu-dra", "kubelet", "openfleet-gpu-dra"):
        kill(cluster, unit)
        cluster.run(NODE, "systemctl", "restart", unit)
    # The tenant is free for the next pod only if the plugin has registered again.
    assert state(cluster.runs("first")) == before
    cluster.plane.kubectl("delete", "pod", "first", "--timeout=100s")
    cluster.runs("second")
    again = site(gpu_kubernetes_backend="openfleet_device_plugin")
    assert re.search(r"^node1 .*changed=0 ", again, re.MULTILINE), again[-3000:]
