# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API of a Kubernetes cluster by the Python package kubernetes, on the controller or where a task is delegated to."""

from __future__ import annotations

import json
from typing import Any

from .errors import FleetError

try:
    import kubernetes
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError
except ImportError:
    kubernetes = None
    ApiException = HTTPError = None


#: Of one request: an API server that is gone may leave a connection open.
_TIMEOUT_SECONDS = 30


class ClusterError(FleetError):
    """A cluster that cannot be asked, or refuses what it is asked for."""


def has_client() -> bool:
    """Return whether the Python package kubernetes is installed."""
    return kubernetes is not None


def core_api(kubeconfig: str | None, context: str | None) -> Any:
    """Return a CoreV1Api of the cluster of a kubeconfig; without one, of the one that kubectl would take.

    Raises ClusterError where the kubeconfig cannot be used. No call is made yet.
    """
    where = {name: value for name, value in (("config_file", kubeconfig), ("context", context)) if value}
    # Of its own: without one the package keeps one for the whole process, and an audit asks several clusters.
    settings = kubernetes.client.Configuration()
    try:
        kubernetes.config.load_config(client_configuration=settings, **where)
    except (kubernetes.config.ConfigException, OSError, ValueError) as error:
        cure = "Name a kubeconfig in gpu_drain_kubernetes_kubeconfig or gpu_kubernetes_kubeconfig."
        raise ClusterError(str(kubeconfig or "the kubeconfig"), "it cannot be used: %s" % error, cure) from None
    return kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(settings))


def pods_of(api: Any, node: str) -> list[dict[str, Any]]:
    """Return the pods of a node, as the API has them, by one call. Raises ClusterError."""
    how = {"_preload_content": False, "_request_timeout": _TIMEOUT_SECONDS}
    try:
        answer = api.list_pod_for_all_namespaces(field_selector="spec.nodeName=%s" % node, **how)
    except (ApiException, HTTPError) as error:
        raise ClusterError("Kubernetes node %s" % node, "its pods cannot be listed: %s" % reason(error)) from None
    return json.loads(answer.data)["items"]


def reason(error: Exception) -> str:
    """Return what the API server says, without the headers of its answer."""
    try:
        return str(json.loads(error.body)["message"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return str(getattr(error, "reason", None) or error)
