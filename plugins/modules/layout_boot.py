#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: layout_boot
short_description: Install the command gpu-layout and its units
version_added: "0.1.0"
description:
  - "Internal: only this collection uses this module."
  - Installs or removes the command C(gpu-layout), the file with the host's layout, and the unit that restores the layout at
    boot. Also manages the units for metrics, for C(gpu-layout keep), for C(gpu-layout lease) and for the agent of vGPU tenants.
  - Without the boot unit, each reboot of the host removes the MIG instances.
  - The role P(openfleet.gpu.gpu_layout#role) uses this module with its own units.
  - The sources of the command are sent to a host only if its command is missing, damaged, from another release, or built by
    another Python.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  state:
    description:
      - V(present) installs, V(absent) removes.
      - V(former) restores the previous layout if a layout was installed with O(on_trial). Otherwise V(former) does nothing.
    type: str
    choices: [present, absent, former]
    default: present
  layout:
    description: Layout of the host, in the format of C(gpu_layout).
    type: list
    elements: dict
    default: []
  unit:
    description: Text of C(gpu-layout.service).
    type: str
    default: ""
  on_trial:
    description: >-
      Whether the layout is pending until a reboot. If so, the layout is not tested now, and the previous layout is kept for
      V(former).
    type: bool
    default: false
  metrics:
    description: Units that write metrics of the layout.
    type: dict
    default: {}
    suboptions:
      directory:
        description: Directory of the C(*.prom) files. If empty, the units and the file are removed.
        type: str
        default: ""
      service:
        description: Text of C(gpu-layout-metrics.service).
        type: str
        default: ""
      timer:
        description: Text of C(gpu-layout-metrics.timer).
        type: str
        default: ""
  keep:
    description: Units of C(gpu-layout keep).
    type: dict
    default: {}
    suboptions:
      wanted:
        description: Whether to install the units.
        type: bool
        default: false
      socket:
        description: Text of C(gpu-layout-keep.socket).
        type: str
        default: ""
      service:
        description: Text of C(gpu-layout-keep.service).
        type: str
        default: ""
      settings:
        description: Settings of the service.
        type: dict
        default: {}
  lease:
    description: Units of C(gpu-layout lease). They are not removed while the host has leases, unless O(records) is set.
    type: dict
    default: {}
    suboptions:
      wanted:
        description: Whether to install the units.
        type: bool
        default: false
      socket:
        description: Text of C(gpu-layout-lease.socket).
        type: str
        default: ""
      service:
        description: Text of C(gpu-layout-lease.service).
        type: str
        default: ""
      slice:
        description: Text of C(openfleet-gpu-leases.slice).
        type: str
        default: ""
      state_directory:
        description: Directory of the host's records.
        type: path
        default: /var/lib/openfleet-gpu
  readers:
    description: Accounts that may list GPU holders as root, through a sudo rule.
    type: dict
    default: {}
    suboptions:
      accounts:
        description: Names of accounts on the host.
        type: list
        elements: str
        default: []
      state_directory:
        description: Directory of the host's records.
        type: path
        default: /var/lib/openfleet-gpu
  agent:
    description: Text of C(openfleet-vgpu-agent.service), for layouts with vGPU tenants. If empty, the unit is removed.
    type: str
    default: ""
  records:
    description: With O(state=absent), the directory of records to remove.
    type: path
extends_documentation_fragment:
  - openfleet.gpu.install
  - openfleet.gpu.reload
  - openfleet.gpu.installed_code
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
  - ansible.builtin.action_common_attributes.flow
seealso:
  - module: openfleet.gpu.layout
"""

EXAMPLES = r"""
- name: Install or remove the boot service
  openfleet.gpu.layout_boot:
    layout: "{{ gpu_layout }}"
    unit: "{{ lookup('ansible.builtin.template', 'gpu-layout.service.j2') }}"
  become: true

- name: Remove the command and its units
  openfleet.gpu.layout_boot:
    state: absent
  become: true
"""

RETURN = r"""
done:
  description: Changes made. In check mode, the predicted changes. If the command is replaced, its entry contains the reason.
  returned: success
  type: list
  elements: str
  sample: ["write /usr/local/bin/gpu-layout: its content is not what was installed"]
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.install.layout_boot import argspec, bring_about
from ..module_utils.runner import run


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: bring_about(module.params, module.check_mode))


if __name__ == "__main__":
    main()
