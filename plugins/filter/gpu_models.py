# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Expand gpu_simulator_gpus to one catalogue key per GPU."""

from __future__ import annotations

DOCUMENTATION = r"""
name: gpu_models
short_description: Expand models with counts to one model per GPU
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Converts a list like C(gpu_simulator_gpus), with C(model) and C(count), to one catalogue key per GPU, in index order.
  - If the input is invalid, the error message contains C(gpu_simulator_gpus), the entry and the fix.
options:
  _input:
    description: Groups of GPUs, each with C(model) and C(count) (default 1).
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the models H100-80GB, H100-80GB and L40S-48GB
  ansible.builtin.debug:
    msg: "{{ [{'model': 'H100-80GB', 'count': 2}, {'model': 'L40S-48GB'}] | openfleet.gpu.gpu_models }}"
"""

RETURN = r"""
_value:
  description: One catalogue key per GPU.
  type: list
  elements: str
  sample: [H100-80GB, H100-80GB, L40S-48GB]
"""

from ansible.errors import AnsibleFilterError

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import MOST_SIMULATED_GPUS
from ansible_collections.openfleet.gpu.plugins.module_utils.layout.reader import is_digits, is_integer, number, quoted


def gpu_models(groups):
    """See DOCUMENTATION."""
    if not isinstance(groups, list):
        raise _problem("gpu_simulator_gpus", f"is {groups!r}, not a list of GPUs", "[{model: H100-80GB, count: 8}]")
    models = [model for index, group in enumerate(groups) for model in _models(f"gpu_simulator_gpus[{index}]", group)]
    if len(models) > MOST_SIMULATED_GPUS:
        problem = f"has {len(models)} GPUs, but the maximum of a simulated host is {MOST_SIMULATED_GPUS}"
        raise _problem("gpu_simulator_gpus", problem, "[{model: H100-80GB, count: 8}]")
    return models


def _models(where, group):
    example = "{model: H100-80GB, count: 8}"
    if not isinstance(group, dict):
        raise _problem(where, f"is {group!r}, not a model and a count", example)
    unknown = [str(key) for key in group if key not in ("model", "count")]
    if unknown:
        raise _problem(where, f"has the unknown key {', '.join(unknown)}. Its keys are model and count", example)
    model, count = group.get("model"), group.get("count", 1)
    if not isinstance(model, str) or not model:
        problem = "has no model" if model is None else f"has the model {model!r}, which is not a name"
        raise _problem(where, problem, example)
    # A template may return a number as a string.
    text = quoted(count)[1:-1]
    if isinstance(count, bool) or not is_digits(text) or not 1 <= int(text) <= MOST_SIMULATED_GPUS:
        shown = number(count) if is_integer(count) else repr(count)[:60]
        problem = f"has the count {shown}, which is not a whole number from 1 to {MOST_SIMULATED_GPUS}"
        raise _problem(where, problem, example)
    return [model] * int(text)


def _problem(where, problem, example):
    return AnsibleFilterError(f"{where} {problem}. Write for example {example}.")


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"gpu_models": gpu_models}
