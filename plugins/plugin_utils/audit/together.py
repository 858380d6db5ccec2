# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find processes that hold several GPUs. Pure.

A process that works on one of its GPUs is not idle on the others.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Iterator, Sequence

from ..idle.rule import Policy
from .model import Holding
from .resting import resting

#: Key of a process: (host, PID, start time). PIDs alone are not unique.
_Process = tuple[str, int, "float | None"]


def together(found: Sequence[Holding], policy: Policy) -> tuple[Holding, ...]:
    """Set `works_on`: other GPUs on which a holding's processes are not idle."""
    used: dict[_Process, list[Holding]] = defaultdict(list)
    for holding in found:
        rest = resting(holding, policy)
        if rest is None or not rest.is_idle:
            for process in _processes(holding):
                used[process].append(holding)
    return tuple(replace(holding, works_on=_other_gpus(holding, used)) for holding in found)


def _other_gpus(holding: Holding, used: dict[_Process, list[Holding]]) -> tuple[str, ...]:
    place = holding.subject.place
    subjects = (found.subject for process in _processes(holding) for found in used.get(process, ()))
    return tuple(dict.fromkeys(str(subject) for subject in subjects if subject.place != place))


def _processes(holding: Holding) -> Iterator[_Process]:
    """Yield the processes that have a context on the GPU.

    Skips processes that only have the GPU's device node open, because they cannot run kernels.
    """
    for holder in holding.holders or ():
        if holder.kind == "process" and holder.pid is not None:
            yield holding.subject.host, holder.pid, holder.since_seconds
