#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_check
short_description: Check a host's NVIDIA GPUs against nvidia-smi, the kernel and the model files
version_added: "0.1.0"
description:
  - Reads every NVML function that only reads, nvidia-smi, and the kernel's files of the GPUs. On the controller these readings
    are held against each other and against the model files of the collection. The playbook C(openfleet.gpu.check_gpu) is made of
    it.
  - Nothing is installed or changed on the host. Where it has no pynvml, the controller's is used while the module runs.
  - A difference is a result, no failure of the task. The task fails where nothing can be read.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  directory:
    description: >-
      Directory on the controller for the report. The files are C(HOST/gpu-check.html) and C(HOST/gpu-check.json) in it. Without
      it nothing is written.
    type: path
  identify:
    description: Leave serial numbers and UUIDs of the GPUs in the report. Otherwise words stand in their place.
    type: bool
    default: false
  timeout:
    description: Give up after so many seconds where the driver does not answer.
    type: int
    default: 300
  accept:
    description:
      - Judge also whether the host may be taken into service, by these limits, and return RV(accepted) and RV(failures). The
        playbook C(openfleet.gpu.accept) is made of it.
    type: dict
    suboptions:
      gpus:
        description: How many GPUs the host must have. Without it any number is right.
        type: int
      ecc_errors:
        description: Uncorrected ECC errors that a GPU may have, volatile and aggregate ones each.
        type: int
        default: 0
      nvlink_errors:
        description: Errors that each counter of an NVLink may show.
        type: int
        default: 0
      temperature_margin:
        description: Degrees Celsius that a GPU must stay below its highest operating temperature.
        type: int
        default: 5
      dcgm_level:
        description:
          - Run C(dcgmi diag) at this level, V(0) for none. Levels from V(2) load the GPUs, V(3) for a quarter of an hour.
          - Not run in check mode, nor where C(dcgmi) is not installed.
          - Where processes use a GPU it is not run either, and the host is not accepted.
        type: int
        choices: [0, 1, 2, 3, 4]
        default: 1
      dcgm_timeout:
        description: Give up C(dcgmi diag) after so many seconds.
        type: int
        default: 7200
  pynvml:
    description: As O(openfleet.gpu.layout#module:pynvml). Set by the module itself.
    type: str
extends_documentation_fragment:
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    details: Reads the host, and writes no file.
  diff_mode:
    support: none
  platform:
    platforms: linux
seealso:
  - module: openfleet.gpu.gpu_info
"""

EXAMPLES = r"""
- name: Check the GPUs
  openfleet.gpu.gpu_check:
    directory: /srv/gpu-check
  become: true
  register: result

- name: Show what differs
  ansible.builtin.debug:
    msg: "{{ result.differences }}"
"""

RETURN = r"""
summary:
  description: How many checks have each outcome.
  returned: success
  type: dict
  sample: {held: 279, differs: 0, "not run": 9}
differences:
  description: A line for each check that differs; the line of a model file before it, where one is to change.
  returned: success
  type: list
  elements: str
paths:
  description: The files that were written.
  returned: success
  type: list
  elements: str
accepted:
  description: Whether no rule of acceptance failed.
  returned: when O(accept) is given
  type: bool
failures:
  description: A line for each rule that failed, with what to do.
  returned: when O(accept) is given
  type: list
  elements: str
msg:
  description: The outcome, in a sentence.
  returned: always
  type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.errors import DriverAbsentError
from ..module_utils.hardware.collect import collect
from ..module_utils.hardware.dcgm import LEVELS, read_dcgm
from ..module_utils.nvml.calls import driver_loaded, lend, respawn_with_pynvml
from ..module_utils.runner import run


def argspec():
    return {
        "directory": {"type": "path"},
        "identify": {"type": "bool", "default": False},
        "timeout": {"type": "int", "default": 300},
        "accept": {
            "type": "dict",
            "options": {
                "gpus": {"type": "int"},
                "ecc_errors": {"type": "int", "default": 0},
                "nvlink_errors": {"type": "int", "default": 0},
                "temperature_margin": {"type": "int", "default": 5},
                "dcgm_level": {"type": "int", "choices": [0, *LEVELS], "default": 1},
                "dcgm_timeout": {"type": "int", "default": 7200},
            },
        },
        "pynvml": {"type": "str", "no_log": True},
    }


def read(params, check_mode):
    """Return the readings. plugins/action/gpu_check.py judges them."""
    if params["pynvml"]:
        lend(params["pynvml"])
    try:
        reading = collect(seconds=params["timeout"])
    except DriverAbsentError as error:
        if error.call == "import":
            respawn_with_pynvml()
            if driver_loaded():
                return {"changed": False, "pynvml_missing": True}
        raise
    accept = params["accept"]
    if accept and accept["dcgm_level"] and not check_mode:
        used = [gpu["index"] for gpu in reading["nvml"]["facts"]["gpus"] if gpu["processes"]]
        # It loads the GPUs, and would disturb what runs there.
        reading["dcgm"] = (
            {"level": accept["dcgm_level"], "missing": None, "problem": None, "used": used, "tests": []}
            if used
            else read_dcgm(accept["dcgm_level"], accept["dcgm_timeout"])
        )
    return {"changed": False, "reading": reading}


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: read(module.params, module.check_mode))


if __name__ == "__main__":
    main()
