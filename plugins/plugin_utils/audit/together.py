# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find processes that hold several GPUs.

A process that works on one of them is working. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Iterator, Sequence

from ..idle.rule import Policy
from .model import Holding
from .resting import resting

#: A process by host, PID and start, since PIDs are reused.
_Process = tuple[str, int, "float | None"]


def together(found: Sequence[Holding], policy: Policy) -> tuple[Holding, ...]:
    """Return the holdings with the other GPUs on which one of their processes is not idle."""
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
    """Yield the processes with a context on the GPU.

    Those that only have its device node open do nothing there.
    """
    for holder in holding.holders or ():
        if holder.kind == "process" and holder.pid is not None:
            yield holding.subject.host, holder.pid, holder.since_seconds
