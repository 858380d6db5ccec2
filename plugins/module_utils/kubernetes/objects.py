# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List objects of several kinds with one client.

Importing the package kubernetes takes a second of CPU time per process.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, List, Mapping
from urllib.parse import quote

from .client import REQUEST_ERRORS, ClusterError, reason

_NOT_FOUND = 404


Objects = List[Dict[str, Any]]


class Reader:
    """List objects of a cluster. `api` is a result of `core_api`."""

    def __init__(self, api: Any) -> None:
        self._client = api.api_client
        # By version of an API and by kind: (plural name, whether objects have a namespace).
        self._kinds: dict[str, dict[str, tuple[str, bool]]] = {}

    def list(self, version: str, kind: str, namespace: str = "", fields: str = "", labels: str = "") -> Objects | None:
        """Return the objects of a kind, or None if the API lacks the kind.

        `version` is an apiVersion such as `apps/v1`. `fields` and `labels` are selectors. Without `namespace`, the objects of all
        namespaces are listed. The objects lack `managedFields`. Raises ClusterError.
        """
        where = "%s %s" % (version, kind)
        path = self._path(version, kind, namespace)
        if path is None:
            return None
        selectors = {"fieldSelector": fields, "labelSelector": labels}
        answer = self._get(where, path, {name: value for name, value in selectors.items() if value})
        items = (answer or {}).get("items")
        if not isinstance(items, list):
            raise ClusterError(where, "the API server answers with something other than a list")
        return [_object(item, version, kind) for item in items if isinstance(item, Mapping)]

    def named(self, version: str, kind: str, names: Iterable[tuple[str, str]]) -> Objects | None:
        """Return the objects with these (namespace, name).

        Leaves out objects that no longer exist. Returns None if the API lacks the kind. Raises ClusterError.
        """
        found = []
        for namespace, name in names:
            path = self._path(version, kind, namespace)
            if path is None:
                return None
            item = self._get("%s %s" % (version, kind), "%s/%s" % (path, quote(name, safe="")), {})
            if item is not None:
                found.append(_object(item, version, kind))
        return found if self._path(version, kind) else None

    def _path(self, version: str, kind: str, namespace: str = "") -> str | None:
        """Return the path of a kind's objects, or None if the API lacks the kind."""
        root = "/%s/%s" % ("apis" if "/" in version else "api", quote(version))
        if version not in self._kinds:
            self._kinds[version] = _kinds(self._get("%s %s" % (version, kind), root, {}))
        if kind not in self._kinds[version]:
            return None
        plural, is_namespaced = self._kinds[version][kind]
        folder = "/namespaces/%s" % quote(namespace, safe="") if namespace and is_namespaced else ""
        return "%s%s/%s" % (root, folder, plural)

    def _get(self, where: str, path: str, query: Mapping[str, str]) -> Mapping[str, Any] | None:
        """Return an answer of the API server, or None if it does not know the path."""
        try:
            response = self._client.call_api(
                path,
                "GET",
                query_params=list(query.items()),
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _preload_content=False,
            )
        except REQUEST_ERRORS as error:  # pylint: disable=catching-non-exception
            if getattr(error, "status", None) == _NOT_FOUND:
                return None
            raise ClusterError(where, "it cannot be read: %s" % reason(error)) from None
        try:
            answer = json.loads(response.data)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ClusterError(where, "the API server answers with something other than an object")
        return answer


def _kinds(answer: Mapping[str, Any] | None) -> dict[str, tuple[str, bool]]:
    """Return the kinds of an APIResourceList.

    Skips names with unusual characters: they belong to subresources, such as pods/eviction, or are invalid.
    """
    resources = (answer or {}).get("resources")
    found = {}
    for item in resources if isinstance(resources, list) else ():
        name, kind = (item.get(key) if isinstance(item, Mapping) else None for key in ("name", "kind"))
        if isinstance(name, str) and isinstance(kind, str) and name.isalnum():
            found[kind] = (name, item.get("namespaced") is True)
    return found


def _object(item: Mapping[str, Any], version: str, kind: str) -> dict[str, Any]:
    """Return an object from a list, with the kind, which objects in lists lack."""
    found = {**item, "apiVersion": version, "kind": kind}
    if isinstance(item.get("metadata"), Mapping):
        found["metadata"] = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    return found
