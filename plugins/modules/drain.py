#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: drain
short_description: Take clients off a host's GPUs, and bring back exactly those
version_added: "0.1.0"
description:
  - With O(state=drained) takes the host's Slurm node out of service and stops systemd units; with O(state=resumed) brings back
    what that took away, and nothing else.
  - Whatever is taken off is recorded on the host before (O(state_directory)), so that a later run can bring it back after a
    kill, a lost connection or a reboot.
  - Where taking off fails half way, what was taken off is brought back at once.
  - It does not wait. Who still uses the GPUs is told in RV(waiting), and units are only stopped once no Slurm job has the node.
    Run it again, with C(until), as the role P(openfleet.gpu.gpu_drain#role) does, which also takes Kubernetes nodes.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - root
  - C(scontrol) and C(squeue) of Slurm on the host, for O(slurm)
options:
  state:
    description:
      - V(drained) takes off what is asked for. Something that an earlier execution took off already stays off.
      - V(resumed) brings back all that is recorded, whatever the other options say. Where nothing is, it only reads a file.
    type: str
    choices: [drained, resumed]
    required: true
  services:
    description:
      - systemd units to stop, in this order. Units that do not run, or are not on the host, are left out.
      - What systemd stops along with them, and a socket, timer or path that would start them again, is taken off as well.
      - V(resumed) starts those that ran, in the reverse order.
    type: list
    elements: str
    default: []
  slurm:
    description:
      - Whether to drain the Slurm node. A node that was drained before stays drained afterwards, with its reason.
      - All jobs of the node count in RV(waiting), since one without GPUs can open them too.
    type: bool
    default: false
  slurm_node:
    description: What Slurm calls this host. Empty asks slurmd, and where it does not run takes the short host name.
    type: str
    default: ""
  slurm_reason:
    description: The reason to drain the node with, by which it is known again when it is to be resumed.
    type: str
    default: "openfleet.gpu: clients taken off the GPUs"
  kubernetes:
    description:
      - A Kubernetes node that the caller is about to cordon, to be recorded. The module does not speak to the cluster.
      - The first record counts as long as it stands.
    type: dict
    suboptions:
      node:
        description: Name of the node.
        type: str
        required: true
      cordoned_before:
        description:
          - Whether it was cordoned before the drain, for what a dry run says.
          - The role P(openfleet.gpu.gpu_drain#role) uncordons by an annotation of the node, and not by this.
        type: bool
        required: true
  kubernetes_done:
    description: With V(resumed), that the recorded Kubernetes node has been brought back.
    type: bool
    default: false
  commands_before:
    description:
      - Commands to run before anything is taken off; each a line for C(/bin/sh), or a list with a program and its arguments.
      - They run once for a drain, however many executions it takes. Where one is cut off, all of them run again.
    type: list
    elements: raw
    default: []
  commands_after:
    description: Commands to run once all is back, also after a failure. They are recorded before the first command runs.
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
    membership: openfleet.gpu.state
  check_mode:
    support: full
    details: Units, nodes and jobs are looked at as they are; commands are not run.
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
- name: Take the clients off, and wait for the jobs
  openfleet.gpu.drain:
    state: drained
    slurm: true
    services: [dcgm-exporter, nvidia-dcgm, nvidia-persistenced]
  become: true
  register: result
  until: result is failed or result.waiting == []
  retries: 240
  delay: 15

- name: Bring back what was taken off, by whichever run
  openfleet.gpu.drain:
    state: resumed
  become: true
"""

RETURN = r"""
done:
  description: What was taken off, brought back and run, in order; in check mode what would be.
  returned: success
  type: list
  elements: str
  sample: [drain Slurm node gpu-a, stop dcgm-exporter.service]
waiting:
  description:
    - Who still uses the GPUs, with C(kind) (V(slurm_job) or V(unit)), C(id), C(name), C(user), C(state), and in words C(who).
    - As long as a job is named, units have not been stopped.
  returned: success
  type: list
  elements: dict
  sample:
    - {kind: slurm_job, id: "17", name: train, user: alice, state: RUNNING,
       who: "Slurm job 17 (train) of user alice, running, 1:20:03 left"}
drained:
  description: With V(drained), whether all clients are off and none is waited for.
  returned: success
  type: bool
kept:
  description: What stays as others left it, and why.
  returned: success
  type: list
  elements: str
  sample: ["Slurm node gpu-a is out of service already and stays so: IDLE+DRAIN, by root with the reason: bad fan"]
absent:
  description: Units that this host does not have.
  returned: success
  type: list
  elements: str
kubernetes:
  description: With V(resumed), the recorded Kubernetes node, for the caller to bring back before O(kubernetes_done); else null.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.drain.host import Wanted, drain, resume
from ..module_utils.runner import run
from ..module_utils.transaction import DIRECTORY


def argspec():
    return {
        "state": {"type": "str", "choices": ["drained", "resumed"], "required": True},
        "services": {"type": "list", "elements": "str", "default": []},
        "slurm": {"type": "bool", "default": False},
        "slurm_node": {"type": "str", "default": ""},
        "slurm_reason": {"type": "str", "default": Wanted.slurm_reason},
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
    """The module's return values."""
    directory = params["state_directory"]
    if params["state"] == "resumed":
        done = resume(directory, check_mode, params["kubernetes_done"])
    else:
        asked = {name: params[name] for name in Wanted.__dataclass_fields__}
        done = drain(Wanted(**asked), directory, check_mode)
    return {
        "changed": bool(done.steps),
        "done": done.steps,
        "waiting": done.waiting,
        "drained": params["state"] == "drained" and not done.waiting,
        "kept": done.kept,
        "absent": done.absent,
        "kubernetes": done.kubernetes,
        "diff": {
            "before": "".join("%s: %s\n" % (what, before) for what, before, _after in done.states),
            "after": "".join("%s: %s\n" % (what, after) for what, _before, after in done.states),
        },
    }


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: bring_about(module.params, module.check_mode))


if __name__ == "__main__":
    main()
