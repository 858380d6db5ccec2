# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Base of the actions that reach no host: their options are those that the module's documentation has."""

from __future__ import annotations

from typing import Any, Sequence

import yaml
from ansible.plugins.action import ActionBase

_OF_SPEC = ("type", "elements", "choices", "default", "required")


class ControllerAction(ActionBase):
    """Works on the controller alone, so that it can run where no host can be reached."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def arguments(self, documentation: str, **choices: Sequence[str]) -> dict[str, Any]:
        """Return the task's arguments with their defaults; `choices` are those of options that code lists.

        Raises AnsibleActionFail for an argument that the documentation does not have, or has of another type.
        """
        options = yaml.safe_load(documentation)["options"]
        spec = {name: {key: option[key] for key in _OF_SPEC if key in option} for name, option in options.items()}
        for name, words in choices.items():
            spec[name]["choices"] = list(words)
        return self.validate_argument_spec(spec)[1]
