# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find GPUs that Kubernetes and Slurm would both offer."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

DOCUMENTATION = r"""
name: double_offers
short_description: Find GPUs that Kubernetes and Slurm would both offer
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Returns a message for the GPUs of a host that are in the offers of both schedulers, with their entries, indexes and UUIDs.
    Each scheduler would give such a GPU to another program. The list is empty if there is no such GPU.
positional: slurm
options:
  _input:
    description: The key C(offered) of a result of P(openfleet.gpu.kubernetes_mapping#filter).
    type: list
    elements: dict
    required: true
  slurm:
    description: A result of P(openfleet.gpu.slurm_mapping#filter) for the same host.
    type: dict
    required: true
  node:
    description: Name of the node, for messages.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show which GPUs both schedulers would offer
  ansible.builtin.debug:
    msg: "{{ kubernetes.offered | openfleet.gpu.double_offers(slurm, node='h100-01') }}"
"""

RETURN = r"""
_value:
  description: The messages.
  type: list
  elements: str
  sample:
    - 'node h100-01: Kubernetes (gpu_kubernetes_backend) and Slurm (gpu_slurm_state) would offer the same GPUs:
      gpu_layout[0] gpu 0 (GPU-5c89d3fa-0000-4000-8000-000000000001). Set only one of the two variables for the
      host. Nothing was changed.'
"""


def double_offers(offered: Sequence[Mapping[str, Any]], slurm: Mapping[str, Any], *, node: str) -> list[str]:
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.schedulers.other_offers import between_schedulers

    offers = {"Kubernetes (gpu_kubernetes_backend)": offered, "Slurm (gpu_slurm_state)": slurm["offered"]}
    return between_schedulers(node, offers)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"double_offers": double_offers}
