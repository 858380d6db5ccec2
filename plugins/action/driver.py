# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run openfleet.gpu.driver with the minimum driver versions of GPU models."""

from __future__ import annotations

from typing import Any

from ..module_utils.catalogue import load_models
from ..plugin_utils.printable_action import PrintableAction


def minimum_versions() -> dict[str, dict[str, Any]]:
    """Return name, minimum driver and its confirmation, by PCI device ID."""
    return {
        board.pci_device_id: {
            "name": board.name,
            "version": board.minimum_driver or model.minimum_driver,
            "confirmed": bool(board.minimum_driver) or "minimum_driver" not in model.unconfirmed,
        }
        for model in load_models().values()
        for board in model.boards
        if board.minimum_driver or model.minimum_driver
    }


class ActionModule(PrintableAction):
    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        # Only the controller has the catalogue, and only the module on the host can list the GPUs.
        self._task.args = {
            **self._task.args,
            "minimum_versions": self._task.args.get("minimum_versions") or minimum_versions(),
        }
        return super().run(tmp, task_vars)
