# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List collections that the controller lacks."""

from __future__ import annotations

DOCUMENTATION = r"""
name: missing_collections
short_description: List the collections that are not installed on the controller
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Used by roles that need another collection only for some features, and therefore do not declare a dependency on it.
options:
  _input:
    description: Names of collections.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Verify that kubernetes.core is installed
  ansible.builtin.assert:
    that: "['kubernetes.core'] | openfleet.gpu.missing_collections == []"
"""

RETURN = r"""
_value:
  description: Names of the missing collections.
  type: list
  elements: str
  sample: [kubernetes.core]
"""

from importlib.util import find_spec


def missing_collections(names):
    """See DOCUMENTATION."""
    return [name for name in names if not _is_installed(name)]


def _is_installed(name):
    try:
        return find_spec("ansible_collections.%s" % name) is not None
    except ModuleNotFoundError:
        # The whole namespace is missing.
        return False


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        return {"missing_collections": missing_collections}
