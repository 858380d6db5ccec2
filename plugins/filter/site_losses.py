# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter that decides whether site.yml goes on without the hosts that have no plan."""

from __future__ import annotations

DOCUMENTATION = r"""
name: site_losses
short_description: Decide whether a run goes on without the hosts that have no plan
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Holds the hosts that were to be planned against those that have a plan, and against how many may be lost.
  - A host whose layout or variables are wrong is never tolerated.
options:
  _input:
    description: By host, the result of the task that failed there. A host without a plan that has none could not be reached.
    type: dict
    required: true
  hosts:
    description: The hosts that were to be planned.
    type: list
    elements: str
    required: true
  planned:
    description: Those that have a plan.
    type: list
    elements: str
    required: true
  tolerate:
    description: How many may be without, as a number or as a percentage of the hosts.
    type: raw
    default: 0
"""

EXAMPLES = r"""
- name: Stop where too many hosts have no plan
  ansible.builtin.assert:
    that: site_losses.refusal == ''
    fail_msg: "{{ site_losses.refusal }}"
  vars:
    site_losses: "{{ {} | openfleet.gpu.site_losses(hosts=ansible_play_hosts_all, planned=ansible_play_hosts, tolerate='5%') }}"
"""

RETURN = r"""
_value:
  description:
    - C(left_out), the reason by host.
    - C(words), a few words by host, for a message after its error.
    - C(errors), the errors that no task has printed, one line for all hosts with the same error.
    - C(refusal), why the run does not continue and what to do, empty if it continues.
  type: dict
"""

from ansible.errors import AnsibleFilterError

from ..plugin_utils.site.losses import losses


def site_losses(failures, hosts, planned, tolerate=0):
    """See DOCUMENTATION."""
    try:
        found = losses(list(hosts), list(planned), failures, tolerate)
    except ValueError as error:
        raise AnsibleFilterError("site_losses: %s" % error) from error
    return {
        "left_out": dict(found.left_out),
        "words": dict(found.words),
        "errors": list(found.errors),
        "refusal": found.refusal,
    }


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"site_losses": site_losses}
