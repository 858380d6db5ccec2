# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter that finds roles that the tags of a run leave out although the host's plan needs them."""

from __future__ import annotations

DOCUMENTATION = r"""
name: tags_lacking
short_description: Find roles that the tags of a run leave out although the plan of a host needs them
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Compares the roles that C(--tags) and C(--skip-tags) select with the plan of a host.
options:
  _input:
    description: The tags of the playbook, one a role.
    type: list
    elements: str
    required: true
  run:
    description: The variable C(ansible_run_tags).
    type: list
    elements: str
    required: true
  skip:
    description: The variable C(ansible_skip_tags).
    type: list
    elements: str
    required: true
  plans:
    description:
      - What modules returned in check mode. C(layout) is that of M(openfleet.gpu.layout), and C(driver) that of
        M(openfleet.gpu.driver), empty where the inventory asks for no driver.
    type: dict
    required: true
  inventory:
    description:
      - What the inventory says of the host. C(simulated) is whether it has simulated GPUs, C(kubernetes) the backend of
        Kubernetes, empty where there is none, and C(tenants) the names of the layout's tenants.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Check that the selected tags are enough
  ansible.builtin.assert:
    that: >-
      ['gpu_layout', 'nvidia_driver'] | openfleet.gpu.tags_lacking(run=ansible_run_tags, skip=ansible_skip_tags,
      plans={'layout': planned, 'driver': {}}, inventory={'simulated': false, 'kubernetes': '', 'tenants': []}) == []
"""

RETURN = r"""
_value:
  description: A sentence for each role that is missing.
  type: list
  elements: str
  sample: ["The tag gpu_layout needs nvidia_driver too: the driver of the plan is not installed."]
"""


def tags_lacking(tags, run, skip, plans, inventory):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection in the worker of each task that uses one. What takes long waits for its use.
    from ..plugin_utils.site.tags import lacking, selected

    return lacking(selected(list(tags), list(run), list(skip)), plans, inventory)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"tags_lacking": tags_lacking}
