# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run openfleet.gpu.layout_export, and write the file on the controller."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleError

from ..module_utils.errors import FleetError
from ..plugin_utils import export_file, host_results
from ..plugin_utils.lent_pynvml import LendingAction
from ..plugin_utils.plain import plain

_MODULE = "openfleet.gpu.layout_export"


class ActionModule(LendingAction):
    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        args = plain(self._task.args)
        answer = self.run_lending(_MODULE, args, variables)
        host = str(variables["inventory_hostname"])
        # Accept only the layout from the host. The controller determines everything else, such as the path.
        failure = host_results.failure(answer)
        if failure is None and "gpu_layout" not in answer:
            failure = host_results.incomplete(host, "gpu_layout")
        if failure is not None:
            result.update(failure, changed=False)
            return result
        try:
            layout, left_out = export_file.checked(host, answer)
            result.update(gpu_layout=layout, left_out=left_out, changed=False)
            if args.get("directory"):
                plan = export_file.plan(host, args["directory"], layout, left_out)
                self._write(plan, variables, str(args.get("overwrite", False)).lower() in ("true", "yes", "1"), result)
            else:
                result["msg"] = "%s: no file written: `directory` is not set" % host
        except (FleetError, OSError) as error:
            result.update(failed=True, msg=str(error))
        return result

    def _write(self, plan: Any, variables: dict[str, Any], overwrite: bool, result: dict[str, Any]) -> None:
        try:
            inventory_layout = plain(self._templar.template(variables.get("gpu_layout")))
        except AnsibleError:
            inventory_layout = None
        written = export_file.write(plan, inventory_layout, overwrite, dry=self._task.check_mode)
        result.update(path=str(plan.path), changed=written.changed, msg=written.text)
        if written.changed:
            result["diff"] = {
                "before_header": str(plan.path),
                "after_header": str(plan.path),
                "before": plan.former or "",
                "after": plan.text,
            }
