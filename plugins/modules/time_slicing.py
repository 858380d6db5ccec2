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
  - The part of M(openfleet.gpu.layout) that is about time slices; how long a process runs on a GPU before the next one gets
    its turn. GPUs that the layout names with C(sharing) V(time_slicing) get the slice that their entry says, all others that
    it names the driver's default. Everything else is left as it is.
  - NVML has no public call for it. nvidia-smi sets it, and since that takes anything and calls it a success, the run counts
    what nvidia-smi lists afterwards.
  - A GPU without time slices is an error before anything changes, with the reason that nvidia-smi gives.
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
- name: Long turns for training on the first two GPUs
  openfleet.gpu.time_slicing:
    layout:
      - gpus: [0, 1]
        sharing: time_slicing
        time_slicing: {slice: long, replicas: 2}
  become: true
"""

RETURN = r"""
plan:
  description: The plan, one line per GPU that the layout names.
  returned: when a driver is present
  type: list
  elements: str
  sample: ["gpu 0: set time slice long"]
gpus:
  description: For each GPU that the layout names C(asked), C(before), C(after) and C(changed), as M(openfleet.gpu.layout) has it.
  returned: when a driver is present
  type: list
  elements: dict
counts:
  description: >-
    GPU instances to C(create), C(destroy) and C(keep), which only M(openfleet.gpu.layout) and M(openfleet.gpu.mig) change, and
    C(gpus_changed).
  returned: when a driver is present
  type: dict
plan_data:
  description: The plan as data, as M(openfleet.gpu.layout) has it. It is for reading; this module takes no saved plan.
  returned: in check mode, when a driver is present
  type: dict
reboot_required:
  description: V(false), for nothing that this module changes needs a reboot.
  returned: success when a driver is present, and on failure when the plan could not be carried out
  type: bool
msg:
  description: >-
    On failure, what is wrong, where, and how to mend it. In check mode without a driver, why only the form of the layout was
    checked.
  returned: on failure, and when no driver answers, in check mode
  type: str
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
