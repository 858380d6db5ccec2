# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Format the plans of hosts for the output of site.yml."""

from __future__ import annotations

DOCUMENTATION = r"""
name: site_plans
short_description: Format the plans of several hosts for display
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Takes results of the module M(openfleet.gpu.layout) in check mode, and returns the lines of each plan. Lines about a GPU
    contain the beginning of its UUID. There is an additional line for each instance, daemon or tenant that blocks the plan.
  - For a host whose driver does not answer, it returns the plan from the model catalogue.
  - Hosts without changes are listed together, as C(nothing to do).
options:
  _input:
    description: Results of the module by host name.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the plan of this host
  ansible.builtin.debug:
    msg: "{{ {inventory_hostname: gpu_layout_planned} | openfleet.gpu.site_plans }}"
"""

RETURN = r"""
_value:
  description: Lines by host name, and the names of the other hosts as one text in C(nothing to do).
  type: dict
  sample:
    h100-01: ['gpu 0 (GPU-5c89d3fa): enable MIG mode, create 3g.40gb@0, create 3g.40gb@4']
    nothing to do: h100-02
"""


def site_plans(results):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.site.plans import plans

    return plans(results)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"site_plans": site_plans}
