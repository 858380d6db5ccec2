#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The documentation of plugins/action/bundle.py, which runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: bundle
short_description: Build a bundle for an air-gapped site
version_added: "0.1.0"
description:
  - Downloads everything that the hosts of an inventory would download themselves, and stores it in a directory that can be
    carried to an air-gapped site. The playbook C(openfleet.gpu.bundle) uses this module.
  - The module contacts no host. The variable C(gpu_bundle_platforms) has the data that the roles read from hosts.
  - Only the needed part of a repository is mirrored, with the vendor's own index and signature. Before a file is stored, its
    checksum is compared with the signed index. The signature of the index is verified with keys whose fingerprints the
    inventory trusts.
  - A second run downloads only missing and changed files. In check mode, it reads the repositories and writes nothing.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  directory:
    description: Directory of the bundle. It is created if it is missing.
    type: path
    required: true
  hosts:
    description: Hosts of the inventory for which the bundle is built.
    type: list
    elements: str
    required: true
  parts:
    description:
      - Parts of the bundle. V(driver) and V(container_toolkit) are the packages of the corresponding roles, V(nvml) is the wheel
        of pynvml for hosts, V(kubernetes) the manifest or chart of the device plugin, V(collection) this collection, and
        V(controller) the Python packages of the controller.
    type: list
    elements: str
    choices: [driver, container_toolkit, nvml, kubernetes, collection, controller]
    default: [driver, container_toolkit, nvml, kubernetes, collection, controller]
  requirements:
    description:
      - Requirements file for the air-gapped site's controller. Defaults to ansible-core and nvidia-ml-py, in the versions that
        this controller uses.
    type: path
  pip_options:
    description: Options for C(pip download), for example V(--python-version=3.12) for a controller with another Python.
    type: list
    elements: str
    default: []
  url:
    description: >-
      URL at which hosts of the air-gapped site can read the bundle. The bundle's variables file contains this URL.
    type: str
    default: ""
  path:
    description: Path of the bundle on the air-gapped site's controller. Defaults to O(directory).
    type: str
    default: ""
  prune:
    description: Whether to remove files of earlier runs that are no longer needed. Otherwise they are only listed.
    type: bool
    default: false
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: Shows the files to download and to remove.
  platform:
    platforms: posix
requirements:
  - gpgv on the controller
  - python-debian on the controller, for APT repositories
  - createrepo_c on the controller, for RPM repositories
seealso:
  - module: openfleet.gpu.driver
  - module: openfleet.gpu.container_toolkit
"""

EXAMPLES = r"""
- name: Build the bundle for the GPU hosts
  openfleet.gpu.bundle:
    directory: /srv/bundle
    hosts: "{{ groups['gpu_hosts'] }}"
  run_once: true
  delegate_to: localhost
"""

RETURN = r"""
fetched:
  description: Paths in the bundle of the downloaded files. In check mode, of the files that would be downloaded.
  returned: success
  type: list
  elements: str
  sample: [files/nvidia_ml_py-12.575.51-py3-none-any.whl]
kept:
  description: Number of files that were already present and correct.
  returned: success
  type: int
  sample: 41
old:
  description: Files of earlier runs that are no longer needed.
  returned: success
  type: list
  elements: str
  sample: [files/nvidia_ml_py-12.570.86-py3-none-any.whl]
removed:
  description: Files of RV(old) that were removed because of O(prune=true). In check mode, files that would be removed.
  returned: success
  type: list
  elements: str
  sample: [files/nvidia_ml_py-12.570.86-py3-none-any.whl]
needed_from_the_distribution:
  description: Packages that hosts need in addition, from their own distribution.
  returned: success
  type: list
  elements: str
  sample: [dkms, gcc, make]
summary:
  description: A summary in a few lines.
  returned: success
  type: list
  elements: str
  sample: ["fetched 1 files (47 KiB), 41 were already present", "hosts need from their distribution: dkms, gcc, make"]
"""
