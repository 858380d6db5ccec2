# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define hardware checks and their outcomes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

PASSED, DIFFERS, NOT_RUN = "passed", "differs", "not run"
OUTCOMES = (PASSED, DIFFERS, NOT_RUN)


@dataclass(frozen=True)
class Check:
    """One check of the readings.

    `gpu`: the GPU's index, or None for a check about the host. `where`: file and line to change if the compared values
    differ. `reason`: why the check was not run.
    """

    area: str
    gpu: int | None
    what: str
    outcome: str
    expected: str = ""
    found: str = ""
    reason: str = ""
    where: str = ""

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def compared(area: str, gpu: int | None, what: str, expected: Any, found: Any, where: str = "") -> Check:
    """Return a check that passes if two values are equal."""
    outcome = PASSED if expected == found else DIFFERS
    return Check(area, gpu, what, outcome, shown(expected), shown(found), where=where if outcome == DIFFERS else "")


def not_run(area: str, gpu: int | None, what: str, reason: str) -> Check:
    """Return a check that was not run."""
    return Check(area, gpu, what, NOT_RUN, reason=reason)


def shown(value: Any) -> str:
    """Format a value for a report."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(each) for each in value) or "none"
    return str(value)
