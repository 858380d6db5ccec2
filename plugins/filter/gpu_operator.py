# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find NVIDIA's GPU operator on a Kubernetes node."""

from __future__ import annotations

DOCUMENTATION = r"""
name: gpu_operator
short_description: Find NVIDIA's GPU operator on a Kubernetes node, and its conflicts
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Reads the labels of a node and the cluster's ClusterPolicy objects. It does not contact a cluster.
  - Returns problems instead of failing, so that the caller can add the host to the message.
options:
  _input:
    description: The node, as the API returned it.
    type: dict
    required: true
  policies:
    description: The ClusterPolicy objects, as the API returned them.
    type: list
    elements: dict
    default: []
  name:
    description: Name of the node, for messages.
    type: str
    required: true
  config_map_name:
    description: The ConfigMap that the operator's device plugin must read. If empty, the device plugin is not checked.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show conflicts with the GPU operator
  ansible.builtin.debug:
    msg: >-
      {{ (node | openfleet.gpu.gpu_operator(policies=found.resources, name='h100-01', config_map_name='gpu-plugin')).problems }}
"""

RETURN = r"""
_value:
  description: >-
    C(is_there) is true if the operator manages the node. C(problems) lists messages with fixes. C(dangers) lists
    the labels with which the operator's mig-manager would change the layout. C(pausing) has the node labels, with their values,
    that remove those components of the operator from the node that keep GPUs open.
  type: dict
  sample:
    is_there: true
    problems: []
    dangers:
      - 'node h100-01: label nvidia.com/gpu.deploy.mig-manager is missing (planned: false), so the GPU operator
        runs mig-manager on the node'
      - 'node h100-01: label nvidia.com/mig.config is missing (planned: managed-by-openfleet-gpu), so mig-manager,
        if it runs on the node, applies all-disabled and removes all other MIG instances'
    pausing:
      nvidia.com/gpu.deploy.dcgm: paused-for-openfleet-gpu
      nvidia.com/gpu.deploy.dcgm-exporter: paused-for-openfleet-gpu
      nvidia.com/gpu.deploy.device-plugin: paused-for-openfleet-gpu
      nvidia.com/gpu.deploy.gpu-feature-discovery: paused-for-openfleet-gpu
      nvidia.com/gpu.deploy.nvsm: paused-for-openfleet-gpu
"""


def gpu_operator(node, policies=(), *, name, config_map_name):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.schedulers.kubernetes import operator
    from ..plugin_utils.schedulers.protocol import Place

    found = operator.find_operator(node, policies, Place(name, "", config_map_name))
    return {
        "is_there": found.is_there,
        "problems": list(found.problems),
        "dangers": list(found.dangers),
        "pausing": found.pausing,
    }


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"gpu_operator": gpu_operator}
