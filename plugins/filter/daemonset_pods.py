# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pods that come back once they are deleted."""

from __future__ import annotations

DOCUMENTATION = r"""
name: daemonset_pods
short_description: List the names of the pods that a DaemonSet owns
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Of pods of one namespace, as the API returned them. Names that no pod can have are left out.
options:
  _input:
    description: The pods.
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
  description: Their names.
  type: list
  elements: str
"""


def daemonset_pods(pods):
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection in the worker of each task that uses one. What takes long waits for its use.
    from ..plugin_utils.schedulers.kubernetes import api_objects

    return api_objects.daemonset_pods(pods)


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"daemonset_pods": daemonset_pods}
