# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Share the arguments, the run and the return values of the service modules.

Each of these modules applies the service of one technique.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Sequence

from ..errors import BusyError, DriverAbsentError
from ..layout.types import Layout
from ..model import Host
from ..plan.busy import FAIL, FORCE, OnBusy, wait_until_free
from ..plan.disturbance import Disturbance
from ..plan.gpu_plan import Plan
from ..plan.parts import HostPart
from ..plan.services import PartRequest, Service
from ..plan.transaction import locked
from ..vendors.registry import vendor_of_host
from . import layout_module
from .prepare import removal_of

#: The host to assume if the driver does not work.
_NO_GPUS = Host("", "", None, False, ())


def argspec() -> dict[str, Any]:
    """Return the options of all layout modules, and the desired state of the service."""
    state = {"type": "str", "choices": ["present", "absent"], "default": "present"}
    return dict(layout_module.argspec(), state=state)


def serve(
    service: type[Service], name: str, report: Callable[[bool], Any], params: dict[str, Any], check_mode: bool
) -> dict[str, Any]:
    """Apply the service's part of the layout, or remove the service.

    Returns the module's return values. `report` makes the value called `name`: the current daemons or tenants. The
    service can also be removed from a host without a driver.
    """
    absent = params["state"] == "absent"
    try:
        told = layout_module.bring_about(params, check_mode, [removal_of(service.key) if absent else service.key])
    except DriverAbsentError:
        if not absent:
            raise
        told = {"driver_present": False}
    if told["driver_present"]:
        # With real GPUs, the environment variable is not set, and the GPUs are not read again.
        private = "GPUSIM_STATE" in os.environ
        if private:
            with vendor_of_host().open() as session:
                private = session.private
        return dict(told, **{name: report(private)})
    return dict(_remove(service, params, check_mode), driver_present=False) if absent else told


def _remove(kind: type[Service], params: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Remove the service from a host whose GPUs cannot be read.

    Returns the module's return values. Clients of the service block the removal, as on other hosts. Raises BusyError or
    ApplyError.
    """
    on_busy = OnBusy(params["on_busy"], params["busy_timeout"], params["grace_period"])
    ended: list[str] = []

    def clear(disturbs: Sequence[Disturbance]) -> bool:
        from .terminate import end_holders

        gone = end_holders(disturbs, on_busy.grace_seconds)
        ended.extend(gone)
        return bool(gone)

    def attempt() -> HostPart:
        with contextlib.ExitStack() as held:
            if not check_mode:
                held.enter_context(locked(params["state_directory"], params["lock_timeout"]))
            # If only this process simulates the GPUs, the host's services do not use them.
            service = kind("GPUSIM_STATE" in os.environ)
            service.observe()
            service.observe_on(())
            part = service.plan(PartRequest(Layout(()), Plan(()), _NO_GPUS, (), removes=True))
            if part.disturbs and on_busy.policy != FORCE and (on_busy.policy == FAIL or not check_mode):
                cure = "Stop it and run again. gpu_layout_on_busy (the option on_busy) can wait for it or end it."
                raise BusyError(part.disturbs, "nothing was changed", cure)
            change = service.change(part, lambda: _NO_GPUS, clear if on_busy.policy == FORCE else None)
            if change is not None and not check_mode:
                change.stop([])
                change.forget()
            if not check_mode:
                from .unnamed import AppliedRecord, without_service

                record = AppliedRecord(params["state_directory"])
                record.write(without_service(record.read(), kind.key).to_data())
            return part

    part = wait_until_free(attempt, on_busy)
    told: dict[str, Any] = {"changed": bool(part.steps), "plan": part.lines()}
    if check_mode and part.disturbs:
        told["busy"] = [disturbance.to_data() for disturbance in part.disturbs]
    if ended:
        told["ended"] = ended
    return told
