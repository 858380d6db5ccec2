# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API of a Kubernetes cluster by the Python package kubernetes, on the controller or where a task is delegated to."""

from __future__ import annotations

import functools
import json
from typing import Any, Callable

from .errors import FleetError

try:
    import kubernetes
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError
    from urllib3.exceptions import TimeoutError as TimeoutError_
except ImportError:
    kubernetes = None
    ApiException = HTTPError = TimeoutError_ = None


#: Seconds until a connection stands, and until the API server answers a request: one that is gone may leave a connection open.
REQUEST_SECONDS = 30


class ClusterError(FleetError):
    """A cluster that cannot be asked, or refuses what it is asked for."""


def has_client() -> bool:
    """Return whether the Python package kubernetes is installed."""
    return kubernetes is not None


def core_api(kubeconfig: str | None, context: str | None) -> Any:
    """Return a CoreV1Api of the cluster of a kubeconfig; without one, of the one that kubectl would take.

    Each of its requests has a time limit, whatever the verb. Raises ClusterError where the kubeconfig cannot be used. No call is
    made yet.
    """
    where = {name: value for name, value in (("config_file", kubeconfig), ("context", context)) if value}
    # Of its own: without one the package keeps one for the whole process, and an audit asks several clusters.
    settings = kubernetes.client.Configuration()
    try:
        kubernetes.config.load_config(client_configuration=settings, **where)
    except (kubernetes.config.ConfigException, OSError, ValueError) as error:
        cure = "Name a kubeconfig in gpu_drain_kubernetes_kubeconfig or gpu_kubernetes_kubeconfig."
        raise ClusterError(str(kubeconfig or "the kubeconfig"), "it cannot be used: %s" % error, cure) from None
    # urllib3 would wait for each of three further attempts as long as for the first.
    settings.retries = 0
    client = kubernetes.client.ApiClient(settings)
    client.request = functools.partial(_limited, client.request)
    return kubernetes.client.CoreV1Api(client)


def _limited(request: Callable[..., Any], *args: Any, _request_timeout: Any = None, **options: Any) -> Any:
    """Make a request of an ApiClient, with the limit where the caller names none."""
    return request(*args, _request_timeout=_request_timeout or REQUEST_SECONDS, **options)


def pods_of(api: Any, node: str) -> list[dict[str, Any]]:
    """Return the pods of a node, as the API has them, by one call. Raises ClusterError."""
    try:
        answer = api.list_pod_for_all_namespaces(field_selector="spec.nodeName=%s" % node, _preload_content=False)
    except (ApiException, HTTPError) as error:
        raise ClusterError("Kubernetes node %s" % node, "its pods cannot be listed: %s" % reason(error)) from None
    return json.loads(answer.data)["items"]


def reason(error: Exception) -> str:
    """Return what the API server says, without the headers of its answer."""
    try:
        return str(json.loads(error.body)["message"])
    except (AttributeError, KeyError, TypeError, ValueError):
        cause = getattr(error, "reason", None) or error
    if isinstance(cause, TimeoutError_):
        return "the API server did not answer within %d s" % REQUEST_SECONDS
    return str(cause)
