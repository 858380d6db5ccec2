# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Document modules whose code is part of the command gpu-layout."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  installed_code:
    description:
      - Whether to run the code that is installed on the host, instead of sending the module in each run.
      - The code is part of the command C(gpu-layout). It is used only if it was built from exactly the controller's files, by
        the same Python, and if only root could have changed it. Otherwise, or with V(false), the whole module is sent.
    type: bool
    default: true
notes:
  - >-
    With O(installed_code), the action first runs the small module M(openfleet.gpu.installed_module) on the host. With C(-vv),
    Ansible prints why a module was sent. C(docs/installed-code.md) lists the checks.
"""
