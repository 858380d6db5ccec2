# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the body of a module and turn its errors into fail_json."""

from __future__ import annotations

from typing import Any, Callable

from .errors import ApplyError, BusyError, FleetError, FollowError, LayoutError, NvmlError


def run(module: Any, body: Callable[[], dict[str, Any]]) -> None:
    """Run `body` and exit the module with the result or the error."""
    try:
        module.exit_json(**body())
    except FleetError as error:
        module.fail_json(msg=str(error), **details(error))


def outline(error: FleetError) -> dict[str, Any]:
    """Return the parts of an error, with completed steps and blocking holders."""
    data: dict[str, Any] = {"where": error.where, "problem": error.problem, "cure": error.cure}
    if isinstance(error, ApplyError):
        data.update(outcome=error.outcome, steps_done=list(error.steps_done), reboot_required=error.reboot_needed)
    if isinstance(error, BusyError):
        data["busy"] = [disturbance.to_data() for disturbance in error.disturbs]
    return data


def details(error: FleetError) -> dict[str, Any]:
    """Return a failed module's result, to which playbooks can react."""
    data = outline(error)
    if error.host_fault:
        data["host_fault"] = True
    if isinstance(error, (LayoutError, FollowError)):
        data["problems"] = [{"where": p.where, "problem": p.problem, "cure": p.cure} for p in error.problems]
    if isinstance(error, NvmlError):
        data["nvml"] = {"call": error.call, "code": error.code, "code_name": error.code_name, "gpu": error.gpu}
    return data
