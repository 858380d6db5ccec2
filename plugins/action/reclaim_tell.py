# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Implement openfleet.gpu.reclaim_tell on the controller."""

from __future__ import annotations

from typing import Any, Mapping

from ..module_utils.errors import FleetError
from ..modules.reclaim_tell import DOCUMENTATION
from ..plugin_utils.controller_action import ControllerAction
from ..plugin_utils.plain import plain
from ..plugin_utils.rightsize import reclaim_told


class ActionModule(ControllerAction):
    documentation = DOCUMENTATION

    def work(self, arguments: dict[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
        reclaimed = arguments.pop("result")
        args = plain(arguments)
        ways = reclaim_told.ways(args["ways"], args["notify"])
        result = {
            "changed": False,
            "notice_seconds": reclaim_told.notice_seconds(args["notice"]),
            "host_ways": list(ways.host),
            "tells": bool(ways.controller),
        }
        owners = reclaim_told.owners(args["owners"])
        notified, failures, confirmed = [], [], []
        if reclaimed is not None and not self._task.check_mode:
            try:
                checked = reclaim_told.result_of(args["host"], reclaimed)
            except FleetError as error:
                # The host causes this error, not the inventory, so the run continues and reports it.
                failures.append(str(error))
            else:
                notified, failures, confirmed = reclaim_told.tell(
                    args["host"], checked, ways.controller, owners, args["keep_url"]
                )
        return dict(result, told=notified, untold=failures, confirmed=confirmed)
