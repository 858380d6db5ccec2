# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Document modules whose sources are sent only to hosts that need them."""

from __future__ import annotations


class ModuleDocFragment:
    """Document the options and attributes that all of these modules share."""

    DOCUMENTATION = r"""
options:
  root:
    description: Root directory of the installation. Units are started only if it is V(/).
    type: path
    default: /
  sources_digest:
    description: Digest of the sources, for comparison. Set by the action plugin.
    type: str
    default: ""
  sources:
    description: The sources as JSON, compressed with zlib and encoded in Base64. Set by the action plugin.
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
