# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a module returns when it fails (module_utils/runner.py)."""

from __future__ import annotations


class ModuleDocFragment:
    """RETURN takes no fragments in ansible-core 2.16, so that these values are told in a note."""

    DOCUMENTATION = r"""
options: {}
notes:
  - >-
    On failure, C(msg) is the whole error, and its parts are returned too, for playbooks that act on them. C(where) is the host,
    entry or GPU, C(problem) what is wrong, and C(cure) how to mend it. C(problems) lists these three for each problem where the
    error may have several. C(host_fault) is V(true) where the state of the host is the reason, and not an argument. C(nvml)
    has the C(call), C(code), C(code_name) and C(gpu) where a call of NVML failed. Where a change was cut short, C(outcome) says
    which state stands now (V(old), V(new) or V(unknown)), C(steps_done) what had been done before it was taken back,
    C(reboot_required) whether only a reboot brings the change about, and C(busy) what it would disturb and who holds that.
"""
