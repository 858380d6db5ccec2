# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a layout from the model catalogue, for a host without a driver."""

from __future__ import annotations

DOCUMENTATION = r"""
name: plan_without_driver
short_description: Plan a GPU layout from the model catalogue, without a driver
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Plans the layout as the module M(openfleet.gpu.layout) would for empty GPUs of the given models.
  - Returns problems instead of failing, so that the caller can add the host to the message.
extends_documentation_fragment:
  - openfleet.gpu.host_gpus
"""

EXAMPLES = r"""
- name: Show the plan of a layout
  ansible.builtin.debug:
    msg: "{{ gpu_layout | openfleet.gpu.plan_without_driver(expected_gpus=['H100-80GB', 'H100-80GB']) }}"
"""

RETURN = r"""
_value:
  description:
    - C(problems) lists messages, and is empty if the layout is possible. C(plan) has one line per GPU. C(counts) has the number
      of GPU instances to C(create), C(destroy) and C(keep), and C(gpus_changed). C(gpus) is the number of GPUs in the layout.
      C(checked) is true if the GPU models were known. If not, only the syntax of the layout was checked.
  type: dict
  sample:
    problems: []
    plan: ['gpu 0: enable MIG mode, create 3g.40gb@0, create 3g.40gb@4']
    counts: {create: 2, destroy: 0, keep: 0, gpus_changed: 1}
    gpus: 1
    checked: true
"""


def plan_without_driver(layout_data, expected_gpus=(), pci_gpus=()):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.site import without_driver

    return without_driver.plan(layout_data, expected_gpus, pci_gpus)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"plan_without_driver": plan_without_driver}
