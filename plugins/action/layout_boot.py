# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send the command's sources to hosts that need them (openfleet.gpu.layout_boot)."""

from __future__ import annotations

from typing import Any, Mapping

from ..module_utils.install.build_command import read_sources, sources_digest
from ..plugin_utils import installed_code
from ..plugin_utils.on_demand import OnDemandAction


class ActionModule(OnDemandAction):
    MODULE = "openfleet.gpu.layout_boot"

    def sources(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        return read_sources()

    def digest(self, sources: Mapping[str, str]) -> str:
        return sources_digest(sources)

    def ask(self, arguments: Mapping[str, Any], variables: dict[str, Any]) -> dict[str, Any] | None:
        present = arguments.get("state", "present") == "present"
        if not present or not installed_code.may_be_asked(self._task, arguments):
            # The command that the module removes is usually missing already.
            return None
        request = {"module": "layout_boot", "digest": arguments["sources_digest"], "arguments": dict(arguments)}
        return installed_code.ask(self, request, arguments.get("root", "/"), variables)
