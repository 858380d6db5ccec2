# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Between a module's body and Ansible: where errors become fail_json."""

from __future__ import annotations

from typing import Any, Callable

from .errors import ApplyError, BusyError, FleetError, FollowError, LayoutError, NvmlError


def run(module: Any, body: Callable[[], dict[str, Any]]) -> None:
    """Run `body`; exit the module with what it returns, or with an error that says where, what and how to mend it."""
    try:
        module.exit_json(**body())
    except FleetError as error:
        module.fail_json(msg=str(error), **details(error))


def outline(error: FleetError) -> dict[str, Any]:
    """Return the parts of an error, with what was done before it and whom a change would disturb."""
    found: dict[str, Any] = {"where": error.where, "problem": error.problem, "cure": error.cure}
    if isinstance(error, ApplyError):
        found.update(outcome=error.outcome, steps_done=list(error.steps_done), reboot_required=error.reboot_needed)
    if isinstance(error, BusyError):
        found["busy"] = [disturbance.to_data() for disturbance in error.disturbs]
    return found


def details(error: FleetError) -> dict[str, Any]:
    """The error's parts, for playbooks that act on them."""
    found = outline(error)
    if error.host_fault:
        found["host_fault"] = True
    if isinstance(error, (LayoutError, FollowError)):
        found["problems"] = [{"where": p.where, "problem": p.problem, "cure": p.cure} for p in error.problems]
    if isinstance(error, NvmlError):
        found["nvml"] = {"call": error.call, "code": error.code, "code_name": error.code_name, "gpu": error.gpu}
    return found
