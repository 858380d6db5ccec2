# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read objects of the Kubernetes API. Pure.

Objects of the cluster are untrusted. A value without the API's format counts as absent.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Sequence

from ...host_values import text

# Label of all objects that the role writes.
OWNED = {"app.kubernetes.io/managed-by": "openfleet.gpu"}
# Maximum length of names in the API.
_LENGTH = 253
# Valid names: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")


def daemonset_pods(pods: Sequence[Any]) -> list[str]:
    """Return the names of the pods that belong to a DaemonSet."""
    names = []
    for pod in pods:
        metadata = pod.get("metadata") if isinstance(pod, Mapping) else None
        owners = metadata.get("ownerReferences") if isinstance(metadata, Mapping) else None
        kinds = [texts({"owner": owner}, "owner").get("kind") for owner in owners or ()]
        name = name_of(pod) if "DaemonSet" in kinds else ""
        if _NAME.fullmatch(name):
            names.append(name)
    return names


def labels_of(node: Any) -> dict[str, str]:
    """Return an API object's labels."""
    return texts(node.get("metadata") if isinstance(node, Mapping) else None, "labels")


def annotations_of(node: Any) -> dict[str, str]:
    """Return an API object's annotations."""
    return texts(node.get("metadata") if isinstance(node, Mapping) else None, "annotations")


def name_of(item: Any) -> str:
    """Return an API object's name, or ""."""
    return texts(item, "metadata").get("name", "")


def texts(parent: Any, key: str) -> dict[str, str]:
    """Return the mapping `parent[key]`, without entries that are not text."""
    entries = parent.get(key) if isinstance(parent, Mapping) else None
    if not isinstance(entries, Mapping):
        return {}
    return {name: value for name, value in entries.items() if isinstance(name, str) and isinstance(value, str)}


def reference(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object's kind and names, with which it can be deleted."""
    metadata = texts(item, "metadata")
    names = {key: metadata[key] for key in ("name", "namespace") if key in metadata}
    return {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": names}


def title(item: Mapping[str, Any]) -> str:
    """Return an object's kind and name for messages."""
    metadata = texts(item, "metadata")
    names = (text(metadata[key], _LENGTH) for key in ("namespace", "name") if key in metadata)
    return "%s %s" % (item["kind"], "/".join(names))


def is_owned(item: Any) -> bool:
    """Return whether the role has written the object."""
    return OWNED.items() <= labels_of(item).items()


def of_kind(objects: Sequence[Any], kind: str) -> list[Mapping[str, Any]]:
    """Return the objects of a kind that have a name."""
    return [item for item in objects if isinstance(item, Mapping) and item.get("kind") == kind and name_of(item)]


def differs(desired: Any, current: Any) -> bool:
    """Return whether a field of the desired object has another value.

    Fields that are only in the current object are the API's defaults.
    """
    if isinstance(desired, Mapping):
        return not isinstance(current, Mapping) or any(differs(desired[key], current.get(key)) for key in desired)
    if isinstance(desired, list):
        same_length = isinstance(current, list) and len(current) == len(desired)
        return not same_length or any(differs(*pair) for pair in zip(desired, current))
    return bool(desired != current)
