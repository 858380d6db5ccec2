# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run NVIDIA's DRA driver locally, on a real API server without nodes.

DraNode simulates the DaemonSet controller and one node's kubelet. The driver is real, and publishes a local folder's
simulated GPUs.
"""

from __future__ import annotations

import http.client
import subprocess
import tempfile
import threading
from pathlib import Path

from tests.kubernetes import dra
from tests.kubernetes.control_plane import ApiError
from tests.kubernetes.go_programs import GoModule
from tests.kubernetes.node_stand_in import STRATEGIC

_PODS = "/api/v1/namespaces/%s/pods" % dra.NAMESPACE
_DAEMONSET = "/apis/apps/v1/namespaces/%s/daemonsets/dra-driver" % dra.NAMESPACE
#: Status codes of a server that has not read all of its data yet.
_NOT_YET = (429, 500, 503)


class DraNode:
    """A node, and a thread that runs the driver while its DaemonSet selects the node.

    `environment` is a SimulatedHost's environment, and `library` is the host's folder with NVML. `starts` counts the
    starts of the driver.
    """

    def __init__(self, plane, name, environment, library):
        self.plane, self.name, self.path = plane, name, "/api/v1/nodes/%s" % name
        self.starts = 0
        self.failed: Exception | None = None
        self._program = GoModule("dra", cgo=True).build(dra.PROGRAM) / "gpu-kubelet-plugin"
        # A socket's path has at most 107 characters.
        self._folder = tempfile.TemporaryDirectory(prefix="dra-")
        folder = Path(self._folder.name)
        for part in ("cdi", "plugins", "registry", "root/usr/bin"):
            (folder / part).mkdir(parents=True)
        (folder / "root" / "libnvidia-ml.so.1").symlink_to(library / "libnvidia-ml.so.1")
        # The driver only checks that the program exists.
        (folder / "root" / "usr" / "bin" / "nvidia-smi").touch()
        self._environment = {
            **environment,
            "NODE_NAME": name,
            "NAMESPACE": dra.NAMESPACE,
            "CDI_ROOT": str(folder / "cdi"),
            "NVIDIA_DRIVER_ROOT": "/",
            "DRIVER_ROOT_CTR_PATH": str(folder / "root"),
            "NVIDIA_CDI_HOOK_PATH": "/usr/bin/nvidia-cdi-hook",
            "IMAGE_NAME": "none",
            "KUBELET_REGISTRAR_DIRECTORY_PATH": str(folder / "registry"),
            "KUBELET_PLUGINS_DIRECTORY_PATH": str(folder / "plugins"),
        }
        self._log = folder / "log"
        self._process: subprocess.Popen | None = None
        plane.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def labels(self):
        return self.plane.call("GET", self.path)["metadata"].get("labels", {})

    def devices(self):
        """Return the type and profile of each published device."""
        items = self.plane.call(
            "GET", "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName=" + self.name
        )
        attributes = [device["attributes"] for item in items["items"] for device in item["spec"].get("devices", [])]
        return sorted((each["type"]["string"], each.get("profile", {}).get("string", "")) for each in attributes)

    def log(self):
        return self._log.read_text() if self._log.exists() else ""

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self._stopped.set()
        self._thread.join()
        self._end()
        for pod in self.plane.call("GET", "%s?fieldSelector=spec.nodeName%%3D%s" % (_PODS, self.name))["items"]:
            self._remove(pod)
        slices = "/apis/resource.k8s.io/v1/resourceslices"
        for each in self.plane.call("GET", "%s?fieldSelector=spec.nodeName=%s" % (slices, self.name))["items"]:
            self.plane.call("DELETE", "%s/%s" % (slices, each["metadata"]["name"]))
        self.plane.call("DELETE", self.path)
        self._folder.cleanup()
        assert self.failed is None, "%s\n%s" % (self.failed, self.log())

    def _work(self):
        while not self._stopped.wait(0.2):
            try:
                self._follow()
            except (OSError, http.client.HTTPException):
                # The API server does not respond.
                continue
            except ApiError as error:
                if error.status not in _NOT_YET:
                    self.failed = error
                    return
            except Exception as error:
                self.failed = error
                return

    def _follow(self):
        daemonset = self.plane.find(_DAEMONSET)
        selector = daemonset["spec"]["template"]["spec"]["nodeSelector"].items() if daemonset else None
        selected = daemonset is not None and selector <= self.labels().items()
        pods = self.plane.call("GET", "%s?fieldSelector=spec.nodeName%%3D%s" % (_PODS, self.name))["items"]
        for pod in pods:
            if pod["metadata"].get("deletionTimestamp") or not selected:
                self._end()
                self._remove(pod)
        if selected and not pods:
            self._start(daemonset)
        if self._process and self._process.poll() is not None:
            raise AssertionError("the driver ended: %s" % self.log()[-3000:])

    def _start(self, daemonset):
        self.starts += 1
        template = daemonset["spec"]["template"]
        metadata = daemonset["metadata"]
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "controller": True}
        owner.update(name=metadata["name"], uid=metadata["uid"])
        name = "dra-driver-%d" % self.starts
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": template["metadata"]["labels"], "ownerReferences": [owner]},
            "spec": {"nodeName": self.name, "containers": [{"name": "gpus", "image": "none"}]},
        }
        self.plane.call("POST", _PODS, pod)
        self.plane.call("PATCH", "%s/%s/status" % (_PODS, name), {"status": {"phase": "Running"}}, STRATEGIC)
        variables = {each["name"]: each.get("value") for each in template["spec"]["containers"][0]["env"]}
        environment = {**self._environment, "FEATURE_GATES": variables.get("FEATURE_GATES", "")}
        command = [str(self._program), "--kubeconfig=%s" % self.plane.kubeconfig, "-v", "2"]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def _end(self):
        if self._process:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def _remove(self, pod):
        path = "%s/%s" % (_PODS, pod["metadata"]["name"])
        if self.plane.find(path):
            self.plane.call("DELETE", path + "?gracePeriodSeconds=0")
