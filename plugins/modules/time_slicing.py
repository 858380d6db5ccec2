#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: time_slicing
short_description: Set the time slices of a layout
version_added: "0.1.0"
description:
  - Applies only the time slices of a layout, as M(openfleet.gpu.layout) does. A time slice is how long a process runs on a GPU
    before the next process gets its turn. GPUs of entries with C(sharing) V(time_slicing) get the slice of their entry. GPUs of
    other entries get the driver's default slice. Nothing else is changed.
  - NVML has no public call for time slices, so the module runs nvidia-smi. Because nvidia-smi reports success for any value,
    the module verifies the slices that nvidia-smi lists afterwards.
  - If a GPU does not support time slices, the module fails before any change, with the reason from nvidia-smi.
  - The driver forgets time slices when it is reloaded. The role P(openfleet.gpu.gpu_layout#role) restores them at boot.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - nvidia-smi
extends_documentation_fragment:
  - openfleet.gpu.layout
  - openfleet.gpu.layout.part
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
seealso:
  - module: openfleet.gpu.layout
  - module: openfleet.gpu.gpu_info
"""

EXAMPLES = r"""
- name: Set long time slices for training on the first two GPUs
  openfleet.gpu.time_slicing:
    layout:
      - gpus: [0, 1]
        sharing: time_slicing
        time_slicing: {slice: long, replicas: 2}
  become: true
"""

RETURN = r"""
plan:
  description: The plan, one line per GPU of the layout.
  returned: when a driver is present
  type: list
  elements: str
  sample: ["gpu 0: set time slice long"]
gpus:
  description: C(asked), C(before), C(after) and C(changed) for each GPU of the layout, as in M(openfleet.gpu.layout).
  returned: when a driver is present
  type: list
  elements: dict
  sample:
    - {index: 0, uuid: GPU-5c89d3fa-0000-4000-8000-000000000001, name: NVIDIA H100 80GB HBM3, entry: "gpu_layout[0]",
       asked: "time_slicing: long", before: "MIG off, compute mode default",
       after: "MIG off, compute mode default, time slice long", changed: true}
counts:
  description: >-
    C(gpus_changed) is the number of GPUs whose time slice changes. C(create), C(destroy) and C(keep) are numbers of GPU
    instances. Only M(openfleet.gpu.layout) and M(openfleet.gpu.mig) change instances.
  returned: when a driver is present
  type: dict
  sample: {create: 0, destroy: 0, keep: 0, gpus_changed: 1}
plan_data:
  description: The plan as data, as in M(openfleet.gpu.layout). This module does not accept saved plans.
  returned: in check mode, when a driver is present
  type: dict
  sample:
    schema: 4
    gpus:
      - {uuid: GPU-5c89d3fa-0000-4000-8000-000000000001, index: 0, busy: [], kept: [],
         steps: [{step: SetTimeSlice, time_slice: long}]}
reboot_required:
  description: V(false), because this module changes nothing that needs a reboot.
  returned: success when a driver is present, and when the plan failed
  type: bool
  sample: false
msg:
  description: >-
    On failure, the problem, where it is, and the fix. In check mode without a driver, why only the syntax of the layout was
    validated.
  returned: on failure, and when no driver answers, in check mode
  type: str
  sample: >-
    this host: NVML does not start: Driver Not Loaded. Install and load the NVIDIA driver.
    Only the form of the layout was checked.
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.change.layout_module import argspec, bring_about
from ..module_utils.runner import run
from ..module_utils.techniques.time_slicing.model import KEY


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: bring_about(module.params, module.check_mode, [KEY]))


if __name__ == "__main__":
    main()
