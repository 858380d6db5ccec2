# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List what the role gpu_kubernetes removes from a node."""

from __future__ import annotations

DOCUMENTATION = r"""
name: kubernetes_removal
short_description: List the labels and configurations to remove from a Kubernetes node
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Returns the labels that a node had before the role P(openfleet.gpu.gpu_kubernetes#role) changed them. They are read from the
    annotation C(openfleet.gpu/labels-before). Also returns the role's keys in the ConfigMap that no other node uses.
  - If another tool has changed a label since then, the label is kept.
positional: nodes, config_map
options:
  _input:
    description: Name of the node.
    type: str
    required: true
  nodes:
    description: The node, and all nodes with the label that selects a configuration, as the API returned them.
    type: list
    elements: dict
    required: true
  config_map:
    description: The ConfigMap, as the API returned it. Null if the cluster does not have it.
    type: dict
    default: null
  objects:
    description: Objects of the kinds that P(openfleet.gpu.scheduler_backend#filter) lists.
    type: list
    elements: dict
    default: []
  removed:
    description: Names of nodes from which the run has removed the backend. Classes that only these nodes need are deleted.
    type: list
    elements: str
    default: []
  policies:
    description:
      - The ClusterPolicy objects of the GPU operator, as the API returned them.
      - If mig-manager would start with the previous labels, the result has a problem and nothing to remove.
    type: list
    elements: dict
    default: []
  backend:
    description: The backend that changed the node, as for P(openfleet.gpu.kubernetes_mapping#filter).
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show the labels to restore
  ansible.builtin.debug:
    msg: "{{ ('h100-01' | openfleet.gpu.kubernetes_removal(nodes.resources, backend='nvidia_device_plugin')).labels }}"
"""

RETURN = r"""
_value:
  description:
    - C(problems) lists messages. C(labels) has the previous values, or null for a label to remove. C(annotations) has the
      annotations of the node to remove, and C(data) the keys of the ConfigMap to remove, each with the value null. All of these
      have the format of a patch. C(delete) lists objects of the cluster to delete. C(uncordon) is the JSON patch that releases
      GPUs that the role has cordoned. C(leftovers) are annotations to remove when the backend's software has ended on the node.
  type: dict
  sample:
    labels: {nvidia.com/device-plugin.config: null}
    annotations: {openfleet.gpu/labels-before: null}
    data: {}
    delete: []
    uncordon: []
    leftovers: {}
    problems: []
"""


def kubernetes_removal(name, nodes, config_map=None, *, backend, **options):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..module_utils.model import to_data
    from ..plugin_utils.schedulers import registry
    from ..plugin_utils.schedulers.kubernetes.api_objects import name_of
    from ..plugin_utils.schedulers.kubernetes.operator import removal_problem
    from ..plugin_utils.schedulers.protocol import Removal

    removed = frozenset(options.get("removed", ()))
    removal = registry.backend(backend).removal(name, nodes, config_map, options.get("objects", ()), removed)
    node = next((item for item in nodes if name_of(item) == name), {})
    problem = removal_problem(node, options.get("policies", ()), removal.labels, name)
    return to_data(Removal(problems=(problem,)) if problem else removal)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"kubernetes_removal": kubernetes_removal}
