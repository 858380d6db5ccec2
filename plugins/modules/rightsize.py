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
  - Audits the fleet like M(openfleet.gpu.audit), and reads the history of workloads that use less than they have. Decides which
    resources each of these workloads needs and how it can share a GPU. Then packs the workloads onto fewer GPUs with the least
    change. The playbook C(openfleet.gpu.rightsize) uses this module.
  - The result is a proposal in the form of an inventory overlay, with a C(gpu_layout) for each host that would change. Nothing
    is changed on hosts. In check mode it writes nothing.
  - A host's layout changes only if this frees a GPU, or if the inventory requires the change. Uncertain cases are excluded, and
    listed with the reason.
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
    description: Same as O(openfleet.gpu.audit#module:prometheus).
    type: dict
    default: {}
  window:
    description: Same as O(openfleet.gpu.audit#module:window).
    type: str
    default: 14d
  selector:
    description: Same as O(openfleet.gpu.audit#module:selector).
    type: str
    default: ""
  hosts:
    description:
      - Results of M(openfleet.gpu.gpu_info) by host. Hosts without a result are excluded.
      - If the results include O(openfleet.gpu.gpu_info#module:profiles), plans use these profiles. Otherwise plans use the
        profiles of the catalogue.
    type: dict
    default: {}
  hosts_asked:
    description: All queried hosts. The proposal reports those without an answer.
    type: list
    elements: str
    default: []
  kubernetes:
    description: Same as O(openfleet.gpu.audit#module:kubernetes). Names and owners of pods are read from the API.
    type: dict
    default: {}
  layouts:
    description: Current C(gpu_layout) by host. The proposal keeps the entries of GPUs that do not change.
    type: dict
    default: {}
  workloads:
    description:
      - Settings of workloads. For each host, the value is a list. The first entry applies whose C(match) matches the workload's
        name, unit or place (C(HOST-gpu0)).
      - Keys are C(match), C(leave), C(mode), C(profile), C(isolation), C(latency), C(memory), C(sm_percent), C(near), C(apart),
        C(apart_on).
    type: dict
    default: {}
  slurm:
    description:
      - Jobs of Slurm. C(jobs) has results of M(openfleet.gpu.slurm_jobs) by host, with one host for each cluster. C(nodes) maps
        hosts to their node names. By default, a node has the name of its host, with or without the domain.
      - The proposal then also names accounts whose jobs would fit into smaller MIG instances.
    type: dict
    default: {}
  owners:
    description: Same as O(openfleet.gpu.audit#module:owners). RV(reclaim) has the owner of each idle workload.
    type: list
    elements: dict
    default: []
  prices:
    description: Same as O(openfleet.gpu.audit#module:prices).
    type: list
    elements: dict
    default: []
  currency:
    description: Currency of O(prices), for display.
    type: str
    default: ""
  thresholds:
    description: Same as O(openfleet.gpu.audit#module:thresholds).
    type: dict
    default: {}
  exempt:
    description: Hosts, GPU UUIDs and names of tenants to exclude.
    type: list
    elements: str
    default: []
  holidays:
    description: Same as O(openfleet.gpu.audit#module:holidays).
    type: dict
    default: {}
  reach:
    description: >-
      Where a workload may move. V(host) permits moves within its host, V(fleet) to any host. The GPU model of a workload never
      changes.
    type: str
    choices: [host, fleet]
    default: host
  max_moved:
    description: Maximum number of moved or resized workloads. The default is no limit.
    type: int
  max_destroyed:
    description: Maximum number of destroyed GPU instances. The default is no limit.
    type: int
  packing:
    description:
      - Settings of the search. C(policy) is V(binpack) or V(spread). C(reserve_gpus) maps keys of the catalogue to the number
        of GPUs that stay free, per host or per fleet according to O(reach). C(headroom_memory_percent) and
        C(headroom_sm_percent) are the share that quotas leave free (default 0). C(seconds) limits the whole search (default
        60). Further keys are C(seed) and C(workers).
    type: dict
    default: {}
  confidence:
    description:
      - Share of resized workloads that must stay within their new memory, from 0.5 to below 1.
      - With V(0.99), at most 1 of 100 is expected to exceed it. A higher confidence frees fewer GPUs.
    type: float
    default: 0.99
  sizing:
    description: Settings that replace the defaults of the sizing (C(docs/sizing.md)).
    type: dict
    default: {}
  max_candidates:
    description: Maximum number of workloads whose history is read. The most expensive workloads are read first.
    type: int
    default: 1000
  reclaim_grace:
    description:
      - Minimum idle time and age of reclaimable workloads, for example V(48h). The default is the time after which the audit's
        verdict is V(idle).
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
  reclaim_jobs:
    description:
      - Whether to list idle Slurm jobs. V(spare) spares them. V(notify) only notifies their users. V(cancel) also cancels
        them after the notice.
    type: str
    choices: [spare, notify, cancel]
    default: spare
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  action_group:
    support: full
    description: Use C(group/openfleet.gpu.audit) in C(module_defaults) to set defaults for several modules.
    membership: [openfleet.gpu.audit]
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
  sample:
    {gpus: 8, gpus_used_today: 6, gpus_used_then: 4, gpus_saved: 2, saved_per_month: 2922.0, currency: EUR, hosts: 1,
     workloads: {moved: 3, resized: 0, stays: 2, left: 1}, instances_destroyed: 0, reclaimable: 0}
promise:
  description: How often a resized workload may exceed its new memory, as a sentence. Empty if no workload changes.
  returned: success
  type: str
  sample: >-
    At most 1 of 100 workloads sized like this will exceed its memory. The margin is 53 %, learnt from 55 workloads.
notes:
  description: Missing data, and the workloads or GPUs that stay unchanged because of it.
  returned: success
  type: list
  elements: str
  sample: ["No host was asked: holders are known only from metrics."]
layouts:
  description: The new C(gpu_layout) of each host that changes.
  returned: success
  type: dict
  sample: {h100-01: [{gpus: [0], sharing: mig, mig: [{profile: 3g.40gb, count: 2}]}]}
reclaim:
  description: >-
    Idle workloads, each with C(host), C(kind), C(name), C(runtime), C(gpus), C(quiet_seconds), C(holders), C(waste_per_month),
    C(idle_after_seconds), C(stop_quiet_seconds), C(rest_watts), C(user), C(team), C(contact) and C(spared). If the workload must
    not be stopped, C(spared) has the reason.
  returned: success
  type: list
  elements: dict
  sample:
    - {host: h100-01, kind: unit, name: jupyter.service, runtime: "", gpus: [GPU-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d],
       quiet_seconds: 432000.0, holders: ["pid 4711 (python3, user alice, jupyter.service)"], waste_per_month: 1461.0,
       idle_after_seconds: 86400.0, stop_quiet_seconds: 172800.0, spared: "", stop: true, user: alice, team: vision,
       contact: vision@example.org}
reclaim_grace_seconds:
  description: >-
    O(reclaim_grace) in seconds, or the default from C(idle_hours) of O(thresholds). Processes that started within this time are
    not stopped.
  returned: success
  type: float
  sample: 172800.0
colocations:
  description: >-
    Online and offline workloads (C(latency) C(low) and C(batch) in O(workloads)) that could share a GPU with the policy
    C(colocate). Each has the C(host), C(gpu_index), C(online) and C(offline) workloads, the GPUs that are C(freed), an
    C(entry) for C(gpu_layout) and a C(reason). C(left_ratio), C(need_ratio) and C(progress_ratio) are shares of time.
    C(layouts) does not contain these changes.
  returned: success
  type: list
  elements: dict
  sample:
    - {host: h100-01, gpu_index: 0, online: chat.service, offline: [train.service], freed: ["h100-01 gpu 1"],
       saved_per_month: 1461.0, memory_bytes: 53687091200.0, left_ratio: 0.6, need_ratio: 0.4, progress_ratio: 1.0,
       entry: {gpus: [0], sharing: vgpu, vgpu: {policy: colocate, tenants: [
         {name: online, memory: 20480MiB, sm_percent: 50, latency: online},
         {name: offline-1, memory: 30720MiB, sm_percent: 50, latency: offline}]}},
       reason: "Together they need at most 50.0 GiB. chat.service leaves 60 % of the time below the waterline of 80 %,
                and 1 offline workload used 40 %. A request may wait for the rest of one offline kernel."}
lease_pools:
  description: >-
    Entries that offer leases, each with its C(host), C(entry), current number of C(gpus), C(proposed_gpus) and C(reason).
    C(offered_gpus), C(needed_gpus), C(leased_mean_gpus), C(leased_max_gpus), C(waiting_max_gpus) and C(free_min_gpus) are in
    GPUs, for example C(0.5). Requests waited for C(waiting_hours) of C(hours). If there is too little data, C(needed_gpus) and
    C(proposed_gpus) are null. C(layouts) does not contain these changes.
  returned: success
  type: list
  elements: dict
  sample:
    - {host: h100-01, entry: "gpu_layout[0]", gpus: 2, offered_gpus: 2.0, leased_mean_gpus: 1.1, leased_max_gpus: 1.75,
       waiting_max_gpus: 1.0, free_min_gpus: 0.25, waiting_hours: 12.0, hours: 168.0, needed_gpus: 2.75, proposed_gpus: 3,
       reason: "For 99 % of the time, leases and waiting requests needed at most 2.75 GPUs.
                Requests waited for 12.0 of 168.0 hours."}
files:
  description: The files that were written.
  returned: success
  type: list
  elements: str
  sample: [proposal/rightsize.json, proposal/rightsize.html]
"""
