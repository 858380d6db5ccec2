# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List what a GPU layout needs on its host besides GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
name: layout_needs
short_description: List what a GPU layout needs on its host in addition to GPUs
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Parses a layout for playbooks and units, as the collection's modules do. It contacts no host.
  - This filter never fails. For an invalid layout it returns no needs, so that a host with an invalid layout can still be
    reset.
options:
  _input:
    description: The variable C(gpu_layout).
    type: raw
    required: true
"""

EXAMPLES = r"""
- name: Install the vGPU limiter
  ansible.builtin.include_role:
    name: openfleet.gpu.vgpu_limiter
  when: (gpu_layout | openfleet.gpu.layout_needs).quotas
"""

RETURN = r"""
_value:
  description:
    - C(gpus) is true if the layout has any GPUs. C(cdi) is true if the layout has MPS daemons or tenants, because these have
      their own CDI devices. C(tenants) lists the names of its tenants, including previous names (C(was)). C(quotas) is true if
      it has tenants or leases of quotas. C(leases) is true if the host grants leases, and C(lenders) lists who decides
      about them (C(leases.by) of the entries). C(problems) lists messages, and is empty if the layout is valid.
  type: dict
  sample:
    gpus: true
    cdi: true
    tenants: [notebook-a]
    quotas: true
    leases: false
    lenders: []
    problems: []
"""


def layout_needs(layout_data):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.site import needs

    return needs.of_layout(layout_data)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"layout_needs": layout_needs}
