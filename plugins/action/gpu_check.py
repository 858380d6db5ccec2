# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run openfleet.gpu.gpu_check, and evaluate its readings on the controller."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..module_utils.errors import FleetError
from ..plugin_utils import host_results
from ..plugin_utils.hardware import host_reading, report
from ..plugin_utils.hardware.acceptance import Limits
from ..plugin_utils.lent_pynvml import LendingAction
from ..plugin_utils.plain import plain

_MODULE = "openfleet.gpu.gpu_check"
# Maximum number of differences in the result. The report has all of them.
_MOST_LINES = 50


class ActionModule(LendingAction):
    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        args = plain(self._task.args)
        answer = self.run_lending(_MODULE, args, variables)
        host = str(variables["inventory_hostname"])
        # Accept only readings from the host. The controller decides whether the host passes.
        failure = host_results.failure(answer)
        reading = answer.get("reading")
        if failure is None and reading is None:
            failure = host_results.incomplete(host, "reading")
        if failure is not None:
            result.update(failure, changed=False)
            return result
        identify = str(args.get("identify", False)).lower() in ("true", "yes", "1")
        try:
            # Read the limits from the task, so that a host cannot change them.
            limits = _limits(args.get("accept"))
            judged = host_reading.judged(host, plain(reading), identify, limits)
            paths = []
            if args.get("directory") and not self._task.check_mode:
                paths = host_reading.write_report(host, args["directory"], judged.files)
        except (FleetError, OSError) as error:
            result.update(failed=True, msg=str(error))
            return result
        full_report = judged.report
        lines = report.differences(full_report)
        more = ["and %d more" % (len(lines) - _MOST_LINES)] if len(lines) > _MOST_LINES else []
        result.update(
            changed=False,
            summary=full_report["summary"],
            differences=[*lines[:_MOST_LINES], *more],
            paths=paths,
            msg="%s: %s" % (host, report.line(full_report)),
        )
        if limits is not None:
            result.update(accepted=full_report["acceptance"]["accepted"], failures=report.failures(full_report))
        return result


def _limits(given: dict[str, Any] | None) -> Limits | None:
    """Return the acceptance test's limits, or None if the option is not set.

    The module has already validated their types.
    """
    if not given:
        return None
    return Limits(
        **{field.name: int(given[field.name]) for field in fields(Limits) if given.get(field.name) is not None}
    )
