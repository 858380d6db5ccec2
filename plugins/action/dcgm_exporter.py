# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send the embedded exporter to hosts that need it (openfleet.gpu.dcgm_exporter)."""

from __future__ import annotations

from typing import Any, Mapping

from ..plugin_utils.on_demand import ROLES, OnDemandAction, texts


class ActionModule(OnDemandAction):
    MODULE = "openfleet.gpu.dcgm_exporter"

    def sources(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        if arguments.get("state") == "absent" or not arguments.get("embedded"):
            return {}
        return texts(ROLES / "dcgm_exporter" / "files" / "openfleet_exporter", "*.py")
