# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module as Ansible does by default, and remove control characters from its result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase

from ..module_utils.printable import printable

#: Maximum nesting of a result. The collection's modules nest less.
_DEEPEST = 64
#: Fact with the Python that Ansible discovered on the host, so that it does not search again.
_INTERPRETER = "discovered_interpreter_python"


class PrintableAction(ActionBase):
    """Run the module with the action's name and return its result with printable texts."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        wrap_async = bool(self._task.async_val) and not self._connection.has_native_async
        result.update(harmless(self._execute_module(task_vars=task_vars, wrap_async=wrap_async)))
        if not wrap_async:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        return result


def harmless(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with control characters in texts replaced by escapes.

    Tabs and ends of lines stay.

    Only ansible-core's own fact is kept, because facts become variables of later tasks.
    """
    copy = {_text(key): _copy(value, _DEEPEST) for key, value in result.items()}
    facts = copy.pop("ansible_facts", None)
    if isinstance(facts, dict) and _INTERPRETER in facts:
        copy["ansible_facts"] = {_INTERPRETER: facts[_INTERPRETER]}
    return copy


def _copy(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return _text(value)
    if depth and isinstance(value, Mapping):
        return {_text(key): _copy(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, (list, tuple)):
        return [_copy(item, depth - 1) for item in value]
    # Since ansible-core 2.19 warnings and errors are objects with their text in an event.
    return _text(getattr(getattr(value, "event", None), "msg", value))


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if text.isprintable() else "".join(map(_written, re.split(r"([\n\t])", text)))


def _written(part: str) -> str:
    return part if part in ("\n", "\t") else printable(part)
