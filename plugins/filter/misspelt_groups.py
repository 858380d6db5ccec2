# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find misspelt groups of an inventory."""

from __future__ import annotations

DOCUMENTATION = r"""
name: misspelt_groups
short_description: Find misspelt groups of an inventory
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Finds groups of the inventory whose name resembles, but differs from, a known name. Only groups with hosts are compared.
positional: known
options:
  _input:
    description: The variable C(groups), the hosts by group.
    type: dict
    required: true
  known:
    description: Correct names.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Check that the group has hosts
  ansible.builtin.fail:
    msg: "The group gpu_hosts has no hosts. {{ groups | openfleet.gpu.misspelt_groups(['gpu_hosts']) }}"
  when: groups['gpu_hosts'] | default([]) | length == 0
"""

RETURN = r"""
_value:
  description: A sentence for each group whose name resembles a known name. Empty if there is none.
  type: str
  sample: "The inventory has the group gpu_host: did you mean gpu_hosts?"
"""


def misspelt_groups(groups, known):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.site.groups import misspelt

    return misspelt(groups, list(known))


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"misspelt_groups": misspelt_groups}
