# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define a cluster's hosts, and the inventory's request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

from ..protocol import Member

# Variables that identify a cluster, with their defaults.
_CLUSTER = {
    "gpu_kubernetes_delegate_to": "localhost",
    "gpu_kubernetes_kubeconfig": "",
    "gpu_kubernetes_context": "",
}


@dataclass(frozen=True)
class Request:
    """The desired objects of a cluster.

    members      hosts of the inventory in this cluster
    quotas       value of `gpu_kubernetes_quotas`, or None if the inventory does not set it
    hyper_nodes  value of `gpu_kubernetes_hypernodes`
    scheduler    namespace and name of the ConfigMap of Volcano's scheduler
    removed      names of the nodes from which this run removes the configuration
    problems     problems with the variables
    """

    members: tuple[Member, ...]
    quotas: Any = None
    hyper_nodes: bool = False
    scheduler: tuple[str, str] = ("", "")
    removed: frozenset[str] = frozenset()
    problems: tuple[str, ...] = field(default=())


def members(rows: Sequence[Mapping[str, Any]], host: str) -> tuple[tuple[Member, ...], tuple[str, ...]]:
    """Return the hosts in the same cluster as `host`, and problems.

    Problems are about the hosts' variables. `rows` has the variables of all hosts in the inventory that are Kubernetes
    nodes.
    """
    by_name = {row["inventory_hostname"]: row for row in rows}
    own = _cluster(by_name[host])
    cluster = [row for row in rows if _cluster(row) == own]
    problems = [
        "gpu_kubernetes_quotas: %s and %s of the same cluster have different values. Set it for all hosts of the cluster, "
        "for example in group_vars." % (host, row["inventory_hostname"])
        for row in cluster
        if "gpu_kubernetes_quotas" in row and row["gpu_kubernetes_quotas"] != by_name[host].get("gpu_kubernetes_quotas")
    ]
    return tuple(map(_member, cluster)), tuple(problems[:1])


def _cluster(row: Mapping[str, Any]) -> list[Any]:
    return [row.get(name, default) for name, default in _CLUSTER.items()]


def _member(row: Mapping[str, Any]) -> Member:
    planned = row.get("gpu_kubernetes_planned")
    usable = isinstance(planned, Mapping) and planned.get("checked") and not planned.get("problems")
    return Member(
        row["inventory_hostname"],
        str(row.get("gpu_kubernetes_node", row["inventory_hostname"])),
        str(row["gpu_kubernetes_backend"]),
        planned if usable else None,
        str(row.get("gpu_slurm_switch") or ""),
    )
