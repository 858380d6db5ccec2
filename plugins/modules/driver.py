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
  - Reads the state of the host, plans the change and applies it. Downloads everything before the first change, and restores the
    previous driver if the change fails.
  - The role P(openfleet.gpu.nvidia_driver#role) uses this module, and adds draining of clients and reboots.
  - In check mode, it reads the repository in a temporary directory, and predicts packages and versions exactly. If the host
    already has the desired driver, it does not contact the repository.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  version:
    description: A branch (V(580)) or an exact version (V(580.178.04)). Required with O(state=present).
    type: str
    default: ""
  state:
    description: V(present) installs the driver, V(absent) removes it.
    type: str
    choices: [present, absent]
    default: present
  distributions:
    description:
      - Data of the supported distributions by name and version, for example C(debian-12), C(ubuntu-24.04) or C(el-9). The role
        has them in C(vars/distributions).
    type: dict
    required: true
  source:
    description: >-
      Source of the driver. V(repository) is NVIDIA's repository or a mirror of it. V(distribution) is the distribution's own
      packages. V(runfile) is a .run file.
    type: str
    choices: [repository, distribution, runfile]
    default: repository
  repository:
    description:
      - For O(source=repository). C(url) can have the placeholders C({directory}) and C({architecture}). C(key_url) is the URL
        of the signing key, by default in the directory of the packages. Alternatively, C(key) is the key itself.
        C(fingerprints) lists the fingerprints of trusted keys, by default those in the distribution's entry.
    type: dict
    default: {}
  variant:
    description: V(headless) installs the packages for computing. V(full) also installs the packages for graphics.
    type: str
    choices: [headless, full]
    default: headless
  kernel_modules:
    description: >-
      V(auto) installs the open modules if all GPUs support them (Turing and newer), and otherwise the proprietary ones. V(none)
      installs only libraries and tools.
    type: str
    choices: [auto, open, proprietary, none]
    default: auto
  precompiled:
    description:
      - Whether to install prebuilt kernel modules for each kernel instead of building them with DKMS. On Red Hat these are the
        packages C(kmod-nvidia-*), on Ubuntu the distribution's packages C(linux-modules-nvidia-*).
      - The module fails if no source has prebuilt modules for the running kernel.
    type: bool
    default: false
  upgrade:
    description: >-
      If O(version) is a branch, whether to upgrade to the newest version of the branch. Otherwise any installed version of the
      branch is kept.
    type: bool
    default: false
  hold:
    description: Whether to hold the packages, so that other tools such as unattended upgrades do not change them.
    type: bool
    default: true
  persistenced:
    description: Whether to run the NVIDIA Persistence Daemon.
    type: bool
    default: true
  fabric_manager:
    description: >-
      Whether to install and run the Fabric Manager. V(auto) means V(present) if the PCI bus has an NVSwitch, and V(absent) if
      not.
    type: str
    choices: [auto, present, absent]
    default: auto
  imex:
    description: Whether to install and run IMEX, for NVLink across hosts.
    type: bool
    default: false
  imex_nodes:
    description: Addresses of the hosts in the IMEX domain.
    type: list
    elements: str
    default: []
  reboot:
    description: >-
      Whether a change that needs a reboot is allowed. With V(never), the module fails before any change. The module itself
      never reboots the host.
    type: str
    choices: [never, later, now]
    default: never
  fetch_only:
    description: Whether to only download the packages, so that the later change is short and needs no network.
    type: bool
    default: false
  allow_removal:
    description:
      - Other packages that may be removed because they depend on removed packages.
      - Also lists packages of a driver that was installed in another way, such as C(nvidia-vgpu-ubuntu-580). If they are not
        listed, the module refuses to replace such a driver.
      - V(runfile) permits the removal of a driver that a .run file installed.
    type: list
    elements: str
    default: []
  minimum_versions:
    description:
      - GPU models by PCI device ID (four hex digits, lower case), each with C(name), the first driver C(version) that supports
        it, and whether that version is C(confirmed).
      - If O(version) is older than a confirmed minimum, the module fails. If the minimum is not confirmed, RV(notes) mentions
        it. The default is the collection's list of models.
    type: dict
    default: {}
  runfile:
    description: For O(source=runfile), path of the .run file on the host.
    type: path
    default: ""
  runfile_sha256:
    description: For O(source=runfile), SHA-256 of the .run file.
    type: str
    default: ""
  vulnerable:
    description:
      - How to handle published vulnerabilities of the driver's current or desired version.
      - V(warn) warns, V(refuse) fails before any change, V(accept) ignores them. C(docs/security-versions.md) lists the
        vulnerabilities.
    type: str
    choices: [warn, refuse, accept]
    default: warn
  state_directory:
    description: Directory on the host for the journal of a change.
    type: path
    default: /var/lib/openfleet-gpu
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
  diff_mode:
    support: full
  platform:
    platforms: linux
seealso:
  - module: openfleet.gpu.gpu_info
"""

EXAMPLES = r"""
- name: Predict the change of the driver
  openfleet.gpu.driver:
    version: "580"
    distributions: "{{ nvidia_driver__distributions }}"
    repository: {url: "https://mirror.example.org/cuda/repos/{directory}/{architecture}"}
  become: true
  check_mode: true
"""

RETURN = r"""
needed:
  description: Whether a change or a reboot was needed.
  returned: always
  type: bool
  sample: true
version:
  description: Version of the driver. In check mode, the predicted version. Empty if no driver is installed.
  returned: always
  type: str
  sample: 580.178.04
steps:
  description: Steps taken. In check mode, the predicted steps.
  returned: always
  type: list
  elements: str
  sample: [upgrade nvidia-driver-cuda 580.95.05-1 to 580.178.04-1, load the kernel module]
disruptive:
  description: Whether clients must stop using the GPUs before the change.
  returned: always
  type: bool
  sample: true
reboot:
  description: Why a reboot is needed after the change. Empty if none is needed.
  returned: always
  type: str
  sample: the loaded kernel module is 580.95.05, and the driver's other parts are 580.178.04
runfile_needed:
  description: Whether the plan needs the .run file on the host.
  returned: always
  type: bool
  sample: false
drained:
  description: Whether an earlier change of the driver stopped clients that are not restarted yet.
  returned: always
  type: bool
  sample: false
kernel_modules:
  description: The chosen modules, V(open), V(proprietary) or V(none).
  returned: when O(state=present)
  type: str
  sample: open
loaded_version:
  description: Version of the loaded kernel module. Empty if none is loaded.
  returned: always
  type: str
  sample: 580.95.05
vulnerable:
  description: A sentence about published vulnerabilities of the version. Empty if there are none, or if O(vulnerable=accept).
  returned: always
  type: str
  sample: the driver 580.95.05 has vulnerabilities that 580.178.04 fixes (NVIDIA's security bulletin 5861 of 2026-09-30)
notes:
  description: Notes that are not errors.
  returned: always
  type: list
  elements: str
  sample: [no NVIDIA GPU is on the PCI bus]
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.driver.desired import Driver
from ..module_utils.packages.minimum_versions import POLICIES
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
