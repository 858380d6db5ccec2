#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: drain
short_description: Drain a host's GPUs, and restore exactly the drained clients
version_added: "0.1.0"
description:
  - With O(state=drained), drains the host's Slurm node and stops systemd units. With O(state=resumed), restores exactly the
    drained node and the stopped units.
  - Records each step on the host before taking it (O(state_directory)), so that a later run can restore the clients after a kill,
    a lost connection or a reboot.
  - If the drain fails, it is rolled back at once.
  - Does not wait. RV(waiting) lists the workloads that still use the GPUs. Units are stopped only when no Slurm job uses the
    node. Repeat the task with C(until) while workloads remain. The role P(openfleet.gpu.gpu_drain#role) does this, and also
    drains Kubernetes nodes.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - root
  - C(scontrol) and C(squeue) of Slurm on the host, for O(slurm)
options:
  state:
    description:
      - V(drained) drains the requested clients. Clients drained by an earlier execution stay drained.
      - V(resumed) restores all recorded clients and ignores the other options. Without a record, it only reads a file.
    type: str
    choices: [drained, resumed]
    required: true
  services:
    description:
      - systemd units to stop, in this order. Units that do not run or do not exist are skipped.
      - Also stops units that systemd stops together with these, and stops sockets, timers and paths that would restart them.
      - V(resumed) starts the units that were running before, in reverse order.
    type: list
    elements: str
    default: []
  slurm:
    description:
      - Whether to drain the Slurm node. If the node was already drained, V(resumed) leaves it drained, with its original
        reason.
      - RV(waiting) includes all jobs of the node, because jobs that did not request GPUs can also open them.
    type: bool
    default: false
  slurm_node:
    description: Slurm's name of this host. If empty, slurmd provides it. Without slurmd, it is the short host name.
    type: str
    default: ""
  slurm_reason:
    description: Reason that is set for the drain. V(resumed) resumes a node only if it has this reason.
    type: str
    default: "openfleet.gpu: clients taken off the GPUs"
  slurm_jobs:
    description:
      - Numbers of the jobs that must end. Without this option, all jobs of the node must end.
      - With an empty list, the node is drained and no job is awaited.
    type: list
    elements: str
  kubernetes:
    description:
      - A Kubernetes node to record before the caller cordons it. The module does not contact the cluster.
      - An existing record is kept.
    type: dict
    suboptions:
      node:
        description: Name of the node.
        type: str
        required: true
      cordoned_before:
        description:
          - Whether the node was cordoned before the drain, for dry runs.
          - The role P(openfleet.gpu.gpu_drain#role) uncordons according to an annotation of the node, not this value.
        type: bool
        required: true
  kubernetes_done:
    description: With V(resumed), whether the caller has restored the recorded Kubernetes node.
    type: bool
    default: false
  commands_before:
    description:
      - Commands to run before the drain, each a line for C(/bin/sh) or a list of a program and its arguments.
      - The commands run once per drain, even if the drain takes several executions of the module. If a command is interrupted,
        all commands run again.
    type: list
    elements: raw
    default: []
  commands_after:
    description:
      - Commands to run after everything is restored, also after a failed drain. They are recorded before the first command of
        O(commands_before) runs.
    type: list
    elements: raw
    default: []
  state_directory:
    description: Directory on the host for the record, C(drain.json), and the lock.
    type: path
    default: /var/lib/openfleet-gpu
extends_documentation_fragment:
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
attributes:
  action_group:
    support: full
    description: Use C(group/openfleet.gpu.state) in C(module_defaults) to set defaults for several modules.
    membership: [openfleet.gpu.state]
  check_mode:
    support: full
    details: Reads units, nodes and jobs. Does not run commands.
  diff_mode:
    support: full
    details: Shows the states of units and nodes.
  platform:
    platforms: linux
seealso:
  - module: openfleet.gpu.gpu_info
  - module: kubernetes.core.k8s_drain
"""

EXAMPLES = r"""
- name: Drain the host and wait for its jobs
  openfleet.gpu.drain:
    state: drained
    slurm: true
    services: [dcgm-exporter, nvidia-dcgm, nvidia-persistenced]
  become: true
  register: result
  until: result is failed or result.waiting == []
  retries: 240
  delay: 15

- name: Restore the drained clients
  openfleet.gpu.drain:
    state: resumed
  become: true
"""

RETURN = r"""
done:
  description: Steps taken, in order. In check mode, the predicted steps.
  returned: success
  type: list
  elements: str
  sample: [drain Slurm node gpu-a, stop dcgm-exporter.service]
waiting:
  description:
    - Workloads that still use the GPUs, with C(kind) (V(slurm_job) or V(unit)), C(id), C(name), C(user),
      C(state) and a description C(who).
    - Units are not stopped while a job is listed here.
  returned: success
  type: list
  elements: dict
  sample:
    - {kind: slurm_job, id: "17", name: train, user: alice, state: RUNNING,
       who: "Slurm job 17 (train) of user alice, running, 1:20:03 left"}
drained:
  description: With V(drained), whether all clients are drained.
  returned: success
  type: bool
  sample: true
kept:
  description: States that existed before the drain and are kept, with the reason.
  returned: success
  type: list
  elements: str
  sample: ["Slurm node gpu-a was already out of service and stays so: IDLE+DRAIN, by root with the reason: bad fan"]
absent:
  description: Units that this host does not have.
  returned: success
  type: list
  elements: str
  sample: [nvidia-dcgm.service]
kubernetes:
  description:
    - With V(resumed), the recorded Kubernetes node. The caller restores this node, and then runs the module again with
      O(kubernetes_done). Otherwise null.
  returned: success
  type: dict
  sample: {node: gpu-a, cordoned_before: false}
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.drain.host import Wanted, drain, resume
from ..module_utils.plan.transaction import DIRECTORY
from ..module_utils.runner import run


def argspec():
    return {
        "state": {"type": "str", "choices": ["drained", "resumed"], "required": True},
        "services": {"type": "list", "elements": "str", "default": []},
        "slurm": {"type": "bool", "default": False},
        "slurm_node": {"type": "str", "default": ""},
        "slurm_reason": {"type": "str", "default": Wanted.slurm_reason},
        "slurm_jobs": {"type": "list", "elements": "str"},
        "kubernetes": {
            "type": "dict",
            "options": {
                "node": {"type": "str", "required": True},
                "cordoned_before": {"type": "bool", "required": True},
            },
        },
        "kubernetes_done": {"type": "bool", "default": False},
        "commands_before": {"type": "list", "elements": "raw", "default": []},
        "commands_after": {"type": "list", "elements": "raw", "default": []},
        "state_directory": {"type": "path", "default": DIRECTORY},
    }


def bring_about(params, check_mode):
    """Drain or resume the host, and return the module's result."""
    directory = params["state_directory"]
    if params["state"] == "resumed":
        done = resume(directory, check_mode, params["kubernetes_done"])
    else:
        requested = {name: params[name] for name in Wanted.__dataclass_fields__}
        done = drain(Wanted(**requested), directory, check_mode)
    return {
        "changed": bool(done.steps),
        "done": done.steps,
        "waiting": done.waiting,
        "drained": params["state"] == "drained" and not done.waiting,
        "kept": done.kept,
        "absent": done.absent,
        "kubernetes": done.kubernetes,
        "diff": {
            "before": "".join("%s: %s\n" % (name, before) for name, before, _after in done.states),
            "after": "".join("%s: %s\n" % (name, after) for name, _before, after in done.states),
        },
    }


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: bring_about(module.params, module.check_mode))


if __name__ == "__main__":
    main()
