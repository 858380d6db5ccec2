# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The history of a fleet, read from the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

from .model import Day, Measured, Stat, Window

#: (host, GPU's UUID, MIG instance, name of the tenant or workload)
Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Record(Measured):
    """The server's data about one subject."""

    stats: Mapping[str, Stat] = field(default_factory=dict)
    memory_limit_bytes: float | None = None
    held_now: Mapping[str, float] | None = None


@dataclass(frozen=True)
class History:
    """All records by key, and notes about anomalies as sentences."""

    window: Window
    records: Mapping[Key, Record]
    days: tuple[Day, ...] = ()
    notes: tuple[str, ...] = ()
