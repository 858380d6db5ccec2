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
  - Reads all read-only NVML functions, nvidia-smi, and the kernel's files of the GPUs. On the controller, these readings are
    compared with each other and with the model files of the collection. The playbook C(openfleet.gpu.check_gpu) uses this module.
  - Nothing is installed or changed on the host. If the host has no pynvml, the module uses a temporary copy from the
    controller.
  - Differences do not fail the task. The task fails if nothing can be read.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  directory:
    description: >-
      Directory on the controller for the reports C(HOST/gpu-check.html) and C(HOST/gpu-check.json). Without it, nothing is
      written.
    type: path
  identify:
    description: Whether to include serial numbers and UUIDs of the GPUs in the report. Otherwise placeholders replace them.
    type: bool
    default: false
  timeout:
    description: Timeout in seconds for the driver to answer.
    type: int
    default: 300
  accept:
    description:
      - Limits of the acceptance test. The test decides whether the host can be put into service. If this option is set, the
        module also returns RV(accepted) and RV(failures). The playbook C(openfleet.gpu.accept) uses it.
    type: dict
    suboptions:
      gpus:
        description: Required number of GPUs. Without it, any number is accepted.
        type: int
      ecc_errors:
        description: >-
          Maximum number of uncorrected ECC errors of a GPU. The limit applies to volatile errors and to aggregate errors
          separately.
        type: int
        default: 0
      nvlink_errors:
        description: Maximum value of each error counter of an NVLink.
        type: int
        default: 0
      temperature_margin:
        description: Minimum difference between a GPU's temperature and its maximum operating temperature, in degrees Celsius.
        type: int
        default: 5
      dcgm_level:
        description:
          - Level of C(dcgmi diag). V(0) skips the test. Levels from V(2) on put load on the GPUs. V(3) takes a quarter of an
            hour.
          - The test is skipped in check mode, and if C(dcgmi) is not installed.
          - If processes use a GPU, the test is also skipped, and the host is not accepted.
        type: int
        choices: [0, 1, 2, 3, 4]
        default: 1
      dcgm_timeout:
        description: Timeout of C(dcgmi diag) in seconds.
        type: int
        default: 7200
  pynvml:
    description: Same as O(openfleet.gpu.layout#module:pynvml). Set by the action plugin.
    type: str
extends_documentation_fragment:
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    details: Reads the host and writes no file.
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

- name: Show the differences
  ansible.builtin.debug:
    msg: "{{ result.differences }}"
"""

RETURN = r"""
summary:
  description: Number of checks by outcome.
  returned: success
  type: dict
  sample: {passed: 278, differs: 1, "not run": 9}
differences:
  description: A line for each difference. If the model file has to change, the new line for that file comes first.
  returned: success
  type: list
  elements: str
  sample: ["gpu 0: NVML: nvmlDeviceGetEccMode: expected an answer, found Unknown"]
paths:
  description: Written files.
  returned: success
  type: list
  elements: str
  sample: [/srv/checks/h100-01/gpu-check.json, /srv/checks/h100-01/gpu-check.html]
accepted:
  description: Whether the host passed all rules of acceptance.
  returned: when O(accept) is given
  type: bool
  sample: false
failures:
  description: A line for each failed rule, with the fix.
  returned: when O(accept) is given
  type: list
  elements: str
  sample: ["gpu 0: ECC mode: off. Turn it on (nvidia-smi -i 0 -e 1) and reboot."]
msg:
  description: The outcome in one sentence.
  returned: always
  type: str
  sample: "h100-01: 278 passed, 1 different, 9 not run"
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.errors import DriverAbsentError
from ..module_utils.hardware.collect import collect
from ..module_utils.hardware.dcgm import LEVELS, read_dcgm
from ..module_utils.runner import run
from ..module_utils.vendors.nvidia.nvml.calls import driver_loaded, lend, respawn_with_pynvml


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
    """Return the readings. plugins/action/gpu_check.py evaluates them."""
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
        # The test would disturb workloads.
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
