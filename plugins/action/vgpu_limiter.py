# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send the limiter to hosts that need it (openfleet.gpu.vgpu_limiter)."""

from __future__ import annotations

from typing import Any, Mapping

from ..plugin_utils.limiter_sources import built, sources
from ..plugin_utils.on_demand import OnDemandAction


class ActionModule(OnDemandAction):
    MODULE = "openfleet.gpu.vgpu_limiter"

    def sources(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        if arguments.get("state") == "absent":
            return {}
        return sources(built(arguments.get("files") or []))
