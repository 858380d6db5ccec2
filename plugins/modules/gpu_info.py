#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Report a host's NVIDIA GPUs, MIG instances and GPU processes
version_added: "0.1.0"
description:
  - Reads NVML once and returns the GPUs of the host with their MIG mode, GPU instances, compute instances, processes,
    links and present use.
  - On a host without a driver it does not fail but says so in RV(driver_present) and RV(driver_absent_reason).
  - Needs root on a host with a GPU that can do MIG, since NVML tells placements and instances to privileged users alone;
    as another user the module fails there and says so. Elsewhere anyone may read, but other users' open files cannot be
    seen without root, which counts as a holder of kind V(unknown) of every GPU.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - nvidia-ml-py on the host (the role P(openfleet.gpu.gpu_layout#role) brings it)
options:
  telemetry:
    description: Also read memory use, utilisation, power, temperature and NVLinks of each GPU.
    type: bool
    default: true
  profiles:
    description: Also return the MIG profiles that each GPU offers, with all their placements.
    type: bool
    default: false
  holders:
    description:
      - Also look for holders of a GPU or an instance without a process in NVML; processes with an open device node,
        containers, Slurm jobs, pods, MPS clients.
      - Takes some milliseconds; longer where Slurm or MPS runs, whose tools are asked.
    type: bool
    default: true
  sockets:
    description:
      - Also look whether the unit or container of each holder listens on TCP, and how many clients are connected to it.
      - Reads the open files of these units' and containers' processes once more, and the tables of their network namespaces. Has
        no effect without O(holders).
    type: bool
    default: false
extends_documentation_fragment:
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  platform:
    platforms: linux
seealso:
  - module: openfleet.gpu.mig
"""

EXAMPLES = r"""
- name: See what the GPUs of this host are and do
  openfleet.gpu.gpu_info:
  become: true
  register: result

- name: Stop where a GPU is in use
  ansible.builtin.assert:
    that: result.gpus | map(attribute='holders') | flatten | rejectattr('watches') | length == 0
    fail_msg: "{{ result.gpus | map(attribute='holders') | flatten | map(attribute='who') | unique | join('; ') }}"
"""

RETURN = r"""
driver_present:
  description: Whether NVML answers. Where it does not, RV(gpus) is empty and the version values are null.
  returned: always
  type: bool
driver_absent_reason:
  description: Why NVML does not answer, and how to mend it.
  returned: when RV(driver_present) is false
  type: str
driver_version:
  description: The driver's version.
  returned: always
  type: str
  sample: "580.65.06"
nvml_version:
  description: The NVML library's version.
  returned: always
  type: str
  sample: "13.580.65.06"
cuda_version:
  description: The newest CUDA version that the driver serves.
  returned: always
  type: str
  sample: "13.0"
simulated:
  description: Whether this is the collection's simulated NVML and there is no hardware.
  returned: always
  type: bool
gpus:
  description: One entry per GPU, in index order. A value of null means that the driver does not tell.
  returned: always
  type: list
  elements: dict
  contains:
    index:
      description: NVML's index. It can change between boots; UUID and PCI address do not.
      type: int
    uuid:
      description: The GPU's UUID.
      type: str
    name:
      description: NVML's name of the model.
      type: str
    pci_address:
      description: PCI address as sysfs writes it; null for a GPU that is not on a PCI bus.
      type: str
      sample: "0000:3b:00.0"
    serial:
      description: Serial number of the board.
      type: str
    architecture:
      description: Architecture, in lower case.
      type: str
      sample: hopper
    compute_capability:
      description: CUDA compute capability.
      type: str
      sample: "9.0"
    memory_total_bytes:
      description: Framebuffer in all; null for a GPU without memory of its own (GB10, Thor), for which NVML has no figure.
      type: int
    compute_mode:
      description: V(default), V(exclusive_process) or V(prohibited); null with MIG on.
      type: str
    persistence_mode:
      description: Whether the driver keeps the GPU initialised without clients.
      type: bool
    numa_node:
      description: The NUMA node that the card is attached to.
      type: int
    nvlinks:
      description: Active NVLinks, each with C(link) and C(remote_pci_address).
      type: list
      elements: dict
    processes:
      description: >-
        Processes on this GPU and its instances, each with C(pid), C(kind) (compute, graphics, mps), C(name),
        C(gpu_memory_bytes), C(gpu_instance_id), C(compute_instance_id). A client of MPS is of kind C(mps) alone,
        although NVML lists it as a compute process too.
      type: list
      elements: dict
    holders:
      description: >-
        The holders of this GPU or one of its instances; null without O(holders). What cannot be determined is
        a holder too, of kind V(unknown).
      type: list
      elements: dict
      contains:
        kind:
          description: V(process), V(device_handle), V(container), V(slurm), V(kubelet), V(mps) or V(unknown).
          type: str
        who:
          description: The holder in words; for V(unknown) what could not be determined, and how to mend that.
          type: str
          sample: pid 4711 (python3 train.py, user alice, train.service), which has its device node open
        gpu_uuid:
          description: The GPU.
          type: str
        gpu_instance_id:
          description: The GPU instance; null for the GPU as a whole, or where it cannot be told.
          type: int
        pid:
          description: Process id.
          type: int
        user:
          description: Whose it is.
          type: str
        command:
          description: Command line of the process, without the secrets in it that a name before them tells.
          type: str
        unit_or_container:
          description: >-
            The systemd unit or the container that it belongs to; V(user@1000.service) for what that user's own systemd started.
          type: str
        job:
          description: Id of the Slurm job, or UID of the pod.
          type: str
        watches:
          description: >-
            Whether it only keeps the GPU open, as nvidia-persistenced and DCGM do. Such a one is in the way of a reset and
            of a change of MIG mode, and not of a change of instances.
          type: bool
        started_seconds:
          description: When the process began, as a Unix time; null where there is none, or the host does not say.
          type: float
        listens:
          description: >-
            Whether its unit or container has a TCP socket that listens, on any address and loopback too; of a process that is in
            neither, the process alone. Null without O(sockets), for holders without a process, and where it cannot be told.
          type: bool
        clients:
          description: >-
            How many TCP connections are established to the ports on which it listens, whose other end is not in the same unit or
            container. Null where RV(gpus[].holders[].listens) is.
          type: int
    telemetry:
      description: >-
        C(memory_used_bytes), C(memory_free_bytes), C(gpu_utilization_percent), C(memory_utilization_percent),
        C(power_watts), C(power_limit_watts), C(temperature_celsius) just now; null without O(telemetry).
      type: dict
    mig:
      description: >-
        C(capable), C(enabled), C(pending) (differs from C(enabled) while a mode change waits for a reset), C(instances),
        and C(profiles) where O(profiles) asks for them.
      type: dict
      contains:
        instances:
          description: GPU instances in order of placement.
          type: list
          elements: dict
          contains:
            id:
              description: GPU instance id.
              type: int
            profile:
              description: Name of the profile.
              type: str
              sample: 3g.40gb
            placement:
              description: C(start) and C(size) in memory placement units.
              type: dict
            compute_instances:
              description: >-
                Compute instances, each with C(id), C(compute_slices), C(placement), C(mig_uuid) and C(processes).
              type: list
              elements: dict
            processes:
              description: Processes in this instance.
              type: list
              elements: dict
            holders:
              description: >-
                The GPU's holders that are in the way of destroying this instance, its own and those of which it cannot
                be told; null without O(holders).
              type: list
              elements: dict
lost_gpus:
  description: >-
    GPUs that do not work, which are not in RV(gpus). An NVML call for each of them fails, or it is on the PCI bus and the driver
    does not count it.
  returned: always
  type: list
  elements: dict
  contains:
    index:
      description: NVML's index; null for a GPU that the driver does not count.
      type: int
    problem:
      description: What is wrong, with NVML's words.
      type: str
      sample: "nvmlDeviceGetMemoryInfo failed: Unknown Error (NVML code 999)"
    uuid:
      description: The GPU's UUID; null where the GPU does not answer it.
      type: str
    pci_address:
      description: PCI address as sysfs writes it; null where it is unknown.
      type: str
    name:
      description: NVML's name of the model; null where the GPU does not answer it.
      type: str
    call:
      description: The NVML call that failed.
      type: str
    code:
      description: NVML's return code.
      type: int
    code_name:
      description: NVML's name of the code.
      type: str
mps_daemons:
  description: >-
    The MPS control daemons of this collection that run here, with what each one answers and its clients, as the module
    M(openfleet.gpu.mps) returns them in RV(openfleet.gpu.mps#module:daemons). Where they cannot be looked at, one entry whose
    C(problem) says why.
  returned: success
  type: list
  elements: dict
vgpu_tenants:
  description: >-
    The tenants of this collection that this host has, with their quotas and what they use, as the module
    M(openfleet.gpu.vgpu_quota) returns them in RV(openfleet.gpu.vgpu_quota#module:tenants). Where they cannot be looked at, one
    entry whose C(problem) says why.
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.errors import DriverAbsentError
from ..module_utils.holders.find import find_holders, gpus
from ..module_utils.model import to_data
from ..module_utils.nvml.bounded_session import BoundedSession
from ..module_utils.nvml.calls import respawn_with_pynvml
from ..module_utils.runner import run
from ..module_utils.techniques.service_views import SERVICE_VIEWS, reports


def argspec():
    return {
        "telemetry": {"type": "bool", "default": True},
        "profiles": {"type": "bool", "default": False},
        "holders": {"type": "bool", "default": True},
        "sockets": {"type": "bool", "default": False},
    }


#: What is reported for the host as a whole.
ABOUT = ("driver_version", "nvml_version", "cuda_version", "simulated")


def read(params):
    """The module's return values."""
    try:
        with BoundedSession() as session:
            host = session.observe(telemetry=params["telemetry"])
            holders = find_holders(host, sockets=params["sockets"]) if params["holders"] else None
            beside = reports(session.private)
    except DriverAbsentError as error:
        if error.call == "import":
            respawn_with_pynvml()
        nothing = dict.fromkeys(("driver_version", "nvml_version", "cuda_version"))
        absent = {"driver_present": False, "driver_absent_reason": str(error), "lost_gpus": []}
        return dict(nothing, simulated=False, gpus=[], **absent, **{each.name: [] for each in SERVICE_VIEWS})
    return dict(
        {name: getattr(host, name) for name in ABOUT},
        driver_present=True,
        lost_gpus=to_data(host.lost),
        gpus=gpus(host, holders, params["profiles"]),
        **beside,
    )


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: read(module.params))


if __name__ == "__main__":
    main()
