# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a Kubernetes node with the mapping of its layout."""

from __future__ import annotations

DOCUMENTATION = r"""
name: kubernetes_changes
short_description: Compare a Kubernetes node with the resources that it should offer
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Compares a node and the ConfigMap of the backend with the mapping that the filter
    P(openfleet.gpu.kubernetes_mapping#filter) returned. It does not contact a cluster.
  - Returns problems instead of failing, so that the caller can add the host to the message.
positional: node, config_map
options:
  _input:
    description: The mapping.
    type: dict
    required: true
  node:
    description: The node, as the API returned it. Null if the cluster does not have it.
    type: dict
    default: null
  config_map:
    description: The ConfigMap, as the API returned it. Null if the cluster does not have it.
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
  objects:
    description: Objects of the kinds that P(openfleet.gpu.scheduler_backend#filter) lists, as the API returned them.
    type: list
    elements: dict
    default: []
  selector:
    description: Label selector of the pods of the backend's software.
    type: str
    default: ""
  claim_namespaces:
    description: Namespaces for which ResourceClaimTemplates are written.
    type: list
    elements: str
    default: []
  changing:
    description: UUIDs of the GPUs that the layout will change. With HAMi, they are cordoned before the change.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Show which resources the node does not offer as planned
  ansible.builtin.debug:
    msg: "{{ (mapping | openfleet.gpu.kubernetes_changes(node=found.resources[0], name='h100-01')).pending_text }}"
"""

RETURN = r"""
_value:
  description:
    - C(problems) lists messages. C(labels) are labels to set on the node, and C(annotations) record their previous values.
      C(opt_out) is metadata that excludes the node from the GPU operator's mig-manager. C(data) is data to write to the
      ConfigMap.
    - C(pending) has the resources that the node does not offer as planned, each with the planned and the offered number.
      C(pending_text) describes these resources. C(restart) is true if the plugin must restart, because no label notifies the
      plugin of the change. C(lines) are lines of a plan. C(in_step) is true if the cluster needs no change.
    - C(delete) lists objects of the cluster to delete first, and C(write) objects to create or change.
      C(lost) lists pods whose device no longer exists, and C(replaced) pods with GPUs of another component. Each has its UID and
      name.
    - C(cordon) is the JSON patch that cordons GPUs before the layout changes, and C(uncordon) the patch that releases them after
      the verification. C(cordoned) lists the GPUs that C(uncordon) releases. C(unseen) is the reason why the scheduler may not
      know the cordons yet, or empty. C(warnings) lists dangers outside of the node.
  type: dict
  sample:
    labels:
      nvidia.com/device-plugin.config: openfleet-26e351e766763919
      nvidia.com/gpu.deploy.mig-manager: 'false'
      nvidia.com/mig.config: managed-by-openfleet-gpu
    annotations:
      openfleet.gpu/labels-before: '{"nvidia.com/device-plugin.config": null, "nvidia.com/gpu.deploy.mig-manager": null,
        "nvidia.com/mig.config": null}'
    opt_out:
      labels: {nvidia.com/gpu.deploy.mig-manager: 'false', nvidia.com/mig.config: managed-by-openfleet-gpu}
      annotations:
        openfleet.gpu/labels-before: '{"nvidia.com/gpu.deploy.mig-manager": null, "nvidia.com/mig.config": null}'
    data:
      openfleet-26e351e766763919: "{\n  \"flags\": {\n    \"migStrategy\": \"mixed\"\n  },\n  \"version\": \"v1\"\n}\n"
    pending: {nvidia.com/gpu: [1, 0], nvidia.com/mig-3g.40gb: [2, 0]}
    pending_text: nvidia.com/gpu 0 (planned 1), nvidia.com/mig-3g.40gb 0 (planned 2)
    restart: false
    delete: []
    write: []
    lost: []
    replaced: []
    cordon: []
    uncordon: []
    cordoned: []
    unseen: ''
    problems: []
    warnings: []
    lines:
      - 'node h100-01: label nvidia.com/device-plugin.config: openfleet-26e351e766763919 (new)'
      - 'node h100-01: label nvidia.com/gpu.deploy.mig-manager: false (new; keeps the GPU operator''s mig-manager
        off the node)'
      - 'node h100-01: label nvidia.com/mig.config: managed-by-openfleet-gpu (new; no MIG configuration, so that
        mig-manager changes nothing if it is enabled later)'
      - 'ConfigMap /: write key openfleet-26e351e766763919'
    in_step: false
"""


def kubernetes_changes(mapping, node=None, config_map=None, **names):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..module_utils.model import to_data
    from ..plugin_utils.schedulers.protocol import Place
    from ..plugin_utils.schedulers.registry import backend

    place = Place(
        names["name"],
        names.get("namespace", ""),
        names.get("config_map_name", ""),
        names.get("selector", ""),
        tuple(names.get("claim_namespaces", ())),
        tuple(names.get("changing", ())),
    )
    changes = backend(mapping["backend"]).changes(mapping, node, config_map, place, names.get("objects", ()))
    pending = {name: list(numbers) for name, numbers in changes.pending.items()}
    return dict(to_data(changes), pending=pending, in_step=changes.in_step)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"kubernetes_changes": kubernetes_changes}
