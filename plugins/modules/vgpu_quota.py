#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vgpu_quota
short_description: Apply the quotas of a layout's vGPU tenants
version_added: "0.1.0"
description:
  - Applies only the tenants of a layout, as M(openfleet.gpu.layout) does. Each tenant of an entry with C(sharing) V(vgpu) gets
    its GPUs, a quota file, a CDI device C(openfleet.io/vgpu=NAME) for containers, and an environment file and a systemd drop-in
    for other programs.
  - An exact search packs tenants onto the entry's GPUs. Existing tenants keep their GPUs and seats if possible. If a tenant
    does not fit, the module fails before any change and reports the tenant and the free capacity.
  - A new quota applies to running tenants at once. It may be below the current usage. The tenant then gets no more memory until
    it has released enough.
  - Running processes of a removed tenant keep the tenant's quota until they end. If they start further processes, these have no
    quota, because the library does nothing without a quota file. C(vgpu-run) and systemd services refuse to start for a removed
    tenant.
  - If a tenant has to leave a GPU, its processes on this GPU block the change (O(on_busy)), because they would escape the
    quota.
  - GPU settings are not changed. MIG mode must be off, and the compute mode must be DEFAULT.
  - Tenants on GPUs without an entry are not changed.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - the library that enforces quotas (installed by the role P(openfleet.gpu.vgpu_limiter#role))
options:
  state:
    description:
      - V(present) applies the tenants of the layout.
      - V(absent) removes all tenants of this collection from the host. The layout is only validated, and may be empty. Neither
        a driver nor nvidia-ml-py is needed.
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
- name: Apply the tenants of the inventory
  openfleet.gpu.vgpu_quota:
    layout: "{{ gpu_layout }}"
  become: true

- name: Remove all tenants
  openfleet.gpu.vgpu_quota:
    layout: []
    state: absent
  become: true

- name: Apply two notebooks and a tenant that spans two GPUs
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
  description: The plan, one line per GPU of the layout and one per changed tenant.
  returned: when a driver is present, and always with O(state=absent)
  type: list
  elements: str
  sample: ["vgpu notebook-a: add (8GiB and 30 %, fixed, by preload) on gpu 6"]
tenants:
  description: >-
    This collection's tenants on the host after the run, in check mode before it. Each has C(name), C(aliases) (earlier names
    that still work), C(memory_bytes) and C(sm_percent) per GPU, C(policy), C(priority), C(provider), C(group) (null for every
    user), C(oversubscribe_managed), C(gpus) with C(uuid), C(seat) and C(used_bytes), and C(processes), their number. The last
    two are null if unknown. If the tenants cannot be read, the only entry has only C(problem). Empty for GPUs that are
    simulated for this process alone.
  returned: when a driver is present
  type: list
  elements: dict
  sample:
    - {name: notebook-a, aliases: [], memory_bytes: 8589934592, sm_percent: 30, policy: fixed, priority: 0, provider: preload,
       group: null, oversubscribe_managed: false, processes: 0, problem: null,
       gpus: [{uuid: GPU-5c89d3fa-0000-4000-8000-000000000001, seat: 0, used_bytes: 0}]}
gpus:
  description: C(asked), C(before), C(after) and C(changed) for each GPU of the layout, as in M(openfleet.gpu.layout).
  returned: when a driver is present
  type: list
  elements: dict
  sample:
    - {index: 6, uuid: GPU-5c89d3fa-0000-4000-8000-000000000001, name: NVIDIA H100 80GB HBM3, entry: "gpu_layout[0]",
       asked: vgpu, before: "MIG off, compute mode default",
       after: "MIG off, compute mode default, vgpu notebook-a (8GiB and 30 %, fixed, by preload)", changed: true}
counts:
  description: >-
    Number of GPU instances to C(create), C(destroy) and C(keep), which only M(openfleet.gpu.layout) and M(openfleet.gpu.mig)
    change, and C(gpus_changed), the number of GPUs whose tenants change.
  returned: when a driver is present
  type: dict
  sample: {create: 0, destroy: 0, keep: 0, gpus_changed: 1}
plan_data:
  description: The plan as data, as in M(openfleet.gpu.layout). This module does not accept saved plans.
  returned: in check mode, when a driver is present
  type: dict
  sample:
    schema: 4
    vgpu: {plan: ["vgpu notebook-a: add (8GiB and 30 %, fixed, by preload) on gpu 6"], busy: [],
       steps: [{step: AddTenant, name: notebook-a}]}
reboot_required:
  description: V(false), because this module changes nothing that needs a reboot.
  returned: success when a driver is present, and when the plan failed
  type: bool
  sample: false
msg:
  description: >-
    On failure, the problem, its place and the fix. In check mode without a driver, the reason why only the form of the layout
    was validated.
  returned: on failure, and when no driver answers, in check mode with O(state=present)
  type: str
  sample: >-
    this host: NVML does not start: Driver Not Loaded. Install and load the NVIDIA driver.
    Only the form of the layout was checked.
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
