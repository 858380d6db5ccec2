#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: reclaim
short_description: Stop what holds a GPU and does nothing with it
version_added: "0.1.0"
description:
  - Stops systemd services and containers of Docker or Podman that hold GPUs without using them, as M(openfleet.gpu.rightsize)
    lists them.
  - Looks again first. What holds other GPUs than named, or no longer these, or a GPU on which something runs just now, is spared;
    so is a service with which others would stop, and what began within O(quiet_seconds).
  - A stopped service is not disabled. It comes back with C(systemctl start), and at the next boot where it is enabled.
author:
  - openfleet.gpu contributors (!UNKNOWN)
requirements:
  - root
  - nvidia-ml-py on the host
options:
  items:
    description: What may be stopped.
    type: list
    elements: dict
    required: true
    suboptions:
      kind:
        description: What it is.
        type: str
        choices: [unit, container]
        required: true
      name:
        description: Name of the unit; name or id of the container.
        type: str
        required: true
      runtime:
        description: Of a container, V(docker) or V(podman).
        type: str
        default: ""
      gpus:
        description: The GPUs that it holds, by UUID; an instance as the UUID, a blank and the GPU instance's id.
        type: list
        elements: str
        required: true
  jupyter:
    description:
      - Which of O(items) are Jupyter servers. Such a one goes on, and only those of its kernels are shut down, by its REST API,
        that were idle for O(quiet_seconds) and that no browser is connected to. What they had in memory is lost.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the unit or container.
        type: str
        required: true
      url:
        description: Address of the server, as the host sees it.
        type: str
        required: true
      token:
        description: The server's token.
        type: str
        default: ""
  quiet_seconds:
    description: So long something has to have run, and a kernel of Jupyter's to have been idle.
    type: float
    default: 172800
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
    details: Looks at everything and stops nothing.
  diff_mode:
    support: none
  platform:
    platforms: linux
seealso:
  - module: openfleet.gpu.rightsize
  - module: openfleet.gpu.drain
"""

EXAMPLES = r"""
- name: Stop a notebook server that does nothing
  openfleet.gpu.reclaim:
    items:
      - {kind: unit, name: jupyter.service, gpus: [GPU-5c89ca61-4aac-4bd7-8d0f-2bb3ae2f1f0d]}
  become: true
"""

RETURN = r"""
stopped:
  description: >-
    What was stopped, in check mode what would be, each with C(kind), C(name), C(gpus) and C(holders) in words; of a Jupyter
    server C(kernels), those that were shut down.
  returned: success
  type: list
  elements: dict
spared:
  description: What was not, each with C(kind), C(name) and C(why).
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.errors import DriverAbsentError
from ..module_utils.holders import find_holders
from ..module_utils.idle_stop import reclaim
from ..module_utils.nvml import Session
from ..module_utils.runner import respawn_with_pynvml, run


def argspec():
    return {
        "items": {
            "type": "list",
            "elements": "dict",
            "required": True,
            "options": {
                "kind": {"type": "str", "choices": ["unit", "container"], "required": True},
                "name": {"type": "str", "required": True},
                "runtime": {"type": "str", "default": ""},
                "gpus": {"type": "list", "elements": "str", "required": True},
            },
        },
        "jupyter": {
            "type": "list",
            "elements": "dict",
            "default": [],
            "options": {
                "name": {"type": "str", "required": True},
                "url": {"type": "str", "required": True},
                "token": {"type": "str", "default": "", "no_log": True},
            },
        },
        "quiet_seconds": {"type": "float", "default": 172800},
    }


def bring_about(params, check_mode):
    """The module's return values."""

    def look():
        with Session() as session:
            host = session.observe(telemetry=True)
            return host, find_holders(host)

    try:
        done = reclaim(
            params["items"],
            look,
            dry=check_mode,
            jupyter=params["jupyter"],
            quiet_seconds=params["quiet_seconds"],
        )
    except DriverAbsentError as error:
        if error.call == "import":
            respawn_with_pynvml()
        raise
    return dict(done, changed=bool(done["stopped"]))


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: bring_about(module.params, module.check_mode))


if __name__ == "__main__":
    main()
