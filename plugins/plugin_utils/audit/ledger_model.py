# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the ledger of GPU hours: its classes, rows and sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Iterable

from .workload_model import Workload

IN_USE, RESIZABLE, IDLE, STANDBY, STALLED = "in_use", "resizable", "idle", "standby", "stalled"
FREE, UNASSIGNED, UNHEALTHY, UNKNOWN = "free", "unassigned", "unhealthy", "unknown"
#: All classes, in the order of reports.
CLASSES = (IN_USE, RESIZABLE, IDLE, STANDBY, STALLED, FREE, UNASSIGNED, UNHEALTHY, UNKNOWN)
#: Classes of GPUs whose workload works, of GPUs that a workload or tenant holds without need, and of GPUs without a
#: workload or tenant.
WORKING = (IN_USE, RESIZABLE)
RESERVED_UNUSED = (RESIZABLE, IDLE, STANDBY, STALLED)
NOT_ASSIGNED = (FREE, UNASSIGNED)
#: The headlines of reports.
HEADLINES = {"reserved and unused": RESERVED_UNUSED, "not assigned": NOT_ASSIGNED}
#: The classes' explanations in the legends of reports.
CLASS_MEANINGS = {
    IN_USE: "A workload uses it.",
    RESIZABLE: "The part beyond a workload's peak memory and its compute of 99 % of the time.",
    IDLE: "A workload or tenant holds it without a sign of work.",
    STANDBY: "Its workload waits for clients.",
    STALLED: "Its workload is busy without progress.",
    FREE: "Nothing holds it.",
    UNASSIGNED: "No instance or quota covers it.",
    UNHEALTHY: "The GPU failed, or errors slow it down.",
    UNKNOWN: "There are too few or contradicting samples.",
}


#: Units of GPUs and of GPU hours in rows, as parts of one. Whole numbers add up without errors.
GPU_UNITS, HOUR_UNITS = 10000, 100


@dataclass(frozen=True)
class Row:
    """One class of one part of a GPU.

    `finding` is the ID of the finding about the part, or empty for a GPU's remainder. `gpus` describes the current
    state, `gpu_hours` the window. `cost_per_month` is the monthly price of `gpus`, or None if it is unknown. `owner` is
    the workload that holds the part or held it in the window, or None if it is unknown.
    """

    host: str
    gpu_uuid: str
    gpu_index: str
    mig_instance: str
    name: str
    finding: str
    word: str
    gpus: float
    gpu_hours: float
    cost_per_month: float | None
    owner: Workload | None = None


@dataclass(frozen=True)
class Sum:
    """The sum of rows. `cost_per_month` is None if no price is known."""

    gpus: float = 0.0
    gpu_hours: float = 0.0
    cost_per_month: float | None = None


@dataclass(frozen=True)
class Ledger:
    """All rows of an audit, ordered by host and GPU."""

    rows: tuple[Row, ...] = ()

    def sum_of(self, words: Iterable[str] = CLASSES) -> Sum:
        """Return the sum of all rows of these classes."""
        return sum_of(row for row in self.rows if row.word in tuple(words))

    def by_class(self) -> dict[str, Sum]:
        """Return the sum of each class."""
        rows: dict[str, list[Row]] = {word: [] for word in CLASSES}
        for row in self.rows:
            rows[row.word].append(row)
        return {word: sum_of(of_class) for word, of_class in rows.items()}


def sum_of(rows: Iterable[Row]) -> Sum:
    """Return the sum of rows."""
    rows = list(rows)
    costs = [row.cost_per_month for row in rows if row.cost_per_month is not None]
    return Sum(
        round(math.fsum(row.gpus for row in rows), 4),
        round(math.fsum(row.gpu_hours for row in rows), 2),
        math.fsum(costs) if costs else None,
    )
