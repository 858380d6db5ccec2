# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send requests to the API server with the kubelet's credentials.

The API server permits a kubelet only the ResourceSlices of its node, and the claims of the node's pods (Node authorizer
and admission plugin NodeRestriction). So the plugin needs no other account.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Optional

import yaml

_SECONDS, _MOST_BYTES = 30, 16 << 20
_NOT_FOUND = 404


class ClusterError(Exception):
    """The API server does not respond or refuses a request.

    `status` is the HTTP status, or 0.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Cluster:
    """A kubeconfig's API server.

    The file is read for each request, because the kubelet renews its certificate.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._path = kubeconfig

    def find(self, path: str) -> Optional[Dict[str, Any]]:
        """Return an object, or None if it does not exist."""
        try:
            return self.send("GET", path)
        except ClusterError as error:
            if error.status != _NOT_FOUND:
                raise
            return None

    def send(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        """Send a request, and return the answer. Raises ClusterError."""
        try:
            server, headers, context = _connection(self._path)
        except (OSError, ValueError, KeyError, TypeError, IndexError, StopIteration, yaml.YAMLError) as error:
            raise ClusterError("%s is no kubeconfig that the plugin can use: %s" % (self._path, error)) from None
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(server + path, data, headers, method=method)
        what = "%s %s" % (method, path)
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS, context=context) as answer:
                text = answer.read(_MOST_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                raise ClusterError("%s: %d %s" % (what, error.code, _reason(error.read(65536))), error.code) from None
        except OSError as error:
            raise ClusterError("%s: %s" % (what, error)) from None
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError):
            raise ClusterError("%s: the answer is not JSON" % what) from None


def _reason(text: bytes) -> str:
    try:
        return str(json.loads(text)["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return text.decode(errors="replace")[:300]


def _connection(path: Path) -> Any:
    """Return a kubeconfig's server URL, headers and TLS settings."""
    config = yaml.safe_load(path.read_text())
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    user = _named(config["users"], context["user"])["user"]
    if "exec" in user or "auth-provider" in user:
        raise ValueError("its user has a program for credentials. Name a kubeconfig with a certificate or a token.")
    tls = ssl.create_default_context()
    if "certificate-authority-data" in cluster:
        tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    elif "certificate-authority" in cluster:
        tls = ssl.create_default_context(cafile=str(path.parent / cluster["certificate-authority"]))
    # Since Python 3.13, the default refuses certificates without an Authority Key Identifier, which clusters may have.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if "token" in user or "tokenFile" in user:
        token = user.get("token") or (path.parent / user["tokenFile"]).read_text().strip()
        headers["Authorization"] = "Bearer %s" % token
    if "client-certificate-data" in user:
        with _file(user["client-certificate-data"]) as certificate, _file(user["client-key-data"]) as key:
            tls.load_cert_chain(certificate, key)
    elif "client-certificate" in user:
        tls.load_cert_chain(str(path.parent / user["client-certificate"]), str(path.parent / user["client-key"]))
    return cluster["server"].rstrip("/"), headers, tls


def _named(entries: Any, name: str) -> Any:
    return next(entry for entry in entries if entry["name"] == name)


@contextlib.contextmanager
def _file(encoded: str) -> Iterator[str]:
    """Yield the path of a file in memory with the decoded content.

    Python's ssl only reads keys from files.
    """
    descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, base64.b64decode(encoded))
        yield "/proc/self/fd/%d" % descriptor
    finally:
        os.close(descriptor)
