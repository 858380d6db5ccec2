#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: layout
short_description: Make a host's GPUs what its layout says
version_added: "0.1.0"
description:
  - Compares the GPUs with the layout, plans the steps between the two, carries them out and looks again. All of a layout is
    one change; MIG modes and instances, compute modes, time slices, MPS daemons and tenants. M(openfleet.gpu.mig),
    M(openfleet.gpu.mps), M(openfleet.gpu.time_slicing) and M(openfleet.gpu.vgpu_quota) do a part of it each.
  - >-
    What each C(sharing) means: V(mig) gives MIG mode and exactly the instances listed, V(exclusive) one process at a time
    (compute mode EXCLUSIVE_PROCESS), V(shared) anybody, V(mps) an MPS control daemon as a unit of systemd
    (C(docs/mps.md)), V(time_slicing) a time slice, V(vgpu) tenants that are held to quotas (C(docs/gpu_layout.md)). GPUs that
    never had an entry are left as they are; O(unnamed) is about GPUs that had one.
  - Every instance that the layout can use where it stands stays, with its UUID and with what runs in it. Every new GPU
    instance is created at a placement named in the plan. So does every MPS daemon and every tenant; new limits are given to it
    as it runs.
  - A plan that would end something that runs, or take a GPU or instance from its holder (C(docs/holders.md)), is
    refused before anything changes; holders are looked up again right before the steps on each GPU that could end something.
  - Where a step fails, the layout of before is brought back, and the error says so (RV(outcome)).
    Where the run itself is cut off (killed, power lost), the next one does that first (RV(recovered)).
  - Two runs on one host do not interleave; the second one waits (O(lock_timeout)).
  - Where a GPU needs a reset for its MIG mode (Ampere), the mode is only changed on a GPU that nothing uses.
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
      - What to do with GPUs that had an entry when the collection last changed them and that no entry names any more.
      - >-
        V(keep) leaves them as they are and names them (RV(unmanaged)). If such a GPU has lost what it had, as in a reboot, the
        run restores it. Where that is not possible, a warning says why, and the other GPUs get their layout.
      - >-
        V(release) removes the collection's instances, daemons, tenants and settings from them as a part of the plan. The record
        of a GPU that left the host is dropped.
      - C(docs/gpu_layout.md) tells more.
    type: str
    choices: [keep, release]
    default: keep
  expected_gpus:
    description:
      - Keys of the catalogue of GPU models (C(docs/models.md)), one for each GPU of the host in the order of indexes.
      - Used in check mode on a host where no driver answers, for RV(forecast). Without them the models are those that the host
        has on its PCI bus.
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
- name: Share the GPUs as the inventory says
  openfleet.gpu.layout:
    layout: "{{ gpu_layout }}"
  become: true

- name: Plan, without changing anything
  openfleet.gpu.layout:
    layout: "{{ gpu_layout }}"
  check_mode: true
  register: planned
  become: true

- name: Carry out exactly that plan
  openfleet.gpu.layout:
    layout: "{{ gpu_layout }}"
    plan: "{{ planned.plan_data }}"
  become: true

- name: Two GPUs in MIG mode, one for the clients of an MPS daemon, one whole
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
    The plan, one line per GPU that the layout names, one per MPS daemon and per tenant that changes, and one per GPU of
    RV(unmanaged).
  returned: when a driver is present
  type: list
  elements: str
  sample: ["gpu 3: keep 3g.40gb@0 (2 processes), destroy 1g.10gb@4, create 2g.20gb@4"]
plan_lines:
  description: >-
    The lines of RV(plan) with the GPU apart from the text. A line of a GPU has its C(index) and C(uuid), and a C(text) without
    them; a line of an MPS daemon or a tenant has a C(text) alone. In a line about a GPU of RV(unmanaged), C(unmanaged) is true.
  returned: when a driver is present
  type: list
  elements: dict
  sample: [{"index": 3, "uuid": "GPU-5c89d3fa-0000-4000-8000-000000000001", "text": "enable MIG mode, create 3g.40gb@0"}]
plan_data:
  description: >-
    The plan as data, to be saved and given to O(plan) later: what was observed, what was asked for, and the steps. Its form
    is described in C(docs/plans.md).
  returned: in check mode, when a driver is present
  type: dict
