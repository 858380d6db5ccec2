#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The documentation of plugins/action/check_variables.py, which runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: check_variables
short_description: Validate a host's variables before anything changes
version_added: "0.1.0"
description:
  - "Internal: only this collection uses this module."
  - Checks the type, choices, bounds and form of each variable in the inventory that belongs to the given roles and playbooks.
    C(docs/variables.md) lists all variables.
  - Checks the names of all variables of the host. A name is an error if it has a prefix of the collection and
    resembles one of its variables. A name is also an error if it differs from such a variable by one typing error, or by one
    missing or wrong word. A name that has a prefix of the collection but resembles no variable causes a warning.
    C(docs/variables.md) has the rules.
    Names that match C(gpu_site_own_variables) are not checked.
  - Values that depend on facts are checked later, by the role that gathers the facts.
  - The playbooks of the collection run this module in their first play. It contacts no host.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  of:
    description: Roles, for example V(gpu_layout), and playbooks, for example V(site.yml), whose variables are checked.
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
    description: Whether to return errors as RV(problems) instead of failing.
    type: bool
    default: false
  collected:
    description:
      - Results by host of earlier runs of this module with O(collect=true). Each message is reported once, with its hosts. The
        task fails if there is an error. Nothing else is checked.
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
- name: Validate the variables of the layout and of the driver
  openfleet.gpu.check_variables:
    of: [gpu_layout, nvidia_driver]

- name: Validate the variables of many hosts
  openfleet.gpu.check_variables:
    of: [gpu_layout]
    collect: true
  register: checked

- name: Report each error once
  openfleet.gpu.check_variables:
    collected: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'checked'))) }}"
  run_once: true
"""

RETURN = r"""
msg:
  description: One line for each error, with the host, the variable, the problem and the fix.
  returned: failure
  type: str
  sample: 'h100-01: gpu_layout_on_busy: unknown value "drian". Did you mean drain? It is one of fail, wait, drain, force.'
problems:
  description: One line for each error, without the host.
  returned: with O(collect=true)
  type: list
  elements: str
  sample: ['gpu_layout_on_busy: unknown value "drian". Did you mean drain? It is one of fail, wait, drain, force.']
suspicions:
  description: One line for each name that resembles a variable of the collection, without the host.
  returned: with O(collect=true)
  type: list
  elements: str
  sample: ["gpu_layout_h100: unknown variable, ignored. If it is yours, list it in gpu_site_own_variables."]
"""
