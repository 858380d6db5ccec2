#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: container_toolkit
short_description: Install or remove NVIDIA's container toolkit
version_added: "0.1.0"
description:
  - Installs the toolkit, configures container engines, and keeps a CDI specification of the GPUs up to date.
  - Reads the state of the host, plans the change and applies it. The role P(openfleet.gpu.container_toolkit#role) uses this
    module.
  - Installs one exact version of the packages. Their source is a repository whose key has a trusted fingerprint, the host's own
    package sources, or files with checksums. Everything is downloaded before the first change.
  - First, C(nvidia-ctk) configures a copy of each engine's configuration. If settings would be lost, the module fails.
  - In check mode, it reads the repository in a temporary directory, and changes nothing.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  version:
    description: Exact version of the toolkit, for example V(1.19.1). Required with O(state=present).
    type: str
    default: ""
  state:
    description: V(present) installs the toolkit, V(absent) removes it.
    type: str
    choices: [present, absent]
    default: present
  source:
    description: >-
      Source of the packages. V(repository) is NVIDIA's repository or a mirror with the same structure. V(host) is the host's
      own package sources. V(files) is package files on the host.
    type: str
    choices: [repository, host, files]
    default: repository
  repository:
    description:
      - For O(source=repository). C(url) can have the placeholders C({family}) (V(deb) or V(rpm)) and C({architecture}).
        C(key_url) is the URL of the signing key, or C(key) is the key itself. C(fingerprints) lists the fingerprints of trusted
        keys.
    type: dict
    default: {}
  files:
    description: For O(source=files), package files on the host.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Path of the file.
        type: path
        required: true
      sha256:
        description: SHA-256 of the file.
        type: str
        required: true
  hold:
    description: Whether to hold the packages, so that other tools such as unattended upgrades do not change them.
    type: bool
    default: true
  runtimes:
    description: Engines to configure. If empty, all installed engines are configured.
    type: list
    elements: str
    choices: [docker, containerd, crio, podman]
    default: []
  set_as_default:
    description: Whether to make the nvidia runtime the default of the engines.
    type: bool
    default: false
  runtime_cdi:
    description: Whether to enable CDI in Docker and containerd.
    type: bool
    default: false
  restart:
    description:
      - How engines apply a changed configuration. V(safe) reloads or restarts engines only if no container ends because of
        this. V(always) restarts engines in any case. V(never) does not restart engines, and RV(restart_pending) lists them.
    type: str
    choices: [safe, always, never]
    default: safe
  cdi:
    description: >-
      Whether to keep a CDI specification of the GPUs. It is written again after changes of the driver and of MIG devices.
    type: bool
    default: true
  cdi_environment:
    description: Environment variables for C(nvidia-ctk cdi generate) in the service.
    type: dict
    default: {}
  selinux_boolean:
    description: If SELinux is enforcing, whether to let containers use devices (C(container_use_devices)).
    type: bool
    default: true
  allow_removal:
    description: Other packages that may be removed because they conflict with the toolkit or depend on it.
    type: list
    elements: str
    default: []
  smoke_test:
    description: >-
      Whether to start a container with all GPUs at the end, and compare the GPUs in the container with the GPUs of the host.
    type: bool
    default: false
  vulnerable:
    description:
      - How to handle published vulnerabilities of O(version) that a later version fixes.
      - V(warn) warns, V(refuse) fails before any change, V(accept) ignores them. C(docs/security-versions.md) lists the
        vulnerabilities.
    type: str
    choices: [warn, refuse, accept]
    default: warn
  state_directory:
    description: Directory on the host for the data that a removal needs.
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
    membership: [openfleet.gpu.state]
  check_mode:
    support: full
  diff_mode:
    support: full
    details: Shows the steps, but not the content of configurations, which may contain secrets.
  platform:
    platforms: linux
seealso:
  - module: openfleet.gpu.driver
"""

EXAMPLES = r"""
- name: Predict the change of the container toolkit
  openfleet.gpu.container_toolkit:
    version: 1.19.1
    source: host
  become: true
  check_mode: true
"""

RETURN = r"""
version:
  description: Version of the packages. Empty if none are installed.
  returned: always
  type: str
  sample: 1.19.1-1
steps:
  description: Steps taken. In check mode, the predicted steps.
  returned: always
  type: list
  elements: str
  sample: [install nvidia-container-toolkit 1.19.1-1, configure docker (/etc/docker/daemon.json)]
restart_pending:
  description: Engines that still use their previous configuration.
  returned: always
  type: list
  elements: str
  sample: [docker]
files_needed:
  description: Whether the plan needs the package files on the host.
  returned: always
  type: bool
  sample: false
smoke_test:
  description: Output of the container that the smoke test started.
  returned: when O(smoke_test=true), outside check mode
  type: str
  sample: a container of podman sees 8 devices, the host's own
vulnerable:
  description: A sentence about published vulnerabilities of the version. Empty if there are none, or if O(vulnerable=accept).
  returned: always
  type: str
  sample: >-
    the container toolkit 1.17.8 has vulnerabilities that 1.19.1 fixes (CVE-2026-24260; NVIDIA's security bulletin 5850 of
    2026-06-30)
notes:
  description: Notes that are not errors.
  returned: always
  type: list
  elements: str
  sample: ["no driver for the running kernel, so the CDI specification will be written once it has one"]
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import systemd_reload
from ..module_utils.packages.minimum_versions import POLICIES
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
