#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The documentation of plugins/action/bundle.py, which does all of it on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: bundle
short_description: Collect what hosts take from networks, for a site that has none
version_added: "0.1.0"
description:
  - Reads what an inventory asks for, and fetches it into a folder that an air-gapped site can bring to the other side. The
    playbook C(openfleet.gpu.bundle) is made of it.
  - It reaches no host. What only a host could tell is told by the variable C(gpu_bundle_platforms).
  - Repositories are mirrored in part, with the vendor's own index and signature. Every signature is verified by the keys whose
    fingerprints the inventory trusts, and every file by the signed index, before it is kept.
  - A second run fetches what is missing or has changed. In check mode it asks the repositories, and writes nothing.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  directory:
    description: The folder. It is created where it is missing.
    type: path
    required: true
  hosts:
    description: The inventory's hosts that the bundle is for.
    type: list
    elements: str
    required: true
  parts:
    description:
      - What to collect. V(driver) and V(container_toolkit) are what the roles of these names install, V(nvml) is the wheel that
        hosts get pynvml from, V(kubernetes) the manifest or the chart of the device plugin, V(collection) this collection,
        V(controller) the Python packages of the controller.
    type: list
    elements: str
    choices: [driver, container_toolkit, nvml, kubernetes, collection, controller]
    default: [driver, container_toolkit, nvml, kubernetes, collection, controller]
  requirements:
    description:
      - Requirements file of the other side's controller. Without one, it is ansible-core and nvidia-ml-py in the versions that
        this controller has.
    type: path
  pip_options:
    description: Options for C(pip download), as V(--python-version=3.12) for a controller with another Python.
    type: list
    elements: str
    default: []
  url:
    description: Where hosts of the other side reach the folder, for the variables that are written into it.
    type: str
    default: ""
  path:
    description: Where the other side's controller has the folder. Without it, where it is now.
    type: str
    default: ""
  prune:
    description: Remove files of earlier runs that nothing wants any more. They are only listed otherwise.
    type: bool
    default: false
extends_documentation_fragment:
  - ansible.builtin.action_common_attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: Shows the files to fetch and to remove.
  platform:
    platforms: posix
requirements:
  - On the controller gpgv, and python-debian for APT repositories, createrepo_c for those of RPM packages.
seealso:
  - module: openfleet.gpu.driver
  - module: openfleet.gpu.container_toolkit
"""

EXAMPLES = r"""
- name: Collect what the GPU hosts need
  openfleet.gpu.bundle:
    directory: /srv/bundle
    hosts: "{{ groups['gpu_hosts'] }}"
  run_once: true
  delegate_to: localhost
"""

RETURN = r"""
fetched:
  description: Files that were fetched, or would be, by their path in the folder.
  returned: success
  type: list
  elements: str
kept:
  description: How many files were there already, and right.
  returned: success
  type: int
old:
  description: Files of earlier runs that nothing wants any more.
  returned: success
  type: list
  elements: str
removed:
  description: Those of them that were removed, or would be, with O(prune=true).
  returned: success
  type: list
  elements: str
needed_from_the_distribution:
  description: What hosts take from their own distribution besides.
  returned: success
  type: list
  elements: str
summary:
  description: All this in a few lines.
  returned: success
  type: list
  elements: str
"""
