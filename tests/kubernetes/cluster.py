# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a cluster with the control plane of control_plane.py and lab hosts as nodes.

The nodes have containerd, kubelet and simulated GPUs. No lab host has a network. A socket in a shared folder forwards a
node's connections to 127.0.0.1:6443.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import socket
import subprocess
import tarfile
import threading
import urllib.parse
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from tests.kubernetes.control_plane import API_PORT, REPOSITORY, ROLE_ACCOUNT, ControlPlane, build

NODES = ("node1", "node2")
#: The pods' image: an empty root folder, into which pods mount the host's files.
IMAGE = "localhost/openfleet/host-files:1"
_FOLDERS = ("dev", "etc", "proc", "sys", "tmp", "usr", "var")
_LINKS = ("bin", "lib", "lib64", "sbin")
#: Go's names for architectures.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
#: A pod prints this text before its list of devices.
_MARK = "devices: "
_LAB = "kubernetes-%s" % (os.environ.get("OPENFLEET_CHECKOUT") or "local")
_INVENTORY = REPOSITORY / "tests" / "kubernetes" / "inventory"
_RIGHTS = REPOSITORY / "roles" / "gpu_kubernetes" / "files" / "rbac.yml"
_NOTHING: Mapping[str, str] = {}


class Cluster:
    """A cluster.

    `plane` is the control plane. Nodes see `folder` at /srv/kubernetes.
    """

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        self.inventory = _INVENTORY
        self._environment = dict(
            os.environ,
            OPENFLEET_LAB=_LAB,
            OPENFLEET_CLUSTER_PROGRAMS=str(plane.programs),
            OPENFLEET_CLUSTER_FOLDER=str(folder),
            ANSIBLE_CALLBACK_PLUGINS=str(REPOSITORY / "tests" / "lab" / "callback"),
        )

    def play(
        self, playbook: str | Path, *arguments: str, check: bool = True, environment: Mapping[str, str] = _NOTHING
    ) -> subprocess.CompletedProcess:
        """Run a playbook on the nodes as an inventory's hosts.

        Raise AssertionError with the output if the playbook fails.
        """
        done = subprocess.run(
            ["ansible-playbook", "-i", str(self.inventory), str(playbook), *arguments],
            cwd=REPOSITORY,
            env={**self._environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        return done

    def role_kubeconfig(self) -> Path:
        """Return a kubeconfig for the role's account.

        The account has the rights in the role's manifest. The namespace must exist.
        """
        self.plane.kubectl("apply", "--filename=%s" % _RIGHTS)
        return self.plane.kubeconfig_of(ROLE_ACCOUNT)

    def module(self, node: str, name: str, arguments: dict | None = None) -> dict:
        """Return a module's result on a node.

        Raise AssertionError if the module fails.
        """
        command = ["ansible", "-i", str(self.inventory), node, "--one-line", "-m", name]
        command += ["-a", json.dumps(arguments)] if arguments else []
        options = {"cwd": REPOSITORY, "env": self._environment, "stdin": subprocess.DEVNULL}
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.partition(" => ")[2])

    def run(self, node: str, *command: str, check: bool = True) -> str:
        """Return a command's output on a node."""
        done = subprocess.run(
            ["podman", "exec", container(node), *command], capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, "%s: %s" % (" ".join(command), done.stdout + done.stderr)
        return done.stdout

    def node(self, name: str) -> dict:
        return self.plane.call("GET", "/api/v1/nodes/%s" % name)

    def allocatable(self, node: str) -> dict[str, int]:
        """Return how many of each NVIDIA resource the node offers.

        Resources that the node offered earlier have the value 0.
        """
        found = self.node(node)["status"].get("allocatable", {})
        return {name: int(number) for name, number in found.items() if name.startswith("nvidia.com/")}

    def offers(self, node: str, resources: dict[str, int]) -> None:
        """Wait until the node offers exactly these resources."""
        seen: list[dict] = [{}]

        def holds() -> bool:
            seen[0] = {name: number for name, number in self.allocatable(node).items() if number}
            return seen[0] == resources

        try:
            self.plane.wait(holds, "%s offers %s" % (node, resources))
        except AssertionError as error:
            raise AssertionError("%s; it offers %s\n%s" % (error, seen[0], self.diagnosis(node))) from None

    def diagnosis(self, node: str) -> str:
        """Return information for diagnosing a failed wait."""
        pods = self.plane.kubectl("get", "pods", "--all-namespaces", "--output=wide")
        events = self.plane.kubectl("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp")[-3000:]
        kubelet = self.run(node, "journalctl", "--unit=kubelet", "--lines=30", "--no-pager", check=False)
        return "\n".join((pods, events, kubelet))

    def apply(self, *objects: dict) -> None:
        """Create or change objects with kubectl apply."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.plane.kubectl("apply", "--filename=-", text=text)

    def pod(self, name: str, namespace: str = "default") -> dict | None:
        return self.plane.find("/api/v1/namespaces/%s/pods/%s" % (namespace, name))

    def pods(self, selector: str, namespace: str = "default") -> list[str]:
        """Return the names of pods with these labels.

        Skip pods that are being deleted.
        """
        path = "/api/v1/namespaces/%s/pods?labelSelector=%s" % (namespace, urllib.parse.quote(selector))
        found = (pod["metadata"] for pod in self.plane.call("GET", path)["items"])
        return sorted(metadata["name"] for metadata in found if not metadata.get("deletionTimestamp"))

    def runs(self, name: str, namespace: str = "default") -> dict:
        """Wait until the pod is running and ready, and return it."""

        def ready() -> bool:
            pod = self.pod(name, namespace) or {}
            conditions = pod.get("status", {}).get("conditions", [])
            return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

        try:
            self.plane.wait(ready, "pod %s runs" % name)
        except AssertionError as error:
            pod = self.pod(name, namespace) or {}
            node = pod.get("spec", {}).get("nodeName") or NODES[0]
            raise AssertionError("%s: %s\n%s" % (error, pod.get("status"), self.diagnosis(node))) from None
        return self.pod(name, namespace) or {}

    def delete_pods(self, namespace: str = "default") -> None:
        """Delete all of a namespace's pods, and wait until none exists."""
        path = "/api/v1/namespaces/%s/pods" % namespace
        self.plane.call("DELETE", path + "?gracePeriodSeconds=0")
        self.plane.wait(lambda: not self.plane.call("GET", path)["items"], "no pods in %s" % namespace)

    def visible_devices(self, pod: dict) -> list[str]:
        """Return the UUIDs of a pod's devices, from the log of a pod that `sleeper` made."""
        metadata = pod["metadata"]
        folder = "/var/log/pods/%s_%s_%s/main" % (metadata["namespace"], metadata["name"], metadata["uid"])
        log = ""

        def logged() -> bool:
            nonlocal log
            log = self.run(pod["spec"]["nodeName"], "sh", "-c", "cat %s/*.log" % folder, check=False)
            return _MARK in log

        self.plane.wait(logged, "pod %s says what it was given" % metadata["name"])
        given = log.partition(_MARK)[2].split("\n")[0]
        return given.split(",") if given else []


def container(node: str) -> str:
    return "openfleet-%s-%s" % (_LAB, node)


def sleeper(name: str, resources: dict[str, int] | None = None, **spec) -> dict:
    """Return a pod that requests resources and sleeps.

    The function adds `spec` to the pod's specification.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": sleeping(resources, **spec),
    }


def sleeping(resources: dict[str, int] | None = None, **spec) -> dict:
    """Return such a pod's specification, for example for a template."""
    main = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": [
            "sh",
            "-c",
            "echo \"%s$NVIDIA_VISIBLE_DEVICES\"; trap 'exit 0' TERM; while :; do sleep 1000 & wait; done" % _MARK,
        ],
        "resources": {"limits": {name: str(number) for name, number in (resources or {}).items()}},
        "volumeMounts": [{"name": "usr", "mountPath": "/usr", "readOnly": True}],
    }
    return {
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": [main],
        "volumes": [{"name": "usr", "hostPath": {"path": "/usr"}}],
        **spec,
    }


