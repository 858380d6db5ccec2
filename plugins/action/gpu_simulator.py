# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send the simulator to hosts that need it (openfleet.gpu.gpu_simulator)."""

from __future__ import annotations

from typing import Any, Mapping

from ..plugin_utils.on_demand import ROLES, OnDemandAction, texts

FILES = ROLES / "gpu_simulator" / "files"
MODELS = ROLES.parent / "plugins" / "module_utils" / "models"


class ActionModule(OnDemandAction):
    MODULE = "openfleet.gpu.gpu_simulator"

    def sources(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        if arguments.get("state") == "absent":
            return {}
        tool = texts(FILES / "gpusim", "*.py", "gpusim/")
        return {**texts(FILES / "src", "*", "src/"), **tool, **texts(MODELS, "*.json", "models/")}
