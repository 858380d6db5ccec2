# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell where a host gets pynvml from, and whether its hash is known."""

from __future__ import annotations

DOCUMENTATION = r"""
name: pynvml_source
short_description: Check the file or package that a host gets pynvml from
version_added: "0.1.0"
author:
  - openfleet.gpu contributors (!UNKNOWN)
description:
  - For the role C(gpu_layout). It reads files of the controller, and compares their SHA-256 with those that the collection ships
    and those that the inventory names.
options:
  _input:
    description: The variables C(gpu_layout_nvml_source), C(_version), C(_wheel) and C(_hashes), by their names.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Stop where the hash is not known
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
    C(problem), what is wrong and how to mend it, or empty; C(path), the file on the controller, for the sources V(controller)
    and V(wheel), and its C(sha256), for V(controller) alone; C(requirements), what pip on the host is given, for V(index).
  type: dict
"""

from ansible_collections.openfleet.gpu.plugins.plugin_utils import nvml_source
from ansible_collections.openfleet.gpu.plugins.plugin_utils.plain import plain


def pynvml_source(variables):
    """See DOCUMENTATION."""
    found = {"problem": "", "path": "", "sha256": "", "requirements": ""}
    try:
        request, known = nvml_source.Request.of(plain(variables)), nvml_source.shipped()
        if request.source == "controller":
            file = nvml_source.controller_file(request, known)
            found.update(path=str(file.path), sha256=file.sha256)
        elif request.source == "wheel":
            found["path"] = str(nvml_source.wheel_file(request, known))
        elif request.source == "index":
            found["requirements"] = str(nvml_source.pin(request, known))
    except nvml_source.NvmlSourceError as error:
        found["problem"] = str(error)
    return found


class FilterModule:
    def filters(self):
        return {"pynvml_source": pynvml_source}
