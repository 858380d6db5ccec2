# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take every tenant of this collection away from a host whose driver does not answer: GPUs have no part in that."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from ...transaction import locked
from .host import VgpuHost, applies
from .steps import RemoveTenant, VgpuPlan


def remove_all(directory: str, lock_timeout_seconds: float, check_mode: bool) -> dict[str, Any]:
    """Return values of a module. Nobody is in the way: what runs keeps its quota. Raises ApplyError."""
    with contextlib.ExitStack() as held:
        if not check_mode:
            held.enter_context(locked(directory, lock_timeout_seconds))
        host = VgpuHost()
        # Where GPUs are simulated for this process alone, no tenant of the host is its own.
        seen = host.observe() if applies("GPUSIM_STATE" in os.environ) else ()
        plan = VgpuPlan(removes=tuple(RemoveTenant(one) for one in seen))
        if not check_mode:
            for step in plan.removes:
                host.forget(step.name)
    return {"changed": bool(plan.steps), "plan": plan.lines()}
