#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: installed_module
short_description: Run a module by the code that the host has
version_added: "0.1.0"
description:
  - >-
    The actions of M(openfleet.gpu.layout) and M(openfleet.gpu.layout_boot) ask a host by this module first, which is small. The
    code of those modules is sent only to a host that lacks it. Playbooks have no use for it.
  - >-
    The command C(gpu-layout) has this code. Before anything of it runs, the module checks that O(command) is a regular file of
    the user that the module runs as (root), with mode 0755, that it is what was installed, and that it was made from sources of
    exactly this O(digest) by the Python that the module runs under. It runs the file that it has checked, also where another one
    takes its place meanwhile.
  - C(docs/installed-code.md) says more, and how to switch it off.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  module:
    description: The module to run.
    type: str
    choices: [layout, layout_boot]
    required: true
  arguments:
    description: Its options.
    type: dict
    required: true
  command:
    description: Where the command is.
    type: path
    default: /usr/local/bin/gpu-layout
  digest:
    description: The digest of the sources that the controller has.
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
- name: Plan by the code that the host has
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
  description: Why the host cannot run it. Otherwise the return values are those of the module O(module).
  returned: when nothing was run
  type: str
  sample: it is of another release, or of another Python
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.install.installed import argspec, run_installed


def main():
    run_installed(AnsibleModule(argument_spec=argspec(), supports_check_mode=True))


if __name__ == "__main__":
    main()
