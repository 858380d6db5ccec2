# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the base class of actions that do not connect to a host.

The module's documentation defines the options of such an action.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import yaml
from ansible.plugins.action import ActionBase

from ..module_utils.errors import FleetError

_OF_SPEC = ("type", "elements", "choices", "default", "required")


class ControllerAction(ActionBase):
    """An action that runs only on the controller.

    A FleetError in `work` fails the action.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    #: DOCUMENTATION of the module with the action's name.
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
        """Return the action's result.

        `variables` are the task's variables. Raises FleetError if the action fails.
        """
        raise NotImplementedError

    def choices(self) -> dict[str, Sequence[str]]:
        """Return the choices of options, by name, that the documentation does not list."""
        return {}

    def _arguments(self) -> dict[str, Any]:
        """Return the task's arguments, with defaults for missing ones.

        Raises AnsibleActionFail if an argument is unknown or has the wrong type.
        """
        options = yaml.safe_load(self.documentation)["options"]
        spec = {name: {key: option[key] for key in _OF_SPEC if key in option} for name, option in options.items()}
        for name, words in self.choices().items():
            spec[name]["choices"] = list(words)
        return self.validate_argument_spec(spec)[1]
