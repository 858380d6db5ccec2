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
    choices: [nvidia_device_plugin, nvidia_dra, hami, volcano_vgpu, openfleet_dra, openfleet_device_plugin]
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
  description: The mapping. If there is a problem, all keys except C(problems) are empty.
  type: dict
  sample:
    backend: nvidia_device_plugin
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
  contains:
    backend:
      description: >-
        The backend that was asked for.
      type: str
    problems:
      description: >-
        Messages. Empty if the layout can be mapped.
      type: list
      elements: str
    checked:
      description: >-
        Whether the GPUs were known. If not, only the syntax of the layout was checked. Without a driver, GPUs are unknown
        if the layout selects them by UUID or PCI address.
      type: bool
    plan:
      description: >-
        Lines to print.
      type: list
      elements: str
    resources:
      description: >-
        Number of each resource by name. For V(nvidia_dra) it is the number of devices by class and profile. Empty if there
        is a problem.
      type: dict
    config:
      description: >-
        The plugin's configuration for this node. Empty if there is a problem.
      type: dict
    config_name:
      description: >-
        Key of C(config) in the ConfigMap for V(nvidia_device_plugin), derived from its content.
      type: str
    labels:
      description: >-
        Labels of the node.
      type: dict
    label_lines:
      description: >-
        Lines of a plan that explain the labels.
      type: list
      elements: str
    requests:
      description: >-
        How pods request devices if the name of the resource is not sufficient. Each has C(where), C(name), C(limits),
        C(annotations), C(environment), C(claim) (the C(spec) of a ResourceClaim) and C(template) (the name of its
        ResourceClaimTemplate).
      type: list
      elements: dict
    devices:
      description: >-
        The resource of each current device, by UUID.
      type: dict
    registered:
      description: >-
        The numbers that HAMi registers for each GPU, by UUID.
      type: dict
    offered:
      description: >-
        GPUs that the backend offers, each with C(where) (its entry), C(index) and C(uuid).
      type: list
      elements: dict
    left_out:
      description: >-
        GPUs that the backend does not offer, each with C(where), C(gpus) and C(reason).
      type: list
      elements: dict
    notes:
      description: >-
        Sentences about GPUs of the node.
      type: list
      elements: str
    refusals:
      description: >-
        Entries that the backend does not support, each with C(where), C(gpus), C(problem), C(cure) and C(backends) (the
        backends that support the entry).
      type: list
      elements: dict
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
