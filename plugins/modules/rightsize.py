#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The documentation of plugins/action/rightsize.py, which does all of it on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: rightsize
short_description: Propose what a fleet of GPUs should look like instead
version_added: "0.1.0"
description:
  - Audits the fleet as M(openfleet.gpu.audit) does, reads the history of workloads that have more than they use, says what each
    needs and how it could share a GPU, and packs them onto fewer GPUs with the least change. The playbook
    C(openfleet.gpu.rightsize) is made of it.
  - What comes out is a proposal, an inventory overlay with a C(gpu_layout) for each host that changes. It changes nothing on any
    host. In check mode it writes nothing either.
  - Something changes only where a GPU comes free by it, or where the inventory asks for it. What is not certain stays as it is,
    and is listed with the reason.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - NumPy on the controller
  - OR-Tools on the controller; without it a heuristic packs
options:
  directory:
    description:
      - Where C(rightsize.json), C(rightsize.yml), C(rightsize.html) and the overlay C(proposal/) are written. Nothing is written
        without it.
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
      - By host, the results of M(openfleet.gpu.gpu_info). A host without one takes no part.
      - With O(openfleet.gpu.gpu_info#module:profiles) plans go by the GPUs' own profiles, and by the catalogue's without.
    type: dict
    default: {}
  hosts_asked:
    description: The hosts that were asked, so that the ones that did not answer can be named.
    type: list
    elements: str
    default: []
  kubernetes:
    description: As in M(openfleet.gpu.audit). Pods are named as the API server has them, with their owners.
    type: dict
    default: {}
  layouts:
    description: By host, today's C(gpu_layout). What it says of GPUs that do not change stays in the proposal.
    type: dict
    default: {}
  workloads:
    description:
      - By host, what the inventory says of workloads, a list; the first entry whose C(match) is like the workload's name, unit or
        place (C(HOST-gpu0)) holds.
      - Each has C(match), C(leave), C(mode), C(profile), C(isolation), C(latency), C(memory), C(sm_percent), C(near), C(apart),
        C(apart_on).
    type: dict
    default: {}
  prices:
    description: As O(openfleet.gpu.audit#module:prices).
    type: list
    elements: dict
    default: []
  currency:
    description: The currency of O(prices), for people to read.
    type: str
    default: ""
  thresholds:
    description: As O(openfleet.gpu.audit#module:thresholds).
    type: dict
    default: {}
  exempt:
    description: Hosts, UUIDs of GPUs and names of tenants that take no part.
    type: list
    elements: str
    default: []
  holidays:
    description: As O(openfleet.gpu.audit#module:holidays).
    type: dict
    default: {}
  reach:
    description: How far a workload may go, to other GPUs of its host (V(host)) or of all hosts (V(fleet)). The model stays.
    type: str
    choices: [host, fleet]
    default: host
  max_moved:
    description: So many workloads are moved or resized at most. No bound without it.
    type: int
  max_destroyed:
    description: So many GPU instances are destroyed at most. No bound without it.
    type: int
  packing:
    description:
      - C(policy) (V(binpack) or V(spread)), C(reserve_gpus) (by key of the catalogue how many stay free, of each host or
        of the fleet by O(reach)), C(headroom_memory_percent) and C(headroom_sm_percent) (0) that quotas leave free, C(seconds)
        (60) for the search in all, C(seed), C(workers).
    type: dict
    default: {}
  sizing:
    description: Numbers of the sizing that are to be others than its own (docs/sizing.md).
    type: dict
    default: {}
  max_candidates:
    description: So many workloads' histories are read at most, the dearest first.
    type: int
    default: 1000
  reclaim_grace:
    description:
      - What was quiet or has run for less is not listed as reclaimable, as V(48h). Without it, the time after which the audit
        calls the holder idle.
    type: str
    default: ""
  reclaim_exempt:
    description: Globs on units, containers, users and hosts that are never listed as reclaimable.
    type: list
    elements: str
    default: []
  reclaim_standby:
    description:
      - Globs on units, containers, users and hosts that are listed as reclaimable although the audit calls them V(standby).
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
- name: Propose, with ten moves at most
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
    4 GPUs instead of 6, with 1 other layout: 3 workloads move, 0 stay on their GPU in another part of it; 2,922 EUR a month;
    1 left as they are, 0 can be reclaimed
summary:
  description: >-
    C(gpus), C(gpus_used_today), C(gpus_used_then), C(gpus_saved), C(saved_per_month) with its C(currency), C(hosts) that change,
    C(workloads) by what becomes of them, C(instances_destroyed), C(reclaimable).
  returned: success
  type: dict
notes:
  description: What could not be read, and what stays as it is for it.
  returned: success
  type: list
  elements: str
layouts:
  description: The new C(gpu_layout) of each host that changes.
  returned: success
  type: dict
reclaim:
  description: >-
    What holds GPUs and uses none, each with C(host), C(kind), C(name), C(runtime), C(gpus), C(quiet_seconds), C(holders),
    C(waste_per_month), C(idle_after_seconds) and C(spared), the reason why it is not to be stopped, empty where it may be.
  returned: success
  type: list
  elements: dict
reclaim_grace_seconds:
  description: O(reclaim_grace) in seconds, or C(idle_hours) of O(thresholds). What began later is not stopped on its host.
  returned: success
  type: float
files:
  description: The files that were written.
  returned: success
  type: list
  elements: str
"""
