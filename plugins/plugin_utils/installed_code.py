# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module with the code on the host (docs/installed-code.md)."""

from __future__ import annotations

from typing import Any, Mapping

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from .host_values import text

#: Option of modules that can use installed code, and name of the module that runs the installed code.
OPTION, MODULE = "installed_code", "openfleet.gpu.installed_module"
#: Options with large values. They are not sent a second time, and hosts do not log them.
_LARGE = ("pynvml", "sources")
#: Path of the command, relative to a root directory. Only tests set another root than `/`.
_COMMAND = "usr/local/bin/gpu-layout"

display = Display()


def may_be_asked(task: Any, arguments: Mapping[str, Any]) -> bool:
    """Return whether the installed code should be tried first.

    It is not tried in a background task, because such a task can run only one module.
    """
    wanted = boolean(arguments.get(OPTION, True), strict=False)
    return wanted and not task.async_val and not any(arguments.get(name) for name in _LARGE)


def ask(action: ActionBase, question: Mapping[str, Any], root: str, variables: dict[str, Any]) -> dict[str, Any] | None:
    """Run the module with the installed code and return the result of the module.

    Returns None if the module has to be sent. `question` has the name of the module, the arguments, and the digest of
    the controller's code.
    """
    given = dict(question, command="%s/%s" % (root.rstrip("/"), _COMMAND))
    result = action._execute_module(module_name=MODULE, module_args=given, task_vars=variables)
    if result.get("failed") or "code_needed" not in result:
        return result
    reason = text(result["code_needed"])
    display.vv("%s: %s is sent: %s" % (variables.get("inventory_hostname"), question["module"], reason))
    return None
