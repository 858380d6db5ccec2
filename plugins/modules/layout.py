#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: layout
short_description: Apply a GPU layout to a host
version_added: "0.1.0"
description:
  - Compares the GPUs with the layout, plans the steps, applies them and verifies the result. The whole layout is one change
    of MIG modes and instances, compute modes, time slices, MPS daemons and tenants. M(openfleet.gpu.mig), M(openfleet.gpu.mps),
    M(openfleet.gpu.time_slicing) and M(openfleet.gpu.vgpu_quota) apply one part each.
  - >-
    Values of C(sharing): V(mig) sets MIG mode with exactly the listed instances. V(exclusive) permits one process at a time
    (compute mode EXCLUSIVE_PROCESS). V(shared) permits any number of processes. V(mps) runs an MPS control daemon as a systemd
    unit (C(docs/mps.md)). V(time_slicing) sets a time slice. V(vgpu) sets tenants with quotas (C(docs/gpu_layout-vgpu.md)). GPUs
    that never had an entry are not changed. O(unnamed) applies to GPUs whose entry was removed.
  - Instances that fit the layout keep their placement, UUID and processes. The plan contains the placement of each new GPU
    instance. MPS daemons and tenants are kept too, and get new limits while they run.
  - A plan that would end a running workload, or take a GPU or instance from its holder (C(docs/holders.md)), is refused before
    any change. Before steps that could end a workload on a GPU, the holders of this GPU are checked again.
  - If a step fails, the previous layout is restored. RV(outcome) and the error message show whether that succeeded. After an
    interrupted run (killed, power lost), the next run restores it first (RV(recovered)).
  - Runs on one host do not overlap. The second run waits (O(lock_timeout)).
  - If a GPU needs a reset to change its MIG mode (Ampere), the mode is changed only while nothing uses the GPU.
author:
  - openfleet.gpu contributors (!UNKNOWN)
extends_documentation_fragment:
  - openfleet.gpu.layout
  - openfleet.gpu.layout.gpus
  - openfleet.gpu.installed_code
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
options:
  unnamed:
    description:
      - How to handle GPUs that had an entry when the collection last changed them and have none now.
      - >-
        V(keep) does not change these GPUs and lists them in RV(unmanaged). If such a GPU lost its state, for example in a
        reboot, the run restores the recorded state. If this is not possible, a warning has the reason, and the other GPUs get
        their layout.
      - >-
        V(release) removes the collection's instances, daemons, tenants and settings from these GPUs, as part of the plan. If a
        GPU was removed from the host, V(release) deletes its record.
      - See C(docs/gpu_layout-unmanaged.md).
    type: str
    choices: [keep, release]
    default: keep
  expected_gpus:
    description:
      - Keys of the model catalogue (C(docs/models.md)), one for each GPU of the host in index order.
      - Used for RV(forecast) in check mode if the host's driver does not answer. The default is the GPUs on the host's PCI bus.
    type: list
    elements: str
    default: []
seealso:
  - module: openfleet.gpu.gpu_info
  - module: openfleet.gpu.mig
  - module: openfleet.gpu.mps
  - module: openfleet.gpu.time_slicing
  - module: openfleet.gpu.vgpu_quota
"""

EXAMPLES = r"""
- name: Apply the layout of the inventory
  openfleet.gpu.layout:
    layout: "{{ gpu_layout }}"
  become: true

- name: Plan the layout without changing anything
  openfleet.gpu.layout:
    layout: "{{ gpu_layout }}"
  check_mode: true
  register: planned
  become: true

- name: Apply exactly that plan
  openfleet.gpu.layout:
    layout: "{{ gpu_layout }}"
    plan: "{{ planned.plan_data }}"
  become: true

- name: Apply MIG to two GPUs, an MPS daemon to one, and share the last one
  openfleet.gpu.layout:
    layout:
      - gpus: [0, 1]
        sharing: mig
        mig:
          - {profile: 3g.40gb}
          - {profile: 2g.20gb, count: 2}
      - gpus: [2]
        sharing: mps
        mps: {name: inference, clients: 4, active_thread_percentage: 25, pinned_memory_limit: 18GiB}
      - {gpus: [3], sharing: shared}
  become: true
