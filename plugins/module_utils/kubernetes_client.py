# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the API of a Kubernetes cluster by the Python package kubernetes, on the controller or where a task is delegated to.

Users of a cluster choose most texts of its objects, and a hostile API server chooses all of them. The functions here return plain
data with printable, shortened texts, and only the fields that the collection uses.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from typing import Any, Callable, Iterator, Mapping, Sequence

from .errors import FleetError
from .foreign_text import one_line, text

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
#: Limits of one answer: its size, and the time until its last byte. A node with 500 pods answers with about 10 MiB.
_MOST_BYTES, _ANSWER_SECONDS = 1 << 26, 60.0
#: Characters of a message of the API server.
_MOST_MESSAGE = 300
#: Entries of a list or mapping in an object. The API allows 1.5 MB for a whole object.
_MOST_ENTRIES = 1000
#: Names of objects: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
#: Characters of a key of a label with its prefix, and of its value.
_KEY, _VALUE = 317, 63
#: Set by the kubelet on the pod of a manifest: https://kubernetes.io/docs/reference/labels-annotations-taints/
MIRROR = "kubernetes.io/config.mirror"
_NOT_FOUND, _FORBIDDEN = 404, 403


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
        raise ClusterError(
            str(kubeconfig or "the kubeconfig"), "it cannot be used: %s" % one_line(error), cure
        ) from None
    # urllib3 would wait for each of three further attempts as long as for the first.
    settings.retries = 0
    client = kubernetes.client.ApiClient(settings)
    client.rest_client.pool_manager = _BoundedPool(client.rest_client.pool_manager)
    client.request = functools.partial(_limited, client.request)
    return kubernetes.client.CoreV1Api(client)


def _limited(request: Callable[..., Any], *args: Any, _request_timeout: Any = None, **options: Any) -> Any:
    """Make a request of an ApiClient, with the limit where the caller names none."""
    return request(*args, _request_timeout=_request_timeout or REQUEST_SECONDS, **options)


class _BoundedPool:
    """Connections whose answers are read whole, up to a limit. The package itself reads an error's text without one."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def request(self, method: str, url: str, **options: Any) -> Any:
        """Raises HTTPError."""
        answers: list[Any] = []

        def ask() -> None:
            try:
                answers.append(self._answer(method, url, options))
            except Exception as error:
                answers.append(error)

        # A server that sends a byte a second never meets the time limit of one read.
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(_ANSWER_SECONDS)
        if not answers:
            raise HTTPError("its answer took longer than %d s" % _ANSWER_SECONDS)
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def _answer(self, method: str, url: str, options: Mapping[str, Any]) -> Any:
        response = self._pool.request(method, url, **{**options, "preload_content": False})
        try:
            # As it came: nothing asked for a packed answer, and a small one may unpack to gigabytes.
            body = bytes(response.read(_MOST_BYTES + 1, decode_content=False))
            if len(body) > _MOST_BYTES:
                # A connection with a rest of an answer cannot be used again.
                response.close()
                raise HTTPError("its answer is larger than %d MiB" % (_MOST_BYTES >> 20))
        finally:
            response.release_conn()
        how = {"headers": response.headers, "status": response.status, "reason": response.reason}
        return type(response)(body=body, preload_content=False, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


def pods_of(api: Any, node: str) -> list[dict[str, Any]]:
    """Return the pods of a node, as the API has them, by one call. Raises ClusterError."""
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
    """Return the DaemonSets that exist, of those that pods name as their controllers. Raises ClusterError.

    Each has a namespace, a name, a uid and its `selector`.
    """
    apps = kubernetes.client.AppsV1Api(api.api_client)
    named = set()
    for pod in pods:
        owner = controller_of(pod["metadata"])
        if owner.get("kind") == "DaemonSet":
            named.add((pod["metadata"]["namespace"], owner["name"]))
    return [found for place in sorted(named) for found in _daemonset(apps, *place)]


def _daemonset(apps: Any, namespace: str, name: str) -> Iterator[dict[str, Any]]:
    if not _NAME.fullmatch(namespace) or not _NAME.fullmatch(name):
        return
    where = "DaemonSet %s/%s" % (namespace, name)
    try:
        answer = apps.read_namespaced_daemon_set(
            name, namespace, _preload_content=False, _request_timeout=REQUEST_SECONDS
        )
        found = json.loads(answer.data)
        selector = found["spec"]["selector"]
        uid = found["metadata"]["uid"]
    except (ApiException, HTTPError) as error:
        status = getattr(error, "status", None)
        if status == _NOT_FOUND:
            return
        cure = (
            "Allow the account to get daemonsets (rbac.yml of the role gpu_kubernetes)." if status == _FORBIDDEN else ""
        )
        raise ClusterError(where, "it cannot be read: %s" % reason(error), cure) from None
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ClusterError(where, "the API server answers with something other than a DaemonSet") from None
    yield {"namespace": namespace, "name": name, "uid": text(uid, _VALUE), "selector": selector}


def controller_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the owner that an object names as its controller; {} without one. At most one has `controller` set."""
    owners = metadata.get("ownerReferences") or ()
    return next((dict(owner) for owner in owners if owner.get("controller") is True), {})


def checked_pod(item: Any) -> dict[str, Any]:
    """Return of a pod what the collection uses, as the API has it. Raises TypeError or KeyError for what is no pod."""
    metadata, spec, status = (_mapping(_mapping(item).get(key)) for key in ("metadata", "spec", "status"))
    owners = [
        {
            **{key: text(owner.get(key) or "", 253) for key in ("kind", "name", "uid")},
            "controller": owner.get("controller") is True,
        }
        for owner in _mappings(metadata.get("ownerReferences"))
    ]
    found = {key: text(metadata[key], 253) for key in ("namespace", "name", "uid")}
    annotations = {MIRROR: ""} if MIRROR in _mapping(metadata.get("annotations")) else {}
    return {
        "metadata": {
            **found,
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
    """Return what the API server says, in one line, without the headers of its answer."""
    try:
        said = json.loads(error.body)["message"]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        said = getattr(error, "reason", None) or error
    if isinstance(said, TimeoutError_):
        return "the API server did not answer within %d s" % REQUEST_SECONDS
    return one_line(said, _MOST_MESSAGE)
