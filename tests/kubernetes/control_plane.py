# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a Kubernetes control plane as local processes.

etcd is Debian's, and tests/kubernetes/build builds the other programs. The control plane has its own address on the
loopback interface.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Iterator, Sequence

from tests.integration.patience import wait_until
from tests.lab.certificates import Authority

REPOSITORY = Path(__file__).resolve().parents[2]
ETCD = REPOSITORY / ".lab" / "etcd" / "usr" / "bin" / "etcd"
API_PORT = 6443
_ETCD_PORT = 2379
_PEER_PORT = 2380
#: The ports of the following programs. The tests do not use the first two ports.
_PORTS = (10257, 10259, API_PORT, _ETCD_PORT, _PEER_PORT)
#: Members of this group may do everything.
ADMINISTRATORS = "system:masters"
#: The service account that roles/gpu_kubernetes/files/rbac.yml defines. The API server writes the account's requests to
#: its audit log.
ROLE_ACCOUNT = "system:serviceaccount:nvidia-device-plugin:openfleet-gpu"
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata", "users": [ROLE_ACCOUNT]}, {"level": "None"}],
}


def build() -> Path:
    """Build the programs if they are missing, and return their folder."""
    command = [REPOSITORY / "tests" / "kubernetes" / "build"]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


class ApiError(AssertionError):
    """A request that the API server refused.

    `status` is the HTTP status. `reason` is Kubernetes' reason.
    """

    def __init__(self, what: str, status: int, answer: dict) -> None:
        self.status, self.reason = status, answer.get("reason", "")
        super().__init__("%s: %d %s" % (what, status, answer.get("message") or answer))


