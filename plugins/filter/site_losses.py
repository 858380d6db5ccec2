# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide whether site.yml continues without the hosts that have no plan."""

from __future__ import annotations

DOCUMENTATION = r"""
name: site_losses
short_description: Decide whether a run continues without the hosts that have no plan
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Compares the number of hosts without a plan to the tolerated number.
  - A host with an invalid layout or invalid variables is never tolerated.
options:
  _input:
    description: Results of failed tasks by host. A host with neither a plan nor a failed task counts as unreachable.
    type: dict
    required: true
  hosts:
    description: All hosts of the run.
    type: list
    elements: str
    required: true
  planned:
    description: Hosts that have a plan.
    type: list
    elements: str
    required: true
  tolerate:
    description: Tolerated number of hosts without a plan, or a percentage of O(hosts).
    type: raw
    default: 0
"""

EXAMPLES = r"""
- name: Check that enough hosts have a plan
  ansible.builtin.assert:
    that: site_losses.refusal == ''
    fail_msg: "{{ site_losses.refusal }}"
  vars:
    site_losses: "{{ {} | openfleet.gpu.site_losses(hosts=ansible_play_hosts_all, planned=ansible_play_hosts, tolerate='5%') }}"
"""

RETURN = r"""
_value:
  description:
    - C(left_out) has the reason for each host without a plan.
    - C(words) has a short form of the reason. Messages that follow the host's error use it.
    - C(errors) lists errors that no task has printed, with one line for all hosts with the same error.
    - C(refusal) is the reason why the run does not continue, with the fix. Empty if the run continues.
  type: dict
  sample:
    left_out: {h100-02: could not be reached}
    words: {h100-02: could not be reached}
    errors: []
    refusal: 'No plan for h100-02 (could not be reached). Fix this host, exclude it (--limit ''!h100-02''), or allow 1
      host without a plan (gpu_site_tolerate: 1). Nothing was changed.'
"""

from ansible.errors import AnsibleFilterError

from ..plugin_utils.site.losses import losses


def site_losses(failures, hosts, planned, tolerate=0):
    """See DOCUMENTATION."""
    try:
        decision = losses(list(hosts), list(planned), failures, tolerate)
    except ValueError as error:
        raise AnsibleFilterError("site_losses: %s" % error) from error
    return {
        "left_out": dict(decision.left_out),
        "words": dict(decision.words),
        "errors": list(decision.errors),
        "refusal": decision.refusal,
    }


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"site_losses": site_losses}
