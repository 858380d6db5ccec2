# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run NVIDIA's GPU operator with an API server and without images.

The test builds the operator from its Go module (folder operator). It reconciles labels, ConfigMaps and DaemonSets. The
DaemonSet controller and the scheduler create its pods, but no container runs.
"""

from __future__ import annotations

from pathlib import Path

from tests.kubernetes.control_plane import REPOSITORY, ControlPlane
from tests.kubernetes.go_programs import GoModule
from tests.kubernetes.node_stand_in import CONFIG_MAP, STRATEGIC, NodeStandIn

NAMESPACE = "gpu-operator"
POLICY = "cluster-policy"
POLICY_PATH = "/apis/nvidia.com/v1/clusterpolicies/%s" % POLICY
PLUGIN_APP = "nvidia-device-plugin-daemonset"
MIG_MANAGER_APP = "nvidia-mig-manager"
#: Labels that Node Feature Discovery and GPU Feature Discovery would set on a node with MIG-capable GPUs.
GPU_LABELS = {
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "feature.node.kubernetes.io/kernel-version.full": "6.1.0-13-amd64",
    "feature.node.kubernetes.io/system-os_release.ID": "debian",
    "feature.node.kubernetes.io/system-os_release.VERSION_ID": "12",
    "nvidia.com/mig.capable": "true",
}
#: Components whose pods would only wait for each other.
_DISABLED = (
    *("driver", "toolkit", "dcgm", "dcgmExporter", "nodeStatusExporter", "gds", "gdrcopy", "ccManager", "kataManager"),
    *("sandboxWorkloads", "sandboxDevicePlugin", "vfioManager", "vgpuManager", "vgpuDeviceManager"),
)
_IMAGE = {"repository": "localhost/none", "image": "none", "version": "1", "imagePullPolicy": "Never"}
_MODULE = "github.com/NVIDIA/gpu-operator"
#: The operator reads its manifests from a fixed folder.
_RUN = """
mount -t tmpfs tmpfs /opt
mkdir /opt/gpu-operator
cp -r "$1"/assets/. "$1/manifests" /opt/gpu-operator
exec "$0" --metrics-bind-address="$2:18080" --health-probe-bind-address="$2:18081"
"""
_RIGHTS = REPOSITORY / "roles" / "gpu_kubernetes" / "files" / "rbac.yml"


class GpuOperator:
    """A running operator.

    `plane` is its control plane.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def start(self, module: GoModule) -> None:
        """Start the operator with its default settings for mig-manager."""
        program, source = module.build(_MODULE + "/cmd/gpu-operator") / "gpu-operator", module.source(_MODULE)
        self.plane.kubectl("apply", "--server-side", "--filename=%s" % (source / "config" / "crd" / "bases"))
        self.plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        command = ["unshare", "--mount", "sh", "-ec", _RUN, str(program), str(source), self.plane.address]
        kubeconfig = str(self.plane.kubeconfig)
        self.plane.run_program("gpu-operator", command, KUBECONFIG=kubeconfig, OPERATOR_NAMESPACE=NAMESPACE)
        spec = {
            **{name: {"enabled": False} for name in _DISABLED},
            "operator": {"defaultRuntime": "containerd"},
            "daemonsets": {},
            "validator": _IMAGE,
            "devicePlugin": {"enabled": True, **_IMAGE},
            "gfd": {"enabled": True, **_IMAGE},
            "mig": {"strategy": "mixed"},
            # The API server adds the default `all-disabled`.
            "migManager": {"enabled": True, "config": {"name": "default-mig-parted-config"}, **_IMAGE},
        }
        policy = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": POLICY}, "spec": spec}
        self.plane.wait(lambda: self.plane.find(POLICY_PATH.rpartition("/")[0]), "the kind ClusterPolicy")
        self.plane.call("POST", POLICY_PATH.rpartition("/")[0], policy)

    def reconciles(self) -> None:
        """Wait until the operator has examined all nodes again."""
        message = "Number of nodes with GPU label"
        # The first run may have started before the call.
        expected = self.plane.log("gpu-operator").count(message) + 2
        self.plane.wait(lambda: self.plane.log("gpu-operator").count(message) >= expected, "the operator reconciles")

    def pods(self, app: str) -> list[str]:
        """Return the nodes of a component's pods.

        Skip pods that are being deleted.
        """
        path = "/api/v1/namespaces/%s/pods?labelSelector=app%%3D%s" % (NAMESPACE, app)
        items = self.plane.call("GET", path)["items"]
        return sorted(
            item["spec"].get("nodeName", "") for item in items if not item["metadata"].get("deletionTimestamp")
        )

    def role_kubeconfig(self) -> Path:
        """Create rbac.yml's account, and return a kubeconfig with its token.

        The account is in the operator's namespace.
        """
        rights = _RIGHTS.read_text().replace("namespace: nvidia-device-plugin", "namespace: %s" % NAMESPACE)
        self.plane.kubectl("apply", "--filename=-", text=rights)
        return self.plane.kubeconfig_with_token(NAMESPACE, "openfleet-gpu")


class Node(NodeStandIn):
    """A node on which the operator's DaemonSet runs the device plugin.

    The stand-in simulates the plugin while its pod exists.
    """

    namespace = NAMESPACE
    #: A component whose pods do not end after their deletion.
    hanging = ""

    def __init__(self, plane: ControlPlane, name: str, *arguments, **options) -> None:
        super().__init__(plane, name, *arguments, **options)
        admit_pods(plane, name)

    def _kubelet(self, plugin, _selected):
        own = None
        for pod in self.plane.call("GET", "/api/v1/pods?fieldSelector=spec.nodeName%%3D%s" % self.name)["items"]:
            app = pod["metadata"].get("labels", {}).get("app")
            if pod["metadata"].get("deletionTimestamp"):
                if app != self.hanging:
                    self._end(pod)
            elif app == PLUGIN_APP:
                own = pod["metadata"]["uid"]
        if own is None or own == plugin:
            return plugin, False
        self.starts += 1
        self.plugin_began(own)
        return own, True


def admit_pods(plane: ControlPlane, name: str) -> None:
    """Make the scheduler place pods on a node that has no kubelet."""
    plane.merge("/api/v1/nodes/%s" % name, {"spec": {"taints": None}})
    status = {"status": {"capacity": {"pods": "110"}, "allocatable": {"pods": "110"}}}
    plane.call("PATCH", "/api/v1/nodes/%s/status" % name, status, STRATEGIC)


def start(plane: ControlPlane) -> GpuOperator:
    """Run the operator until the control plane stops.

    The device plugin's ConfigMap exists.
    """
    operator = GpuOperator(plane)
    operator.start(GoModule("operator"))
    path = "/api/v1/namespaces/%s/configmaps" % NAMESPACE
    plane.call("POST", path, {"metadata": {"name": CONFIG_MAP}, "data": {"default": "version: v1\n"}})
    return operator
