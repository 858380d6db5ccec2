# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module as Ansible does by default, and make the result's texts printable."""

from __future__ import annotations

from typing import Any

from .host_action import HostAction

#: Fact with the path of the host's Python. It is kept, so that Ansible need not search again.
_INTERPRETER = "discovered_interpreter_python"


class PrintableAction(HostAction):
    """Runs the module of the same name, and drops facts from the host."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        wrap_async = bool(self._task.async_val) and not self._connection.has_native_async
        result.update(self._execute_module(task_vars=task_vars, wrap_async=wrap_async))
        # Drop other facts, because they would become variables of later tasks.
        facts = result.pop("ansible_facts", None)
        if isinstance(facts, dict) and _INTERPRETER in facts:
            result["ansible_facts"] = {_INTERPRETER: facts[_INTERPRETER]}
        if not wrap_async:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        return result