"""

RETURN = r"""
plan:
  description: >-
    The plan, one line per GPU of the layout, per changed MPS daemon, per changed tenant, and per GPU of RV(unmanaged).
  returned: when a driver is present
  type: list
  elements: str
  sample: ["gpu 3: keep 3g.40gb@0 (2 processes), destroy 1g.10gb@4, create 2g.20gb@4"]
plan_lines:
  description: >-
    The lines of RV(plan) as data. A line about a GPU has the keys C(index), C(uuid) and C(text). The text contains neither
    index nor UUID. A line about an MPS daemon or a tenant has only C(text). C(unmanaged) is true in lines about GPUs of
    RV(unmanaged).
  returned: when a driver is present
  type: list
  elements: dict
  sample: [{"index": 3, "uuid": "GPU-5c89d3fa-0000-4000-8000-000000000001", "text": "enable MIG mode, create 3g.40gb@0"}]
plan_data:
  description: >-
    The plan as data, to save and pass to O(plan) later. It has the observed state, the desired state and the steps.
    C(docs/plans.md) describes its format.
  returned: in check mode, when a driver is present
  type: dict
  sample:
    schema: 4
    driver_version: 580.65.06
    gpus:
      - {uuid: GPU-5c89d3fa-0000-4000-8000-000000000001, index: 3, plan: "gpu 3: enable MIG mode", busy: [], kept: [],
         steps: [{step: SetMigMode, enabled: true}]}
counts:
  description: >-
    Number of GPU instances to C(create), C(destroy) and C(keep). C(gpus_changed) is the number of GPUs that change. It includes
    GPUs whose MPS daemon or tenants change.
  returned: when a driver is present
  type: dict
  sample: {create: 1, destroy: 1, keep: 1, gpus_changed: 1}
gpus:
  description: >-
    For each GPU of the layout, its C(index), C(uuid) and C(name), the desired state (C(asked)) with its C(entry) of the
    layout, the state C(before) and C(after) the run, and whether the GPU C(changed). After a change, the state is verified
    with NVML. In check mode, it is predicted.
    C(instances) lists the current GPU instances. C(placement_units) is the GPU's number of memory units. Placements are given
    in these units.
  returned: when a driver is present
  type: list
  elements: dict
  sample:
    - {index: 3, uuid: GPU-5c89d3fa-0000-4000-8000-000000000001, name: NVIDIA H100 80GB HBM3, entry: "gpu_layout[0]",
       asked: "mig: 1x 3g.40gb", before: "MIG off, compute mode default", after: "MIG on: 3g.40gb@0", changed: true,
       placement_units: 8, instances: []}
missing:
  description: Programs and libraries that the plan requires and the host lacks. Without them, a run is refused.
  returned: in check mode, when something is missing
  type: list
  elements: str
  sample:
    - "/usr/lib/openfleet-gpu/vgpu/libopenfleet-vgpu.so: it is not installed, so no quota can be enforced.
       Install it with the role openfleet.gpu.vgpu_limiter."
driver_present:
  description: Whether NVML answers.
  returned: success
  type: bool
  sample: true
pynvml_sha256:
  description: >-
    SHA-256 of the pynvml that the role C(gpu_layout) installed on the host. Empty if this pynvml is missing, or if users other
    than root can change it.
  returned: in check mode, when a driver is present
  type: str
  sample: 2828e66b483bec218f461314f6da96c1e56330ed4b297a20b3444b4c43cdd14e
lost:
  description: A sentence for each lost GPU of the host. Each is also a warning.
  returned: when a GPU is lost
  type: list
  elements: str
  sample:
    - "gpu 1 is lost: the layout does not name it (nvmlDeviceGetHandleByIndex failed: GPU is lost (NVML code 15))"
