# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the Kubernetes API with the Python package kubernetes.

This code runs on the controller or on the delegated host. Users choose most texts in a cluster's objects, and a hostile
API server can choose all of them. So these functions return plain data with printable, shortened texts, and only the
fields that the collection uses.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from typing import Any, Callable, Iterator, Mapping, Sequence

from ..errors import FleetError
from ..foreign_text import one_line, text

try:
    from urllib3.exceptions import HTTPError
    from urllib3.exceptions import TimeoutError as TimeoutError_

    import kubernetes
    from kubernetes.client.exceptions import ApiException
except ImportError:
    kubernetes = None
    ApiException = HTTPError = TimeoutError_ = None


# Timeout in seconds for connecting and for a response. An API server that is down may leave a connection open.
REQUEST_SECONDS = 30
# Limits for one response: its size, and the time until its last byte. The list of a node's 500 pods has about 10 MiB.
_MOST_BYTES, _ANSWER_SECONDS = 1 << 26, 60.0
# Maximum length of a message from an API server.
_MOST_MESSAGE = 300
# Maximum number of entries in a list or mapping. The API limits an object to 1.5 MB.
_MOST_ENTRIES = 1000
# Pattern for object names: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
# Maximum length of a label key with its prefix, and of a label value.
_KEY, _VALUE = 317, 63
# Annotation that the kubelet sets on static pods: https://kubernetes.io/docs/reference/labels-annotations-taints/
MIRROR = "kubernetes.io/config.mirror"
_NOT_FOUND, _FORBIDDEN = 404, 403
# Errors of a request.
REQUEST_ERRORS: tuple[Any, ...] = (ApiException, HTTPError)


class ClusterError(FleetError):
    """A cluster is unreachable or refuses a request."""


def has_client() -> bool:
    """Return whether the Python package kubernetes is installed."""
    return kubernetes is not None


def core_api(kubeconfig: str | None, context: str | None) -> Any:
    """Return a CoreV1Api for a kubeconfig, or for kubectl's default kubeconfig.

    All its requests have a time limit. This function makes no request. Raises ClusterError if the kubeconfig is
    invalid.
    """
    where = {name: value for name, value in (("config_file", kubeconfig), ("context", context)) if value}
    # Do not use the package's global configuration, because an audit contacts several clusters.
    settings = kubernetes.client.Configuration()
    try:
        kubernetes.config.load_config(client_configuration=settings, **where)
    except (kubernetes.config.ConfigException, OSError, ValueError) as error:
        cure = "Set gpu_drain_kubernetes_kubeconfig or gpu_kubernetes_kubeconfig to a valid kubeconfig."
        raise ClusterError(
            str(kubeconfig or "the kubeconfig"), "it cannot be used: %s" % one_line(error), cure
        ) from None
    # By default, urllib3 would retry three times, each with the full timeout.
    settings.retries = 0
    client = kubernetes.client.ApiClient(settings)
    client.rest_client.pool_manager = _BoundedPool(client.rest_client.pool_manager)
    client.request = functools.partial(_limited, client.request)
    return kubernetes.client.CoreV1Api(client)


def _limited(request: Callable[..., Any], *args: Any, _request_timeout: Any = None, **options: Any) -> Any:
    """Make a request with an ApiClient, by default with the default time limit."""
    return request(*args, _request_timeout=_request_timeout or REQUEST_SECONDS, **options)


