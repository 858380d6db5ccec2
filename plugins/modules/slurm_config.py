#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_config
short_description: Write the GRES of a Slurm node to files that slurm.conf and gres.conf include
version_added: "0.1.0"
description:
  - "Internal: only this collection uses this module."
  - Writes C(openfleet_nodes.conf) and C(openfleet_gres.conf) next to C(slurm.conf). Never writes C(slurm.conf) and C(gres.conf).
  - In C(openfleet_nodes.conf), changes only C(Gres=) of the node, C(GresTypes) and C(AccountingStorageTRES). Other values of the
    node's line, such as C(CPUs) and C(RealMemory), are kept.
  - In C(openfleet_gres.conf), replaces the lines of the node.
  - Does not tell the daemons of Slurm. The role P(openfleet.gpu.gpu_slurm#role) does this, and takes refused files back.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - root
options:
  action:
    description:
      - V(plan) reports the pending change and what the administrator has to change in C(slurm.conf) and C(gres.conf) first.
      - V(begin) records O(devices), before the layout changes.
      - V(test) lets slurmd of this host read O(candidate), without using it.
      - V(write) writes the files. Before that, it records the former lines of the node in O(state_directory).
      - V(restore) writes the recorded lines. Leaves out lines with device nodes that O(gres_conf) does not name.
      - V(confirm) removes the recorded lines, and records O(devices).
    type: str
    choices: [plan, begin, test, write, restore, confirm]
    required: true
  node:
    description: Slurm's name of the node.
    type: str
    required: true
  gres:
    description: Value of C(Gres=). If empty, the node has none.
    type: str
    default: ""
  gres_types:
    description: Entries that C(GresTypes) needs. Other entries are kept.
    type: list
    elements: str
    default: []
  accounting_tres:
    description: Entries that C(AccountingStorageTRES) needs. They are written only if the cluster uses slurmdbd.
    type: list
    elements: str
    default: []
  gres_conf:
    description: Lines of C(gres.conf), each with C(NodeName=). Without this option, V(plan) keeps the lines.
    type: list
    elements: str
  candidate:
    description: For V(test), RV(candidate) of V(plan) on a host with C(slurm.conf).
    type: str
    default: ""
  devices:
    description: For V(begin) and V(confirm), the devices that Slurm has for the node, by number. Each has C(type) and C(uuid).
    type: list
    elements: dict
  directory:
    description: Directory of C(slurm.conf) on this host.
    type: path
    default: /etc/slurm
  state_directory:
    description: Directory for the record and the lock.
    type: path
    default: /var/lib/openfleet-gpu
extends_documentation_fragment:
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
attributes:
  action_group:
    support: full
    description: Use C(group/openfleet.gpu.state) in C(module_defaults) to set defaults for several modules.
    membership: [openfleet.gpu.state]
  check_mode:
    support: full
  diff_mode:
    support: full
  platform:
    platforms: linux
seealso:
  - module: openfleet.gpu.slurm_info
  - plugin: openfleet.gpu.slurm_mapping
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Write the GRES of the node
  openfleet.gpu.slurm_config:
    action: write
    node: gpu-a
    gres: gpu:h100:1
    gres_types: [gpu]
    gres_conf:
      - NodeName=gpu-a AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia0
"""

RETURN = r"""
exist:
  description: Whether the host has C(slurm.conf). Nodes of a configless cluster have none.
  returned: for V(plan)
  type: bool
  sample: true
problems:
  description: Changes that the administrator has to make first, each with its file and line.
  returned: for V(plan)
  type: list
  elements: str
  sample:
    - "/etc/slurm/slurm.conf: it does not include openfleet_nodes.conf.
       Add the line `Include /etc/slurm/openfleet_nodes.conf` to /etc/slurm/slurm.conf."
notes:
  description: Messages that do not block the change.
  returned: for V(plan) on a host with C(slurm.conf)
  type: list
  elements: str
  sample: ["/etc/slurm/gres.conf line 1: AutoDetect=nvml is not used for node gpu-a, because its lines have AutoDetect=off."]
restart:
  description: Whether C(GresTypes) changes, so that Slurm must be restarted.
  returned: for V(plan) on a host with C(slurm.conf)
  type: bool
  sample: false
interrupted:
  description: Whether an earlier change was not confirmed.
  returned: for V(plan)
  type: bool
  sample: false
candidate:
  description: The files with the pending change in one line, for V(test).
  returned: for V(plan) on a host with C(slurm.conf)
  type: str
  sample: eJyrVsovSM1Ly0lNLYnPy09JLdZLzs9LU7JSUPID8vwSc1Nt0wtKdRMV3ItSi0FMqwxDAwMri5g8pVoAk/8UsA==
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.runner import run
from ..module_utils.slurm.config import Request
from ..module_utils.slurm.files import Files, test


def _body(values: dict[str, Any], dry: bool) -> dict[str, Any]:
    files = Files(values["directory"], values["node"], values["state_directory"])
    lines = values["gres_conf"]
    request = Request(
        values["node"],
        values["gres"],
        tuple(values["gres_types"]),
        tuple(values["accounting_tres"]),
        None if lines is None else tuple(lines),
    )
    action = values["action"]
    if action == "test":
        test(values["node"], values["candidate"], lines)
        return {"changed": False}
    if action == "plan" or (action == "write" and dry):
        return files.plan(request)
    if dry:
        return {"changed": files.interrupted}
    if action == "write":
        return files.write(request)
    if action == "begin":
        return files.begin(values["devices"] or [])
    return files.restore(lines) if action == "restore" else files.confirm(values["devices"])


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        {
            "action": {
                "type": "str",
                "choices": ["plan", "begin", "test", "write", "restore", "confirm"],
                "required": True,
            },
            "node": {"type": "str", "required": True},
            "gres": {"type": "str", "default": ""},
            "gres_types": {"type": "list", "elements": "str", "default": []},
            "accounting_tres": {"type": "list", "elements": "str", "default": []},
            "gres_conf": {"type": "list", "elements": "str"},
            "candidate": {"type": "str", "default": ""},
            "devices": {"type": "list", "elements": "dict"},
            "directory": {"type": "path", "default": "/etc/slurm"},
            "state_directory": {"type": "path", "default": "/var/lib/openfleet-gpu"},
        },
        supports_check_mode=True,
    )
    run(module, lambda: _body(module.params, module.check_mode))


if __name__ == "__main__":
    main()
