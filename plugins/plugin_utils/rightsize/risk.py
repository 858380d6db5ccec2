# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the risks of a change for a workload. Pure."""

from __future__ import annotations

from typing import Sequence

from ..packing.geometry import geometry
from ..packing.model import Shape
from .model import RISKS, Need, Occupant

_MIB = 1 << 20
#: The confidence after three days and after one day of history without gaps. sizing/evidence.py calculates it as days /
#: (days + 1).
_SURE, _UNSURE = 0.75, 0.5
#: Maximum ratio of observed use to new memory without a risk.
_TIGHT_RATIO = 0.9


def risk(one: Occupant, then: Shape, model: str, need: Need | None, host: str) -> tuple[str, tuple[str, ...]]:
    """Return (highest risk, reasons) for a workload that gets the shape `then`.

    `host` is the workload's new host.
    """
    found: list[tuple[str, str]] = [("low", "it requires a restart with new devices")]
    if need is None or not need.measured:
        found.append(("medium", "its need is from the inventory, not measured"))
    elif need.confidence < _UNSURE:
        found.append(("high", "its history is shorter than a day (confidence %.2f)" % need.confidence))
    elif need.confidence < _SURE:
        found.append(("medium", "its history is shorter than three days (confidence %.2f)" % need.confidence))
    memory = _memory_bytes(then, model)
    peak = one.finding.holding.memory.max if one.finding.holding.memory else None
    if peak is not None and peak > memory:
        found.append(("high", "it used more memory than it will have"))
    elif peak is not None and peak > _TIGHT_RATIO * memory:
        found.append(("medium", "it used %.0f %% of the memory that it will have" % (100 * peak / memory)))
    if host != one.key[0]:
        found.append(("medium", "it moves to another host with its data, and its scheduler must be reconfigured"))
    if then.technique and then.technique.risk and one.shape.kind != then.kind:
        found.append(("medium", then.technique.risk))
    if one.wish.latency == "low" and then.kind not in ("mig", "whole"):
        found.append(("medium", "it needs low latency and will share SMs"))
    if any(row.get("job") for row in one.holders):
        found.append(("medium", "its scheduler needs the new devices"))
    return max((word for word, _why in found), key=RISKS.index), _gravest_first(found)


def _gravest_first(found: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(why for _word, why in sorted(found, key=lambda pair: -RISKS.index(pair[0])))


def _memory_bytes(shape: Shape, model: str) -> float:
    rules = geometry(model)
    if shape.kind == "mig":
        return float(rules.capacity.profiles[shape.profile].memory_mib * _MIB)
    return float((rules.memory_mib if shape.kind == "whole" else shape.memory_mib) * _MIB)
