#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_task_prolog
short_description: Install the TaskProlog that gives Slurm jobs the UUIDs of their GPUs
version_added: "0.1.0"
description:
  - "Internal: only this collection uses this module."
  - Installs a program for C(TaskProlog) of C(slurm.conf), the list of devices that it reads, and the unit
    C(openfleet-slurm-devices.service) that refreshes the list before each start of C(slurmd).
  - It does not change C(slurm.conf). RV(advice) contains the line to add.
  - The role P(openfleet.gpu.gpu_slurm#role) uses this module.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  state:
    description: >-
      V(present) installs, V(absent) removes. The program is kept while C(slurm.conf) uses it, because Slurm starts no task
      without it.
    type: str
    choices: [present, absent]
    default: present
  node:
    description: Slurm's name of the host.
    type: str
    default: ""
  gres_conf:
    description: Lines of C(gres.conf) for the node. Without this option, O(gres_file) is read.
    type: list
    elements: str
  gres_file:
    description: >-
      Path of the C(gres.conf) on the host. If the numbers of MIG capabilities change at a boot, the unit corrects them in the
      lines with this C(NodeName). If empty, no file is corrected.
    type: str
    default: ""
  types:
    description: Types of GPUs in the order of C(Gres=) of the node. If empty, the lines of C(gres.conf) have this order.
    type: list
    elements: str
    default: []
  devices:
    description: Expected UUIDs by number, from P(openfleet.gpu.slurm_mapping#filter). If they differ, the module fails.
    type: list
    elements: str
    default: []
  in_use:
    description: >-
      Whether Slurm uses these lines of C(gres.conf) already. If not, only devices that keep their number are listed until the
      next start of slurmd or the next run.
    type: bool
    default: true
  program:
    description: Text of the program.
    type: str
    default: ""
  unit:
    description: Text of C(openfleet-slurm-devices.service).
    type: str
    default: ""
extends_documentation_fragment:
  - openfleet.gpu.install
  - openfleet.gpu.reload
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
  - ansible.builtin.action_common_attributes.flow
attributes:
  action:
    support: none
seealso:
  - plugin: openfleet.gpu.slurm_mapping
    plugin_type: filter
  - module: openfleet.gpu.slurm_info
"""

EXAMPLES = r"""
- name: Install the TaskProlog for the devices in gres.conf
  openfleet.gpu.slurm_task_prolog:
    node: h100-01
    gres_file: /etc/slurm/gres.conf
    program: "{{ lookup('ansible.builtin.file', 'task-prolog') }}"
    unit: "{{ lookup('ansible.builtin.template', 'openfleet-slurm-devices.service.j2') }}"
"""

RETURN = r"""
done:
  description: Steps, in order.
  returned: success
  type: list
  elements: str
  sample: [write /usr/lib/openfleet-gpu/slurm/task-prolog]
devices:
  description: UUIDs of the devices by Slurm's number. A device that does not exist has its last one, or an empty one.
  returned: success
  type: list
  elements: str
  sample: [GPU-5c89d3fa-0000-4000-8000-000000000001]
advice:
  description: Change that C(slurm.conf) needs. Empty if nothing is missing, or if C(slurmctld) does not respond.
  returned: success
  type: str
  sample: Add TaskProlog=/usr/lib/openfleet-gpu/slurm/task-prolog to slurm.conf, and run scontrol reconfigure.
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.install import sources
from ..module_utils.install.slurm_task_prolog import body
from ..module_utils.runner import run


def argspec() -> dict[str, Any]:
    """Return the options of the module."""
    text: dict[str, Any] = {"type": "str", "default": ""}
    texts: dict[str, Any] = {"type": "list", "elements": "str", "default": []}
    return {
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "node": text,
        "gres_conf": {"type": "list", "elements": "str"},
        "gres_file": text,
        "types": texts,
        "devices": texts,
        "in_use": {"type": "bool", "default": True},
        "program": text,
        "unit": text,
        **sources.argspec(),
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: sources.bring_about(module.params, module.check_mode, body))


if __name__ == "__main__":
    main()
