# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of the modules that apply a layout, or a part of one."""

from __future__ import annotations


class ModuleDocFragment:
    """DOCUMENTATION is what all have, PART what those of one technique have, GPUS what those have that change GPUs."""

    DOCUMENTATION = r"""
options:
  layout:
    description:
      - The variable C(gpu_layout), whole. Its contract, key by key, stands in C(docs/gpu_layout.md).
    type: raw
    required: true
  on_busy:
    description:
      - What to do where something that the plan would end is held (C(docs/holders.md)).
      - V(fail) stops before anything changes, and names who holds it (C(busy)).
      - >-
        V(wait) looks again until it is free, for O(busy_timeout) seconds, and then fails likewise. Meanwhile the host is
        not locked. A task's C(until) around a short O(busy_timeout) shows progress; the role gpu_layout has that.
      - >-
        V(force) ends the processes that hold it, and no other, with SIGTERM and after O(grace_period) with SIGKILL, GPU by
        GPU right before its steps (C(ended)). A holder without a process (a scheduler's allocation) is passed over.
      - In check mode, V(wait) and V(force) plan without failing, and C(busy) names who is in the way.
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
  lock_timeout:
    description: >-
      How many seconds to wait where another run is changing this host's layout. Then the module fails and names that run.
    type: int
    default: 60
  lost:
    description: >-
      What to do if the layout names a GPU that is lost (off the bus, or an NVML call for it fails). V(fail) stops before a
      change.
      V(skip) leaves it out with a warning and changes the host's other GPUs; an entry that divides something between its
      GPUs (C(vgpu), or C(mps) with C(daemon_per=entry)) is left out whole. Where the layout does not name it, a warning is all.
    type: str
    choices: [fail, skip]
    default: fail
  state_directory:
    description: >-
      Directory on the host for the lock, the journal and the record of this collection's instances. Wherever a host's layout
      is changed from, it must be the same one.
    type: path
    default: /var/lib/openfleet-gpu
requirements:
  - nvidia-ml-py on the host (the role P(openfleet.gpu.gpu_layout#role) brings it)
  - root
attributes:
  action_group:
    support: full
    description: >-
      Use C(group/openfleet.gpu.layout) or C(group/openfleet.gpu.state) in C(module_defaults) to set defaults for several
      modules.
    membership: [openfleet.gpu.layout, openfleet.gpu.state]
  check_mode:
    support: full
    details: On a host without a driver the layout is checked by itself, C(driver_present) is false and nothing is planned.
  diff_mode:
    support: full
    details: Shows the state of each GPU before and after, and the exact steps.
  platform:
    platforms: linux
"""

    PART = r"""
options: {}
notes:
  - Return values that are not listed here are those of M(openfleet.gpu.layout).
"""

    GPUS = r"""
options:
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
  leave_pending:
    description:
      - For use right before a reboot of the host, where a run before has failed with C(reboot_required), that is, where a GPU
        cannot be reset for its MIG mode. A plan that changes MIG modes is then not carried out. The modes are left pending on
        the GPUs, all of them or none, and C(reboot_required) is returned.
      - The module does not reboot the host. The caller has to, at once, and to run the module again after it.
      - >-
        Refused where anything runs on any GPU of the host, until O(on_busy) allows that, and where an instance would be lost
        that the layout does not put back, until O(unlisted) is V(remove).
    type: bool
    default: false
  mig_manager:
    description:
      - What to do if C(nvidia-mig-manager.service) is enabled on the host. It would repartition the GPUs at the next boot.
      - V(refuse) stops before anything changes. V(disable) disables the unit after the layout was applied.
    type: str
    choices: [refuse, disable]
    default: refuse
  restart_services:
    description:
      - Units of systemd that list MIG devices when they start. Where the run made devices come or go, those of them that run
        are restarted after it, in this order, and CDI specifications of the NVIDIA container toolkit are renewed.
      - A run that finds this not done by the run before makes up for it. C(docs/after-a-change.md) tells more.
    type: list
    elements: str
    default: [nvidia-dcgm.service, dcgm-exporter.service, nvidia-dcgm-exporter.service]
  pynvml:
    description:
      - In check mode, the text of pynvml.py to use where the host has no pynvml. It stays in the memory of the module, and
        nothing of it is written to the host.
      - M(openfleet.gpu.layout) sets it by itself, where a driver is loaded on a host without pynvml, to the file of the
        Python that runs Ansible, if the SHA-256 of that file is known (C(gpu_layout_nvml_hashes)).
    type: str
"""
