# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run gpu_info, or another module without work on the controller.

meta/runtime.yml lists the other modules.
"""

from __future__ import annotations

from ..plugin_utils.printable_action import PrintableAction


class ActionModule(PrintableAction):
    pass
