# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List what reads the settings of GPUs that NVML does not have, and what is beside them. Imports no parser and no planner."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from .mps.report import report as report_daemons
from .observer import Observer
from .time_slicing import observe as time_slicing
from .vgpu.report import report as report_tenants

OBSERVERS: tuple[Observer, ...] = (time_slicing.OBSERVER,)

#: What modules return of what techniques run beside the GPUs; each takes whether the GPUs are simulated for this process alone.
REPORTS: Mapping[str, Callable[[bool], list[dict[str, Any]]]] = {
    "mps_daemons": report_daemons,
    "vgpu_tenants": report_tenants,
}


def recorded(directory: str) -> tuple[Observer, ...]:
    """Return the observers whose setting some GPU of the host was given. Raises ApplyError for an unreadable record."""
    return tuple(observer for observer in OBSERVERS if observer.recorded(directory))
