#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_simulator
short_description: Install simulated NVIDIA GPUs
version_added: "0.1.0"
description:
  - "Internal: only this collection uses this module."
  - Builds and installs a library that simulates NVML and the tool C(gpusim), and configures simulated GPUs. Or removes all of
    these.
  - The role P(openfleet.gpu.gpu_simulator#role) installs a compiler if one is missing.
  - Sources are sent only to a host whose installation is missing, damaged or outdated.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  state:
    description: V(present) installs, V(absent) removes.
    type: str
    choices: [present, absent]
    default: present
  configuration:
    description: Configuration for C(gpusim init), with C(host), C(driver_version) and C(gpus).
    type: dict
    default: {}
  hide_real_gpus:
    description: Whether to install on a host with real GPUs, and hide the real GPUs. Otherwise the module fails on such a host.
    type: bool
    default: false
  kernel_files:
    description: Whether to write the files that the driver's kernel module would provide, now and at each boot.
    type: bool
    default: false
extends_documentation_fragment:
  - openfleet.gpu.install
  - openfleet.gpu.reload
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
  - ansible.builtin.action_common_attributes.flow
"""

EXAMPLES = r"""
- name: Simulate eight GPUs
  openfleet.gpu.gpu_simulator:
    configuration:
      host: "{{ inventory_hostname }}"
      driver_version: 580.105.08
      gpus: [{model: H100-80GB, count: 8}]
  become: true
"""

RETURN = r"""
done:
  description: Changes made. In check mode, the predicted changes.
  returned: success
  type: list
  elements: str
  sample: [laid out 8 simulated GPUs of gpu-01]
missing:
  description: Programs that the build of the library needs and the host lacks. If any are missing, nothing was changed.
  returned: success
  type: list
  elements: str
  sample: [cc, make]
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.install import sources
from ..module_utils.install.gpu_simulator import install, uninstall
from ..module_utils.runner import run


def argspec():
    return {
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "configuration": {"type": "dict", "default": {}},
        "hide_real_gpus": {"type": "bool", "default": False},
        "kernel_files": {"type": "bool", "default": False},
        **sources.argspec(),
    }


def body(params, target, given):
    """Apply the desired state and return the missing programs."""
    if params["state"] == "absent":
        uninstall(target)
        return {"missing": []}
    return install(target, params, given)


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: sources.bring_about(module.params, module.check_mode, body))


if __name__ == "__main__":
    main()
