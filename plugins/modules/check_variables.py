#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The documentation of plugins/action/check_variables.py, which does all of it on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: check_variables
short_description: Check a host's variables before anything changes
version_added: "0.1.0"
description:
  - Checks each variable of the roles and playbooks named that the inventory sets, its type, its choices, its bounds and its form.
    C(docs/variables.md) lists all variables.
  - Checks the names of all variables of the host. A name that begins like the collection's names and resembles one of them is an
    error. So is a name with a single typing error, or with a missing or wrong word. A name that only begins like them is a
    warning. C(docs/variables.md) has the whole rule. Names that match C(gpu_site_own_variables) are left out.
  - A value that is made of facts is left to the role that gathers them.
  - The playbooks of the collection run it in their first play. It reaches no host.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  of:
    description: Roles, as V(gpu_layout), and playbooks, as V(site.yml), whose variables are checked.
    type: list
    elements: str
    default: []
  required:
    description: Variables that the host must have.
    type: list
    elements: str
    default: []
  unread:
    description: Variables that the play does not read. Their values are not checked.
    type: list
    elements: str
    default: []
  collect:
    description: Return what is wrong as RV(problems), and do not fail.
    type: bool
    default: false
  collected:
    description:
      - What this module returned with O(collect=true), by host. They are reported together, each message once with its hosts.
        The task fails if there is an error. Nothing else is checked.
    type: dict
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  platform:
    platforms: posix
seealso:
  - module: ansible.builtin.validate_argument_spec
"""

EXAMPLES = r"""
- name: Check the variables of the layout and of the driver
  openfleet.gpu.check_variables:
    of: [gpu_layout, nvidia_driver]

- name: Check the variables of many hosts
  openfleet.gpu.check_variables:
    of: [gpu_layout]
    collect: true
  register: checked

- name: Report what is wrong, each message once
  openfleet.gpu.check_variables:
    collected: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'checked'))) }}"
  run_once: true
"""

RETURN = r"""
msg:
  description: What is wrong, a line each, with the host, the variable, what is wrong with it and how to mend it.
  returned: failure
  type: str
  sample: 'h100-01: gpu_layout_on_busy: unknown value "drian". Did you mean drain? It is one of fail, wait, drain, force.'
problems:
  description: The same without the host.
  returned: with O(collect=true)
  type: list
  elements: str
suspicions:
  description: Names that resemble a variable of the collection, without the host.
  returned: with O(collect=true)
  type: list
  elements: str
"""
