#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_jobs
short_description: Read the jobs of a Slurm cluster that held GPUs
version_added: "0.1.0"
description:
  - Asks C(sacct) for the jobs of the whole cluster in a time range. One host of each cluster is sufficient. Changes nothing.
  - Without C(slurmdbd), it asks C(squeue) for the current jobs. RV(problem) has the reason.
  - The module succeeds if Slurm does not answer. RV(source) is then empty.
  - M(openfleet.gpu.audit) and M(openfleet.gpu.rightsize) use the result.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - root, or a Slurm operator, who can read the jobs of all users
  - C(sacct) or C(squeue) of Slurm on the host
options:
  start_seconds:
    description: Start of the time range, in Unix time.
    type: float
    required: true
  end_seconds:
    description: End of the time range, in Unix time.
    type: float
    required: true
  timeout_seconds:
    description: Maximum time for C(sacct). The newest jobs are read first, so a slow database only shortens the time range.
    type: float
    default: 60
  most_jobs:
    description: Maximum number of jobs. Older jobs are left out.
    type: int
    default: 20000
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
  - module: openfleet.gpu.audit
  - module: openfleet.gpu.rightsize
"""

EXAMPLES = r"""
- name: Read the jobs of the last day
  openfleet.gpu.slurm_jobs:
    start_seconds: "{{ now().timestamp() - 86400 }}"
    end_seconds: "{{ now().timestamp() }}"
  register: slurm_jobs
"""

RETURN = r"""
source:
  description: The command that provided the jobs, V(sacct) or V(squeue). Empty if neither did.
  returned: success
  type: str
  sample: sacct
problem:
  description: Why jobs are missing, or empty.
  returned: success
  type: str
  sample: there are more than 100000 jobs with GPUs
since_seconds:
  description: Start of the time range that the jobs cover, in Unix time.
  returned: success
  type: float
  sample: 1794787200.0
records:
  description: Number of records that were read, with those of jobs without GPUs.
  returned: success
  type: int
  sample: 3127
clock_seconds:
  description: Time of the host when the module started, in Unix time.
  returned: success
  type: float
  sample: 1795996800.0
jobs:
  description: >-
    Jobs with GPUs, MIG instances, shards or MPS percentages. Each has the texts C(id), C(array_id), C(user), C(account),
    C(state), C(start) and C(end) (Unix times), C(suspended), C(tres) and C(nodes) as Slurm prints them. A job without an end
    may have C(runs): whether slurmctld knows the job.
  returned: success
  type: list
  elements: dict
  sample:
    - {id: "12", array_id: "12_3", user: alice, account: team-b, state: COMPLETED, start: "1795900000", end: "1795903600",
       suspended: "00:00:00", tres: "billing=1,cpu=1,gres/gpu:1g.10gb=1,gres/gpu=1,node=1", nodes: gpu-a}
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.runner import run
from ..module_utils.slurm.accounting import read_jobs


def read(params: dict[str, Any]) -> dict[str, Any]:
    """Return the module's result."""
    clock = time.time()
    found = read_jobs(params["start_seconds"], params["end_seconds"], params["timeout_seconds"], params["most_jobs"])
    return dict(found, clock_seconds=clock, changed=False)


def main() -> None:
    """Run the module."""
    spec = {
        "start_seconds": {"type": "float", "required": True},
        "end_seconds": {"type": "float", "required": True},
        "timeout_seconds": {"type": "float", "default": 60},
        "most_jobs": {"type": "int", "default": 20000},
    }
    module = AnsibleModule(spec, supports_check_mode=True)
    run(module, lambda: read(module.params))


if __name__ == "__main__":
    main()
