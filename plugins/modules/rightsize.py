#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The documentation of plugins/action/rightsize.py, which runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: rightsize
short_description: Propose a layout with fewer GPUs
version_added: "0.1.0"
description:
  - Audits the fleet like M(openfleet.gpu.audit), reads the history of workloads that have more than they use, decides what each
    needs and how it can share a GPU, and packs them onto fewer GPUs with the least change. The playbook
    C(openfleet.gpu.rightsize) uses it.
  - The result is a proposal, an inventory overlay with a C(gpu_layout) for each host that changes. Nothing on hosts is
    changed. In check mode it writes nothing.
  - A layout changes only if that frees a GPU, or if the inventory requires it. Uncertain cases are excluded and listed with the
    reason.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - NumPy on the controller
  - OR-Tools on the controller. Without it, a heuristic is used
options:
  directory:
    description:
      - Directory for C(rightsize.json), C(rightsize.yml), C(rightsize.html) and the overlay C(proposal/). Without it, nothing is
        written.
    type: path
  prometheus:
    description: As O(openfleet.gpu.audit#module:prometheus).
    type: dict
    default: {}
  window:
    description: As O(openfleet.gpu.audit#module:window).
    type: str
    default: 14d
  selector:
    description: As O(openfleet.gpu.audit#module:selector).
    type: str
    default: ""
  hosts:
    description:
      - Results of M(openfleet.gpu.gpu_info) by host. Hosts without a result are excluded.
      - With O(openfleet.gpu.gpu_info#module:profiles), plans use the profiles of the GPUs, otherwise those of the catalogue.
    type: dict
    default: {}
  hosts_asked:
    description: The hosts that were asked, to report those that did not answer.
    type: list
    elements: str
    default: []
  kubernetes:
    description: As in M(openfleet.gpu.audit). Pods have the names and owners of the API.
    type: dict
    default: {}
  layouts:
    description: Current C(gpu_layout) by host. Entries of GPUs that do not change stay in the proposal.
    type: dict
    default: {}
  workloads:
    description:
      - Settings of workloads by host, a list. The first entry whose C(match) matches the workload's name, unit or place
        (C(HOST-gpu0)) applies.
      - Keys are C(match), C(leave), C(mode), C(profile), C(isolation), C(latency), C(memory), C(sm_percent), C(near), C(apart),
        C(apart_on).
    type: dict
    default: {}
  prices:
    description: As O(openfleet.gpu.audit#module:prices).
    type: list
    elements: dict
    default: []
  currency:
    description: Currency of O(prices), for display.
    type: str
    default: ""
  thresholds:
    description: As O(openfleet.gpu.audit#module:thresholds).
    type: dict
    default: {}
  exempt:
    description: Hosts, GPU UUIDs and names of tenants to exclude.
    type: list
    elements: str
    default: []
  holidays:
    description: As O(openfleet.gpu.audit#module:holidays).
    type: dict
    default: {}
  reach:
    description: Where a workload may move, within its host (V(host)) or to any host (V(fleet)). It stays on its GPU model.
    type: str
    choices: [host, fleet]
    default: host
  max_moved:
    description: Maximum number of moved or resized workloads. Default is no limit.
    type: int
  max_destroyed:
    description: Maximum number of destroyed GPU instances. Default is no limit.
    type: int
  packing:
    description:
      - C(policy) (V(binpack) or V(spread)), C(reserve_gpus) (number of GPUs that stay free, by key of the catalogue, per host or
        fleet according to O(reach)), C(headroom_memory_percent) and C(headroom_sm_percent) (0) that quotas leave free,
        C(seconds) (60) for the whole search, C(seed), C(workers).
    type: dict
    default: {}
  sizing:
    description: Changed numbers of the sizing (docs/sizing.md).
    type: dict
    default: {}
  max_candidates:
    description: Maximum number of workloads whose history is read, the most expensive first.
    type: int
    default: 1000
  reclaim_grace:
    description:
      - Minimum idle time and age of reclaimable workloads, for example V(48h). Default is the time after which the audit's
        verdict is idle.
    type: str
    default: ""
  reclaim_exempt:
    description: Globs on units, containers, users and hosts that are never reclaimable.
    type: list
    elements: str
    default: []
  reclaim_standby:
    description:
      - Globs on units, containers, users and hosts that are reclaimable although their verdict is V(standby).
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  action_group:
    support: full
    description: Use C(group/openfleet.gpu.audit) in C(module_defaults) to set defaults for several modules.
    membership: openfleet.gpu.audit
  check_mode:
    support: full
  diff_mode:
    support: none
  platform:
    platforms: posix
seealso:
  - module: openfleet.gpu.audit
  - module: openfleet.gpu.gpu_info
  - module: openfleet.gpu.reclaim
"""

EXAMPLES = r"""
- name: Propose layouts with at most ten moves
  openfleet.gpu.rightsize:
    directory: /srv/gpu-rightsize
    prometheus: {url: https://prometheus.example.org}
    hosts: {h100-01: "{{ hostvars['h100-01'].info }}"}
    layouts: {h100-01: "{{ hostvars['h100-01'].gpu_layout }}"}
    workloads: {h100-01: [{match: "notebook-*", isolation: quota, latency: batch}]}
    prices: [{model: "H100*", price: 2.5}]
    currency: EUR
    max_moved: 10
"""

RETURN = r"""
line:
  description: The proposal in one line.
  returned: success
  type: str
  sample: >-
    4 GPUs instead of 6, 1 changed layout: 3 workloads move, 0 resized; saves 2,922 EUR per month; 1 excluded, 0 can be reclaimed
summary:
  description: >-
    C(gpus), C(gpus_used_today), C(gpus_used_then), C(gpus_saved), C(saved_per_month) with its C(currency), C(hosts) that change,
    C(workloads) by kind of change, C(instances_destroyed), C(reclaimable).
  returned: success
  type: dict
notes:
  description: Missing data, and what is unchanged because of it.
  returned: success
  type: list
  elements: str
layouts:
  description: The new C(gpu_layout) of each host that changes.
  returned: success
  type: dict
reclaim:
  description: >-
    Idle workloads, each with C(host), C(kind), C(name), C(runtime), C(gpus), C(quiet_seconds), C(holders),
    C(waste_per_month), C(idle_after_seconds) and C(spared), the reason if it must not be stopped.
  returned: success
  type: list
  elements: dict
reclaim_grace_seconds:
  description: O(reclaim_grace) in seconds, or C(idle_hours) of O(thresholds). Newer processes are not stopped.
  returned: success
  type: float
files:
  description: The files that were written.
  returned: success
  type: list
  elements: str
"""
