# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Document the return values of a failed module (module_utils/runner.py)."""

from __future__ import annotations


class ModuleDocFragment:
    """Return values as a note. RETURN accepts no fragments in ansible-core 2.16."""

    DOCUMENTATION = r"""
options: {}
notes:
  - >-
    On failure, C(msg) is the whole error. For playbooks that react to errors, its parts are also returned. C(where) is the
    host, entry or GPU. C(problem) is the problem, and C(cure) is the fix. If there can be several problems, C(problems) has
    these three values for each. C(host_fault) is V(true) if the cause is the state of the host, not an argument. C(nvml) has
    C(call), C(code), C(code_name) and C(gpu) if an NVML call failed. If a change was interrupted, C(outcome) is the current
    state (V(old), V(new) or V(unknown)). C(steps_done) lists the steps that were rolled back. C(reboot_required) is true if the
    change needs a reboot. C(busy) lists the GPUs and instances that the change would take away, with their holders.
"""
