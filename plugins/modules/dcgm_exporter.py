#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dcgm_exporter
short_description: Install an exporter of GPU metrics and test its endpoint
version_added: "0.1.0"
description:
  - "Internal: only this collection uses this module."
  - Installs or removes an exporter. For an installation, it writes the exporter's files and unit, installs its packages,
    restarts it after a change, and scrapes it.
  - The role P(openfleet.gpu.dcgm_exporter#role) uses this module with its own units. Set C(no_log) on tasks with this module,
    because its options contain passwords and keys.
  - The program of the embedded exporter is sent only to a host where it is missing or different.
author:
  - openfleet.gpu contributors (!UNKNOWN)
options:
  state:
    description: V(present) installs, V(absent) removes.
    type: str
    choices: [present, absent]
    default: present
  files:
    description: >-
      Files by path below O(root), each with C(content) and C(mode). In the content, C(@python@) is replaced with the module's
      interpreter. Other files in the directories of the role are leftovers from previous settings and are removed.
    type: dict
    default: {}
  web_config:
    description: TLS configuration of the exporter, in the format of exporter-toolkit.
    type: dict
    default: {}
  users:
    description: Names and passwords of users that may scrape. The host stores bcrypt hashes.
    type: dict
    default: {}
  packages:
    description: Packages to install with apt or dnf.
    type: list
    elements: str
    default: []
  version:
    description: Version of the exporter's package. If empty, any version.
    type: str
    default: ""
  repository:
    description: >-
      Repository of the packages, with C(url), the text of its C(key), and C(repo_gpgcheck). If C(url) is empty, the repository
      is removed.
    type: dict
    default: {url: "", key: "", repo_gpgcheck: true}
  masked:
    description: Units to mask. The packages contain these units.
    type: list
    elements: str
    default: []
  embedded:
    description: >-
      Python packages of the embedded exporter. Omit this option for other exporters.
    type: dict
    suboptions:
      source:
        description: >-
          With V(index), the host installs the packages from an index. With any other value, the host needs O(embedded.archive).
        type: str
        required: true
      stamp:
        description: Identifier of this set of packages, to detect changes.
        type: str
        required: true
      requirements:
        description: Packages with their hashes, in the format of pip.
        type: str
        default: ""
      index_url:
        description: URL of the index. Defaults to pip's own. It may contain a password.
        type: str
        default: ""
      archive:
        description: Path of the archive on the host.
        type: str
        default: ""
  directories:
    description: Directories to create below O(root).
    type: list
    elements: str
    default: []
  host_files:
    description: The site's own files that the exporter reads. Files in directories of the role are refused.
    type: list
    elements: str
    default: []
  address:
    description: Address to listen on. A name that resolves to loopback on the host is refused.
    type: str
    default: 127.0.0.1
  health:
    description: >-
      How to scrape the exporter, with C(address), C(port), C(certificate), C(users), C(timeout) and C(engine). Without it, the
      exporter is not scraped.
    type: dict
extends_documentation_fragment:
  - openfleet.gpu.install
  - openfleet.gpu.reload
  - openfleet.gpu.errors
  - ansible.builtin.action_common_attributes
  - ansible.builtin.action_common_attributes.flow
"""

EXAMPLES = r"""
- name: Remove the exporter
  openfleet.gpu.dcgm_exporter:
    state: absent
  become: true
  no_log: true
"""

RETURN = r"""
done:
  description: Changes made. In check mode, the predicted changes.
  returned: success
  type: list
  elements: str
  sample: ["systemctl restart dcgm-exporter.service"]
archive:
  description: >-
    If not empty, nothing was installed, because an archive of Python packages for this architecture is required first.
  returned: success
  type: str
  sample: x86_64
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.install import sources
from ..module_utils.install.exporter.installation import bring_about
from ..module_utils.runner import run


def argspec():
    texts = {"type": "list", "elements": "str", "default": []}
    return {
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        # The files may include a key.
        "files": {"type": "dict", "default": {}, "no_log": True},
        "web_config": {"type": "dict", "default": {}},
        "users": {"type": "dict", "default": {}, "no_log": True},
        "packages": dict(texts),
        "version": {"type": "str", "default": ""},
        "repository": {"type": "dict", "default": {"url": "", "key": "", "repo_gpgcheck": True}},
        "masked": dict(texts),
        "embedded": {
            "type": "dict",
            "options": {
                "source": {"type": "str", "required": True},
                "stamp": {"type": "str", "required": True},
                "requirements": {"type": "str", "default": ""},
                "index_url": {"type": "str", "default": "", "no_log": True},
                "archive": {"type": "str", "default": ""},
            },
        },
        "directories": dict(texts),
        "host_files": dict(texts),
        "address": {"type": "str", "default": "127.0.0.1"},
        "health": {"type": "dict"},
        **sources.argspec(),
    }


def main():
    module = AnsibleModule(argument_spec=argspec(), supports_check_mode=True)
    run(module, lambda: sources.bring_about(module.params, module.check_mode, bring_about))


if __name__ == "__main__":
    main()