@contextlib.contextmanager
def running(folder: Path, nodes: Sequence[str] = NODES, feature_gates: str = "") -> Iterator[Cluster]:
    """Run a cluster with these nodes until the block ends.

    `feature_gates` is the control plane's option, such as "A=true,B=false".
    """
    plane = ControlPlane(folder, build(), feature_gates)
    shared = folder / "nodes"
    shared.mkdir()
    cluster = Cluster(plane, shared)
    limit = ("--limit", ",".join(nodes))
    with contextlib.ExitStack() as ending:
        ending.callback(plane.stop)
        plane.start()
        plane.start_controllers()
        for node in nodes:
            user = "system:node:%s" % node
            kubeconfig = plane.kubeconfig_of(user, ["system:nodes"], url="https://127.0.0.1:%d" % API_PORT)
            kubeconfig.rename(shared / kubeconfig.name)
        _write_image(shared / "image.tar", plane.programs / "pause")
        ending.enter_context(_relay(shared / "api.sock", plane))
        ending.callback(cluster.play, "tests/lab/destroy.yml")
        cluster.play("tests/lab/destroy.yml")
        cluster.play("tests/lab/create.yml", *limit)
        cluster.play("tests/kubernetes/prepare.yml", *limit)
        for node in nodes:
            plane.wait(lambda node=node: _is_ready(plane, node), "%s is ready" % node)
        yield cluster


def _is_ready(plane: ControlPlane, node: str) -> bool:
    found = plane.find("/api/v1/nodes/%s" % node) or {}
    ready = any(
        each["type"] == "Ready" and each["status"] == "True" for each in found.get("status", {}).get("conditions", [])
    )
    # A node that has just registered has a taint until the controller manager removes it.
    return ready and not found["spec"].get("taints")


@contextlib.contextmanager
def _relay(path: Path, plane: ControlPlane) -> Iterator[None]:
    """Forward connections from the socket to the API server.

    This also works after a restart of the API server.
    """
    listening = socket.socket(socket.AF_UNIX)
    # A socket's path has at most 107 characters. A test folder's path may be longer.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        listening.bind("/proc/self/fd/%d/%s" % (folder, path.name))
    finally:
        os.close(folder)
    listening.listen(64)

    def accept() -> None:
        while True:
            try:
                asking, _address = listening.accept()
            except OSError:
                return
            try:
                answering = socket.create_connection((plane.address, API_PORT))
            except OSError:
                asking.close()
                continue
            for source, target in ((asking, answering), (answering, asking)):
                threading.Thread(target=_pass_on, args=(source, target), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        # Closing the socket does not wake the thread, so shut it down first.
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    # End the other direction too, because no peer sends data after the other end has closed.
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _write_image(path: Path, pause: Path) -> None:
    """Write an archive of the image in `docker save`'s format.

    See https://github.com/moby/moby, image/spec/v1.2.md.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for name in _FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        for name in _LINKS:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, "usr/" + name
            archive.addfile(link)
        program = tarfile.TarInfo("pause")
        program.mode, program.size = 0o755, pause.stat().st_size
        with pause.open("rb") as source:
            archive.addfile(program, source)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + digest]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        files = {"manifest.json": json.dumps(manifest).encode(), "config.json": json.dumps(config).encode()}
        for name, content in {**files, "layer.tar": layer.getvalue()}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
