# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the kubelet's policies with the requested alignment of CPUs and GPUs."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

DOCUMENTATION = r"""
name: kubelet_topology
short_description: Compare the kubelet's policies with the requested alignment of CPUs and GPUs
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Compares a result of M(openfleet.gpu.kubelet_info) with a policy of the kubelet's TopologyManager.
options:
  _input:
    description: The result of M(openfleet.gpu.kubelet_info).
    type: dict
    required: true
  policy:
    description: The policy that the kubelet must have.
    type: str
    choices: [none, best-effort, restricted, single-numa-node]
    required: true
  gpus:
    description: C(gpus) of a result of M(openfleet.gpu.gpu_info).
    type: list
    elements: dict
    default: []
  uses_claims:
    description: Whether pods request the GPUs with claims (V(nvidia_dra)).
    type: bool
    default: false
  node:
    description: Name of the node, for messages.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show whether the kubelet aligns CPUs and GPUs
  ansible.builtin.debug:
    msg: "{{ (kubelet | openfleet.gpu.kubelet_topology(policy='single-numa-node', node='h100-01')).problems }}"
"""

RETURN = r"""
_value:
  description: C(problems) lists differences with their fix. C(lines) lists effects of the policy on the GPUs.
  type: dict
  sample:
    problems:
      - 'node h100-01: the kubelet has cpuManagerPolicy none, so no pod gets exclusive CPUs close to its GPU. The
        policy single-numa-node needs static. Set it in /var/lib/kubelet/config.yaml, drain the node, delete
        /var/lib/kubelet/cpu_manager_state and restart the kubelet. Nothing was changed.'
    lines: []
"""


def kubelet_topology(
    kubelet: Mapping[str, Any],
    *,
    policy: str,
    node: str,
    gpus: Sequence[Mapping[str, Any]] = (),
    uses_claims: bool = False,
) -> dict[str, list[str]]:
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.schedulers.kubernetes import topology

    return {
        "problems": topology.problems(policy, kubelet, node),
        "lines": topology.lines(policy, gpus, uses_claims, node),
    }


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"kubelet_topology": kubelet_topology}
