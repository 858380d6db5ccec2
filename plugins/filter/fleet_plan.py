# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Combine the plans of several hosts for a file."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet_plan
short_description: Combine the plans of several hosts to save them in one file
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Takes results of the module M(openfleet.gpu.layout) in check mode, and returns the content of a plan file.
options:
  _input:
    description: Results of the module by host name. Each must have C(plan_data).
    type: dict
    required: true
seealso:
  - plugin: openfleet.gpu.host_plan
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Save one host's plan
  ansible.builtin.copy:
    content: "{{ {inventory_hostname: planned} | openfleet.gpu.fleet_plan | to_nice_json }}"
    dest: plan.json
    mode: "0644"
  delegate_to: localhost
"""

RETURN = r"""
_value:
  description: C(schema) is the version of the format. C(hosts) has the plan of each host by name.
  type: dict
  sample:
    schema: 4
    hosts:
      h100-01:
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

from collections.abc import Mapping

from ansible.errors import AnsibleFilterError

from ..plugin_utils.host_values import bounded, shown

# Maximum number of entries in a host's plan. A plan for 16 GPUs with seven instances each has a few thousand entries.
_MOST_ENTRIES = 20_000


def fleet_plan(results):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..module_utils.change.plan_file import fleet

    return fleet({name: _plan(name, result) for name, result in results.items()})


def _plan(name, result):
    """Return a host's plan, limited in size because people read the file."""
    data = result.get("plan_data") if isinstance(result, Mapping) else None
    if not isinstance(data, Mapping):
        raise AnsibleFilterError(
            "%s: the host returned no plan, but %s. Check the result of openfleet.gpu.layout." % (name, shown(data))
        )
    return bounded(data, _MOST_ENTRIES)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"fleet_plan": fleet_plan}
