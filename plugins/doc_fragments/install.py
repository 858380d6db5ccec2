# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of the modules that install something whose sources are sent only to a host that asks for them."""

from __future__ import annotations


class ModuleDocFragment:
    """DOCUMENTATION is what all of them have."""

    DOCUMENTATION = r"""
options:
  root:
    description: The directory to install below. Units are only started if it is V(/).
    type: path
    default: /
  sources_digest:
    description: Set by the action plugin. What the sources are compared by.
    type: str
    default: ""
  sources:
    description: Set by the action plugin. The sources, JSON compressed by zlib, in Base64.
    type: str
requirements:
  - root
attributes:
  action:
    support: full
  async:
    support: none
  bypass_host_loop:
    support: none
  check_mode:
    support: full
  diff_mode:
    support: full
  platform:
    platforms: linux
"""
