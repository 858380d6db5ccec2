#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mig
short_description: Partition a host's GPUs into MIG instances as its layout says
version_added: "0.1.0"
description:
  - Compares the GPUs with the layout, plans the steps between the two, carries them out and looks again.
  - GPUs that the layout names with C(sharing) V(mig) get MIG mode and exactly the instances listed. GPUs named with
    V(exclusive) or V(shared) get MIG mode off and the compute mode that this means.
    GPUs that no entry names are left as they are.
  - Every instance that the layout can use where it stands stays, with its UUID and with what runs in it. Every new GPU
    instance is created at a placement named in the plan.
  - A plan that would end something that runs, or take a GPU or instance from whoever holds it (C(docs/holders.md)), is
    refused before anything changes; holders are looked up again right before the steps on each GPU that could end something.
  - Where a step fails, the layout of before is brought back, and the error says so (RV(outcome)).
    Where the run itself is cut off (killed, power lost), the next one does that first (RV(recovered)).
  - Two runs on one host do not interleave; the second one waits (O(lock_timeout)).
  - Where a GPU needs a reset for its MIG mode (Ampere), the mode is only changed on a GPU that nothing uses.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - nvidia-ml-py on the host (the role P(openfleet.gpu.gpu_layout#role) brings it)
  - root
options:
  layout:
    description:
      - The variable C(gpu_layout), whole. Its contract, key by key, stands in C(docs/gpu_layout.md).
      - Entries whose C(sharing) is V(mps), V(time_slicing) or V(vgpu) are checked and then refused by this release.
    type: raw
    required: true
  unlisted:
    description:
      - >-
        What to do with instances, on GPUs that the layout puts in MIG mode, that it does not name and that this collection
        neither created nor adopted (it adopts what a layout names).
      - V(fail) stops before anything changes and names them. V(remove) removes them if nothing runs in them.
        V(keep) leaves them and places the layout's instances beside them.
      - Instances of this collection that the layout no longer names are removed in any case, if nothing runs in them.
    type: str
    choices: [fail, remove, keep]
    default: fail
  plan:
    description:
      - A plan that an earlier run in check mode returned as RV(plan_data) for the same host. It is carried out exactly as it
        is, or refused with the names of what moved since then (GPUs, instances, modes, the driver, or the layout).
      - A host on which it was carried out already is left as it is.
      - A driver must be there, in check mode too.
    type: dict
  on_busy:
    description:
      - What to do where something that the plan would end is held (C(docs/holders.md)).
      - V(fail) stops before anything changes, and names who holds it (RV(busy)).
      - >-
        V(wait) looks again until nobody does, for O(busy_timeout) seconds, and then fails likewise. Meanwhile the host is
        not locked. A task's C(until) around a short O(busy_timeout) shows progress; the role gpu_layout has that.
      - >-
        V(force) ends the processes that hold it, and no other, with SIGTERM and after O(grace_period) with SIGKILL, GPU by
        GPU right before its steps (RV(ended)). A holder without a process (a scheduler's allocation) is passed over.
      - In check mode, V(wait) and V(force) plan without failing, and RV(busy) names who is in the way.
    type: str
    choices: [fail, wait, force]
    default: fail
  busy_timeout:
    description: For O(on_busy=wait), how many seconds to wait.
    type: int
    default: 600
  grace_period:
    description: For O(on_busy=force), how many seconds a process has between SIGTERM and SIGKILL.
    type: int
    default: 30
  leave_pending:
    description:
      - For use right before a reboot of the host, where a run before has failed with RV(reboot_required), that is, where a GPU
        cannot be reset for its MIG mode. A plan that changes MIG modes is then not carried out. The modes are left pending on
        the GPUs, all of them or none, and RV(reboot_required) is returned.
      - The module does not reboot the host. The caller has to, at once, and to run the module again after it.
      - >-
        Refused where anything runs on any GPU of the host, until O(on_busy) allows that, and where an instance would be lost
        that the layout does not put back, until O(unlisted) is V(remove).
    type: bool
    default: false
  restart_services:
    description:
      - Units of systemd that list MIG devices when they start. Where the run made devices come or go, those of them that run
        are restarted after it, in this order, and CDI specifications of the NVIDIA container toolkit are made anew.
      - A run that finds this not done by the run before makes up for it. C(docs/after-a-change.md) tells more.
    type: list
    elements: str
    default: [nvidia-dcgm.service, dcgm-exporter.service]
  lock_timeout:
    description: >-
      How many seconds to wait where another run is changing this host's layout. Then the module fails and names that run.
    type: int
    default: 60
  state_directory:
    description: >-
      Directory on the host for the lock, the journal and the record of this collection's instances. Wherever a host's layout
      is changed from, it must be the same one.
    type: path
    default: /var/lib/openfleet-gpu
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    details: On a host without a driver the layout is checked by itself, RV(driver_present) is false and nothing is planned.
  diff_mode:
    support: full
    details: Shows the state of each GPU before and after, and the exact steps.
  platform:
    platforms: linux
seealso:
  - module: openfleet.gpu.gpu_info
"""

EXAMPLES = r"""
- name: Partition the GPUs as the inventory says
  openfleet.gpu.mig:
    layout: "{{ gpu_layout }}"
  become: true

- name: Plan, without changing anything
  openfleet.gpu.mig:
    layout: "{{ gpu_layout }}"
  check_mode: true
  register: planned
  become: true

- name: Carry out exactly that plan
  openfleet.gpu.mig:
    layout: "{{ gpu_layout }}"
    plan: "{{ planned.plan_data }}"
  become: true

- name: Two GPUs in MIG mode, the others whole
  openfleet.gpu.mig:
    layout:
      - gpus: [0, 1]
        sharing: mig
        mig:
          - {profile: 3g.40gb}
          - {profile: 2g.20gb, count: 2}
      - gpus: [2, 3]
        sharing: shared
  become: true
"""

RETURN = r"""
plan:
  description: The plan, one line per GPU that the layout names.
  returned: when a driver is present
  type: list
  elements: str
  sample: ["gpu 3: keep 3g.40gb@0 (2 processes), destroy 1g.10gb@4, create 2g.20gb@4"]
plan_data:
  description: >-
    The plan as data, to be saved and given to O(plan) later: what was observed, what was asked for, and the steps. Its form
    is described in C(docs/plans.md).
  returned: in check mode, when a driver is present
  type: dict
counts:
  description: GPU instances to C(create), C(destroy) and C(keep), and C(gpus_changed).
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
driver_present:
  description: Whether NVML answers.
  returned: success
  type: bool
recovered:
  description: >-
    Where an earlier run was cut off half way, the layout that stood after this run had cleared up and before it went on:
    V(old) or V(new).
  returned: when an earlier run was cut off, not in check mode
  type: str
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
    - what: "gpu 3: 1g.10gb@4 (1 process)"
      who: ["pid 4711 (python3 train.py, user alice, train.service)"]
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
  sample: ["CDI: /etc/cdi/nvidia.yaml written anew", "nvidia-dcgm.service restarted"]
reboot_required:
  description: >-
    Whether MIG modes wait for a reboot of the host (O(leave_pending)). On failure, whether a reset was refused, so that only
    a reboot brings the layout about.
  returned: success, and on failure when the plan could not be carried out
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

from ..module_utils import busy, plan_file
from ..module_utils.converge import converge, foresee
from ..module_utils.errors import DriverAbsentError
from ..module_utils.follow import SERVICES
from ..module_utils.layout import parse_layout
from ..module_utils.model import to_data
from ..module_utils.ownership import POLICIES
from ..module_utils.pci import nvidia_gpus
from ..module_utils.runner import respawn_with_pynvml, run
from ..module_utils.transaction import DIRECTORY


def argspec():
    return {
        # raw: the layout's own parser says what is wrong with it, entry by entry.
        "layout": {"type": "raw", "required": True},
        "unlisted": {"type": "str", "choices": list(POLICIES), "default": POLICIES[0]},
        "plan": {"type": "dict"},
        "on_busy": {"type": "str", "choices": list(busy.POLICIES), "default": busy.FAIL},
        "busy_timeout": {"type": "int", "default": 600},
        "grace_period": {"type": "int", "default": 30},
        "leave_pending": {"type": "bool", "default": False},
        "restart_services": {"type": "list", "elements": "str", "default": list(SERVICES)},
        "lock_timeout": {"type": "int", "default": 60},
        "state_directory": {"type": "path", "default": DIRECTORY},
    }


def partition(params, check_mode):
    """The module's return values."""
    layout = parse_layout(params["layout"])
    directory, unlisted, saved = params["state_directory"], params["unlisted"], params["plan"]
    services = params["restart_services"]
    try:
        if check_mode:
            done = foresee(layout, directory, unlisted, saved, params["on_busy"], services)
        else:
            on_busy = busy.OnBusy(params["on_busy"], params["busy_timeout"], params["grace_period"])
            done = converge(
                layout, directory, unlisted, params["lock_timeout"], saved, on_busy, params["leave_pending"], services
            )
    except DriverAbsentError as error:
        if error.call == "import":
            respawn_with_pynvml()
        if saved is not None or not check_mode:
            raise
        msg = "%s Only the form of the layout was checked." % error
        return {"changed": True, "driver_present": False, "pci_gpus": nvidia_gpus(), "msg": msg}
    plan = done.plan
    told = {
        "changed": done.changed,
        "driver_present": True,
        "plan": plan.lines(),
        "counts": plan.counts(),
        "gpus": report(plan, {gpu.uuid: gpu for gpu in done.host.gpus}),
        "reboot_required": done.reboot_required,
        "diff": {
            "before": "".join(gpu.before() + "\n" for gpu in plan.gpus),
            "after": "".join(gpu.after() + "\n" for gpu in plan.gpus),
            "prepared": "\n".join([*plan.lines(), *map("then {}".format, done.followed)]) if plan.changes else "",
        },
    }
    if check_mode:
        told["plan_data"] = plan_file.save(plan, done.host)
        if plan.disturbs:
            told["busy"] = [disturbance.to_data() for disturbance in plan.disturbs]
    if done.followed:
        told["followed"] = list(done.followed)
    if done.ended:
        told["ended"] = list(done.ended)
    if done.recovered:
        told["recovered"] = done.recovered
    return told


def report(plan, observed):
    """Per GPU: what was asked, what was there, what is there now."""
    return [
        {
            "index": gpu.gpu.index,
            "uuid": gpu.gpu.uuid,
            "name": gpu.gpu.name,
            "entry": gpu.target.where,
            "asked": str(gpu.target),
            "before": gpu.before(),
            "after": gpu.after(),
            "changed": bool(gpu.steps),
            "placement_units": max(
                (p.start + p.size for profile in gpu.gpu.mig.profiles for p in profile.placements), default=0
            ),
            "instances": [
                {
                    "profile": i.profile,
                    "placement": to_data(i.placement),
                    "mig_uuids": [c.mig_uuid for c in i.compute_instances],
                }
                for i in observed[gpu.gpu.uuid].mig.instances
            ],
        }
        for gpu in plan.gpus
    ]


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: partition(module.params, module.check_mode))


if __name__ == "__main__":
    main()
