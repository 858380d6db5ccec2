# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The patch of a Kubernetes node that is drained, or brought back."""

from __future__ import annotations

DOCUMENTATION = r"""
name: drain_patch
short_description: Write the JSON patch that takes a Kubernetes node out of service, or brings it back
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - A drain cordons the node, and gives labels other values, by which DaemonSets take their pods off the node. Annotations of the
    node note both in the same request.
  - The patch tests what was looked at, and is refused by the cluster where that changed since.
  - No cluster is asked.
options:
  _input:
    description: The node as the API returned it.
    type: dict
    required: true
  state:
    description: V(drained) or V(resumed).
    type: str
    choices: [drained, resumed]
    required: true
  host:
    description: What the inventory calls the host. The annotation of the cordon has it.
    type: str
    required: true
  labels:
    description: Labels with the values that they have while the node is drained. Those that the node lacks are left.
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
    C(operations), those of the patch, empty where nothing is to change; C(paused), the labels that stay paused because nothing
    says what they were.
  type: dict
"""


def drain_patch(node, *, state, host, labels=None):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection in the worker of each task that uses one. What takes long waits for its use.
    from ..plugin_utils.schedulers.kubernetes import drain_patch as patches

    found = patches.drained(node, host, labels or {}) if state == "drained" else patches.resumed(node, labels or {})
    return {"operations": list(found.operations), "paused": list(found.paused)}


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"drain_patch": drain_patch}