counts:
  description: >-
    GPU instances to C(create), C(destroy) and C(keep), and C(gpus_changed), which counts GPUs whose MPS daemon
    or tenants change too.
  returned: when a driver is present
  type: dict
gpus:
  description: >-
    For each GPU that the layout names what was asked for (C(asked), from C(entry) of the layout), the state C(before) the
    run and C(after) it (verified against NVML after a change; predicted in check mode), and whether it C(changed).
    C(instances) lists the GPU instances that are there now, C(placement_units) how many memory units a placement counts in.
  returned: when a driver is present
  type: list
  elements: dict
missing:
  description: What has to be installed before the plan can be carried out; a run without it is refused.
  returned: in check mode, when something is missing
  type: list
  elements: str
driver_present:
  description: Whether NVML answers.
  returned: success
  type: bool
pynvml_sha256:
  description: >-
    SHA-256 of the pynvml that the role C(gpu_layout) brought to the host. Empty where there is none, or where others than
    root may change it.
  returned: in check mode, when a driver is present
  type: str
lost:
  description: A sentence for each GPU of the host that does not work (lost), also given as a warning.
  returned: when a GPU is lost
  type: list
  elements: str
unmanaged:
  description: >-
    The GPUs that had an entry and that no entry names any more: C(index), C(uuid), C(name), what the collection last applied
    (C(recorded)) with the techniques whose daemons or tenants that takes (C(services)), what the GPU has now (C(current)), the
    C(text) of the line in RV(plan), and the C(action): V(keep), V(restore), V(release), or V(leave) where another tool changed
    the GPU or it cannot be restored.
  returned: when there are any
  type: list
  elements: dict
recovered:
  description: >-
    Where an earlier run was cut off half way, the layout that stood after this run had cleared up and before it went on:
    V(old) or V(new).
  returned: when an earlier run was cut off, not in check mode
  type: str
pynvml_missing:
  description: True where a driver is loaded and no pynvml is there to ask it by, so that nothing could be planned.
  returned: when no driver answers for that reason, in check mode
  type: bool
forecast:
  description: >-
    The layout planned on empty GPUs of the models that the host has or expects (O(expected_gpus)). C(checked) is false where the
    models are not known; C(problems) says what is wrong, empty where the layout can be had; C(plan) has the lines, C(gpus) how
    many GPUs the layout names, and C(counts) what RV(counts) has. It is made on the controller.
  returned: when no driver answers, in check mode
  type: dict
pci_gpus:
  description: C(address) and C(device_id) of the NVIDIA GPUs on the PCI bus.
  returned: when no driver answers, in check mode
  type: list
  elements: dict
busy:
  description: >-
    What the plan would end, and who holds it. On failure, the reason; in check mode with O(on_busy) V(wait) or V(force),
    who would be waited for or ended.
  returned: when something is in the way
  type: list
  elements: dict
  sample:
    - what: "gpu 3 (GPU-5c89d3fa): 1g.10gb@4 (1 process)"
      who: ["pid 4711 (python3 train.py, user alice, train.service)"]
reload_risk:
  description: Whether running containers would lose their GPUs when systemd reloads its units.
  returned: success, in check mode
  type: bool
ended:
  description: The processes that were ended, by O(on_busy=force).
  returned: when there are any
  type: list
  elements: str
followed:
  description: >-
    What was done because devices came or went, a text each; in check mode what would be.
  returned: when there is anything
  type: list
  elements: str
  sample: ["CDI: /etc/cdi/nvidia.yaml written again", "nvidia-dcgm.service restarted"]
reboot_required:
  description: >-
    Whether MIG modes wait for a reboot of the host (O(leave_pending)). On failure, whether a reset was refused, so that only
    a reboot brings the layout about.
  returned: success, and on failure when the plan could not be carried out
  type: bool
host_fault:
  description: >-
    On failure, true where the state of the host is the reason (its driver, an MPS daemon, a file, a workload in the way), and
    false where it is the layout or another argument.
  returned: when the layout cannot be had
  type: bool
outcome:
  description: On failure, which layout stands now. V(old), V(unknown), or V(new) where only what follows a change failed.
  returned: when the plan could not be carried out
  type: str
steps_done:
  description: On failure, the steps that had been done before they were taken back.
  returned: when the plan could not be carried out
  type: list
  elements: str
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
