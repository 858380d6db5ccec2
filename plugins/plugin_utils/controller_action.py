# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Base of the actions that reach no host: their options are those that the module's documentation has."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import yaml
from ansible.plugins.action import ActionBase

from ..module_utils.errors import FleetError

_OF_SPEC = ("type", "elements", "choices", "default", "required")


class ControllerAction(ActionBase):
    """Works on the controller alone, so that it can run where no host can be reached. An error becomes a failed result."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    #: The documentation of the module of this name.
    documentation: str

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        arguments = self._arguments()
        try:
            result.update(self.work(arguments, task_vars or {}))
        except FleetError as error:
            result.update(failed=True, msg=str(error))
        return result

    def work(self, arguments: dict[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the action returns for these arguments; `variables` are the task's. Raises FleetError."""
        raise NotImplementedError

    def choices(self) -> dict[str, Sequence[str]]:
        """Return the choices of options that code lists."""
        return {}

    def _arguments(self) -> dict[str, Any]:
        """Return the task's arguments with their defaults.

        Raises AnsibleActionFail for an argument that the documentation does not have, or has of another type.
        """
        options = yaml.safe_load(self.documentation)["options"]
        spec = {name: {key: option[key] for key in _OF_SPEC if key in option} for name, option in options.items()}
        for name, words in self.choices().items():
            spec[name]["choices"] = list(words)
        return self.validate_argument_spec(spec)[1]
