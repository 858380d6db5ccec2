#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_info
short_description: Report the GRES of a host's Slurm node, and the jobs that hold them
version_added: "0.1.0"
description:
  - Asks C(slurmctld) for the node of this host, with C(scontrol) and C(squeue). It changes nothing.
  - If the cluster has a C(job_submit) plugin, C(sbatch --test-only) checks that it refuses requests for GPUs without a type.
  - The filter P(openfleet.gpu.slurm_mapping#filter) compares the result with a layout.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - root, or a Slurm operator
  - C(scontrol) and C(squeue) of Slurm on the host
options:
  node:
    description: Slurm's name of this host. If empty, slurmd provides it. Without slurmd, it is the short host name.
    type: str
    default: ""
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
  - plugin: openfleet.gpu.slurm_mapping
    plugin_type: filter
  - module: openfleet.gpu.drain
"""

EXAMPLES = r"""
- name: Read the Slurm node of the host
  openfleet.gpu.slurm_info:
  register: slurm_node
"""

RETURN = r"""
node:
  description: Slurm's name of the host.
  returned: success
  type: str
  sample: h100-01
version:
  description: Version of slurmctld.
  returned: success
  type: str
  sample: 24.11.5
node_version:
  description: Version of slurmd, as slurmctld reports it. Null if the node has not registered yet.
  returned: success
  type: str
  sample: 24.11.5
gres:
  description: Current GRES of the node, with sockets and types of shards as in C(scontrol show node).
  returned: success
  type: str
  sample: gpu:h100:8(S:0-1)
state:
  description: State of the node.
  returned: success
  type: str
  sample: MIXED+DRAIN
reason:
  description: Reason of the state, or empty.
  returned: success
  type: str
  sample: "openfleet: GPU layout changes"
started:
  description: When slurmd started, as slurmctld reports it. V(None) if slurmd has not registered yet.
  returned: success
  type: str
  sample: "2026-11-27T06:02:11"
recorded:
  description: >-
    Devices that the role P(openfleet.gpu.gpu_slurm#role) gave to Slurm, by number, each with C(type) and C(uuid).
    Null if there is no record.
  returned: success
  type: list
  elements: dict
  sample: [{type: h100, uuid: GPU-5c89d3fa-0000-4000-8000-000000000001}]
gres_types:
  description: C(GresTypes) of the cluster.
  returned: success
  type: str
  sample: gpu,shard
jobs:
  description: >-
    Jobs with GRES for GPUs on this node. Each has C(id), C(user) and C(gres), a list of C(name), C(count) and C(numbers)
    (numbers of its devices on the node, or null if they are unknown). C(gres) is null if the record of the job is ambiguous.
  returned: success
  type: list
  elements: dict
  sample: [{id: "17", user: alice, gres: [{name: gpu, count: 1, numbers: [0]}]}]
sockets:
  description: Number of sockets of the node in Slurm. Null if slurmctld does not report it.
  returned: success
  type: int
  sample: 2
cores_per_socket:
  description: Number of cores of each socket of the node in Slurm. Null if slurmctld does not report it.
  returned: success
  type: int
  sample: 32
topology_plugin:
  description: C(TopologyPlugin) of the cluster.
  returned: success
  type: str
  sample: topology/tree
cores:
  description: C(package) and C(cpus) of each online core of the host, from C(/sys/devices/system/cpu).
  returned: success
  type: list
  elements: dict
  sample: [{package: 0, cpus: "0,64"}]
minors:
  description: >-
    C(uuid) and C(minor) of each GPU, from C(/proc/driver/nvidia), and C(local_cpus), the CPUs that are closest to it.
    C(/dev/nvidia0) has the minor 0. C(local_cpus) is empty if the kernel does not report it.
  returned: success
  type: list
  elements: dict
  sample: [{uuid: GPU-5c89d3fa-0000-4000-8000-000000000001, minor: 0, local_cpus: 0-31,64-95}]
capabilities:
  description: C(name) and C(number) of each MIG capability with a device node, such as C(gpu0/gi2/access) and 21.
  returned: success
  type: list
  elements: dict
  sample: [{name: gpu0/gi2/access, number: 21}]
gres_conf:
  description: Lines about GPUs of this node in C(gres.conf) and the files that it includes. Empty if a file cannot be read.
  returned: success
  type: list
  elements: str
  sample: [NodeName=h100-01 AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia0]
pad_problem:
  description: >-
    Why a job could get a pad of this node. A pad is a GRES without a device (C(roles/gpu_slurm/README.md)). Empty if the cluster
    refuses all requests that could get one.
  returned: success
  type: str
  sample: no job_submit plugin refuses requests for GPUs without a type
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.runner import run
from ..module_utils.slurm.node import read_node


def main() -> None:
    """Run the module."""
    module = AnsibleModule({"node": {"type": "str", "default": ""}}, supports_check_mode=True)
    run(module, lambda: dict(read_node(module.params["node"]), changed=False))


if __name__ == "__main__":
    main()
