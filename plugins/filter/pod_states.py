# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe the states of pods."""

from __future__ import annotations

DOCUMENTATION = r"""
name: pod_states
short_description: Describe which pods are ready and why others are not
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Returns a text for messages.
options:
  _input:
    description: Pods, as the API returned them.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Show why the device plugin is not running
  ansible.builtin.debug:
    msg: "{{ pods.resources | openfleet.gpu.pod_states }}"
"""

RETURN = r"""
_value:
  description: The pods with their states, and with the containers that are not ready.
  type: str
  sample: "pod plugin-x7k2p: container nvidia-device-plugin-ctr waits (CrashLoopBackOff: back-off 10s restarting)"
"""


def pod_states(pods):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.schedulers.kubernetes import pods as words

    return words.states(pods)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"pod_states": pod_states}
