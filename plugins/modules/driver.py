#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: driver
short_description: Install, change or remove a host's NVIDIA driver
version_added: "0.1.0"
description:
  - Looks at the host once, plans, and carries the plan out; fetches everything before it changes anything, and brings the
    old driver back where the change does not end well.
  - The role P(openfleet.gpu.nvidia_driver#role) is made of it; it adds the draining of clients and the reboot.
  - In check mode it asks the repository what there is, in a directory of its own, and predicts packages and versions
    exactly. On a host that is right already nothing is asked and nothing is fetched.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  version:
    description: A branch (V(580)) or an exact version (V(580.178.04)). Required to install.
    type: str
    default: ""
  state:
    description: Whether the driver is to be there.
    type: str
    choices: [present, absent]
    default: present
  distributions:
    description:
      - What differs between distributions, by name and version as C(debian-12), C(ubuntu-24.04), C(el-9); the role has it in
        C(vars/distributions).
    type: dict
    required: true
  source:
    description: NVIDIA's repository or a mirror of it, the distribution's own packages, or a .run file.
    type: str
    choices: [repository, distribution, runfile]
    default: repository
  repository:
    description:
      - C(url) with the placeholders C({directory}) and C({architecture}), C(key_url) (empty is beside the packages), C(key)
        (the key itself instead of an address), C(fingerprints) (of the keys to trust; empty takes the distribution's entry).
    type: dict
    default: {}
  variant:
    description: V(headless) is all that computing takes, V(full) has graphics too.
    type: str
    choices: [headless, full]
    default: headless
  kernel_modules:
    description: >-
      V(auto) takes the open modules wherever all GPUs can (Turing and newer) and the proprietary ones elsewhere; V(none)
      installs the libraries and tools alone.
    type: str
    choices: [auto, open, proprietary, none]
    default: auto
  precompiled:
    description:
      - Install kernel modules that are built in advance for each kernel, instead of building them with DKMS. On Red Hat these are
        C(kmod-nvidia-*), on Ubuntu the distribution's C(linux-modules-nvidia-*).
      - Refused if no source has them for the running kernel.
    type: bool
    default: false
  upgrade:
    description: With a branch as O(version), go to its newest version; otherwise any version of the branch is right.
    type: bool
    default: false
  hold:
    description: Keep the packages from being changed by others, as unattended upgrades.
    type: bool
    default: true
  persistenced:
    description: Run the NVIDIA Persistence Daemon.
    type: bool
    default: true
  fabric_manager:
    description: V(auto) where an NVSwitch is found on the PCI bus.
    type: str
    choices: [auto, present, absent]
    default: auto
  imex:
    description: Install and run IMEX, for NVLink over several hosts.
    type: bool
    default: false
  imex_nodes:
    description: Addresses of the IMEX domain, one a host.
    type: list
    elements: str
    default: []
  reboot:
    description: Whether a change that takes a reboot may be made at all. V(never) refuses it before anything changes.
    type: str
    choices: [never, later, now]
    default: never
  fetch_only:
    description: Only fetch the packages, so that the change itself is short and does not depend on the network.
    type: bool
    default: false
  allow_removal:
    description:
      - Packages of others that may be removed because they depend on what goes.
      - Packages of a driver that was installed in another way, as C(nvidia-vgpu-ubuntu-580), which is refused otherwise.
      - V(runfile) stands for the driver of a .run file.
    type: list
    elements: str
    default: []
  minimum_versions:
    description:
      - By PCI device id (four hex digits, lower case) the C(name) of a GPU, the first driver C(version) that runs it, and
        whether that is C(confirmed).
      - A confirmed one refuses an older O(version), the others are noted.
      - Empty takes the GPU models of the collection.
    type: dict
    default: {}
  runfile:
    description: Path of the .run file on the host, for O(source=runfile).
    type: path
    default: ""
  runfile_sha256:
    description: Its SHA-256.
    type: str
    default: ""
  vulnerable:
    description:
      - What to do where NVIDIA has published vulnerabilities of the version that the driver has or is about to get.
      - V(warn) tells, V(refuse) fails before anything changes, V(accept) is silent. C(docs/security.md) has the table.
    type: str
    choices: [warn, refuse, accept]
    default: warn
  state_directory:
    description: Where the host keeps the journal of a change.
    type: path
    default: /var/lib/openfleet-gpu
extends_documentation_fragment:
  - openfleet.gpu.errors
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
  platform:
    platforms: linux
seealso:
  - module: openfleet.gpu.gpu_info
"""

EXAMPLES = r"""
- name: See what the role would do
  openfleet.gpu.driver:
    version: "580"
    distributions: "{{ nvidia_driver__distributions }}"
    repository: {url: "https://mirror.example.org/cuda/repos/{directory}/{architecture}"}
  become: true
  check_mode: true
"""

RETURN = r"""
needed:
  description: Whether there was anything to do, a reboot included.
  returned: always
  type: bool
version:
  description: The driver's version, as it is now or, in check mode, will be; empty where there is none.
  returned: always
  type: str
  sample: 580.178.04
steps:
  description: What was done, or would be.
  returned: always
  type: list
  elements: str
disruptive:
  description: Whether clients must leave the GPUs first.
  returned: always
  type: bool
reboot:
  description: Why a reboot is needed afterwards; empty where none is.
  returned: always
  type: str
runfile_needed:
  description: Whether the .run file has to be on the host for what is planned.
  returned: always
  type: bool
drained:
  description: Whether an earlier change of the driver took clients off the GPUs that are not back yet.
  returned: always
  type: bool
kernel_modules:
  description: V(open), V(proprietary) or V(none), as chosen.
  returned: when O(state=present)
  type: str
loaded_version:
  description: Version of the kernel module that is loaded; empty where none is.
  returned: always
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

from ..module_utils.driver.desired import Driver
from ..module_utils.minimum_versions import POLICIES
from ..module_utils.runner import run


def argspec():
    return {
        "version": {"type": "str", "default": ""},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "distributions": {"type": "dict", "required": True},
        "source": {"type": "str", "choices": ["repository", "distribution", "runfile"], "default": "repository"},
        "repository": {"type": "dict", "default": {}},
        "variant": {"type": "str", "choices": ["headless", "full"], "default": "headless"},
        "kernel_modules": {"type": "str", "choices": ["auto", "open", "proprietary", "none"], "default": "auto"},
        "precompiled": {"type": "bool", "default": False},
        "upgrade": {"type": "bool", "default": False},
        "hold": {"type": "bool", "default": True},
        "persistenced": {"type": "bool", "default": True},
        "fabric_manager": {"type": "str", "choices": ["auto", "present", "absent"], "default": "auto"},
        "imex": {"type": "bool", "default": False},
        "imex_nodes": {"type": "list", "elements": "str", "default": []},
        "reboot": {"type": "str", "choices": ["never", "later", "now"], "default": "never"},
        "fetch_only": {"type": "bool", "default": False},
        "allow_removal": {"type": "list", "elements": "str", "default": []},
        "minimum_versions": {"type": "dict", "default": {}},
        "runfile": {"type": "path", "default": ""},
        "runfile_sha256": {"type": "str", "default": ""},
        "vulnerable": {"type": "str", "choices": list(POLICIES), "default": POLICIES[0]},
        "state_directory": {"type": "path", "default": "/var/lib/openfleet-gpu"},
    }


def main():
    module = AnsibleModule(
        argument_spec=argspec(),
        supports_check_mode=True,
        required_if=[("state", "present", ["version"]), ("source", "runfile", ["runfile_sha256"])],
    )

    def body():
        driver = Driver(module.params)
        try:
            plan = driver.plan()
            result = driver.result(plan)
            if module.params["fetch_only"]:
                if not module.check_mode:
                    driver.fetch(plan)
                result["changed"] = False
            elif plan.steps and not module.check_mode:
                result = driver.apply(plan)
        finally:
            driver.close()
        if driver.vulnerable:
            module.warn(driver.vulnerable)
        last = ["reboot: " + plan.reboot] if plan.reboot and module.params["reboot"] == "now" else []
        text = "".join(step + "\n" for step in result["steps"] + last)
        return dict(result, diff={"before": "", "after": text})

    run(module, body)


if __name__ == "__main__":
    main()
