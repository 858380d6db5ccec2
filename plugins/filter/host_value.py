# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Validate a value that a managed host sent."""

from __future__ import annotations

DOCUMENTATION = r"""
name: host_value
short_description: Validate a value that a managed host sent
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - A compromised host can return anything instead of a module's result. This filter validates such a value before the controller
    uses it as a path, a name, an argument or a line of a file.
  - Returns a problem instead of failing, so that the caller can report what was not done.
positional: kind, host
options:
  _input:
    description: The value.
    type: raw
    required: true
  kind:
    description:
      - Expected kind of the value. V(text) converts any value to a short text without control characters.
      - V(line) does the same, and replaces line ends with spaces.
      - V(any) copies a nested value, converts its texts in the same way, and truncates very long lists and mappings.
    type: str
    choices:
      - any
      - architecture
      - container
      - count
      - flag
      - gpu_uuid
      - line
      - mig_uuid
      - model
      - name
      - number
      - pci_address
      - pci_device
      - pod_uid
      - profile
      - small
      - text
      - unit
      - version
    required: true
  host:
    description: Name of the host in the inventory, for the problem.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Check the architecture that the host reports
  ansible.builtin.assert:
    that: architecture.problem == ''
    fail_msg: "{{ architecture.problem }}"
  vars:
    architecture: "{{ result.stdout | openfleet.gpu.host_value('architecture', inventory_hostname) }}"
"""

RETURN = r"""
_value:
  description: C(problem) is a message, or empty if the value is valid. C(value) is set only if the value is valid.
  type: dict
  sample:
    value: x86_64
    problem: ''
"""

from ansible.errors import AnsibleFilterError

from ..plugin_utils.host_values import KINDS, HostValueError, bounded, checked


def host_value(value, kind, host=""):
    """See DOCUMENTATION."""
    if kind == "any":
        return {"value": bounded(value), "problem": ""}
    if kind not in KINDS:
        raise AnsibleFilterError("host_value: unknown kind %r. Use one of %s." % (kind, ", ".join(sorted(KINDS))))
    try:
        return {"value": checked(host, "its result", kind, value), "problem": ""}
    except HostValueError as error:
        return {"problem": str(error)}


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"host_value": host_value}
