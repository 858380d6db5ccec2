# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Map a GPU layout to the GRES of a Slurm node."""

from __future__ import annotations

from typing import Any, Callable, Sequence

DOCUMENTATION = r"""
name: slurm_mapping
short_description: Map a GPU layout to the GRES of a Slurm node
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Returns C(Gres=) of the node, the lines of C(gres.conf), and the running jobs that must end before the change. It contacts
    neither Slurm nor a host, and writes no file.
  - If Slurm cannot express an entry, C(refusals) has the reason, and lists the backends for Kubernetes that can express it.
  - Returns problems instead of failing, so that the caller can add the host to the message.
extends_documentation_fragment:
  - openfleet.gpu.host_gpus
  - openfleet.gpu.host_gpus.state
options:
  slurm:
    description: >-
      Result of M(openfleet.gpu.slurm_info) for the host. Without it, only the GRES are returned. Shards beside MIG are then
      refused, because the version of Slurm is unknown.
    type: dict
    default: {}
  kept:
    description: >-
      UUIDs of the MIG devices that the layout's plan keeps: C(kept) of each GPU in RV(openfleet.gpu.layout#module:plan_data).
      Jobs on them are not affected.
    type: list
    elements: str
    default: []
  node:
    description: Name of the host in messages. O(slurm) has the name of the node.
    type: str
    default: ""
  removed:
    description: Whether to return the change that removes the GRES of the GPUs, instead of those of the layout.
    type: bool
    default: false
seealso:
  - module: openfleet.gpu.slurm_info
  - plugin: openfleet.gpu.kubernetes_mapping
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Show the GRES of a host with one partitioned GPU
  ansible.builtin.debug:
    msg: >-
      {{ ([{'gpus': [0], 'sharing': 'mig', 'mig': [{'profile': '3g.40gb', 'count': 2}]}]
          | openfleet.gpu.slurm_mapping(expected_gpus=['H100-80GB'] * 8)).gres }}
# gpu:3g.40gb:2,gpu:h100:7
"""

RETURN = r"""
_value:
  description: The mapping.
  type: dict
  sample:
    resources: {'gpu:3g.40gb': 2, 'gpu:h100': 1}
    config:
      Gres: gpu:3g.40gb:2,gpu:h100:1
      GresTypes: [gpu]
      AccountingStorageTRES: [gres/gpu, 'gres/gpu:3g.40gb', 'gres/gpu:h100']
    requests: []
    notes: ['No entry lists gpu 1, so Slurm gets the current state.']
    refusals: []
    devices: []
    problems: []
    checked: true
    plan:
      - 'node h100-01: gres gpu:3g.40gb:2,gpu:h100:1'
      - No entry lists gpu 1, so Slurm gets the current state.
    gres: gpu:3g.40gb:2,gpu:h100:1
    gres_conf: []
    current: []
    restart: false
    change: {}
  contains:
    backend:
      description: >-
        Always V(slurm).
      type: str
    offered:
      description: >-
        GPUs that Slurm gets, each with C(where) (its entry), C(index) and C(uuid).
      type: list
      elements: dict
    left_out:
      description: >-
        GPUs that Slurm does not get, each with C(where), C(gpus) and C(reason).
      type: list
      elements: dict
    labels:
      description: >-
        Always empty, as C(config_name) and C(registered). The mapping for Kubernetes uses these keys.
      type: dict
    config_name:
      description: >-
        Always empty.
      type: str
    registered:
      description: >-
        Always empty.
      type: dict
    problems:
      description: >-
        Messages. Empty if the layout can be mapped.
      type: list
      elements: str
    checked:
      description: >-
        Whether the GPUs were known. If not, only the syntax of the layout was checked.
      type: bool
    plan:
      description: >-
        Lines to print.
      type: list
      elements: str
    gres:
      description: >-
        The value of C(Gres=) for the node, including pads and GRES that are not GPUs.
      type: str
    resources:
      description: >-
        Number of each GRES of the layout by name.
      type: dict
    config:
      description: >-
        C(Gres), C(GresTypes) and C(AccountingStorageTRES) without pads.
      type: dict
    gres_conf:
      description: >-
        Lines of C(gres.conf). Empty without O(slurm), while the MIG instances of a GPU differ from the layout, and while a
        device node is missing.
      type: list
      elements: str
    devices:
      description: >-
        UUIDs by their number in C(CUDA_VISIBLE_DEVICES) of a job. A pad has an empty UUID. Empty in the same cases as
        C(gres_conf).
      type: list
      elements: str
    current:
      description: >-
        Devices that Slurm has now by number, each with C(type) and C(uuid). Empty without O(slurm).
      type: list
      elements: dict
    restart:
      description: >-
        Whether the daemons take new GRES only when they restart. False without O(slurm).
      type: bool
    change:
      description: >-
        C(way) is V(nothing), V(in place), V(affected jobs) or V(all jobs). C(jobs) lists the jobs that must end first.
        C(restart) says whether slurmctld and slurmd must be restarted, because C(scontrol reconfigure) does not apply the
        change. Empty without O(slurm).
      type: dict
    requests:
      description: >-
        How jobs request shares of a GPU, each with C(where), C(name), C(limits), C(annotations) and C(environment).
      type: list
      elements: dict
    notes:
      description: >-
        Sentences about GPUs of the node.
      type: list
      elements: str
    refusals:
      description: >-
        Entries that Slurm cannot express, each with C(where), C(gpus), C(problem), C(cure) and C(backends).
      type: list
      elements: dict
"""


def slurm_mapping(
    layout_data: object,
    slurm: dict[str, Any] | None = None,
    kept: Sequence[str] = (),
    removed: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """See DOCUMENTATION."""
    # ansible-core loads all filters of a collection for every task that uses one of them, so slow imports are local.
    from ..plugin_utils.schedulers.request import Request
    from ..plugin_utils.schedulers.slurm.answer import answer, removal
    from ..plugin_utils.schedulers.slurm.offer import KEY

    if removed:
        return removal(slurm or {}, str(options.get("node", "")))
    return answer(Request(layout_data, KEY, **options), slurm, kept)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"slurm_mapping": slurm_mapping}
