# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a pod gets its device nodes through CDI.

The test uses Debian 13's containerd and NVIDIA's device plugin. It runs in `make test-thorough` with
LAB_RELEASE=trixie, because Debian 12's containerd does not support CDI.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.filter.kubernetes_mapping import kubernetes_mapping
from tests.kubernetes import cluster as clusters

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        os.environ.get("LAB_RELEASE") != "trixie", reason="CDI wants containerd 1.7 (LAB_RELEASE=trixie)"
    ),
]

NODE = "node1"
#: Path on the node (cluster.Cluster).
HOOK = "/opt/openfleet-lab/kubernetes/nvidia-cdi-hook"
LAYOUT = [
    {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 2}]},
    {"gpus": [1, 2, 3], "sharing": "exclusive"},
]
#: Creates what a driver's installation and udev would create: the library whose name contains the version, and device
#: nodes of GPUs. The nodes have the numbers of /dev/null, because there is no driver.
DRIVER = """
set -eu
folder=/usr/lib/$(uname -m)-linux-gnu
echo 'a stand-in' >"$folder/libcuda.so.$0"
ln -sf "libcuda.so.$0" "$folder/libcuda.so.1"
# A hook of CDI's would make it in the pod, whose /usr is the node's and cannot be written.
ln -sf libcuda.so.1 "$folder/libcuda.so"
for name in nvidia0 nvidia1 nvidia2 nvidia3 nvidiactl; do mknod -m 666 /dev/$name c 1 3; done
cd /etc/containerd
keys='enable_cdi = true\\ncdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]'
sed -i "/^\\[plugins.*cri\\"\\]/a $keys" config.toml
systemctl restart containerd
"""
LIST_NODES = "find /dev -type c -name 'nvidia*'; echo end; trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Start a cluster of one node, and add the programs that CDI needs."""
    with clusters.running(tmp_path_factory.mktemp("cdi") / "plane", [NODE]) as found:
        # This playbook also copies NVML's bindings to the node.
        found.play("tests/kubernetes/layout.yml", "--limit", NODE, "--extra-vars", json.dumps({"gpu_layout": LAYOUT}))
        version = found.module(NODE, "openfleet.gpu.gpu_info")["driver_version"]
        found.run(NODE, "sh", "-c", DRIVER, version)
        found.apply(*plugin_with_cdi())
        yield found


def plugin_with_cdi():
    """Return the objects of device-plugin.yml with CDI enabled.

    The plugin then returns CDI device names in addition to the variable.
    """
    objects = list(yaml.safe_load_all(Path(__file__).with_name("device-plugin.yml").read_text()))
    spec = copy.deepcopy(objects[-1]["spec"]["template"]["spec"])
    [plugin] = [each for each in spec["containers"] if each["name"] == "nvidia-device-plugin-ctr"]
    given = {"DEVICE_LIST_STRATEGY": "envvar,cdi-cri", "NVIDIA_CDI_HOOK_PATH": HOOK, "DRIVER_ROOT_CTR_PATH": "/"}
    plugin["env"] += [{"name": name, "value": value} for name, value in given.items()]
    plugin["volumeMounts"].append({"name": "cdi", "mountPath": "/var/run/cdi"})
    spec["volumes"].append({"name": "cdi", "hostPath": {"path": "/var/run/cdi", "type": "DirectoryOrCreate"}})
    objects[-1]["spec"]["template"]["spec"] = spec
    return objects


def nodes_in(cluster, pod):
    """Return the NVIDIA nodes in the pod's /dev, from its log."""
    metadata = pod["metadata"]
    folder = "/var/log/pods/%s_%s_%s/main" % (metadata["namespace"], metadata["name"], metadata["uid"])
    lines = []

    def logged():
        log = cluster.run(NODE, "sh", "-c", "cat %s/*.log" % folder, check=False)
        # Remove the time, the stream and the mark from each line.
        lines[:] = [line.split(" ", 3)[-1] for line in log.splitlines()]
        return "end" in lines

    cluster.plane.wait(logged, "pod %s lists its nodes" % metadata["name"])
    return set(lines[: lines.index("end")])


def test_pod_sees_only_device_nodes_of_its_instance(cluster):
    planned = kubernetes_mapping(LAYOUT, "nvidia_device_plugin", expected_gpus=["H100-80GB"] * 4, node=NODE)
    given = {
        "gpu_layout": LAYOUT,
        "gpu_kubernetes_kubeconfig": str(cluster.role_kubeconfig()),
        # The kubelet of this node applies a new key within 5 s (node/kubelet.yml).
        "gpu_kubernetes_config_delay": 10,
        "gpu_kubernetes_poll": 1,
    }
    cluster.play("site.yml", "--limit", NODE, "--extra-vars", json.dumps(given))
    cluster.offers(NODE, planned["resources"])
    pods = {}
    for name, resource in (
        ("large", "nvidia.com/mig-3g.40gb"),
        ("small", "nvidia.com/mig-1g.10gb"),
        ("whole", "nvidia.com/gpu"),
    ):
        pod = clusters.sleeper(name, {resource: 1})
        pod["spec"]["containers"][0]["command"] = ["sh", "-c", LIST_NODES]
        cluster.apply(pod)
        pods[name] = nodes_in(cluster, cluster.runs(name))
    gpus = {name: {node for node in nodes if node[len("/dev/nvidia") :].isdigit()} for name, nodes in pods.items()}
    capabilities = {name: {node for node in nodes if "/nvidia-cap" in node} for name, nodes in pods.items()}
    assert gpus["large"] == gpus["small"] == {"/dev/nvidia0"}
    assert len(gpus["whole"]) == 1 and gpus["whole"] < {"/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3"}
    # Each pod has one node for its GPU instance and one for its compute instance, and none of its neighbour.
    assert len(capabilities["large"]) == len(capabilities["small"]) == 2 and not capabilities["whole"]
    assert not capabilities["large"] & capabilities["small"]
