# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a cluster of one node on which NVIDIA's DRA driver can run.

The test builds the driver from its Go module (folder dra). dra-driver.yml is its manifest.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Iterator

from tests.kubernetes import cdi
from tests.kubernetes import cluster as clusters
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.go_programs import GoModule

NODE = "node1"
NAMESPACE = "dra-driver-nvidia-gpu"
MANIFEST = Path(__file__).with_name("dra-driver.yml")
RIGHTS = clusters.REPOSITORY / "roles" / "gpu_kubernetes" / "files" / "rbac-dra.yml"
_DRIVER = "sigs.k8s.io/dra-driver-nvidia-gpu"
PROGRAM, WEBHOOK = _DRIVER + "/cmd/gpu-kubelet-plugin", _DRIVER + "/cmd/webhook"
# The driver looks for NVML in fixed folders, and none of them has the simulator's library. An MPS daemon's pod is not
# in the host's network, so containerd asks a CNI plugin for a network. The daemon uses only sockets in a folder.
_PREPARE = r"""
set -eu
ln -sf /usr/local/lib/gpusim/libnvidia-ml.so.1 /libnvidia-ml.so.1
mkdir -p /usr/lib/cni
cat >/usr/lib/cni/loopback <<'PLUGIN'
#!/bin/sh
version=$(sed -n 's/.*"cniVersion": *"\([^"]*\)".*/\1/p' | head -n 1)
case $CNI_COMMAND in
ADD) printf '{"cniVersion": "%s", "interfaces": [{"name": "%s", "sandbox": "%s"}],
    "ips": [{"version": "4", "interface": 0, "address": "192.0.2.99/32"}], "dns": {}}\n' "$version" "$CNI_IFNAME" "$CNI_NETNS" ;;
VERSION) echo '{"cniVersion": "0.4.0", "supportedVersions": ["0.3.0", "0.3.1", "0.4.0"]}' ;;
esac
PLUGIN
chmod +x /usr/lib/cni/loopback
# An image with the programs that the driver's template runs in the pod of an MPS daemon.
mkdir -p /srv/tools/root
cd /srv/tools
for program in sh cat tail rm chroot; do
    file=$(command -v $program)
    for each in "$file" $(ldd "$file" | grep -o '/lib[^ ]*'); do
        case $each in /lib*) each=/usr$each ;; esac
        cp --parents --dereference "$each" root
    done
done
for name in bin lib lib64 sbin; do ln -sfn usr/$name root/$name; done
mkdir -p root/dev root/proc root/sys root/tmp root/var root/driver-root
tar -cf layer.tar -C root .
digest=$(sha256sum layer.tar | cut -d ' ' -f 1)
case $(uname -m) in aarch64) architecture=arm64 ;; *) architecture=amd64 ;; esac
echo '{"architecture": "'$architecture'", "os": "linux", "config": {"Env": ["PATH=/usr/sbin:/usr/bin"]},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:'$digest'"]}}' >config.json
echo '[{"Config": "config.json", "RepoTags": ["localhost/openfleet/tools:1"], "Layers": ["layer.tar"]}]' >manifest.json
tar -cf image.tar manifest.json config.json layer.tar
for attempt in $(seq 300); do ctr version >/dev/null 2>&1 && break; sleep 0.2; done
ctr --namespace k8s.io images import --snapshotter native image.tar
"""


def why_not() -> str:
    """Say why this machine cannot build the driver.

    Return `""` if it can.
    """
    return GoModule("dra").problem()


def chart() -> Path:
    """Return the folder of the driver's Helm chart."""
    return GoModule("dra").source(_DRIVER) / "deployments" / "helm" / "dra-driver-nvidia-gpu"


@contextlib.contextmanager
def running(folder: Path, layout: list) -> Iterator[clusters.Cluster]:
    """Run a cluster of one node with this layout until the block ends.

    The function does not install the driver.
    """
    module = GoModule("dra", cgo=True)
    programs = module.build(PROGRAM)
    with clusters.running(folder, [NODE]) as cluster:
        shutil.copy(programs / "gpu-kubelet-plugin", cluster.folder)
        shutil.copytree(module.source(_DRIVER) / "templates", cluster.folder / "templates")
        # This playbook also copies NVML's bindings to the node.
        given = json.dumps({"gpu_layout": layout})
        cluster.play("tests/kubernetes/layout.yml", "--limit", NODE, "--extra-vars", given)
        cdi.enable(cluster, NODE)
        cluster.run(NODE, "sh", "-c", _PREPARE)
        yield cluster


def role_kubeconfig(cluster: clusters.Cluster) -> Path:
    """Return a kubeconfig for the role's account.

    The account has the rights in both manifests.
    """
    for name in ("nvidia-device-plugin", NAMESPACE):
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    cluster.plane.kubectl("apply", "--filename=%s" % RIGHTS)
    return cluster.role_kubeconfig()


def permit(plane: ControlPlane) -> None:
    """Create the driver's namespace, and the rights of the role's account.

    The API server has no controllers.
    """
    if plane.find("/api/v1/namespaces/%s" % NAMESPACE) is None:
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        plane.call("POST", "/api/v1/namespaces/%s/serviceaccounts" % NAMESPACE, {"metadata": {"name": "default"}})
    plane.kubectl("apply", "--filename=%s" % RIGHTS)


def claiming(template: str) -> dict:
    """Return the specification of a pod with a claim from the template.

    The pod lists its device nodes in its log.
    """
    spec = clusters.sleeping()
    spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template}]
    [main] = spec["containers"]
    main["resources"] = {"claims": [{"name": "gpu"}]}
    main["command"] = ["sh", "-c", cdi.LIST_NODES]
    return spec


def device_of(cluster: clusters.Cluster, pod: dict) -> dict:
    """Return the attributes of the device in the pod's claim, as text by name."""
    [status] = pod["status"]["resourceClaimStatuses"]
    path = "/apis/resource.k8s.io/v1/namespaces/%s/resourceclaims/%s"
    claim = cluster.plane.call("GET", path % (pod["metadata"]["namespace"], status["resourceClaimName"]))
    [result] = claim["status"]["allocation"]["devices"]["results"]
    return devices(cluster)[result["device"]]


def devices(cluster: clusters.Cluster) -> dict[str, dict]:
    """Return the published devices' attributes by name."""
    items = cluster.plane.call("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]
    published = [device for item in items for device in item["spec"].get("devices", [])]
    return {
        device["name"]: {name: next(iter(value.values())) for name, value in device["attributes"].items()}
        for device in published
    }
