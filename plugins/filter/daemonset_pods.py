# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the pods that a DaemonSet would recreate."""

from __future__ import annotations

DOCUMENTATION = r"""
name: daemonset_pods
short_description: List the names of the pods that a DaemonSet owns
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Returns names of pods in one namespace. Invalid names are omitted.
options:
  _input:
    description: Pods of one namespace, as the API returned them.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the pods that can be restarted
  ansible.builtin.debug:
    msg: "{{ pods.resources | openfleet.gpu.daemonset_pods }}"
"""

RETURN = r"""
_value:
  description: Names of the pods.
  type: list
  elements: str
  sample: [nvidia-device-plugin-x7k2p]
"""


def daemonset_pods(pods):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.schedulers.kubernetes import api_objects

    return api_objects.daemonset_pods(pods)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"daemonset_pods": daemonset_pods}
