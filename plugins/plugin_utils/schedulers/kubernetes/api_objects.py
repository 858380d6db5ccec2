# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read objects of the Kubernetes API. Pure.

Objects of the cluster are untrusted. A value that does not have the format of the API counts as absent.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Sequence

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
    """Return the labels of an object of the API."""
    return texts(node.get("metadata") if isinstance(node, Mapping) else None, "labels")


def annotations_of(node: Any) -> dict[str, str]:
    """Return the annotations of an object of the API."""
    return texts(node.get("metadata") if isinstance(node, Mapping) else None, "annotations")


def name_of(item: Any) -> str:
    """Return the name of an object of the API, or an empty text."""
    return texts(item, "metadata").get("name", "")


def texts(parent: Any, key: str) -> dict[str, str]:
    """Return the mapping `parent[key]`, without entries that are not text."""
    entries = parent.get(key) if isinstance(parent, Mapping) else None
    if not isinstance(entries, Mapping):
        return {}
    return {name: value for name, value in entries.items() if isinstance(name, str) and isinstance(value, str)}