unmanaged:
  description: >-
    GPUs that had an entry and have none now. Each has C(index), C(uuid), C(name), the last applied state (C(recorded)), the
    techniques of its daemons or tenants (C(services)), the C(current) state, the C(text) of its line in RV(plan), and the
    C(action). The action is V(keep), V(restore), V(release) or V(leave). V(leave) means that another tool changed the GPU, or
    that it cannot be restored.
  returned: when there are any
  type: list
  elements: dict
  sample:
    - {index: 4, uuid: GPU-5c89d3fa-0000-4000-8000-000000000002, name: NVIDIA H100 80GB HBM3, action: keep, services: [],
       recorded: mig (3g.40gb@4), current: mig (3g.40gb@4), text: "unmanaged, without an entry: keeps mig (3g.40gb@4)"}
recovered:
  description: >-
    After an interrupted run, the result of its cleanup. V(old) if the previous layout was restored, V(new) if the interrupted
    change was completed. The change of the current run follows afterwards.
  returned: when an earlier run was interrupted, not in check mode
  type: str
  sample: old
pynvml_missing:
  description: True if a driver is loaded but pynvml is missing, so that nothing could be planned.
  returned: when no driver answers for that reason, in check mode
  type: bool
  sample: true
forecast:
  description: >-
    A plan that the controller makes for empty GPUs of the host's models. The models are those in O(expected_gpus) or on the PCI
    bus. C(checked) is false if the models are unknown. C(problems) lists why the layout is not possible, if any. C(plan) has
    the lines of the plan, C(gpus) is the number of GPUs in the layout, and C(counts) has the same keys as RV(counts).
  returned: when no driver answers, in check mode
  type: dict
  sample:
    checked: true
    problems: []
    plan: ["gpu 0: enable MIG mode, create 3g.40gb@0"]
    gpus: 1
    counts: {create: 1, destroy: 0, keep: 0, gpus_changed: 1}
pci_gpus:
  description: C(address) and C(device_id) of the NVIDIA GPUs on the PCI bus.
  returned: when no driver answers, in check mode
  type: list
  elements: dict
  sample: [{address: "0000:3b:00.0", device_id: "2330"}]
busy:
  description: >-
    The GPUs and instances that the plan would take away, with their holders. On failure, these holders are the cause. In check
    mode with O(on_busy) V(wait) or V(force), a run would wait for these holders or end them.
  returned: when something blocks the plan
  type: list
  elements: dict
  sample:
    - what: "gpu 3 (GPU-5c89d3fa): 1g.10gb@4 (1 process)"
      who: ["pid 4711 (python3 train.py, user alice, train.service)"]
reload_risk:
  description: Whether running containers would lose their GPUs when systemd reloads its units.
  returned: success, in check mode
  type: bool
  sample: false
ended:
  description: Processes that O(on_busy=force) ended.
  returned: when there are any
  type: list
  elements: str
  sample: ["pid 4711 (python3 train.py, user alice, train.service)"]
followed:
  description: >-
    A sentence for each action that followed because devices were added or removed. In check mode, the predicted actions.
  returned: when there is anything
  type: list
  elements: str
  sample: ["CDI: /etc/cdi/nvidia.yaml written again", "nvidia-dcgm.service restarted"]
reboot_required:
  description: >-
    Whether MIG modes are pending until a reboot of the host (O(leave_pending)). On failure, whether the layout needs a reboot
    because a reset was refused.
  returned: success, and when the plan failed
  type: bool
  sample: false
host_fault:
  description: >-
    On failure, true if the cause is the state of the host, for example the driver, an MPS daemon, a file or a blocking
    workload. False if the cause is the layout or another argument.
  returned: when the layout was not applied
  type: bool
  sample: true
outcome:
  description: >-
    On failure, the current layout of the host. V(old) is the previous layout. V(new) means that the layout was applied and only
    a later action failed. Otherwise V(unknown).
  returned: when the plan failed
  type: str
  sample: old
steps_done:
  description: On failure, the steps that were done and then rolled back.
  returned: when the plan failed
  type: list
  elements: str
  sample: [enable MIG mode, create 3g.40gb@0]
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.change.layout_module import argspec_of_layout, bring_about
from ..module_utils.runner import run

argspec = argspec_of_layout


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: bring_about(module.params, module.check_mode))


if __name__ == "__main__":
    main()
