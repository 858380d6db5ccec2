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
    links and current use.
  - On a host without a driver, it does not fail. RV(driver_present) is false, and RV(driver_absent_reason) has the reason.
  - Requires root on hosts with MIG-capable GPUs, because NVML reports placements and instances only to privileged users. On
    other hosts, any user can run it. Without root, the module cannot read other users' open files, so it reports a holder of
    kind V(unknown) for every GPU.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - nvidia-ml-py on the host (installed by the role P(openfleet.gpu.gpu_layout#role))
options:
  telemetry:
    description: Whether to read memory use, utilization, power, temperature and NVLinks of each GPU.
    type: bool
    default: true
  profiles:
    description: Whether to return the MIG profiles of each GPU, with all their placements.
    type: bool
    default: false
  holders:
    description:
      - Whether to find holders of GPUs and instances that have no process in NVML. These are processes with an open device
        node, containers, Slurm jobs, pods and MPS clients.
      - This takes some milliseconds. On hosts with Slurm or MPS it takes longer, because the tools of Slurm and MPS are
        executed.
    type: bool
    default: true
  sockets:
    description:
      - Whether to report if the unit or container of each holder listens on TCP, and how many clients are connected to it.
      - For this, the module reads the open files of all processes in these units and containers, and the socket tables of their
        network namespaces. Requires O(holders).
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
- name: Read the GPUs of the host
  openfleet.gpu.gpu_info:
  become: true
  register: result

- name: Check that no GPU is in use
  ansible.builtin.assert:
    that: result.gpus | map(attribute='holders') | flatten | rejectattr('watches') | length == 0
    fail_msg: "{{ result.gpus | map(attribute='holders') | flatten | map(attribute='who') | unique | join('; ') }}"
"""

RETURN = r"""
driver_present:
  description: Whether NVML answers. If not, RV(gpus) is empty and the versions are null.
  returned: always
  type: bool
  sample: true
driver_absent_reason:
  description: Why NVML does not answer, and the fix.
  returned: when RV(driver_present) is false
  type: str
  sample: "this host: NVML does not start: Driver Not Loaded. Install and load the NVIDIA driver."
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
  description: The newest CUDA version that the driver supports.
  returned: always
  type: str
  sample: "13.0"
simulated:
  description: Whether NVML is the collection's simulator, without hardware.
  returned: always
  type: bool
  sample: false
gpus:
  description: One entry per GPU, in index order. A value is null if the driver does not report it.
  returned: always
  type: list
  elements: dict
  contains:
    index:
      description: NVML's index. It can change between boots, unlike UUID and PCI address.
      type: int
      sample: 3
    uuid:
      description: The GPU's UUID.
      type: str
      sample: GPU-5c89d3fa-0000-4000-8000-000000000001
    name:
      description: NVML's name of the model.
      type: str
      sample: NVIDIA H100 80GB HBM3
    pci_address:
      description: PCI address in the format of sysfs. Null for a GPU that is not on a PCI bus.
      type: str
      sample: "0000:3b:00.0"
    serial:
      description: Serial number of the board.
      type: str
      sample: "1657062036387"
    architecture:
      description: Architecture, in lower case.
      type: str
      sample: hopper
    compute_capability:
      description: CUDA compute capability.
      type: str
      sample: "9.0"
    memory_total_bytes:
      description: Total framebuffer. Null for GPUs that share system memory (GB10, Thor), for which NVML reports no value.
      type: int
      sample: 85520809984
    compute_mode:
      description: V(default), V(exclusive_process) or V(prohibited). Null in MIG mode.
      type: str
      sample: default
    persistence_mode:
      description: Whether the driver keeps the GPU initialized without clients.
      type: bool
      sample: true
    numa_node:
      description: The NUMA node of the GPU.
      type: int
      sample: 0
    nvlinks:
      description: Active NVLinks, each with C(link) and C(remote_pci_address).
      type: list
      elements: dict
      sample: [{link: 0, remote_pci_address: "0000:5d:00.0"}]
    processes:
      description: >-
        Processes on this GPU and its instances, each with C(pid), C(kind) (compute, graphics, mps), C(name),
        C(gpu_memory_bytes), C(gpu_instance_id), C(compute_instance_id). An MPS client is listed once, with the kind C(mps),
        although NVML also lists it as a compute process.
      type: list
      elements: dict
      sample:
        - {pid: 4711, kind: compute, name: python3, gpu_memory_bytes: 2147483648, gpu_instance_id: 2, compute_instance_id: 0}
    holders:
      description: >-
        Holders of this GPU or of one of its instances. Null without O(holders). If something cannot be determined, it is
        reported as a holder of kind V(unknown).
      type: list
      elements: dict
      contains:
        kind:
          description: V(process), V(device_handle), V(container), V(slurm), V(kubelet), V(mps) or V(unknown).
          type: str
          sample: process
        who:
          description: Description of the holder. For V(unknown), what could not be determined, and the fix.
          type: str
          sample: pid 4711 (python3 train.py, user alice, train.service), which has its device node open
        gpu_uuid:
          description: The GPU.
          type: str
          sample: GPU-5c89d3fa-0000-4000-8000-000000000001
        gpu_instance_id:
          description: ID of the GPU instance. Null if the holder uses the whole GPU, or if the instance is unknown.
          type: int
          sample: 2
        pid:
          description: Process ID.
          type: int
          sample: 4711
        user:
          description: The process's user.
          type: str
          sample: alice
        command:
          description: Command line of the process. C(***) replaces recognizable secrets (C(docs/holders.md)).
          type: str
          sample: python3 train.py
        unit_or_container:
          description: >-
            The systemd unit or container of the process. Units of a user's own systemd are reported as the user's manager, for
            example V(user@1000.service).
          type: str
          sample: train.service
        job:
          description: ID of the Slurm job, or UID of the pod.
          type: str
          sample: "17"
        watches:
          description: >-
            Whether the holder only keeps the GPU open, as nvidia-persistenced and DCGM do. Such a holder blocks resets and
            changes of the MIG mode, but not changes of instances.
          type: bool
          sample: false
        started_seconds:
          description: Start time of the process, as a Unix time. Null if there is no process or the time is unknown.
          type: float
          sample: 1796000000.5
        listens:
          description: >-
            Whether the holder's unit or container has a listening TCP socket on any address, including loopback. If the process
            is in neither, only sockets of the process count. Null without O(sockets), for holders without a process, and if
            unknown.
          type: bool
          sample: false
        clients:
          description: >-
            Number of established TCP connections to the listening ports. Connections from the same unit or container do not
            count. Null if RV(gpus[].holders[].listens) is null.
          type: int
          sample: 0
    telemetry:
      description: >-
        C(memory_used_bytes), C(memory_free_bytes), C(gpu_utilization_percent), C(memory_utilization_percent),
        C(power_watts), C(power_limit_watts) and C(temperature_celsius). Null without O(telemetry).
      type: dict
      sample:
        {memory_used_bytes: 2650800128, memory_free_bytes: 82870009856, gpu_utilization_percent: 97,
         memory_utilization_percent: 41, power_watts: 214.5, power_limit_watts: 700.0, temperature_celsius: 41}
    mig:
      description: >-
        C(capable), C(enabled), C(pending) (differs from C(enabled) while a mode change waits for a reset), C(instances),
        and C(profiles) with O(profiles).
      type: dict
      contains:
        instances:
          description: GPU instances in order of placement.
          type: list
          elements: dict
          contains:
            id:
              description: GPU instance ID.
              type: int
              sample: 2
            profile:
              description: Name of the profile.
              type: str
              sample: 3g.40gb
            placement:
              description: C(start) and C(size) in memory placement units.
              type: dict
              sample: {start: 4, size: 4}
            compute_instances:
              description: >-
                Compute instances, each with C(id), C(compute_slices), C(placement), C(mig_uuid) and C(processes).
              type: list
              elements: dict
              sample:
                - {id: 0, compute_slices: 3, placement: {start: 0, size: 3}, mig_uuid: MIG-19133713-a6c7-5679-b344-e85e51f7a482,
                   processes: []}
            processes:
              description: Processes in this instance.
              type: list
              elements: dict
              sample:
                - {pid: 4711, kind: compute, name: python3, gpu_memory_bytes: 2147483648, gpu_instance_id: 2,
                   compute_instance_id: 0}
            holders:
              description: >-
                Holders that block the removal of this instance: the holders of this instance, and holders whose instance is
                unknown. Null without O(holders).
              type: list
              elements: dict
              sample: [{kind: process, pid: 4711, user: alice, gpu_instance_id: 2}]
lost_gpus:
  description: >-
    Lost GPUs. They are not in RV(gpus). A GPU is lost if an NVML call for it fails, or if it is on the PCI bus but the driver
    does not list it.
  returned: always
  type: list
  elements: dict
  contains:
    index:
      description: NVML's index. Null for a GPU that the driver does not list.
      type: int
      sample: 1
    problem:
      description: >-
        The problem, with NVML's message. If the driver is too old for a GPU on the PCI bus, it names the minimum driver.
      type: str
      sample: "nvmlDeviceGetMemoryInfo failed: Unknown Error (NVML code 999)"
    uuid:
      description: The GPU's UUID. Null if the GPU does not report it.
      type: str
      sample: GPU-5c89d3fa-0000-4000-8000-000000000002
    pci_address:
      description: PCI address in the format of sysfs. Null if it is unknown.
      type: str
      sample: "0000:1b:00.0"
    name:
      description: NVML's name of the model. Null if the GPU does not report it.
      type: str
      sample: NVIDIA H100 80GB HBM3
    call:
      description: The NVML call that failed.
      type: str
      sample: nvmlDeviceGetMemoryInfo
    code:
      description: NVML's return code.
      type: int
      sample: 999
    code_name:
      description: NVML's name of the code.
      type: str
      sample: Unknown
mps_daemons:
  description: >-
    This collection's MPS control daemons on the host, as in RV(openfleet.gpu.mps#module:daemons). If they cannot be read, the
    only entry has C(problem) with the reason.
  returned: success
  type: list
  elements: dict
  sample: [{name: inference, clients: 4, active_thread_percentage: 25.0, running: true, pid: 812}]
vgpu_tenants:
  description: >-
    This collection's tenants on the host, as in RV(openfleet.gpu.vgpu_quota#module:tenants). If they cannot be read, the only
    entry has C(problem) with the reason.
  returned: success
  type: list
  elements: dict
  sample: [{name: notebook-a, memory_bytes: 8589934592, sm_percent: 30, policy: fixed, processes: 1}]
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.errors import DriverAbsentError
from ..module_utils.holders.find import find_holders, gpus
from ..module_utils.model import to_data
from ..module_utils.runner import run
from ..module_utils.techniques.service_views import SERVICE_VIEWS, reports
from ..module_utils.vendors.nvidia.nvml.bounded_session import BoundedSession
from ..module_utils.vendors.nvidia.nvml.calls import respawn_with_pynvml


def argspec():
    return {
        "telemetry": {"type": "bool", "default": True},
        "profiles": {"type": "bool", "default": False},
        "holders": {"type": "bool", "default": True},
        "sockets": {"type": "bool", "default": False},
    }


# Return values about the host as a whole.
HOST_VALUES = ("driver_version", "nvml_version", "cuda_version", "simulated")


def read(params):
    """Return the module's result. Raises FleetError."""
    try:
        with BoundedSession() as session:
            host = session.observe(telemetry=params["telemetry"])
            holders = find_holders(host, sockets=params["sockets"]) if params["holders"] else None
            service_reports = reports(session.private)
    except DriverAbsentError as error:
        if error.call == "import":
            respawn_with_pynvml()
        nothing = dict.fromkeys(("driver_version", "nvml_version", "cuda_version"))
        absent = {"driver_present": False, "driver_absent_reason": str(error), "lost_gpus": []}
        return dict(nothing, simulated=False, gpus=[], **absent, **{view.name: [] for view in SERVICE_VIEWS})
    return dict(
        {name: getattr(host, name) for name in HOST_VALUES},
        driver_present=True,
        lost_gpus=to_data(host.lost),
        gpus=gpus(host, holders, params["profiles"]),
        **service_reports,
    )


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: read(module.params))


if __name__ == "__main__":
    main()
