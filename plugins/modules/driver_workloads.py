#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_workloads
short_description: Refuse to change a driver whose GPUs are in use
version_added: "0.1.0"
description:
  - "Internal: only this collection uses this module."
  - Finds the workloads on all GPUs of the host, as M(openfleet.gpu.layout) does before a reboot. Watchers do not count.
  - If the driver does not answer, the GPUs are read from the kernel.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  on_busy:
    description: V(fail) fails if workloads block the change. V(force) only reports them.
    type: str
    choices: [fail, force]
    default: fail
  drained_by:
    description:
      - Parts of the drain before the change. Workloads that they end do not block it.
      - C(services) lists systemd units. C(slurm), C(kubernetes) and C(commands) are true if jobs, pods or custom commands are
        part of the drain. Without this option, every workload blocks.
    type: dict
    default: {}
  state_directory:
    description: Directory on the host with the collection's records.
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
  - module: openfleet.gpu.driver
"""

EXAMPLES = r"""
- name: Check that only drained services use the GPUs
  openfleet.gpu.driver_workloads:
    drained_by: {services: [dcgm-exporter, inference]}
  become: true
"""

RETURN = r"""
workloads:
  description: Workloads on the GPUs, by GPU. Also those that the drain ends.
  returned: success
  type: list
  elements: dict
  sample: [{what: "gpu 0 (GPU-5c89d3fa), whose driver would change,", who: ["pid 4711 (python3 train.py, user alice)"]}]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.driver.in_use import refuse, workloads
from ..module_utils.runner import run


def argspec() -> dict[str, Any]:
    return {
        "on_busy": {"type": "str", "choices": ["fail", "force"], "default": "fail"},
        "drained_by": {"type": "dict", "default": {}},
        "state_directory": {"type": "path", "default": "/var/lib/openfleet-gpu"},
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)

    def body() -> dict[str, Any]:
        found = workloads(module.params["state_directory"])
        if module.params["on_busy"] == "fail":
            refuse(found, module.params["drained_by"], module.params["state_directory"])
        lines = "".join("in use: %s\n" % each for each in found)
        diff = {"before": "", "after": lines}
        return {"changed": False, "workloads": [each.to_data() for each in found], "diff": diff}

    run(module, body)


if __name__ == "__main__":
    main()
