# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find roles that a host's plan needs but the run's tags exclude."""

from __future__ import annotations

DOCUMENTATION = r"""
name: tags_lacking
short_description: Find roles that a host's plan needs and the run's tags exclude
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Compares the roles that C(--tags) and C(--skip-tags) select with the plan of a host.
extends_documentation_fragment:
  - openfleet.gpu.tags
options:
  plans:
    description:
      - C(layout) is the result of M(openfleet.gpu.layout) in check mode. C(driver) is the result of M(openfleet.gpu.driver) in
        check mode, or empty if the inventory does not manage the driver.
    type: dict
    required: true
  inventory:
    description:
      - Settings of the host. C(simulated) is true if the host has simulated GPUs. C(kubernetes) is the Kubernetes backend, or
        empty. C(tenants) has the names of the layout's tenants.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Check that the tags include all roles of the plan
  ansible.builtin.assert:
    that: >-
      ['gpu_layout', 'nvidia_driver'] | openfleet.gpu.tags_lacking(run=ansible_run_tags, skip=ansible_skip_tags,
      plans={'layout': planned, 'driver': {}}, inventory={'simulated': false, 'kubernetes': '', 'tenants': []}) == []
"""

RETURN = r"""
_value:
  description: A sentence for each missing role.
  type: list
  elements: str
  sample: ["The tag gpu_layout needs nvidia_driver too: the driver of the plan is not installed."]
"""


def tags_lacking(tags, run, skip, plans, inventory):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.site.tags import lacking, selected

    return lacking(selected(list(tags), list(run), list(skip)), plans, inventory)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"tags_lacking": tags_lacking}
