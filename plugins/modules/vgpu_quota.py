#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vgpu_quota
short_description: Give the tenants of a layout their quotas
version_added: "0.1.0"
description:
  - The part of M(openfleet.gpu.layout) that is about tenants. Each tenant of an entry whose C(sharing) is V(vgpu) gets its GPUs,
    a quota file, a CDI device C(openfleet.io/vgpu=NAME) for containers, and an environment file and a drop-in of systemd for
    everything else.
  - Tenants are packed onto the entry's GPUs by an exact search. Those that are there stay on their GPUs where they can, and
    keep their seats. What does not fit is refused before anything changes, with the tenant that does not and what is free.
  - New quotas are given to tenants as they run. Less than a tenant uses is allowed; it gets nothing more until it has given
    back enough.
  - What runs of a tenant that is removed keeps its quota until it ends. What it starts from then on has none - the library does
    nothing where it finds no quota file. C(vgpu-run) and services of systemd refuse to start.
  - A tenant that would have to leave a GPU on which its processes run is in the way (O(on_busy)), for there they would escape
    their quota.
  - The GPUs are left as they are and have to be ready, with MIG mode off and in compute mode DEFAULT.
  - A tenant of this collection on a GPU that no entry names is left as it is.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - the library that holds processes to quotas (the role P(openfleet.gpu.vgpu_limiter#role) brings it)
options:
  state:
    description:
      - V(present) gives the tenants of the layout what it says.
      - V(absent) takes every tenant of this collection on the host away, on whatever GPU. The layout is only checked then, and
        may be empty. No driver is needed for that, nor nvidia-ml-py.
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
- name: Give the tenants that the inventory names their quotas
  openfleet.gpu.vgpu_quota:
    layout: "{{ gpu_layout }}"
  become: true

- name: Take them all away
  openfleet.gpu.vgpu_quota:
    layout: []
    state: absent
  become: true

- name: Two notebooks on one of two GPUs, and a tenant that spans both
  openfleet.gpu.vgpu_quota:
    layout:
      - gpus: [6, 7]
        sharing: vgpu
        vgpu:
          tenants:
            - {name: notebook-a, memory: 8GiB, sm_percent: 30}
            - {name: notebook-b, memory: 8GiB, sm_percent: 10, gpu: 6}
            - {name: pair, gpus: 2, memory: 16GiB, sm_percent: 60}
  become: true
"""

RETURN = r"""
plan:
  description: The plan, one line per GPU that the layout names, and one per tenant that changes.
  returned: when a driver is present, and always with O(state=absent)
  type: list
  elements: str
  sample: ["vgpu notebook-a: add (8GiB and 30 %, fixed, by preload) on gpu 6"]
tenants:
  description: >-
    This collection's tenants on the host, as seen after the run (in check mode before it). C(name), C(aliases) (its
    earlier names that still mean it), C(memory_bytes) and
    C(sm_percent) on each of its GPUs, C(policy), C(priority), C(provider), C(group) (null: every
    user), C(oversubscribe_managed), C(gpus), each with C(uuid), C(seat) and
    C(used_bytes), and C(processes), how many there are (both null where nothing tells it). Where the tenants cannot be looked
    at, one entry of which only C(problem) is set. Empty for GPUs that are simulated for this process alone.
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
    C(gpus_changed), which counts the GPUs whose tenants change.
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
from ..module_utils.techniques.vgpu.observe import report
from ..module_utils.techniques.vgpu.service import VgpuService


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: serve(VgpuService, "tenants", report, module.params, module.check_mode))


if __name__ == "__main__":
    main()
