# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter that writes the plans of all hosts as site.yml prints them."""

from __future__ import annotations

DOCUMENTATION = r"""
name: site_plans
short_description: Write the plans of several hosts for people
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Takes what the module M(openfleet.gpu.layout) returned in check mode on each host, and gives the lines of each plan, with the
    beginning of the UUID of each GPU, and a line for each instance, daemon or tenant that is in the way of the plan.
  - A host on which no driver answers has the lines of its plan from the catalogue of GPU models.
  - Hosts that need nothing are named together, under C(nothing to do).
options:
  _input:
    description: Result of the module by host name.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Print the plan of this host
  ansible.builtin.debug:
    msg: "{{ {inventory_hostname: gpu_layout_planned} | openfleet.gpu.site_plans }}"
"""

RETURN = r"""
_value:
  description: The lines by host name, and under C(nothing to do) the names of the other hosts in one text.
  type: dict
"""


def site_plans(results):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection in the worker of each task that uses one. What takes long waits for its use.
    from ..plugin_utils.site.plans import plans

    return plans(results)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"site_plans": site_plans}
