# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the source of a host's pynvml and its hash."""

from __future__ import annotations

DOCUMENTATION = r"""
name: pynvml_source
short_description: Check the file or package that a host gets pynvml from
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - Used by the role C(gpu_layout). Reads files on the controller, and compares their SHA-256 with the hashes in the collection
    and in the inventory.
options:
  _input:
    description: >-
      Values by name of the variables C(gpu_layout_nvml_source), C(gpu_layout_nvml_version), C(gpu_layout_nvml_wheel) and
      C(gpu_layout_nvml_hashes).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Check that the hash is known
  ansible.builtin.assert:
    that: source.problem == ''
    fail_msg: "{{ source.problem }}"
  vars:
    source: >-
      {{ {'gpu_layout_nvml_source': 'index', 'gpu_layout_nvml_version': '12.1', 'gpu_layout_nvml_wheel': '',
          'gpu_layout_nvml_hashes': []} | openfleet.gpu.pynvml_source }}
"""

RETURN = r"""
_value:
  description: >-
    C(problem) is the problem with its fix, or empty. C(path) is the file on the controller, for the sources V(controller) and
    V(wheel). C(sha256) is the hash of this file, for V(controller). C(requirements) is the text for pip on the host, for
    V(index).
  type: dict
  sample:
    problem: ''
    path: /srv/files/pynvml.py
    sha256: 2828e66b483bec218f461314f6da96c1e56330ed4b297a20b3444b4c43cdd14e
    requirements: ''
"""

from ansible_collections.openfleet.gpu.plugins.plugin_utils import nvml_source
from ansible_collections.openfleet.gpu.plugins.plugin_utils.plain import plain


def pynvml_source(variables):
    """See DOCUMENTATION."""
    result = {"problem": "", "path": "", "sha256": "", "requirements": ""}
    try:
        request, known = nvml_source.Request.of(plain(variables)), nvml_source.shipped()
        if request.source == "controller":
            file = nvml_source.controller_file(request, known)
            result.update(path=str(file.path), sha256=file.sha256)
        elif request.source == "wheel":
            result["path"] = str(nvml_source.wheel_file(request, known))
        elif request.source == "index":
            result["requirements"] = str(nvml_source.pin(request, known))
    except nvml_source.NvmlSourceError as error:
        result["problem"] = str(error)
    return result


class FilterModule:
    def filters(self):
        return {"pynvml_source": pynvml_source}
