#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: installed_module
short_description: Run a module from code that is installed on the host
version_added: "0.1.0"
description:
  - "Internal: only this collection uses this module."
  - >-
    The actions of M(openfleet.gpu.layout) and M(openfleet.gpu.layout_boot) run this small module first. They send the complete
    module code only to hosts that do not have it installed.
  - The code is part of the command C(gpu-layout). C(docs/installed-code.md) lists the checks.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  module:
    description: Module to run.
    type: str
    choices: [layout, layout_boot]
    required: true
  arguments:
    description: Options of the module.
    type: dict
    required: true
  command:
    description: Path of the command.
    type: path
    default: /usr/local/bin/gpu-layout
  digest:
    description: Digest of the controller's sources.
    type: str
    required: true
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  platform:
    platforms: linux
seealso:
  - module: openfleet.gpu.layout
  - module: openfleet.gpu.layout_boot
"""

EXAMPLES = r"""
- name: Plan with the code that is installed on the host
  openfleet.gpu.installed_module:
    module: layout
    digest: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
    arguments:
      layout: "{{ gpu_layout }}"
  check_mode: true
  become: true
"""

RETURN = r"""
code_needed:
  description: Why the host cannot run the module. Otherwise, the return values come from O(module).
  returned: when the module was not run
  type: str
  sample: it is of another release, or of another Python
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.install.installed import argspec, run_installed


def main():
    run_installed(AnsibleModule(argument_spec=argspec(), supports_check_mode=True))


if __name__ == "__main__":
    main()
