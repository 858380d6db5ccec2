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
  - The part of M(openfleet.gpu.layout) that is about MPS. Each C(mps) part of the layout becomes a control daemon for a GPU,
    for several, or for a MIG instance, as a unit of systemd with pipe and log directories of its own (C(docs/mps.md)).
  - The GPUs are left as they are and have to be ready; in compute mode EXCLUSIVE_PROCESS, or with their instance.
  - New limits are given to a daemon as it runs. A change that takes a restart, or ends a daemon that the layout does not name
    any more, is refused while it has clients, or waits for them, or ends them (O(on_busy)).
  - Refused before anything changes are more clients than MPS serves there, and limits that add up to more memory than there is.
  - A daemon of this collection on a GPU that no entry names is left as it is. Daemons that others started are not touched.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - nvidia-cuda-mps-control
  - systemd
options:
  state:
    description:
      - V(present) runs the daemons that the layout wants.
      - V(absent) stops every daemon of this collection on the host, on whatever GPU, and takes away what there is of it. The
        layout is only checked then, and may be empty. No driver is needed for that, nor nvidia-ml-py.
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
- name: Run the MPS daemons that the inventory names
  openfleet.gpu.mps:
    layout: "{{ gpu_layout }}"
    on_busy: wait
  become: true

- name: Stop them all
  openfleet.gpu.mps:
    layout: []
    state: absent
  become: true

- name: Four clients of a quarter of GPU 2 each
  openfleet.gpu.mps:
    layout:
      - gpus: [2]
        sharing: mps
        mps: {name: inference, clients: 4, active_thread_percentage: 25, pinned_memory_limit: 18GiB}
  become: true
"""

RETURN = r"""
plan:
  description: The plan, one line per GPU that the layout names, and one per daemon that changes.
  returned: when a driver is present, and always with O(state=absent)
  type: list
  elements: str
  sample: ["mps inference: start (4 clients of 25 % and 18GiB) on gpu 2"]
daemons:
  description: >-
    This collection's daemons on the host, as seen after the run (in check mode before it). C(name), C(places), C(devices),
    C(clients) (how many it is meant for), C(active_thread_percentage) and C(pinned_memory_limits_bytes) as the daemon itself
    answers (the percentage of a server where that has another one than it should), C(running), C(pid), C(server_pids), those
    of them that do not answer (C(silent_server_pids)), C(client_processes), C(pipe_directory_limited) (whether what clients
    write to the pipe directory is bounded), and C(problem) where it does not answer. Where the daemons cannot be looked at, one
    entry of which only C(problem) is set. Empty for GPUs that are simulated for this process alone.
  returned: when a driver is present
  type: list
  elements: dict
gpus:
  description: For each GPU that the layout names C(asked), C(before), C(after) and C(changed), as M(openfleet.gpu.layout) has it.
  returned: when a driver is present
  type: list
  elements: dict
counts:
  description: >-
    GPU instances to C(create), C(destroy) and C(keep), which only M(openfleet.gpu.layout) and M(openfleet.gpu.mig) change, and
    C(gpus_changed), which counts the GPUs whose daemon changes.
  returned: when a driver is present
  type: dict
plan_data:
  description: The plan as data, as M(openfleet.gpu.layout) has it. It is for reading; this module takes no saved plan.
  returned: in check mode, when a driver is present
  type: dict
reboot_required:
  description: V(false), for nothing that this module changes needs a reboot.
  returned: success when a driver is present, and on failure when the plan could not be carried out
  type: bool
msg:
  description: >-
    On failure, what is wrong, where, and how to mend it. In check mode without a driver, why only the form of the layout was
    checked.
  returned: on failure, and when no driver answers, in check mode with O(state=present)
  type: str
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
