# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read one host's plan from a plan file."""

from __future__ import annotations

DOCUMENTATION = r"""
name: host_plan
short_description: Read one host's plan from a saved plan
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Takes the text of a file made with P(openfleet.gpu.fleet_plan#filter), and returns the plan of one host.
  - Returns a problem instead of failing if the host is not in the file, or if the file has another schema version.
positional: host
options:
  _input:
    description: Text of the file.
    type: str
    required: true
  host:
    description: Name of the host in the inventory.
    type: str
    required: true
seealso:
  - plugin: openfleet.gpu.fleet_plan
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Apply a saved plan
  openfleet.gpu.layout:
    layout: "{{ gpu_layout }}"
    # With a problem, the result has no plan, so the task fails.
    plan: "{{ (lookup('ansible.builtin.file', '/srv/plan.json') | openfleet.gpu.host_plan(inventory_hostname)).plan }}"
  become: true
"""

RETURN = r"""
_value:
  description: >-
    C(problem) is a message, or empty if there is no problem. C(plan) is the value for O(openfleet.gpu.layout#module:plan). It
    is missing if there is a problem.
  type: dict
  sample:
    problem: ''
    plan:
      schema: 4
      driver_version: 580.105.08
      gpus:
        - uuid: GPU-5c89d3fa-0000-4000-8000-000000000001
          index: 0
          plan: 'gpu 0: enable MIG mode, create 3g.40gb@0, create 3g.40gb@4'
          busy: []
          kept: []
          steps: [{enabled: true, step: SetMigMode}]
      mps: {plan: [], busy: [], steps: []}
      vgpu: {plan: [], busy: [], steps: []}
"""

from ..module_utils.errors import PlanError


def host_plan(text, host):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..module_utils.change.plan_file import host_part

    try:
        return {"plan": host_part(text, host), "problem": ""}
    except PlanError as error:
        return {"problem": str(error)}


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"host_plan": host_plan}
