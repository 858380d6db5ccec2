#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vgpu_limiter
short_description: Install the vGPU limiter's library and commands
version_added: "0.1.0"
description:
  - Installs the library that holds vGPU tenants to their quota, the commands C(vgpu-run) and C(vgpu-top), the drop-ins of
    the units that run as tenants, and labels for confined containers; or removes all of them.
  - The role P(openfleet.gpu.vgpu_limiter#role) uses it, and installs a compiler where one is missing.
  - The sources travel only to a host whose installation is missing, damaged or of other sources.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  state:
    description: V(present) installs, V(absent) removes, and is refused while the host has tenants.
    type: str
    choices: [present, absent]
    default: present
  files:
    description:
      - C(libopenfleet-vgpu.so), C(libcuda.so.1) and C(vgpu-top) as files on the controller, where they were built elsewhere.
      - Without them the host builds them with its own compiler.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Path on the controller.
        type: path
        required: true
      sha256:
        description: Its SHA-256. The action plugin refuses a file that has another one.
        type: str
  services:
    description: Names of units that run as tenants, with the names of their tenants.
    type: dict
    default: {}
extends_documentation_fragment:
  - openfleet.gpu.install
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
  - ansible.builtin.action_common_attributes.flow
seealso:
  - module: openfleet.gpu.vgpu_quota
"""

EXAMPLES = r"""
- name: Build and install the limiter
  openfleet.gpu.vgpu_limiter:
    services: {notebook.service: notebook-a}
  become: true

- name: Remove it
  openfleet.gpu.vgpu_limiter:
    state: absent
  become: true
"""

RETURN = r"""
done:
  description: What was done, or in check mode would be done.
  returned: success
  type: list
  elements: str
  sample: ["write /usr/bin/vgpu-run"]
missing:
  description: Programs that the host needs to build the library, and does not have. Nothing was changed if there are any.
  returned: success
  type: list
  elements: str
  sample: [cc, make]
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.install import sources
from ..module_utils.install.vgpu_limiter import install, uninstall
from ..module_utils.runner import run


def argspec():
    return {
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "files": {
            "type": "list",
            "elements": "dict",
            "default": [],
            "options": {"path": {"type": "path", "required": True}, "sha256": {"type": "str"}},
        },
        "services": {"type": "dict", "default": {}},
        **sources.argspec(),
    }


def body(params, target, given):
    """Bring about the state that the parameters ask for; return the programs that are missing for it."""
    if params["state"] == "absent":
        uninstall(target)
        return {"missing": []}
    return install(target, params["services"], bool(params["files"]), given)


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: sources.bring_about(module.params, module.check_mode, body))


if __name__ == "__main__":
    main()
