# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the readers of GPU settings that NVML does not report.

This module imports no parser and no planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .time_slicing import observe as time_slicing

if TYPE_CHECKING:
    from .observer import Observer

OBSERVERS: tuple[Observer, ...] = (time_slicing.OBSERVER,)


def recorded(directory: str) -> tuple[Observer, ...]:
    """Return the observers of settings that the collection set on this host.

    Raises ApplyError if a record cannot be read.
    """
    return tuple(observer for observer in OBSERVERS if observer.recorded(directory))
