# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action behind openfleet.gpu.layout: in check mode, lends pynvml to hosts that do not have it yet, and plans from the
catalogue of GPU models where no driver answers. A host that has the module's code runs that.

Errors begin with the host's name, so that they can be read without Ansible's line above them.
"""

from __future__ import annotations

from typing import Any

from ..module_utils.install.archive import read_sources, sources_digest
from ..plugin_utils import host_results, installed_code
from ..plugin_utils.lent_pynvml import LendingAction
from ..plugin_utils.plain import plain

_MODULE = "openfleet.gpu.layout"
#: Set by tests: the command is below this directory.
_ROOT = "gpu_layout__root"
#: Set by a play that printed the plans before, so that a diff does not repeat the steps.
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
            result["msg"] = _of_host(variables["inventory_hostname"], result["msg"], "problems" in result)
            _say_it_once(result)
        if self._templar.template(variables.get(_STEPS_PRINTED, False)) and isinstance(result.get("diff"), dict):
            result["diff"].pop("prepared", None)
        return result

    def execute(self, module: str, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        found = None
        if installed_code.may_be_asked(self._task, args):
            question = {"module": "layout", "digest": sources_digest(read_sources()), "arguments": args}
            root = self._templar.template(variables.get(_ROOT, "/"))
            found = installed_code.ask(self, question, root, variables)
        return super().execute(module, args, variables) if found is None else found


def _forecast(args: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Return the layout planned from the catalogue of GPU models, for a host whose driver does not answer yet."""
    # Loads the planner, which other runs of this action do without.
    from ..plugin_utils.site import without_driver

    expected = args.get("expected_gpus") or []
    keys = expected if isinstance(expected, list) else str(expected).split(",")
    return without_driver.plan(args.get("layout"), keys, result.get("pci_gpus") or [])


def _say_it_once(result: dict[str, Any]) -> None:
    """Take the parts of the error away, which Ansible would print beside the whole of it."""
    if "problem" in result:
        # Also tells an error of the module from one of Ansible.
        result.setdefault("host_fault", False)
    for part in ("where", "problem", "cure", "problems"):
        result.pop(part, None)


def _of_host(host: str, message: str, by_line: bool) -> str:
    """The message with the host's name in front; of each line where each is a problem of its own."""
    return "\n".join("%s: %s" % (host, line) for line in (message.splitlines() if by_line else [message]))
