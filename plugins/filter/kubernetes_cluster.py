# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the changes of objects that the nodes of a cluster share."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

DOCUMENTATION = r"""
name: kubernetes_cluster
short_description: List the changes of a Kubernetes cluster that its nodes share
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Returns the changes of quotas (Kueue), HyperNodes (Volcano) and shared ConfigMaps that make a cluster match the inventory.
  - Without O(results), it only returns which objects to read, and checks the variables.
  - Returns problems instead of failing.
positional: results
options:
  _input:
    description: Variables of all hosts of the inventory with C(gpu_kubernetes_backend).
    type: list
    elements: dict
    required: true
  results:
    description: Results of M(kubernetes.core.k8s_info) for each entry of C(reads). C(item) is the entry.
    type: list
    elements: dict
    default: null
  host:
    description: A host of the cluster.
    type: str
    required: true
  quotas:
    description: Value of C(gpu_kubernetes_quotas). Without a value, quotas are not changed.
    type: dict
    default: null
  hypernodes:
    description: Value of C(gpu_kubernetes_hypernodes).
    type: bool
    default: false
  scheduler:
    description: Namespace and name of the ConfigMap of Volcano's scheduler, separated by C(/).
    type: str
    default: ""
  removed:
    description: Hosts from whose nodes this run removes the configuration.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Show which objects to read
  ansible.builtin.debug:
    msg: "{{ (rows | openfleet.gpu.kubernetes_cluster(host=inventory_hostname, quotas=gpu_kubernetes_quotas)).reads }}"
"""

RETURN = r"""
_value:
  description:
    - C(reads) lists objects to read, each with C(api_version), C(kind), C(name) and C(namespace). An empty name means all
      objects.
    - C(delete) lists objects to delete first, and C(write) objects to create or change. C(lines) are lines of a plan.
      C(problems) lists messages. C(in_step) is true if the cluster needs no change.
  type: dict
  sample:
    reads:
      - {api_version: v1, kind: Node, name: "", namespace: ""}
      - {api_version: kueue.x-k8s.io/v1beta2, kind: ClusterQueue, name: "", namespace: ""}
    delete: []
    write: []
    lines: []
    problems: []
    in_step: true
"""


def kubernetes_cluster(
    rows: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]] | None = None, *, host: str, **options: Any
) -> dict[str, Any]:
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..module_utils.model import to_data
    from ..plugin_utils.schedulers.cluster import model, plan
    from ..plugin_utils.schedulers.protocol import Read, Shared

    members, problems = model.members(rows, host)
    namespace, _slash, name = options.get("scheduler", "").partition("/")
    nodes = frozenset(member.node for member in members if member.host in set(options.get("removed", ())))
    request = model.Request(
        members, options.get("quotas"), bool(options.get("hypernodes")), (namespace, name), nodes, problems
    )
    if results is None:
        changes = Shared(problems=tuple(plan.check(request)))
    else:
        found = {Read(**each["item"]): each["resources"] if each.get("api_found", True) else None for each in results}
        changes = plan.plan(request, found)
    return dict(to_data(changes), reads=to_data(plan.reads(request)), in_step=changes.in_step)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"kubernetes_cluster": kubernetes_cluster}
