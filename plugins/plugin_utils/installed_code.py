# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let a host run a module by the code that it has (module_utils/install/installed.py), before the module is sent there."""

from __future__ import annotations

from typing import Any, Mapping

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from .host_values import text

#: The option of the modules, and the module that the host is asked by.
OPTION, MODULE = "installed_code", "openfleet.gpu.installed_module"
#: Options that are too large to be sent twice, and not for the log of the host.
_LARGE = ("pynvml", "sources")
#: Where the command is, below a root that only tests set.
_COMMAND = "usr/local/bin/gpu-layout"

display = Display()


def may_be_asked(task: Any, arguments: Mapping[str, Any]) -> bool:
    """Return whether the host is asked first. A task in the background has one module, and no second."""
    wanted = boolean(arguments.get(OPTION, True), strict=False)
    return wanted and not task.async_val and not any(arguments.get(name) for name in _LARGE)


def ask(action: ActionBase, question: Mapping[str, Any], root: str, variables: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of the module by the host's code; None where the module has to be sent.

    `question` has the name of the module, its arguments, and the digest of the controller's code.
    """
    given = dict(question, command="%s/%s" % (root.rstrip("/"), _COMMAND))
    found = action._execute_module(module_name=MODULE, module_args=given, task_vars=variables)
    if found.get("failed") or "code_needed" not in found:
        return found
    reason = text(found["code_needed"])
    display.vv("%s: %s is sent: %s" % (variables.get("inventory_hostname"), question["module"], reason))
    return None
