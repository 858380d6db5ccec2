# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The option of modules whose code the command gpu-layout has."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  installed_code:
    description:
      - Whether the host may run the module by the code that it has, in place of code that is sent to it in each run.
      - The command C(gpu-layout) on the host has the code. It is run where it was made from exactly the controller's files, by
        the same Python, and where no user but root could have changed it. Otherwise, and with V(false), the module is sent whole.
    type: bool
    default: true
notes:
  - >-
    With O(installed_code) the action asks the host first, by M(openfleet.gpu.installed_module), which is small. With C(-vv)
    Ansible prints why a module was sent. C(docs/installed-code.md) says what is checked.
"""
