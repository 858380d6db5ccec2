#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: layout_boot
short_description: Install the command gpu-layout and the unit that restores the layout at boot
version_added: "0.1.0"
description:
  - Installs the command C(gpu-layout), the host's layout as a file, the unit that restores it at boot, and the units of metrics,
    of C(gpu-layout keep) and of the agent of vGPU tenants, or removes all of them.
  - MIG instances never survive a restart of the host.
  - The role P(openfleet.gpu.gpu_layout#role) uses it with its own units.
  - The sources of the command travel only to a host whose command is missing, damaged, of another release or of another Python.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  state:
    description:
      - V(present) installs, V(absent) removes.
      - V(former) takes back a layout that was installed O(on_trial), and does nothing if none is on trial.
    type: str
    choices: [present, absent, former]
    default: present
  layout:
    description: The layout of the host, as C(gpu_layout).
    type: list
    elements: dict
    default: []
  unit:
    description: Text of C(gpu-layout.service).
    type: str
    default: ""
  on_trial:
    description: Whether the layout waits for a reboot. It is not tried then, and the layout before it is kept.
    type: bool
    default: false
  metrics:
    description: The units that write metrics of the layout.
    type: dict
    default: {}
    suboptions:
      directory:
        description: Directory of the C(*.prom) files. Empty removes the units and the file.
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
    description: The units behind C(gpu-layout keep).
    type: dict
    default: {}
    suboptions:
      wanted:
        description: Whether they are installed.
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
        description: What the service reads.
        type: dict
        default: {}
  readers:
    description: The accounts that may ask who holds the GPUs, by a rule of sudo.
    type: dict
    default: {}
    suboptions:
      accounts:
        description: Names of accounts of the host.
        type: list
        elements: str
        default: []
      state_directory:
        description: The directory of the host's records.
        type: path
        default: /var/lib/openfleet-gpu
  agent:
    description: Text of C(openfleet-vgpu-agent.service), for hosts whose layout has vGPU tenants. Empty removes the unit.
    type: str
    default: ""
  records:
    description: With O(state=absent), a directory of records to remove.
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
  description: What was done, or in check mode would be done. A command that is replaced comes with the reason.
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
