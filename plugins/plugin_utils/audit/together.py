# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that hold several GPUs: one that works on any of them works. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Iterator, Sequence

from ..idle.rule import Policy
from .model import Holding
from .resting import resting

#: A process by its host, number and start: numbers are used again.
_Process = tuple[str, int, "float | None"]


def together(found: Sequence[Holding], policy: Policy) -> tuple[Holding, ...]:
    """Return the holdings with the other GPUs that a process of theirs is not known to be idle on."""
    used: dict[_Process, list[Holding]] = defaultdict(list)
    for holding in found:
        rest = resting(holding, policy)
        if rest is None or not rest.is_idle:
            for process in _processes(holding):
                used[process].append(holding)
    return tuple(replace(holding, works_on=_others(holding, used)) for holding in found)


def _others(holding: Holding, used: dict[_Process, list[Holding]]) -> tuple[str, ...]:
    place = holding.subject.place
    others = (other.subject for process in _processes(holding) for other in used.get(process, ()))
    return tuple(dict.fromkeys(str(other) for other in others if other.place != place))


def _processes(holding: Holding) -> Iterator[_Process]:
    """Those that have something on the GPU: one that only has its device node open does nothing there."""
    for holder in holding.holders or ():
        if holder.kind == "process" and holder.pid is not None:
            yield holding.subject.host, holder.pid, holder.since_seconds
