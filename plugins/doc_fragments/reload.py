# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Document the options of modules that reload systemd's units."""

from __future__ import annotations


class ModuleDocFragment:
    """Document the options of `systemd_reload.guard`."""

    DOCUMENTATION = r"""
options:
  on_busy:
    description:
      - Behaviour if running containers would lose their GPUs when systemd reloads its units (C(docs/container_toolkit.md)).
      - V(fail) and V(drain) fail before any change. V(wait) waits until these containers have ended. V(force) reloads anyway.
    type: str
    choices: [fail, wait, drain, force]
    default: fail
  busy_timeout:
    description: Maximum time to wait in seconds, for O(on_busy=wait).
    type: int
    default: 600
"""
