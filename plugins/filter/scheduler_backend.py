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
    - C(empty_config) is the content of a key with an empty configuration, which changes nothing.
  type: dict
"""


def scheduler_backend(key: object) -> dict[str, Any]:
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.schedulers import registry

    if not isinstance(key, str) or key not in registry.KEYS:
        return {"applies": False, "config_label": "", "empty_config": ""}
    backend = registry.backend(key)
    return {"applies": backend.applies, "config_label": backend.config_label, "empty_config": backend.empty_config}


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"scheduler_backend": scheduler_backend}