class _BoundedPool:
    """A connection pool that limits the size and time of responses.

    The package itself reads error texts without a limit.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def request(self, method: str, url: str, **options: Any) -> Any:
        """Make a request and return the response. Raises HTTPError."""
        results: list[Any] = []

        def receive() -> None:
            try:
                results.append(self._response(method, url, options))
            except Exception as error:
                results.append(error)

        # A timeout for single reads does not stop a server that sends one byte per second.
        thread = threading.Thread(target=receive, daemon=True)
        thread.start()
        thread.join(_ANSWER_SECONDS)
        if not results:
            raise HTTPError("its answer took longer than %d s" % _ANSWER_SECONDS)
        if isinstance(results[0], Exception):
            raise results[0]
        return results[0]

    def _response(self, method: str, url: str, options: Mapping[str, Any]) -> Any:
        response = self._pool.request(method, url, **{**options, "preload_content": False})
        try:
            # Do not decode the body. No compression was requested, and a small body may unpack to gigabytes.
            body = bytes(response.read(_MOST_BYTES + 1, decode_content=False))
            if len(body) > _MOST_BYTES:
                # A connection with unread data cannot be used again.
                response.close()
                raise HTTPError("its answer is larger than %d MiB" % (_MOST_BYTES >> 20))
        finally:
            response.release_conn()
        options = {"headers": response.headers, "status": response.status, "reason": response.reason}
        return type(response)(body=body, preload_content=False, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


def pods_of(api: Any, node: str) -> list[dict[str, Any]]:
    """Return a node's pods as in the API. Makes one request.

    Raises ClusterError.
    """
    try:
        answer = api.list_pod_for_all_namespaces(field_selector="spec.nodeName=%s" % node, _preload_content=False)
    except (ApiException, HTTPError) as error:
        raise ClusterError("Kubernetes node %s" % node, "its pods cannot be listed: %s" % reason(error)) from None
    try:
        items = json.loads(answer.data)["items"]
        if not isinstance(items, list):
            raise TypeError
        return [checked_pod(item) for item in items]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ClusterError(
            "Kubernetes node %s" % node, "the API server answers with something other than pods"
        ) from None


def daemonsets_of(api: Any, pods: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the existing DaemonSets that the pods name as their controllers.

    Each result has `namespace`, `name`, `uid` and `selector`. Raises ClusterError.
    """
    apps = kubernetes.client.AppsV1Api(api.api_client)
    references = set()
    for pod in pods:
        owner = controller_of(pod["metadata"])
        if owner.get("kind") == "DaemonSet":
            references.add((pod["metadata"]["namespace"], owner["name"]))
    return [daemonset for reference in sorted(references) for daemonset in _daemonset(apps, *reference)]


def _daemonset(apps: Any, namespace: str, name: str) -> Iterator[dict[str, Any]]:
    if not _NAME.fullmatch(namespace) or not _NAME.fullmatch(name):
        return
    where = "DaemonSet %s/%s" % (namespace, name)
    try:
        answer = apps.read_namespaced_daemon_set(
            name, namespace, _preload_content=False, _request_timeout=REQUEST_SECONDS
        )
        data = json.loads(answer.data)
        selector = data["spec"]["selector"]
        uid = data["metadata"]["uid"]
    except (ApiException, HTTPError) as error:
        status = getattr(error, "status", None)
        if status == _NOT_FOUND:
            return
        cure = (
            "Permit the account to get daemonsets (rbac.yml of the role gpu_kubernetes)."
            if status == _FORBIDDEN
            else ""
        )
        raise ClusterError(where, "it cannot be read: %s" % reason(error), cure) from None
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ClusterError(where, "the API server answers with something other than a DaemonSet") from None
    yield {"namespace": namespace, "name": name, "uid": text(uid, _VALUE), "selector": selector}


def controller_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the owner that has `controller` set, or {}.

    At most one owner has it.
    """
    owners = metadata.get("ownerReferences") or ()
    return next((dict(owner) for owner in owners if owner.get("controller") is True), {})


def checked_pod(item: Any) -> dict[str, Any]:
    """Return the fields of a pod that the collection uses, unchanged.

    Raises TypeError or KeyError if the pod is invalid.
    """
    metadata, spec, status = (_mapping(_mapping(item).get(key)) for key in ("metadata", "spec", "status"))
    owners = [
        {
            **{key: text(owner.get(key) or "", 253) for key in ("kind", "name", "uid")},
            "controller": owner.get("controller") is True,
        }
        for owner in _mappings(metadata.get("ownerReferences"))
    ]
    identity = {key: text(metadata[key], 253) for key in ("namespace", "name", "uid")}
    annotations = {MIRROR: ""} if MIRROR in _mapping(metadata.get("annotations")) else {}
    return {
        "metadata": {
            **identity,
            "deletionTimestamp": text(metadata.get("deletionTimestamp") or "", 63),
            "labels": _texts(metadata.get("labels")),
            "annotations": annotations,
            "ownerReferences": owners,
        },
        "spec": {"volumes": [{"emptyDir": {}} for each in _mappings(spec.get("volumes")) if "emptyDir" in each]},
        "status": {"phase": text(status.get("phase") or "", 63)},
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value[:_MOST_ENTRIES] if isinstance(each, Mapping)] if isinstance(value, list) else []


def _texts(value: Any) -> dict[str, str]:
    pairs = list(_mapping(value).items())[:_MOST_ENTRIES]
    return {text(key, _KEY): text(each, _VALUE) for key, each in pairs}


def reason(error: Exception) -> str:
    """Return the API server's message in one line, without headers."""
    try:
        message = json.loads(error.body)["message"]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        message = getattr(error, "reason", None) or error
    if isinstance(message, TimeoutError_):
        return "the API server did not answer within %d s" % REQUEST_SECONDS
    return one_line(message, _MOST_MESSAGE)
