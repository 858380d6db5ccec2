# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take every MPS daemon of this collection away from a host whose driver does not answer: GPUs have no part in that."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Sequence

from ...busy import FAIL, FORCE, OnBusy, end_holders, patiently
from ...disturbance import Disturbance
from ...errors import BusyError
from ...transaction import locked
from . import plan as mps_plan
from .apply import MpsChange
from .host import MpsHost
from .steps import MpsPlan, StopMps


def remove_all(directory: str, lock_timeout_seconds: float, on_busy: OnBusy, check_mode: bool) -> dict[str, Any]:
    """Stop them and forget them; return values of a module. Their clients count as they do with a driver.

    Raises BusyError and ApplyError.
    """
    ended: list[str] = []

    def clear(disturbs: Sequence[Disturbance]) -> bool:
        gone = end_holders(disturbs, on_busy.grace_seconds)
        ended.extend(gone)
        return bool(gone)

    def attempt() -> MpsPlan:
        with contextlib.ExitStack() as held:
            if not check_mode:
                held.enter_context(locked(directory, lock_timeout_seconds))
            # Where GPUs are simulated for this process alone, no daemon of the host is its own.
            host = MpsHost()
            plan = _plan(host) if "GPUSIM_STATE" not in os.environ else MpsPlan()
            if plan.disturbs and on_busy.policy != FORCE and (on_busy.policy == FAIL or not check_mode):
                cure = "Stop it and run again; gpu_layout_on_busy (the option on_busy) can wait for it or end it."
                raise BusyError(plan.disturbs, "nothing was changed", cure)
            if not check_mode:
                change = MpsChange(host, plan, clear if on_busy.policy == FORCE else None)
                change.stop([])
                change.forget()
            return plan

    plan = patiently(attempt, on_busy)
    told: dict[str, Any] = {"changed": bool(plan.steps), "plan": plan.lines()}
    if check_mode and plan.disturbs:
        told["busy"] = [disturbance.to_data() for disturbance in plan.disturbs]
    if ended:
        told["ended"] = ended
    return told


def _plan(host: MpsHost) -> MpsPlan:
    seen = host.observe()
    clients = [("mps %s (its daemon would stop)" % one.daemon.name, mps_plan.clients(one)) for one in seen]
    disturbs = tuple(Disturbance(what, who) for what, who in clients if who)
    return MpsPlan(stops=tuple(StopMps(one, forget=True) for one in seen), disturbs=disturbs)
