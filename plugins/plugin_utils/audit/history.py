# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the history of a fleet, as read from Prometheus."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

from .model import Day, Measured, Stat, Window

#: Key of a subject: (host, GPU UUID, GPU instance ID, name of the tenant or workload).
Key = tuple[str, str, str, str]


def is_pod(key: Key) -> bool:
    """Return whether the subject is a pod with a HAMi quota.

    Its name is "namespace/pod". The names of a layout's tenants have no slash.
    """
    return "/" in key[3]


@dataclass(frozen=True)
class Record(Measured):
    """The metrics of one subject."""

    stats: Mapping[str, Stat] = field(default_factory=dict)
    memory_limit_bytes: float | None = None
    held_now: Mapping[str, float] | None = None


@dataclass(frozen=True)
class History:
    """The records of all subjects by key, and sentences about anomalies (`notes`)."""

    window: Window
    records: Mapping[Key, Record]
    days: tuple[Day, ...] = ()
    notes: tuple[str, ...] = ()
