# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read which ResourceClaims a pod has. The cluster's objects are untrusted."""

from __future__ import annotations

from typing import Any, Mapping


def claims_of(pod: Any) -> list[tuple[str, str]]:
    """Return (namespace, name) of each of a pod's ResourceClaims, sorted.

    The name of a claim from a template is in the pod's status.
    """
    found = set()
    namespace = _mapping(pod, "metadata").get("namespace")
    for part, key in (("spec", "resourceClaims"), ("status", "resourceClaimStatuses")):
        rows = _mapping(pod, part).get(key)
        for row in rows if isinstance(rows, list) else ():
            name = row.get("resourceClaimName") if isinstance(row, Mapping) else None
            if isinstance(name, str) and name and isinstance(namespace, str):
                found.add((namespace, name))
    return sorted(found)


def _mapping(item: Any, key: str) -> Mapping[str, Any]:
    value = item.get(key) if isinstance(item, Mapping) else None
    return value if isinstance(value, Mapping) else {}
