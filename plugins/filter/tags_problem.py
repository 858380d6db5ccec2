# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Validate a run's tags."""

from __future__ import annotations

DOCUMENTATION = r"""
name: tags_problem
short_description: Validate the tags of a run
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Compares C(--tags) and C(--skip-tags) with the tags of a playbook. Without this check, if the tags select nothing, a run
    would end without a change and without an error.
extends_documentation_fragment:
  - openfleet.gpu.tags
options:
  groups:
    description: The variable C(groups), with hosts by group.
    type: dict
    required: true
  hostvars:
    description: >-
      The variable C(hostvars). The first play does not pass it. Without it, tags of roles that no host uses are accepted.
    type: dict
"""

EXAMPLES = r"""
- name: Check that the tags select tasks
  ansible.builtin.fail:
    msg: "{{ ['gpu_layout'] | openfleet.gpu.tags_problem(run=ansible_run_tags, skip=ansible_skip_tags, groups=groups) }}"
  tags: always
"""

RETURN = r"""
_value:
  description: Why the run is refused. Empty if the tags are valid.
  type: str
  sample: "Unknown tag mig. The tags are gpu_layout. Nothing was changed."
"""


def tags_problem(tags, run, skip, groups, hostvars=None):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.site.tags import problem

    return problem(list(tags), list(run), list(skip), groups, hostvars)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"tags_problem": tags_problem}
