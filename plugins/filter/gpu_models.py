# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Flatten gpu_simulator_gpus to one catalogue key per GPU."""

from __future__ import annotations

DOCUMENTATION = r"""
name: gpu_models
short_description: List the GPU model of each index from a list of models and counts
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Turns C([{model, count}]), the form of C(gpu_simulator_gpus), into one catalogue key per GPU, in index order.
options:
  _input:
    description: Groups of GPUs, each with C(model) and C(count) (default 1).
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
# produces [H100-80GB, H100-80GB, L40S-48GB]
- name: List the models
  ansible.builtin.debug:
    msg: "{{ [{'model': 'H100-80GB', 'count': 2}, {'model': 'L40S-48GB'}] | openfleet.gpu.gpu_models }}"
"""

RETURN = r"""
_value:
  description: One catalogue key per GPU.
  type: list
  elements: str
"""


def gpu_models(groups):
    """See DOCUMENTATION."""
    return [group["model"] for group in groups for _ in range(int(group.get("count", 1)))]


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"gpu_models": gpu_models}
