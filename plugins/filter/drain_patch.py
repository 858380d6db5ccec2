# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the patch that drains or restores a Kubernetes node."""

from __future__ import annotations

DOCUMENTATION = r"""
name: drain_patch
short_description: Make the JSON patch that drains or restores a Kubernetes node
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - A drain cordons the node, and changes labels of the node so that DaemonSets remove their pods. The same request also writes
    annotations that record the cordon and the previous labels.
  - The patch contains test operations, so that the API server refuses the patch if the node has changed since it was read.
  - This filter does not contact a cluster.
options:
  _input:
    description: The node, as the API returned it.
    type: dict
    required: true
  state:
    description: Desired state of the node.
    type: str
    choices: [drained, resumed]
    required: true
  host:
    description: Name of the host in the inventory, for the annotation of the cordon.
    type: str
    required: true
  labels:
    description: Labels with their values during the drain. Labels that the node does not have are ignored.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Show what a drain would change
  ansible.builtin.debug:
    msg: "{{ (node | openfleet.gpu.drain_patch(state='drained', host='h100-01')).operations }}"
"""

RETURN = r"""
_value:
  description: >-
    C(operations) are the operations of the patch. The list is empty if nothing has to change. C(paused) lists labels that keep
    their value of the drain, because their previous value is not recorded.
  type: dict
  sample:
    operations:
      - {op: test, path: /metadata/annotations, value: null}
      - {op: add, path: /metadata/annotations, value: {}}
      - {op: test, path: /spec/unschedulable, value: null}
      - {op: add, path: /metadata/annotations/openfleet.gpu~1cordoned-for-drain, value: h100-01}
      - {op: add, path: /spec/unschedulable, value: true}
      - {op: test, path: /metadata/annotations/openfleet.gpu~1labels-before-drain, value: null}
      - op: add
        path: /metadata/annotations/openfleet.gpu~1labels-before-drain
        value: '{"nvidia.com/gpu.deploy.device-plugin": "true"}'
      - {op: test, path: /metadata/labels/nvidia.com~1gpu.deploy.device-plugin, value: 'true'}
      - {op: add, path: /metadata/labels/nvidia.com~1gpu.deploy.device-plugin, value: paused}
    paused: []
"""


def drain_patch(node, *, state, host, labels=None):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.schedulers.kubernetes import drain_patch as patches

    patch = patches.drained(node, host, labels or {}) if state == "drained" else patches.resumed(node, labels or {})
    return {"operations": list(patch.operations), "paused": list(patch.paused)}


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"drain_patch": drain_patch}
