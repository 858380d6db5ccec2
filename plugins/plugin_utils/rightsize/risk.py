# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What could go wrong for a workload that is to change. Pure."""

from __future__ import annotations

from typing import Sequence

from ..packing.geometry import geometry
from ..packing.model import Shape
from .model import RISKS, Need, Occupant

_MIB = 1 << 20
#: Below these a history is short: three days, and one, of samples without gaps (sizing's evidence: days / (days + 1)).
_SURE, _UNSURE = 0.75, 0.5
#: More than this of what it is to have was already used.
_TIGHT_RATIO = 0.9


def risk(one: Occupant, then: Shape, model: str, need: Need | None, host: str) -> tuple[str, tuple[str, ...]]:
    """(the gravest of RISKS, every reason) for a workload that is to have `then` on `host`."""
    found: list[tuple[str, str]] = [("low", "it has to be restarted, with other devices")]
    if need is None or not need.measured:
        found.append(("medium", "nothing of it was measured: the inventory says what it needs"))
    elif need.confidence < _UNSURE:
        found.append(("high", "its history is short (confidence %.2f)" % need.confidence))
    elif need.confidence < _SURE:
        found.append(("medium", "its history is not long (confidence %.2f)" % need.confidence))
    memory = _memory_bytes(then, model)
    peak = one.finding.holding.memory.max if one.finding.holding.memory else None
    if peak is not None and peak > memory:
        found.append(("high", "it used more memory than it is to have"))
    elif peak is not None and peak > _TIGHT_RATIO * memory:
        found.append(("medium", "it used %.0f %% of the memory that it is to have" % (100 * peak / memory)))
    if host != one.key[0]:
        found.append(("medium", "it goes to another host: its data and its scheduler have to follow"))
    if then.kind in ("mps", "time_slicing") and one.shape.kind != then.kind:
        found.append(("medium", "a fault of one workload can end all that share the GPU"))
    if then.kind == "vgpu" and one.shape.kind != "vgpu":
        found.append(("medium", "a quota is no security boundary, and its programs have to become the tenant's"))
    if one.wish.latency == "low" and then.kind not in ("mig", "whole"):
        found.append(("medium", "it cannot wait, and is to share SMs"))
    if any(row.get("job") for row in one.holders):
        found.append(("medium", "a scheduler gives it out, and has to be told of the other devices"))
    return max((word for word, _why in found), key=RISKS.index), _gravest_first(found)


def _gravest_first(found: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(why for _word, why in sorted(found, key=lambda pair: -RISKS.index(pair[0])))


def _memory_bytes(shape: Shape, model: str) -> float:
    rules = geometry(model)
    if shape.kind == "mig":
        return float(rules.capacity.profiles[shape.profile].memory_mib * _MIB)
    return float((rules.memory_mib if shape.kind == "whole" else shape.memory_mib) * _MIB)
