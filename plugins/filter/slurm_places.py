# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Combine the plans of Slurm's files on several hosts."""

from __future__ import annotations

from typing import Any, Callable

DOCUMENTATION = r"""
name: slurm_places
short_description: Combine the plans of Slurm's files on the controllers and on the node
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Returns what the hosts that have files of Slurm report with C(action=plan) of M(openfleet.gpu.slurm_config).
options:
  _input:
    description: The results of a task with M(openfleet.gpu.slurm_config) and a loop over names of hosts.
    type: list
    elements: dict
    required: true
  node:
    description: Name of the host that is the Slurm node.
    type: str
    required: true
seealso:
  - module: openfleet.gpu.slurm_config
"""

EXAMPLES = r"""
- name: Show the hosts whose files would change
  ansible.builtin.debug:
    msg: "{{ (plans.results | openfleet.gpu.slurm_places(node=inventory_hostname)).write }}"
"""

RETURN = r"""
_value:
  description:
    - C(problems) lists messages, each with its host. C(notes) lists messages that block nothing.
    - C(write) lists hosts whose files would change, and C(files) lists hosts with C(slurm.conf).
    - C(restart) is true if the change needs a restart of Slurm. C(interrupted) is true if an earlier change was not confirmed.
    - C(candidate) is the input of C(action=test) on the node.
  type: dict
  sample:
    problems: []
    notes: []
    write: [h100-01]
    files: [h100-01]
    restart: false
    interrupted: false
    candidate: eJyrVsovSM1Ly0lNLYnPy09JLdZLzs9LU7JSUPID8vwSc1Nt0wtKdRMV3ItSi0FMqwxDAwMri5g8pVoAk/8UsA==
"""


def slurm_places(results: list[dict[str, Any]], node: str) -> dict[str, Any]:
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.schedulers.slurm.places import places

    return places(results, node)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"slurm_places": slurm_places}
