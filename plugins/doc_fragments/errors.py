# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Document the values that a failed module returns (module_utils/runner.py)."""

from __future__ import annotations


class ModuleDocFragment:
    """A note, because RETURN accepts no fragments in ansible-core 2.16."""

    DOCUMENTATION = r"""
options: {}
notes:
  - >-
    On failure, C(msg) is the whole error. Its parts are also returned, for playbooks that act on them. C(where) is the host,
    entry or GPU, C(problem) the problem, and C(cure) the fix. C(problems) lists these three for each problem if there can be
    several. C(host_fault) is V(true) if the cause is the state of the host, not an argument. C(nvml) has C(call), C(code),
    C(code_name) and C(gpu) if an NVML call failed. If a change was interrupted, C(outcome) is the current state (V(old), V(new)
    or V(unknown)), C(steps_done) lists the steps that were rolled back, C(reboot_required) is whether the change needs a
    reboot, and C(busy) lists what the change would disturb, with its holders.
"""
