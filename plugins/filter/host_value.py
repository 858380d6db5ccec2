# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check a value that a managed host sent."""

from __future__ import annotations

DOCUMENTATION = r"""
name: host_value
short_description: Check a value that a managed host sent, before the controller uses it
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - A host that was taken over returns what it likes in place of a module's result. Where such a value becomes a path, a name, an
    argument or a line of a file on the controller, this filter says whether it is what it should be.
  - Returns a problem rather than failing, so that the caller can say what was not done.
positional: kind, host
options:
  _input:
    description: The value.
    type: raw
    required: true
  kind:
    description:
      - What it should be. V(text) takes any value and makes it a short text without control characters.
      - V(line) does so too, with one blank in place of line ends.
      - V(any) makes a copy with such texts, in which very long lists and mappings are cut.
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
- name: Stop where the host calls its architecture something else
  ansible.builtin.assert:
    that: said.problem == ''
    fail_msg: "{{ said.problem }}"
  vars:
    said: "{{ result.stdout | openfleet.gpu.host_value('architecture', inventory_hostname) }}"
"""

RETURN = r"""
_value:
  description: C(problem), a message, empty where there is none; then C(value) is the value.
  type: dict
"""

from ansible.errors import AnsibleFilterError

from ..plugin_utils.host_values import KINDS, HostValueError, bounded, checked


def host_value(value, kind, host=""):
    """See DOCUMENTATION."""
    if kind == "any":
        return {"value": bounded(value), "problem": ""}
    if kind not in KINDS:
        raise AnsibleFilterError("host_value: there is no kind %r. It is one of %s." % (kind, ", ".join(sorted(KINDS))))
    try:
        return {"value": checked(host, "its result", kind, value), "problem": ""}
    except HostValueError as error:
        return {"problem": str(error)}


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"host_value": host_value}
