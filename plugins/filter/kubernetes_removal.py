# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role gpu_kubernetes takes off a node again."""

from __future__ import annotations

DOCUMENTATION = r"""
name: kubernetes_removal
short_description: Tell which labels and configurations to take off a Kubernetes node
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Returns the labels that a node had before the role P(openfleet.gpu.gpu_kubernetes#role) changed them, by the annotation
    C(openfleet.gpu/labels-before), and the keys of the role in the ConfigMap that no other node uses.
  - A label that others changed since is left.
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
    description: The ConfigMap as the API returned it; null where the cluster has none.
    type: dict
    default: null
  backend:
    description: The backend that changed the node, as for P(openfleet.gpu.kubernetes_mapping#filter).
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show which labels the node gets back
  ansible.builtin.debug:
    msg: "{{ ('h100-01' | openfleet.gpu.kubernetes_removal(nodes.resources, backend='nvidia_device_plugin')).labels }}"
"""

RETURN = r"""
_value:
  description:
    - C(problems), a list of messages; C(labels), null for a label to remove; C(annotations) that go with them; C(data), the
      keys of the ConfigMap to remove, each with null. As C(definition) of a patch all of them take effect.
  type: dict
"""


def kubernetes_removal(name, nodes, config_map=None, *, backend):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection in the worker of each task that uses one. What takes long waits for its use.
    from ..module_utils.model import to_data
    from ..plugin_utils.schedulers import registry

    return to_data(registry.backend(backend).removal(name, nodes, config_map))


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"kubernetes_removal": kubernetes_removal}
