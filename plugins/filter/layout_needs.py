# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a GPU layout needs on its host beside the GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
name: layout_needs
short_description: Tell what a GPU layout needs on its host beside the GPUs
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Answers what playbooks and units ask about a layout, by the collection's own parser. No host is asked.
  - Never fails. A layout that cannot be read needs nothing, so that a host whose layout is wrong can still be reset.
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
  when: (gpu_layout | openfleet.gpu.layout_needs).tenants | length > 0
"""

RETURN = r"""
_value:
  description:
    - C(gpus), whether the layout names any GPUs; C(cdi), whether it has MPS daemons or tenants, which have CDI devices of
      their own; C(tenants), the names of its tenants, earlier names (C(was)) included; C(problems), a list of messages,
      empty where the layout can be read.
  type: dict
"""


def layout_needs(layout_data):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection in the worker of each task that uses one. What takes long waits for its use.
    from ..plugin_utils.site import needs

    return needs.of_layout(layout_data)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"layout_needs": layout_needs}
