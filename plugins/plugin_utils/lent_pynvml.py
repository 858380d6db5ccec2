# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send pynvml to hosts that have none (docs/installed-code.md)."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from . import nvml_source
from .host_action import HostAction
from .nvml_source import NvmlSourceError, Request
from .plain import plain

#: Key in a module's result if the host has a driver but no pynvml.
MISSING = "pynvml_missing"


class LendingAction(HostAction):
    """Base class of actions that lend pynvml to modules on hosts without it."""

    _supports_check_mode = True

    def run_lending(self, module: str, args: Mapping[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Run the module and return its result. `variables` are the task's variables."""

        def execute(given: dict[str, Any]) -> dict[str, Any]:
            return self.execute(module, given, variables)

        hashes = plain(self._templar.template(variables.get("gpu_layout_nvml_hashes", [])))
        return run(execute, args, hashes if isinstance(hashes, list) else [])

    def execute(self, module: str, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Run the module on the host with these arguments and return its result."""
        wrap_async = self._supports_async and bool(self._task.async_val)
        return self._execute_module(module_name=module, module_args=args, task_vars=variables, wrap_async=wrap_async)


def run(
    execute: Callable[[dict[str, Any]], dict[str, Any]], args: Mapping[str, Any], hashes: Sequence[str]
) -> dict[str, Any]:
    """Run a module, send pynvml if it is missing, and return the module's result.

    `execute` runs the module with these arguments. `hashes` is the value of `gpu_layout_nvml_hashes`. Returns a failure
    if the host has a driver, but neither the host nor the controller has a trusted pynvml.
    """
    result = execute(dict(args))
    if not result.pop(MISSING, False):
        return result
    try:
        request = Request("controller", "", "", tuple(text.partition(":")[2] for text in hashes))
        source = nvml_source.controller_file(request, nvml_source.shipped()).path.read_text(encoding="utf-8")
    except NvmlSourceError as error:
        return {
            "failed": True,
            "msg": "pynvml is missing on the host and on the controller, so its GPUs cannot be read. Install nvidia-ml-py on the "
            "controller: %s. %s Nothing was changed." % (error.problem.rstrip("."), error.cure),
        }
    return execute(dict(args, pynvml=source))
