#!/usr/bin/python
# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dcgm_exporter
short_description: Install an exporter of GPU metrics, and scrape it
version_added: "0.1.0"
description:
  - Writes the files and the unit of an exporter, installs its packages, restarts it after a change and scrapes it; or removes all
    that it brought.
  - The role P(openfleet.gpu.dcgm_exporter#role) uses it with its own units. Run it with C(no_log), for passwords and keys are in
    its options.
  - The embedded exporter's program travels only to a host that has none, or another one.
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
      The files by path below O(root), each with C(content) and C(mode). In the content C(@python@) stands for the interpreter
      of the module. Files of former settings in the directories of the role are removed.
    type: dict
    default: {}
  web_config:
    description: The exporter's configuration of TLS, as exporter-toolkit reads it.
    type: dict
    default: {}
  users:
    description: Names and passwords of those who may scrape. The host keeps bcrypt hashes.
    type: dict
    default: {}
  packages:
    description: Packages that are installed by apt or dnf.
    type: list
    elements: str
    default: []
  version:
    description: Version of the package of the exporter; any if empty.
    type: str
    default: ""
  repository:
    description: >-
      The repository of the packages, with C(url), the text of its C(key), and C(repo_gpgcheck). An empty C(url) removes it.
    type: dict
    default: {url: "", key: "", repo_gpgcheck: true}
  masked:
    description: Units that the packages bring and that are masked.
    type: list
    elements: str
    default: []
  embedded:
    description: >-
      The Python packages of the embedded exporter. Without it the exporter is another one.
    type: dict
    suboptions:
      source:
        description: V(index) is asked by the host. Of anything else the host needs an archive.
        type: str
        required: true
      stamp:
        description: What tells these packages from others.
        type: str
        required: true
      requirements:
        description: The packages with their hashes, as pip reads them.
        type: str
        default: ""
      index_url:
        description: The index, if it is not pip's own. It may have a password.
        type: str
        default: ""
      archive:
        description: Path of the archive on the host.
        type: str
        default: ""
  directories:
    description: Directories below O(root) that are made.
    type: list
    elements: str
    default: []
  host_files:
    description: Files of the site that the exporter reads. They are refused in directories of the role.
    type: list
    elements: str
    default: []
  address:
    description: The address to listen on. A name that is loopback on the host is refused.
    type: str
    default: 127.0.0.1
  health:
    description: >-
      How the exporter is scraped, with C(address), C(port), C(certificate), C(users), C(timeout) and C(engine). Without it
      nothing is scraped.
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
  description: What was done, or in check mode would be done.
  returned: success
  type: list
  elements: str
  sample: ["systemctl restart dcgm-exporter.service"]
archive:
  description: >-
    Architecture for which an archive of Python packages is needed first, or nothing. Nothing was installed if there is one.
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
        # A key may be among them.
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
