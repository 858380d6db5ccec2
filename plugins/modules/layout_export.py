#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: layout_export
short_description: Export a host's current GPU layout to the inventory
version_added: "0.1.0"
description:
  - Adopts an existing host. The module reads how the GPUs of the host are shared, and writes a C(gpu_layout) to a file on the
    controller. Applying the exported layout to the same host changes nothing. The playbook C(openfleet.gpu.export) uses this
    module.
  - Nothing is installed or changed on the host. If the host has no pynvml, the module uses a temporary copy from the
    controller.
  - Without O(overwrite), a file with another layout is not replaced, and no file is written if the inventory has another
    C(gpu_layout) for the host.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  directory:
    description: >-
      Directory of the inventory on the controller. The layout is written to C(host_vars/HOST/gpu_layout.yml) in this directory.
      Without this option, the layout is only returned.
    type: path
  overwrite:
    description: Whether to replace a file that has another layout.
    type: bool
    default: false
  pin_placements:
    description: Whether to fix the placement of each GPU instance, and the GPU of each tenant that uses one GPU.
    type: bool
    default: false
  select_by:
    description: >-
      How the layout selects GPUs. Indices are valid for several hosts with the same hardware. UUIDs and PCI addresses are valid
      only for this host.
    type: str
    choices: [index, uuid, pci]
    default: index
  state_directory:
    description: Folder of the records on the host. Instances of leases are recorded there, and are not exported.
    type: path
    default: /var/lib/openfleet-gpu
  pynvml:
    description: Same as O(openfleet.gpu.layout#module:pynvml). Set by the action plugin.
    type: str
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
    details: Reads the host and writes no file.
  diff_mode:
    support: full
    details: Shows the file before and after.
  platform:
    platforms: linux
seealso:
  - module: openfleet.gpu.layout
"""

EXAMPLES = r"""
- name: Export the current layout
  openfleet.gpu.layout_export:
    directory: "{{ inventory_dir }}"
  become: true
"""

RETURN = r"""
gpu_layout:
  description: The layout of the host's GPUs.
  returned: success
  type: list
  elements: dict
  sample: [{gpus: all, sharing: mig, mig: [{profile: 3g.40gb, count: 2}]}]
left_out:
  description: A sentence for each GPU or instance that a layout cannot express.
  returned: success
  type: list
  elements: str
  sample: ["gpu 3 is left out: a change of its MIG mode is pending until a reset"]
path:
  description: Path of the file.
  returned: when O(directory) is given
  type: str
  sample: /srv/inventory/host_vars/h100-01/gpu_layout.yml
msg:
  description: A sentence about the written file. In check mode, about the file that would be written.
  returned: always
  type: str
  sample: "h100-01: wrote /srv/inventory/host_vars/h100-01/gpu_layout.yml (1 entry)"
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.errors import DriverAbsentError
from ..module_utils.export.look import SELECT_BY, export_host
from ..module_utils.runner import run
from ..module_utils.techniques.forms import layout_to_data
from ..module_utils.vendors.nvidia.nvml.calls import driver_loaded, lend, respawn_with_pynvml


def argspec():
    return {
        "directory": {"type": "path"},
        "overwrite": {"type": "bool", "default": False},
        "pin_placements": {"type": "bool", "default": False},
        "select_by": {"type": "str", "choices": list(SELECT_BY), "default": SELECT_BY[0]},
        "state_directory": {"type": "path", "default": "/var/lib/openfleet-gpu"},
        "pynvml": {"type": "str", "no_log": True},
    }


def read(params):
    """Return the module's result. plugins/action/layout_export.py writes the file."""
    if params["pynvml"]:
        lend(params["pynvml"])
    try:
        export = export_host(params["state_directory"], params["pin_placements"], params["select_by"])
    except DriverAbsentError as error:
        if error.call == "import":
            respawn_with_pynvml()
            if driver_loaded():
                return {"changed": False, "pynvml_missing": True}
        raise
    return {"changed": False, "gpu_layout": layout_to_data(export.layout), "left_out": list(export.left_out)}


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: read(module.params))


if __name__ == "__main__":
    main()
