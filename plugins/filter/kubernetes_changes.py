# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cluster lacks of a node's mapping."""

from __future__ import annotations

DOCUMENTATION = r"""
name: kubernetes_changes
short_description: Compare a Kubernetes node with what it should offer of its GPUs
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Compares a node and the ConfigMap of the backend with the mapping that the filter
    P(openfleet.gpu.kubernetes_mapping#filter) returned. No cluster is asked.
  - Returns problems rather than failing, so that the caller can name the host.
positional: node, config_map
options:
  _input:
    description: The mapping.
    type: dict
    required: true
  node:
    description: The node as the API returned it; null where the cluster has none.
    type: dict
    default: null
  config_map:
    description: The ConfigMap as the API returned it; null where the cluster has none.
    type: dict
    default: null
  name:
    description: Name of the node, for messages.
    type: str
    required: true
  namespace:
    description: Namespace of the ConfigMap, for messages.
    type: str
    default: ""
  config_map_name:
    description: Name of the ConfigMap, for messages.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show which resources the node does not offer as planned
  ansible.builtin.debug:
    msg: "{{ (mapping | openfleet.gpu.kubernetes_changes(node=found.resources[0], name='h100-01')).pending_text }}"
"""

RETURN = r"""
_value:
  description:
    - C(problems), a list of messages; C(labels) to set on the node; C(annotations) to set with them, which record the labels from
      before; C(opt_out), metadata of the node that keeps the GPU operator's mig-manager off it; C(data) to write into the
      ConfigMap.
    - C(pending), resources that the node does not offer as planned, each with the planned and the offered number, and
      C(pending_text), the same in words; C(restart), whether the plugin has to start again since no label tells it of a change;
      C(lines) for a plan; C(in_step), whether the cluster lacks nothing.
  type: dict
"""


def kubernetes_changes(mapping, node=None, config_map=None, **names):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection in the worker of each task that uses one. What takes long waits for its use.
    from ..module_utils.model import to_data
    from ..plugin_utils.schedulers.protocol import Place
    from ..plugin_utils.schedulers.registry import backend

    place = Place(names["name"], names.get("namespace", ""), names.get("config_map_name", ""))
    changes = backend(mapping["backend"]).changes(mapping, node, config_map, place)
    pending = {name: list(numbers) for name, numbers in changes.pending.items()}
    return dict(to_data(changes), pending=pending, in_step=changes.in_step)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"kubernetes_changes": kubernetes_changes}
