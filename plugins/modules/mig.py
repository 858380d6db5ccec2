#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mig
short_description: Apply the MIG instances and compute modes of a layout
version_added: "0.1.0"
description:
  - Applies only the MIG modes, MIG instances and compute modes of a layout, as M(openfleet.gpu.layout) does. Time slices and
    MPS daemons are not changed. An MPS daemon is a holder, so it blocks a change of its GPU's MIG mode and the removal of its
    instance.
  - GPUs of entries with C(sharing) V(mig) get MIG mode and exactly the listed instances. GPUs of other entries get MIG mode
    off and the compute mode of the entry. GPUs without an entry are not changed.
author:
  - openfleet.gpu contributors (!UNKNOWN)
extends_documentation_fragment:
  - openfleet.gpu.layout
  - openfleet.gpu.layout.part
  - openfleet.gpu.layout.gpus
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
seealso:
  - module: openfleet.gpu.layout
  - module: openfleet.gpu.gpu_info
"""

EXAMPLES = r"""
- name: Apply the MIG instances of the inventory
  openfleet.gpu.mig:
    layout: "{{ gpu_layout }}"
  become: true

- name: Partition two GPUs and leave the others whole
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
  description: The plan, one line per GPU of the layout.
  returned: when a driver is present
  type: list
  elements: str
  sample: ["gpu 3: keep 3g.40gb@0 (2 processes), destroy 1g.10gb@4, create 2g.20gb@4"]
plan_data:
  description: The plan as data, to pass to O(plan) later (C(docs/plans.md)).
  returned: in check mode, when a driver is present
  type: dict
  sample:
    schema: 4
    driver_version: 580.65.06
    gpus:
      - {uuid: GPU-5c89d3fa-0000-4000-8000-000000000001, index: 3, busy: [], kept: [],
         steps: [{step: DestroyGpuInstance, profile: 1g.10gb, gpu_instance_id: 9, placement: {start: 4, size: 1}}]}
counts:
  description: Number of GPU instances to C(create), C(destroy) and C(keep), and C(gpus_changed).
  returned: when a driver is present
  type: dict
  sample: {create: 1, destroy: 1, keep: 1, gpus_changed: 1}
gpus:
  description: C(asked), C(before), C(after) and C(changed) for each GPU of the layout, as in M(openfleet.gpu.layout).
  returned: when a driver is present
  type: list
  elements: dict
  sample:
    - {index: 3, uuid: GPU-5c89d3fa-0000-4000-8000-000000000001, name: NVIDIA H100 80GB HBM3, entry: "gpu_layout[0]",
       asked: "mig: 1x 3g.40gb, 1x 2g.20gb", before: "MIG on: 3g.40gb@0, 1g.10gb@4",
       after: "MIG on: 3g.40gb@0, 2g.20gb@4", changed: true}
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.change.layout_module import argspec_of_gpus, bring_about
from ..module_utils.change.prepare import GPUS
from ..module_utils.runner import run

argspec = argspec_of_gpus


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: bring_about(module.params, module.check_mode, [GPUS]))


if __name__ == "__main__":
    main()