class ControlPlane:
    """Run etcd and the API server.

    start_controllers also runs the controller manager and the scheduler. `kubeconfig` belongs to an administrator.
    `folder` has keys, logs (NAME.log) and data. `feature_gates` is the option of all programs, such as "A=true,B=false".
    """

    def __init__(self, folder: Path, programs: Path, feature_gates: str = "") -> None:
        self.folder, self.programs = folder, programs
        self._gates = {"feature-gates": feature_gates} if feature_gates else {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.address = _free_address()
        self.url = "https://%s:%d" % (self.address, API_PORT)
        self._authority = Authority(folder / "pki")
        self._running: dict[str, subprocess.Popen] = {}
        self.kubeconfig = self.kubeconfig_of("admin", [ADMINISTRATORS])
        certificate = folder / "pki" / "admin.crt"
        self._tls = ssl.create_default_context(cafile=str(self._authority.certificate))
        self._tls.load_cert_chain(certificate, certificate.with_suffix(".key"))

    def start(self) -> None:
        """Start etcd and the API server, and wait until the API server responds."""
        etcd, peer = ("http://%s:%d" % (self.address, port) for port in (_ETCD_PORT, _PEER_PORT))
        self._run(
            ETCD,
            {
                "data-dir": self.folder / "etcd",
                "unsafe-no-fsync": "true",
                "logger": "zap",
                "listen-client-urls": etcd,
                "advertise-client-urls": etcd,
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "initial-cluster": "default=%s" % peer,
            },
        )
        self.start_api_server()

    def start_api_server(self) -> None:
        """Start the API server for the first time, or after `stop_program`."""
        pki = self.folder / "pki"
        if not (pki / "kube-apiserver.crt").exists():
            # Nodes reach the API server at 127.0.0.1 (cluster.py).
            self._authority.issue("kube-apiserver", [self.address, "127.0.0.1", "localhost", "kubernetes"])
            self._authority.issue("service-accounts")
        (self.folder / "audit-policy.json").write_text(json.dumps(_AUDIT_POLICY))
        self._run(
            self.programs / "kube-apiserver",
            {
                "etcd-servers": "http://%s:%d" % (self.address, _ETCD_PORT),
                "bind-address": self.address,
                "secure-port": API_PORT,
                # The API server refuses to advertise a loopback address. No program uses the advertised address.
                "advertise-address": "192.0.2.1",
                "endpoint-reconciler-type": "none",
                "service-cluster-ip-range": "198.51.100.0/24",
                "tls-cert-file": pki / "kube-apiserver.crt",
                "tls-private-key-file": pki / "kube-apiserver.key",
                "client-ca-file": self._authority.certificate,
                "authorization-mode": "Node,RBAC",
                "service-account-issuer": "https://kubernetes.lab",
                "service-account-key-file": pki / "service-accounts.crt",
                "service-account-signing-key-file": pki / "service-accounts.key",
                "allow-privileged": "true",
                "profiling": "false",
                "enable-priority-and-fairness": "false",
                "audit-policy-file": self.folder / "audit-policy.json",
                "audit-log-path": self.folder / "audit.log",
                "enable-admission-plugins": "NodeRestriction",
                **self._gates,
            },
        )
        self.wait(self.is_ready, "the API server")

    def start_controllers(self, controllers: str = "*") -> None:
        """Start the controller manager and the scheduler.

        They handle workloads, evictions, taints and service accounts. `controllers` selects controllers by name. For
        example, the node controller would evict pods from nodes without a kubelet.
        """
        pki = self.folder / "pki"
        common = {"kubeconfig": self.kubeconfig, "leader-elect": "false", "bind-address": self.address, **self._gates}
        accounts = {
            "root-ca-file": self._authority.certificate,
            "service-account-private-key-file": pki / "service-accounts.key",
        }
        self._run(self.programs / "kube-controller-manager", {**common, **accounts, "controllers": controllers})
        self._run(self.programs / "kube-scheduler", common)
        self.wait(
            lambda: self.find("/api/v1/namespaces/default/serviceaccounts/default"), "an account for pods of `default`"
        )

    def kubeconfig_of(self, user: str, groups: Sequence[str] = (), url: str = "") -> Path:
        """Return the user's kubeconfig with a certificate.

        RBAC defines the user's rights.
        """
        certificate = self._authority.issue(user, organizations=groups)
        path = self.folder / ("%s.kubeconfig" % certificate.stem)
        cluster = {"server": url or self.url, "certificate-authority-data": _encoded(self._authority.certificate)}
        keys = {
            "client-certificate-data": _encoded(certificate),
            "client-key-data": _encoded(certificate.with_suffix(".key")),
        }
        data = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": user, "user": keys}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
            "current-context": "lab",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(data))
        return path

    def kubeconfig_with_token(self, namespace: str, account: str) -> Path:
        """Return a kubeconfig with a service account's token."""
        config = json.loads(self.kubeconfig.read_text())
        token = self.kubectl("--namespace", namespace, "create", "token", account).strip()
        config["users"][0]["user"] = {"token": token}
        path = self.folder / ("%s.%s.kubeconfig" % (namespace, account))
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))
        return path

    @property
    def authority(self) -> Path:
        """Return the authority's certificate.

        The authority signs all other certificates.
        """
        return self._authority.certificate

    def certificate(self, name: str, addresses: Sequence[str]) -> Path:
        """Return a server's certificate.

        Its key has the suffix .key.
        """
        return self._authority.issue(name, list(addresses))

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> dict:
        """Send a request to the API server as an administrator.

        Raise ApiError if the server refuses, and OSError if it does not respond.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": kind}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60, context=self._tls) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode()
            answer = json.loads(text) if text.startswith("{") else {"message": text}
            raise ApiError("%s %s" % (method, path), error.code, answer) from None

    def find(self, path: str) -> dict | None:
        """Return the current object, or None if it does not exist."""
        try:
            return self.call("GET", path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def merge(self, path: str, change: dict) -> dict:
        """Change the object with a merge patch.

        The value None removes a field.
        """
        return self.call("PATCH", path, change, "application/merge-patch+json")

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl as an administrator, and return its output.

        Raise AssertionError if kubectl fails.
        """
        command = [str(self.programs / "kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, "%s: %s" % (" ".join(arguments), done.stderr)
        return done.stdout

    def requests_of_role(self) -> list[tuple[str, str]]:
        """Return ROLE_ACCOUNT's requests so far, as (verb, path)."""
        written = self.folder / "audit.log"
        events = map(json.loads, written.read_text().splitlines() if written.exists() else ())
        return [(event["verb"], event["requestURI"]) for event in events]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/readyz", timeout=10, context=self._tls) as answer:
                return answer.status == 200
        except OSError:
            return False

    def wait(self, holds, what: str) -> None:
        """Wait until `holds` returns a true value.

        If a program has ended, fail at once with the end of its log.
        """

        def looked() -> object:
            for name, process in self._running.items():
                assert process.poll() is None, "%s has ended:\n%s" % (name, self.log(name)[-3000:])
            return holds()

        wait_until(looked, what)

    def log(self, name: str) -> str:
        return (self.folder / ("%s.log" % name)).read_text()

    def stop_program(self, name: str) -> None:
        """Kill one program, for example `kube-apiserver`."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for name in reversed(list(self._running)):
            self.stop_program(name)

    def run_program(self, name: str, command: Sequence[str], **environment: str) -> None:
        """Start a program that runs until `stop`.

        Its log is NAME.log.
        """
        with (self.folder / ("%s.log" % name)).open("a") as log:
            # This setting of Go's garbage collector saves CPU time, and uses more memory.
            environment = {**os.environ, "GOGC": "200", **environment}
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def _run(self, program: Path, options: dict[str, object]) -> None:
        self.run_program(program.name, [str(program), *("--%s=%s" % option for option in options.items())])


@contextlib.contextmanager
def running(folder: Path) -> Iterator[ControlPlane]:
    """Run a control plane until the block ends."""
    plane = ControlPlane(folder, build())
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _free_address() -> str:
    """Return an address with free ports for a control plane.

    Two control planes that start at the same time choose from 16 million addresses, so they almost never choose the
    same one.
    """
    while True:
        address = "127.%d.%d.%d" % tuple(random.randint(1, 254) for _part in range(3))
        with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
            for port in _PORTS:
                opened.enter_context(socket.socket()).bind((address, port))
            return address
