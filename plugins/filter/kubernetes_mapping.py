# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Kubernetes offers of a host's GPUs once they are shared as gpu_layout says."""

from __future__ import annotations

DOCUMENTATION = r"""
name: kubernetes_mapping
short_description: Map a GPU layout to the resources that a Kubernetes node offers
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Returns the resources that the node will offer, the configuration of the plugin that publishes them, and labels of the node.
    No cluster and no host is asked.
  - What the backend cannot express is refused, with the entry, the reason, and the backends that can.
  - Returns problems rather than failing, so that the caller can name the host.
  - C(docs/kubernetes.md) tells what maps to what.
options:
  _input:
    description: The variable C(gpu_layout).
    type: raw
    required: true
  backend:
    description: What publishes GPUs to Kubernetes.
    type: str
    choices: [nvidia_device_plugin, nvidia_dra, hami, volcano_vgpu]
    required: true
  state:
    description: What the module M(openfleet.gpu.gpu_info) returned on the host. It takes precedence over the two options below.
    type: dict
    default: {}
  lost:
    description:
      - What to do where the layout names a GPU that is lost (fallen off the bus). V(fail) is a problem, V(skip) maps the others.
      - A lost GPU is offered by no backend.
    type: str
    choices: [fail, skip]
    default: fail
  expected_gpus:
    description:
      - Catalogue keys of the host's GPUs in index order, for example C(H100-80GB), for hosts whose driver does not answer.
    type: list
    elements: str
    default: []
  pci_gpus:
    description: What the module M(openfleet.gpu.layout) found on the PCI bus; used where O(expected_gpus) is empty.
    type: list
    elements: dict
    default: []
  node:
    description: What Kubernetes calls the host.
    type: str
    default: ""
  mig_strategy:
    description:
      - How NVIDIA's device plugin names MIG devices. V(mixed) names them by their profile, V(single) as GPUs.
      - V(single) wants MIG mode on every GPU of the node, and instances of one profile.
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
    - C(problems), a list of messages, empty where the layout can be mapped; C(checked), whether the GPUs were known, and so
      whether anything but the form of the layout was checked; C(plan), lines to print.
      Without a driver the GPUs are not known where the layout names them by UUID or PCI address.
    - C(resources), the number of each resource by name, for V(nvidia_dra) the number of devices by class and profile;
      C(config), the plugin's configuration for this node; C(config_name), for V(nvidia_device_plugin) the key of this
      configuration in a ConfigMap, by its content; C(labels) of the node. All are empty where there is a problem.
    - C(requests), how pods ask for what the name of a resource does not say, each with C(where), C(name), C(limits),
      C(annotations), C(environment) and C(claim), the C(spec) of a ResourceClaim; C(left_out), GPUs that the backend does not
      offer, each with C(where), C(gpus) and C(reason); C(notes), sentences.
    - C(refusals), what the backend cannot express, each with C(where), C(gpus), C(problem), C(cure) and C(backends), those that
      can.
  type: dict
"""


def kubernetes_mapping(layout_data, backend, **options):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection in the worker of each task that uses one. What takes long waits for its use.
    from ..plugin_utils.schedulers import request

    return request.answer(request.Request(layout_data, backend, **options))


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"kubernetes_mapping": kubernetes_mapping}
