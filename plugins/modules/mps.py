#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mps
short_description: Run the MPS control daemons of a layout
version_added: "0.1.0"
description:
  - Applies only the MPS daemons of a layout, as M(openfleet.gpu.layout) does. Each C(mps) part becomes a control daemon for one
    GPU, several GPUs, or a MIG instance. Each daemon is a systemd unit with separate pipe and log directories (C(docs/mps.md)).
  - GPU settings are not changed. The GPUs must already be in compute mode EXCLUSIVE_PROCESS, or have the MIG instance.
  - Running daemons get new limits without a restart. Some changes restart a daemon, and a daemon that is no longer in the
    layout is removed. If such a daemon has clients, O(on_busy) decides whether to fail, wait for the clients, or end them.
  - The module fails before any change if an entry has more clients than MPS supports, or if the limits exceed the GPU's memory.
  - This collection's daemons on GPUs without an entry are not changed. Other MPS daemons are never changed.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - nvidia-cuda-mps-control
  - systemd
options:
  state:
    description:
      - V(present) runs the daemons of the layout.
      - V(absent) stops and removes all daemons of this collection on the host. The layout is only validated, and may be empty.
        Neither a driver nor nvidia-ml-py is needed.
    type: str
    choices: [present, absent]
    default: present
extends_documentation_fragment:
  - openfleet.gpu.layout
  - openfleet.gpu.layout.part
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
seealso:
  - module: openfleet.gpu.layout
  - module: openfleet.gpu.gpu_info
"""

EXAMPLES = r"""
- name: Run the MPS daemons of the inventory
  openfleet.gpu.mps:
    layout: "{{ gpu_layout }}"
    on_busy: wait
  become: true

- name: Remove all MPS daemons
  openfleet.gpu.mps:
    layout: []
    state: absent
  become: true

- name: Share GPU 2 between four clients
  openfleet.gpu.mps:
    layout:
      - gpus: [2]
        sharing: mps
        mps: {name: inference, clients: 4, active_thread_percentage: 25, pinned_memory_limit: 18GiB}
  become: true
"""

RETURN = r"""
plan:
  description: The plan, one line per GPU of the layout and one per changed daemon.
  returned: when a driver is present, and always with O(state=absent)
  type: list
  elements: str
  sample: ["mps inference: start (4 clients of 25 % and 18GiB) on gpu 2"]
daemons:
  description: >-
    This collection's daemons on the host after the run. In check mode, before the run. Each has C(name), C(places), C(devices),
    C(clients) (number in the layout), C(active_thread_percentage) and C(pinned_memory_limits_bytes) as reported by the daemon
    (the percentage of a server if it deviates), C(running), C(pid), C(server_pids), C(silent_server_pids) (servers that do not
    answer), C(client_processes), C(pipe_directory_limited) (whether the size of the pipe directory is limited), and C(problem)
    if the daemon does not answer. If the daemons cannot be read, the only entry has only C(problem). Empty for GPUs that are
    simulated for this process alone.
  returned: when a driver is present
  type: list
  elements: dict
  sample:
    - {name: inference, places: [{gpu_uuid: GPU-5c89d3fa-0000-4000-8000-000000000001, profile: null, start: null}],
       devices: [GPU-5c89d3fa-0000-4000-8000-000000000001], clients: 4, active_thread_percentage: 25.0,
       pinned_memory_limits_bytes: [19327352832], running: true, pid: 812, server_pids: [], silent_server_pids: [],
       pipe_directory_limited: true, client_processes: [], problem: null}
gpus:
  description: C(asked), C(before), C(after) and C(changed) for each GPU of the layout, as in M(openfleet.gpu.layout).
  returned: when a driver is present
  type: list
  elements: dict
  sample:
    - {index: 2, uuid: GPU-5c89d3fa-0000-4000-8000-000000000001, name: NVIDIA H100 80GB HBM3, entry: "gpu_layout[0]",
       asked: mps, before: "MIG off, compute mode exclusive_process",
       after: "MIG off, compute mode exclusive_process, MPS inference", changed: true}
counts:
  description: >-
    C(gpus_changed) is the number of GPUs whose daemon changes. C(create), C(destroy) and C(keep) are numbers of GPU instances.
    Only M(openfleet.gpu.layout) and M(openfleet.gpu.mig) change instances.
  returned: when a driver is present
  type: dict
  sample: {create: 0, destroy: 0, keep: 0, gpus_changed: 1}
plan_data:
  description: The plan as data, as in M(openfleet.gpu.layout). This module does not accept saved plans.
  returned: in check mode, when a driver is present
  type: dict
  sample:
    schema: 4
    mps: {plan: ["mps inference: start (4 clients of 25 % and 18GiB) on gpu 2"], busy: [],
       steps: [{step: StartMps, name: inference}]}
reboot_required:
  description: V(false), because this module changes nothing that needs a reboot.
  returned: success when a driver is present, and when the plan failed
  type: bool
  sample: false
msg:
  description: >-
    On failure, the problem, where it is, and the fix. In check mode without a driver, why only the syntax of the layout was
    validated.
  returned: on failure, and when no driver answers, in check mode with O(state=present)
  type: str
  sample: >-
    this host: NVML does not start: Driver Not Loaded. Install and load the NVIDIA driver.
    Only the form of the layout was checked.
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.change.service_module import argspec, serve
from ..module_utils.runner import run
from ..module_utils.techniques.mps.observe import report
from ..module_utils.techniques.mps.service import MpsService


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: serve(MpsService, "daemons", report, module.params, module.check_mode))


if __name__ == "__main__":
    main()
