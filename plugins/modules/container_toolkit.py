#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: container_toolkit
short_description: Install NVIDIA's container toolkit, configure container engines, keep CDI specifications
version_added: "0.1.0"
description:
  - Looks at the host once, plans, and carries the plan out. The role P(openfleet.gpu.container_toolkit#role) is made of it.
  - Packages are of one exact version, from a repository whose key has a known fingerprint, from the host's own sources, or
    from files with checksums; everything is fetched before anything is changed.
  - Engines are configured by C(nvidia-ctk), which is asked on a copy of their configuration. What it would lose stops the run.
  - In check mode it asks the repository what there is, in a directory of its own, and changes nothing.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  version:
    description: An exact version of the toolkit, as V(1.19.1). Required to install.
    type: str
    default: ""
  state:
    description: Whether the toolkit is to be there.
    type: str
    choices: [present, absent]
    default: present
  source:
    description: A repository of NVIDIA's layout, the sources that the host has, or files on the host.
    type: str
    choices: [repository, host, files]
    default: repository
  repository:
    description:
      - C(url) with the placeholders C({family}) (V(deb), V(rpm)) and C({architecture}), C(key_url), C(key) (the key itself
        instead of an address), C(fingerprints) (of the keys to trust).
    type: dict
    default: {}
  files:
    description: For O(source=files), the packages' files on the host.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Where it is.
        type: path
        required: true
      sha256:
        description: Its SHA-256.
        type: str
        required: true
  hold:
    description: Keep the packages from being changed by others, as unattended upgrades.
    type: bool
    default: true
  runtimes:
    description: Engines to configure. Empty takes those that are found.
    type: list
    elements: str
    choices: [docker, containerd, crio, podman]
    default: []
  set_as_default:
    description: Make the nvidia runtime the default one of the engines.
    type: bool
    default: false
  runtime_cdi:
    description: Tell Docker and containerd to use CDI.
    type: bool
    default: false
  restart:
    description:
      - How engines take a changed configuration. V(safe) reloads or restarts them where no container ends; V(always) restarts
        them anyhow; V(never) leaves it to you.
    type: str
    choices: [safe, always, never]
    default: safe
  cdi:
    description: Keep a CDI specification of the GPUs, rewritten after changes of the driver and of MIG devices.
    type: bool
    default: true
  cdi_environment:
    description: Settings of C(nvidia-ctk cdi generate) for the service, as environment variables.
    type: dict
    default: {}
  selinux_boolean:
    description: Where SELinux enforces, let containers use devices (C(container_use_devices)).
    type: bool
    default: true
  allow_removal:
    description: Packages of others that may be removed because they do not go with the toolkit, or depend on it.
    type: list
    elements: str
    default: []
  smoke_test:
    description: Afterwards start a container that is given all GPUs, and hold what it sees against the host.
    type: bool
    default: false
  vulnerable:
    description:
      - What to do where NVIDIA has published vulnerabilities of O(version) that a later one mends.
      - V(warn) tells, V(refuse) fails before anything changes, V(accept) is silent. C(docs/security.md) has the table.
    type: str
    choices: [warn, refuse, accept]
    default: warn
  state_directory:
    description: Where the host keeps what the way back needs.
    type: path
    default: /var/lib/openfleet-gpu
extends_documentation_fragment:
  - openfleet.gpu.errors
  - openfleet.gpu.reload
  - ansible.builtin.action_common_attributes
attributes:
  action_group:
    support: full
    description: Use C(group/openfleet.gpu.state) in C(module_defaults) to set defaults for several modules.
    membership: openfleet.gpu.state
  check_mode:
    support: full
  diff_mode:
    support: full
    details: Shows the steps, and no content of configurations, which may hold secrets.
  platform:
    platforms: linux
seealso:
  - module: openfleet.gpu.driver
"""

EXAMPLES = r"""
- name: See what the role would do
  openfleet.gpu.container_toolkit:
    version: 1.19.1
    source: host
  become: true
  check_mode: true
"""

RETURN = r"""
version:
  description: The packages' version; empty where there is none.
  returned: always
  type: str
  sample: 1.19.1-1
steps:
  description: What was done, or would be.
  returned: always
  type: list
  elements: str
restart_pending:
  description: Engines that run on with their former configuration.
  returned: always
  type: list
  elements: str
files_needed:
  description: Whether the packages' files have to be on the host for what is planned.
  returned: always
  type: bool
smoke_test:
  description: What the container saw.
  returned: when O(smoke_test=true), outside check mode
  type: str
vulnerable:
  description: What NVIDIA has published against the version, in a sentence; empty for nothing, and with O(vulnerable=accept).
  returned: always
  type: str
notes:
  description: What is worth knowing and no error.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import systemd_reload
from ..module_utils.minimum_versions import POLICIES
from ..module_utils.runner import run
from ..module_utils.toolkit.smoke import smoke_test
from ..module_utils.toolkit.toolkit import Toolkit


def argspec():
    return {
        "version": {"type": "str", "default": ""},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "source": {"type": "str", "choices": ["repository", "host", "files"], "default": "repository"},
        "repository": {"type": "dict", "default": {}},
        "files": {
            "type": "list",
            "elements": "dict",
            "default": [],
            "options": {"path": {"type": "path", "required": True}, "sha256": {"type": "str", "required": True}},
        },
        "hold": {"type": "bool", "default": True},
        "runtimes": {
            "type": "list",
            "elements": "str",
            "choices": ["docker", "containerd", "crio", "podman"],
            "default": [],
        },
        "set_as_default": {"type": "bool", "default": False},
        "runtime_cdi": {"type": "bool", "default": False},
        "restart": {"type": "str", "choices": ["safe", "always", "never"], "default": "safe"},
        "cdi": {"type": "bool", "default": True},
        "cdi_environment": {"type": "dict", "default": {}},
        "selinux_boolean": {"type": "bool", "default": True},
        "allow_removal": {"type": "list", "elements": "str", "default": []},
        "smoke_test": {"type": "bool", "default": False},
        "vulnerable": {"type": "str", "choices": list(POLICIES), "default": POLICIES[0]},
        "on_busy": {"type": "str", "choices": list(systemd_reload.POLICIES), "default": systemd_reload.FAIL},
        "busy_timeout": {"type": "int", "default": 600},
        "state_directory": {"type": "path", "default": "/var/lib/openfleet-gpu"},
    }


def main():
    module = AnsibleModule(
        argument_spec=argspec(),
        supports_check_mode=True,
        required_if=[("state", "present", ["version"]), ("source", "files", ["files"])],
    )

    def body():
        toolkit = Toolkit(module.params)
        try:
            plan = toolkit.plan()
            result = toolkit.result(plan)
            toolkit.guard(plan, module.check_mode)
            if plan.steps and not module.check_mode:
                result = toolkit.apply(plan)
        finally:
            toolkit.close()
        if toolkit.vulnerable:
            module.warn(toolkit.vulnerable)
        if module.params["smoke_test"] and module.params["state"] == "present" and not module.check_mode:
            result["smoke_test"] = smoke_test(toolkit.call)
        return dict(result, diff={"before": "", "after": "".join(step + "\n" for step in result["steps"])})

    run(module, body)


if __name__ == "__main__":
    main()
