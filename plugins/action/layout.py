# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run openfleet.gpu.layout, if possible from code that is installed on the host.

In check mode, the action lends pynvml to hosts without it. If no driver answers, it plans from the model catalogue.
Errors begin with the host's name, so that they are clear without Ansible's line before them.
"""

from __future__ import annotations

from typing import Any

from ..module_utils.install.build_command import read_sources, sources_digest
from ..plugin_utils import host_results, installed_code
from ..plugin_utils.lent_pynvml import LendingAction
from ..plugin_utils.plain import plain

_MODULE = "openfleet.gpu.layout"
# Set by tests: the command gpu-layout is installed below this directory.
_ROOT = "gpu_layout__root"
# Set by a play that has printed the plans, so that a diff does not repeat the steps.
_STEPS_PRINTED = "gpu_layout__steps_printed"


class ActionModule(LendingAction):
    _supports_async = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        result.update(host_results.layout_result(self.run_lending(_MODULE, self._task.args, variables)))
        if result.get("driver_present") is False and not result.get("failed"):
            result["forecast"] = _forecast(plain(dict(self._task.args)), result)
        if result.get("failed") and isinstance(result.get("msg"), str):
            result["msg"] = _with_host(variables["inventory_hostname"], result["msg"], "problems" in result)
            _remove_parts_of_error(result)
        if self._templar.template(variables.get(_STEPS_PRINTED, False)) and isinstance(result.get("diff"), dict):
            result["diff"].pop("prepared", None)
        return result

    def execute(self, module: str, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        result = None
        if installed_code.may_be_asked(self._task, args):
            request = {"module": "layout", "digest": sources_digest(read_sources()), "arguments": args}
            root = self._templar.template(variables.get(_ROOT, "/"))
            result = installed_code.ask(self, request, root, variables)
        return super().execute(module, args, variables) if result is None else result


def _forecast(args: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Plan the layout from the model catalogue, for a host without a driver."""
    # Import here, because only this function needs the planner.
    from ..plugin_utils.site import without_driver

    expected = args.get("expected_gpus") or []
    keys = expected if isinstance(expected, list) else str(expected).split(",")
    return without_driver.plan(args.get("layout"), keys, result.get("pci_gpus") or [])


def _remove_parts_of_error(result: dict[str, Any]) -> None:
    """Remove an error's parts, which Ansible would print again."""
    if "problem" in result:
        # This key also shows that the error is from the module, not from Ansible.
        result.setdefault("host_fault", False)
    for part in ("where", "problem", "cure", "problems"):
        result.pop(part, None)


def _with_host(host: str, message: str, by_line: bool) -> str:
    """Prefix the message, or each of its lines if `by_line`, with the host's name."""
    return "\n".join("%s: %s" % (host, line) for line in (message.splitlines() if by_line else [message]))
