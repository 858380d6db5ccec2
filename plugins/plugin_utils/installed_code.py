# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module with the code installed on the host (docs/installed-code.md)."""

from __future__ import annotations

from typing import Any, Mapping

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from .host_values import text

#: Option of modules that can use installed code, and the module that runs this code.
OPTION, MODULE = "installed_code", "openfleet.gpu.installed_module"
#: Options with large values, which are not sent again, and which hosts do not log.
_LARGE = ("pynvml", "sources")
#: Path of the command, relative to a root directory, which is `/` except in tests.
_COMMAND = "usr/local/bin/gpu-layout"

display = Display()


def may_be_asked(task: Any, arguments: Mapping[str, Any]) -> bool:
    """Return whether to try the installed code first.

    A background task does not, because it can run only one module.
    """
    wanted = boolean(arguments.get(OPTION, True), strict=False)
    return wanted and not task.async_val and not any(arguments.get(name) for name in _LARGE)


def ask(action: ActionBase, question: Mapping[str, Any], root: str, variables: dict[str, Any]) -> dict[str, Any] | None:
    """Run the module with the installed code, and return its result.

    Returns None if the module must be sent. `question` has the module's name and arguments, and the digest of the
    controller's code.
    """
    given = dict(question, command="%s/%s" % (root.rstrip("/"), _COMMAND))
    result = action._execute_module(module_name=MODULE, module_args=given, task_vars=variables)
    if result.get("failed") or "code_needed" not in result:
        return result
    reason = text(result["code_needed"])
    display.vv("%s: %s is sent: %s" % (variables.get("inventory_hostname"), question["module"], reason))
    return None
