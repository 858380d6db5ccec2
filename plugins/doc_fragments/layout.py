# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Document modules that apply a layout or a part of one."""

from __future__ import annotations


class ModuleDocFragment:
    """DOCUMENTATION is for all modules, PART for one technique, GPUS for GPU changes."""

    DOCUMENTATION = r"""
options:
  layout:
    description:
      - The whole variable C(gpu_layout). C(docs/gpu_layout.md) describes its keys.
    type: raw
    required: true
  on_busy:
    description:
      - How to handle workloads that block the plan, because they hold a GPU, instance or daemon that the plan would take away
        (C(docs/holders.md)).
      - V(fail) stops before any change. C(busy) lists the holders.
      - >-
        V(wait) retries for O(busy_timeout) seconds and then fails like V(fail). The host is not locked during this time. To
        show progress, use C(until) with a short O(busy_timeout), as the role gpu_layout does.
      - >-
        V(force) ends only the processes that block the plan. They are sent SIGTERM, and after O(grace_period) SIGKILL, right
        before the steps on their GPU. C(ended) lists them. Holders without a process, such as allocations of a scheduler, are
        ignored.
      - In check mode, V(wait) and V(force) do not fail, and C(busy) lists the holders.
    type: str
    choices: [fail, wait, force]
    default: fail
  busy_timeout:
    description: For O(on_busy=wait), time to wait in seconds.
    type: int
    default: 600
  grace_period:
    description: For O(on_busy=force), time between SIGTERM and SIGKILL in seconds.
    type: int
    default: 30
  lock_timeout:
    description: >-
      Time in seconds to wait for another run that is changing this host's layout. After this time, the module fails, and the
      message identifies the other run.
    type: int
    default: 60
  lost:
    description: >-
      How to handle lost GPUs in the layout. A GPU is lost if it is off the bus, or if an NVML call for it fails. V(fail) stops
      before any change. V(skip) warns, skips the GPU, and changes the host's other GPUs. If an entry distributes something
      among its GPUs (C(vgpu), or C(mps) with C(daemon_per=entry)), the whole entry is skipped. A lost GPU outside the layout
      only causes a warning.
    type: str
    choices: [fail, skip]
    default: fail
  state_directory:
    description: >-
      Directory on the host for the lock, the journal and the record of this collection's instances. All tools that change the
      host's layout must use the same directory.
    type: path
    default: /var/lib/openfleet-gpu
requirements:
  - nvidia-ml-py on the host (installed by the role P(openfleet.gpu.gpu_layout#role))
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
    details: On a host without a driver, only the syntax of the layout is checked, and C(driver_present) is false.
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
        How to handle foreign instances on GPUs that the layout puts in MIG mode. An instance is foreign if the layout does
        not name it and this collection neither created nor adopted it. Instances that a layout names are adopted.
      - V(fail) stops before any change and names the instances. V(remove) removes them if nothing runs in them. V(keep) keeps
        them and places the layout's instances beside them.
      - The collection's own instances that the layout no longer names are always removed if nothing runs in them.
    type: str
    choices: [fail, remove, keep]
    default: fail
  plan:
    description:
      - A plan that an earlier run in check mode returned as RV(plan_data) for the same host. The module applies exactly this
        plan. If GPUs, instances, modes, the driver or the layout have changed since then, it lists the differences and fails.
      - If the plan was already applied, the host is not changed.
      - Requires a driver, also in check mode.
    type: dict
  leave_pending:
    description:
      - Whether to leave changes of MIG modes pending for a reboot, after a run failed with C(reboot_required) because a GPU
        cannot be reset. A plan that changes MIG modes is then not applied. Instead, all of its modes or none are set as pending,
        and C(reboot_required) is returned.
      - The module does not reboot the host. The caller must reboot it at once, and then run the module again.
      - >-
        Refused while a workload runs on any GPU of the host, unless O(on_busy=force). Also refused if the reboot would destroy an
        instance that the layout does not recreate, unless O(unlisted=remove).
    type: bool
    default: false
  mig_manager:
    description:
      - How to handle an enabled C(nvidia-mig-manager.service), which would repartition the GPUs at the next boot.
      - V(refuse) stops before any change. V(disable) disables the unit after the layout is applied.
    type: str
    choices: [refuse, disable]
    default: refuse
  restart_services:
    description:
      - systemd units that list MIG devices only when they start. A run that adds or removes devices restarts the active
        units of this list, in this order, and rewrites CDI specifications of the NVIDIA container toolkit.
      - If an earlier run was interrupted before these steps, this run completes them. See C(docs/after-a-change.md).
    type: list
    elements: str
    default: [nvidia-dcgm.service, dcgm-exporter.service, nvidia-dcgm-exporter.service]
  pynvml:
    description:
      - In check mode, the text of pynvml.py for hosts without pynvml. It is kept in memory and never written to the host.
      - M(openfleet.gpu.layout) sets it for hosts with a loaded driver and no pynvml, to the pynvml of the Python that runs
        Ansible, if its SHA-256 is known (C(gpu_layout_nvml_hashes)).
    type: str
"""
