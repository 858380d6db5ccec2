# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Map a GPU layout to Kubernetes resources."""

from __future__ import annotations

DOCUMENTATION = r"""
name: kubernetes_mapping
short_description: Map a GPU layout to the resources that a Kubernetes node offers
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Returns the resources that the node will offer, the configuration of the plugin that publishes them, and labels of the node.
    It contacts neither a cluster nor a host.
  - If the backend does not support an entry, C(refusals) has the reason, and lists the backends that do.
  - Returns problems instead of failing, so that the caller can add the host to the message.
  - C(docs/kubernetes-mapping.md) describes the complete mapping.
extends_documentation_fragment:
  - openfleet.gpu.host_gpus
  - openfleet.gpu.host_gpus.state
options:
  backend:
    description: Software that offers GPUs to pods.
    type: str
    choices: [nvidia_device_plugin, nvidia_dra, hami, volcano_vgpu, openfleet_dra]
    required: true
  node:
    description: Name of the Kubernetes node.
    type: str
    default: ""
  mig_strategy:
    description:
      - Resource names that NVIDIA's device plugin uses for MIG devices. With V(mixed) the name contains the profile. With
        V(single) MIG devices have the resource name of GPUs.
      - V(single) requires MIG mode on every GPU of the node, and instances of only one profile.
    type: str
    choices: [mixed, single]
    default: mixed
seealso:
  - plugin: openfleet.gpu.plan_without_driver
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Show what Kubernetes would offer
  ansible.builtin.debug:
    msg: >-
      {{ (gpu_layout | openfleet.gpu.kubernetes_mapping('nvidia_device_plugin', expected_gpus=['H100-80GB', 'H100-80GB'])).plan }}
"""

RETURN = r"""
_value:
  description:
    - C(problems) lists messages, and is empty if the layout can be mapped. C(checked) is true if the GPUs were known. If not,
      only the syntax of the layout was checked. C(plan) has lines to print. Without a driver, GPUs are unknown if the layout
      selects them by UUID or PCI address.
    - C(resources) is the number of each resource by name. For V(nvidia_dra) it is the number of devices by class and profile.
      C(config) is the plugin's configuration for this node. C(config_name) is its key in the ConfigMap for
      V(nvidia_device_plugin), derived from its content. C(labels) are labels of the node, and C(label_lines) are lines of a plan
      that explain them. With a problem, all of them are empty.
    - C(requests) describes how pods request devices if the name of the resource is not sufficient. Each has C(where), C(name),
      C(limits), C(annotations), C(environment), C(claim) (the C(spec) of a ResourceClaim) and C(template) (the name of its
      ResourceClaimTemplate). C(devices) maps the UUIDs of current devices to resources. C(registered) has the numbers that
      HAMi registers for each GPU, by UUID. C(offered) lists the GPUs that the backend offers, each with C(where) (its entry),
      C(index) and C(uuid). C(left_out) lists GPUs that the backend does not offer, each with C(where), C(gpus)
      and C(reason). C(notes) lists sentences.
    - C(refusals) lists entries that the backend does not support, each with C(where), C(gpus), C(problem), C(cure) and
      C(backends) (the backends that support the entry).
  type: dict
  sample:
    resources: {nvidia.com/gpu: 1, nvidia.com/mig-3g.40gb: 2}
    config: {version: v1, flags: {migStrategy: mixed}}
    labels:
      nvidia.com/device-plugin.config: openfleet-26e351e766763919
      nvidia.com/gpu.deploy.mig-manager: 'false'
      nvidia.com/mig.config: managed-by-openfleet-gpu
    requests: []
    left_out: []
    notes: ['No entry lists gpu 1, so the device plugin offers the current state.']
    refusals: []
    config_name: openfleet-26e351e766763919
    devices: {}
    registered: {}
    problems: []
    checked: true
    plan:
      - 'node h100-01: nvidia.com/gpu 1, nvidia.com/mig-3g.40gb 2'
      - No entry lists gpu 1, so the device plugin offers the current state.
    offered:
      - {where: 'gpu_layout[0]', index: 0, uuid: ''}
      - {where: gpu 1 (without an entry), index: 1, uuid: ''}
    label_lines:
      - 'node h100-01: label nvidia.com/device-plugin.config: openfleet-26e351e766763919'
      - 'node h100-01: label nvidia.com/gpu.deploy.mig-manager: false (keeps the GPU operator''s mig-manager off
        the node)'
      - 'node h100-01: label nvidia.com/mig.config: managed-by-openfleet-gpu (no MIG configuration, so that
        mig-manager changes nothing if it is enabled later)'
"""


def kubernetes_mapping(layout_data, backend, **options):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.schedulers import request

    return request.answer(request.Request(layout_data, backend, **options))


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"kubernetes_mapping": kubernetes_mapping}
