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
  - "Internal: only this collection uses this module."
  - Installs or removes the library that limits vGPU tenants, the commands C(vgpu-run) and C(vgpu-top), the drop-ins of
    units that run as tenants, and labels for confined containers.
  - The role P(openfleet.gpu.vgpu_limiter#role) installs a compiler if one is missing.
  - Sources are sent only to a host whose installation is missing, damaged or outdated.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  state:
    description: V(present) installs. V(absent) removes, and is refused while the host has tenants.
    type: str
    choices: [present, absent]
    default: present
  files:
    description:
      - Prebuilt files C(libopenfleet-vgpu.so), C(libcuda.so.1) and C(vgpu-top) on the controller.
      - If empty, the host builds these files with its own compiler.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Path on the controller.
        type: path
        required: true
      sha256:
        description: SHA-256 of the file. The action plugin refuses a file that does not match.
        type: str
  services:
    description: Mapping from systemd unit to the tenant that it runs as.
    type: dict
    default: {}
extends_documentation_fragment:
  - openfleet.gpu.install
  - openfleet.gpu.reload
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
  description: Changes made. In check mode, the predicted changes.
  returned: success
  type: list
  elements: str
  sample: ["write /usr/bin/vgpu-run"]
missing:
  description: Programs that the build of the library needs and the host lacks. If any are missing, nothing was changed.
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
    """Apply the desired state and return the missing programs."""
    if params["state"] == "absent":
        uninstall(target)
        return {"missing": []}
    return install(target, params["services"], bool(params["files"]), given)


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: sources.bring_about(module.params, module.check_mode, body))


if __name__ == "__main__":
    main()
