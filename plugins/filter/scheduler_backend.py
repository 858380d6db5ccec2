# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Return what a backend needs from the cluster."""

from __future__ import annotations

from typing import Any, Callable

DOCUMENTATION = r"""
name: scheduler_backend
short_description: Return what a backend needs from the cluster
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Returns whether the collection writes to the cluster for a backend, and where the backend reads its configuration.
options:
  _input:
    description: >-
      A value of C(gpu_kubernetes_backend). An unknown or empty value is a backend that needs nothing.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show whether the role gpu_kubernetes writes to the cluster
  ansible.builtin.debug:
    msg: "{{ (gpu_kubernetes_backend | openfleet.gpu.scheduler_backend).applies }}"
"""

RETURN = r"""
_value:
  description:
    - C(applies) is true if the collection writes to the cluster. If false, the resources that the node would offer are only
      printed.
    - C(config_label) is the node label that selects a key of the ConfigMap. It is empty if the backend has no ConfigMap.
    - C(empty_config) is the content of a key with an empty configuration, which changes nothing. C(config_key) is the key with
      the entries of all nodes. It is empty if each configuration has its own key. C(cordons_in) is
      the node annotation that lists cordoned GPUs. It is empty if the scheduler cannot cordon single GPUs.
    - C(component) is the name of the software that the role installs and restarts. C(defaults) has its default C(namespace),
      C(config_map), C(selector) and C(release), and C(chart_values) the values of its Helm chart. C(chart_config) is the value
      that names the ConfigMap, with C(%s) for its name. C(refused) has a pattern of settings that may not be installed, and the
      reason.
    - C(offered_in) is the kind of the objects that publish the node's GPUs, and C(reads) lists kinds of further objects that the
      filter P(openfleet.gpu.kubernetes_changes#filter) needs. Each has C(api_version), C(kind), C(node_field),
      C(node_label), C(namespaced) and C(of_pods).
    - C(leases) is true if the role installs a plugin on the host that gives leases to pods.
    - C(shares) is true if the backend has objects of the cluster that P(openfleet.gpu.kubernetes_cluster#filter) changes.
  type: dict
  sample:
    applies: true
    config_label: nvidia.com/device-plugin.config
    empty_config: "version: v1\n"
    config_key: ''
    cordons_in: ''
    component: device plugin
    defaults:
      namespace: nvidia-device-plugin
      config_map: openfleet-gpu-device-plugin
      selector: app.kubernetes.io/name=nvidia-device-plugin
      release: nvidia-device-plugin
    chart_values: {}
    chart_config: {config: {name: '%s', default: default}}
    refused: ['', '']
    offered_in: {api_version: v1, kind: Node, node_field: '', node_label: '', namespaced: false, of_pods: false}
    reads: []
    leases: false
    shares: false
"""


def scheduler_backend(key: object) -> dict[str, Any]:
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..module_utils.model import to_data
    from ..plugin_utils.schedulers import registry
    from ..plugin_utils.schedulers.kubernetes.backend import KubernetesBackend

    backend = registry.backend(key) if isinstance(key, str) and key in registry.KEYS else KubernetesBackend()
    names = (
        "applies",
        "config_label",
        "empty_config",
        "config_key",
        "cordons_in",
        "component",
        "defaults",
        "chart_values",
        "chart_config",
        "refused",
        "leases",
    )
    return {
        **{name: to_data(getattr(backend, name)) for name in names},
        "offered_in": to_data(backend.offered_in),
        "reads": to_data(backend.reads),
        "shares": type(backend).shared is not KubernetesBackend.shared,
    }


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"scheduler_backend": scheduler_backend}
