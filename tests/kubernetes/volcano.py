# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run Volcano beside the control plane, and simulate its vGPU plugin on a node.

Volcano is built from its Go module (folder volcano). The module of the vGPU plugin cannot be downloaded, so `VgpuPlugin`
writes what the plugin writes into the API.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import threading
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from tests.kubernetes.beside import OTHER_USER, Beside, beside, free_port
from tests.kubernetes.control_plane import API_PORT, ControlPlane
from tests.kubernetes.go_programs import GoModule

SCHEDULER = "volcano"
HANDSHAKE = "volcano.sh/node-vgpu-handshake"
_REGISTER = "volcano.sh/node-vgpu-register"
_MODULE = "volcano.sh/volcano"
_ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"
# Volcano's plugin deviceshare ignores the option kubeconfig. It uses the service account files of the scheduler's pod.
_INSIDE = """
mount -t tmpfs tmpfs /run
mkdir -p "$2"
cp "$0" "$2/token"
cp "$1" "$2/ca.crt"
chmod -R a+rX /run
shift 2
exec "$@"
"""


def why_not() -> str:
    """Return why Volcano cannot be built on this machine, or "" if it can be built."""
    return GoModule("volcano").problem()


def kinds() -> list[Path]:
    """Return the folders with the definitions of Volcano's kinds."""
    folder = GoModule("volcano").source(_MODULE) / "config" / "crd"
    return [folder / name / "bases" for name in ("volcano", "jobflow")]


def default_configuration() -> str:
    """Return the configuration of the scheduler in Volcano's chart."""
    chart = GoModule("volcano").source(_MODULE) / "installer" / "helm" / "chart" / "volcano"
    return (chart / "config" / "volcano-scheduler.conf").read_text()


@contextlib.contextmanager
def running(plane: ControlPlane, configuration: str) -> Iterator[None]:
    """Run the scheduler and the controllers until the end of the block.

    `configuration` is the configuration of the scheduler.
    """
    module = GoModule("volcano")
    programs = {
        name: module.build("%s/cmd/%s" % (_MODULE, name)) / name for name in ("scheduler", "controller-manager")
    }
    with beside(plane) as here, contextlib.ExitStack() as ending:
        conf = here.add("volcano-scheduler.conf", configuration)
        common = ["--kubeconfig=%s" % here.kubeconfig, "--leader-elect=false", "--enable-healthz=false"]
        scheduler = [*common, "--scheduler-conf=%s" % conf, "--plugins-dir=", "--cache-dumper=false"]
        for name, options in (("controller-manager", common), ("scheduler", scheduler)):
            listen = "--listen-address=%s:%d" % (plane.address, free_port(plane.address))
            command = [*_account(here), *OTHER_USER, str(here.copy(programs[name])), *options, listen]
            environment = {"KUBERNETES_SERVICE_HOST": plane.address, "KUBERNETES_SERVICE_PORT": str(API_PORT)}
            ending.enter_context(here.runs("volcano-" + name, command, environment))
        yield


def _account(here: Beside) -> list[str]:
    """Return a command prefix that gives a program a pod's service account files.

    The account has all rights.
    """
    kubectl = here.plane.kubectl
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "volcano-lab"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
    }
    kubectl("apply", "--filename=-", text=json.dumps(binding))
    token = here.add("token", kubectl("--namespace=default", "create", "token", "default").strip())
    authority = here.add("ca.crt", (here.plane.folder / "pki" / "ca.crt").read_text())
    return ["unshare", "--mount", "sh", "-ec", _INSIDE, str(token), str(authority), _ACCOUNT]


class VgpuPlugin:
    """Register a node's GPUs as the vGPU plugin does, and keep renewing the handshake.

    `gpus` maps UUIDs to MiB. `split` is the number of pods that may share a GPU. If `pause` was called, the handshake
    is not renewed.
    """

    def __init__(self, plane: ControlPlane, node: str, gpus: Mapping[str, int], split: int) -> None:
        self._plane, self._path = plane, "/api/v1/nodes/%s" % node
        self._rows = ["%s,%d,%d,NVIDIA-H100,true,hami-core" % (uuid, split, mib) for uuid, mib in gpus.items()]
        self._resources = {
            "volcano.sh/vgpu-number": str(split * len(gpus)),
            "volcano.sh/vgpu-memory": str(sum(gpus.values())),
            "volcano.sh/vgpu-cores": str(100 * len(gpus)),
        }
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        status = {"status": {"capacity": self._resources, "allocatable": self._resources}}
        self._plane.merge(self._path + "/status", status)
        self._renew()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def pause(self) -> None:
        self._stopped.set()
        if self._thread:
            self._thread.join()

    def _work(self) -> None:
        while not self._stopped.wait(2):
            self._renew()

    def _renew(self) -> None:
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        annotations = {_REGISTER: ":".join([*self._rows, ""]), HANDSHAKE: "Reported " + now}
        self._plane.merge(self._path, {"metadata": {"annotations": annotations}})


def gang(name: str, least: int, pods: Sequence[dict]) -> list[dict]:
    """Return a PodGroup and its pods, of which at least `least` must run together."""
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minMember": least, "queue": "default"},
    }
    for pod in pods:
        pod["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": name}
        pod["spec"]["schedulerName"] = SCHEDULER
    return [group, *pods]
