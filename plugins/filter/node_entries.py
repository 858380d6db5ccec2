# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Merge entries of Kubernetes nodes into a ConfigMap of a backend."""

from __future__ import annotations

from typing import Any, Callable, Mapping

DOCUMENTATION = r"""
name: node_entries
short_description: Merge entries of Kubernetes nodes into the ConfigMap of a backend
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - For backends that keep the configuration of all nodes under one key of the ConfigMap (C(config_key) of the filter
    P(openfleet.gpu.scheduler_backend#filter)). Entries of other nodes, and settings of an entry that the role does not set, are
    kept.
  - This filter does not contact a cluster.
options:
  _input:
    description: The ConfigMap, as the API returned it. Null if the cluster does not have it.
    type: dict
    required: true
  entries:
    description: The entry of each node by its name. Null removes the entry.
    type: dict
    required: true
  backend:
    description: The backend, as for P(openfleet.gpu.kubernetes_mapping#filter).
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show the configuration without the entry of a node
  ansible.builtin.debug:
    msg: "{{ (config_map | openfleet.gpu.node_entries(entries={'h100-01': none}, backend='hami')).content }}"
"""

RETURN = r"""
_value:
  description: >-
    C(content) is the new content of the key. C(differs) is false if the ConfigMap has this content. C(problem) is a message if
    the present content is not readable, or empty.
  type: dict
  sample:
    content: "{\n  \"nodeconfig\": []\n}\n"
    differs: true
    problem: ''
"""


def node_entries(config_map: Any, *, entries: Mapping[str, Mapping[str, Any] | None], backend: str) -> dict[str, Any]:
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.schedulers import registry
    from ..plugin_utils.schedulers.kubernetes.api_objects import texts

    found = registry.backend(backend)
    content, problem = found.merged(config_map, entries)
    differs = not problem and texts(config_map, "data").get(found.config_key) != content
    return {"content": content, "differs": differs, "problem": problem}


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"node_entries": node_entries}
