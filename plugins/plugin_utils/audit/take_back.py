# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the GPUs that are reserved and unused by what to do about them. Pure.

The three actions are, the safest first: stop the workload, ask its owner, resize its part.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Iterable, Sequence

from .ledger_model import (
    GPU_UNITS,
    IDLE,
    RESERVED_UNUSED,
    RESIZABLE,
    STALLED,
    STANDBY,
    WORKING,
    Ledger,
    Row,
    Sum,
    sum_of,
)
from .model import Finding
from .resting import duration
from .workload_model import PROCESS, TENANT, UNKNOWN_HOLDER, Workload
from .write_line import gpus, part

STOP, ASK, RESIZE = ACTIONS = ("stop", "ask", "resize")
#: Workloads that no command can stop: a quota runs nothing, and a session's processes belong to their user.
_NOT_STOPPED = (TENANT, PROCESS, UNKNOWN_HOLDER)
_WITHOUT_PROCESS = "held_without_process"


@dataclass(frozen=True)
class Item:
    """A workload and its reserved and unused GPUs.

    `owner` is None if the workload is unknown. `places` has names of GPUs and instances by host. `why` is a short
    reason.
    """

    action: str
    owner: Workload | None
    places: tuple[tuple[str, tuple[str, ...]], ...]
    sum: Sum
    why: str
    without_process: bool = False

    @property
    def name(self) -> str:
        """Return the kind and the name of the workload, without its host."""
        return str(replace(self.owner, host="")) if self.owner else "unknown workload"

    @property
    def user(self) -> str:
        """Return the user, or a pod's namespace."""
        return (self.owner.owner if self.owner else "") or "unknown user"


@dataclass(frozen=True)
class Action:
    """Workloads with the same action. The safest is first, then the most expensive."""

    name: str
    items: tuple[Item, ...]
    sum: Sum

    def by_user(self) -> list[tuple[str, float]]:
        """Return each user's number of GPUs, the highest first."""
        found: dict[str, float] = defaultdict(float)
        for item in self.items:
            found[item.user] += item.sum.gpus
        return sorted(((name, round(count, 4)) for name, count in found.items()), key=lambda one: (-one[1], one[0]))


def actions(book: Ledger, findings: Iterable[Finding]) -> tuple[Action, ...]:
    """Return the actions with at least one workload.

    Their sums add up to everything that is reserved and unused.
    """
    known = {found.id: found for found in findings}
    busy = {row.owner for row in book.rows if row.owner and row.gpus and row.word in WORKING}
    needs: dict[tuple[str, Workload | None], float] = defaultdict(float)
    held: dict[Workload, float] = defaultdict(float)
    groups: dict[tuple[str, bool, Workload | str], list[Row]] = defaultdict(list)
    for row in book.rows:
        if row.owner:
            held[row.owner] += row.gpus
        if row.gpus and row.word in RESERVED_UNUSED:
            found = known.get(row.finding)
            empty = found is not None and found.verdict.word == _WITHOUT_PROCESS
            groups[(row.word, empty, row.owner or row.host)].append(row)
        elif row.gpus and row.word in WORKING:
            needs[(row.finding, row.owner)] += row.gpus
    items = []
    for (word, empty, _owner), rows in groups.items():
        owner, total = rows[0].owner, sum_of(rows)
        of_rows = [known[row.finding] for row in rows if row.finding in known]
        needed = math.fsum(needs[place] for place in {(row.finding, row.owner) for row in rows})
        action, why = _action(word, owner, owner in busy)
        if not why:
            why = _why(word, empty, of_rows, needed, total.gpus)
        if owner and action != RESIZE and held[owner] > total.gpus + 1 / GPU_UNITS:
            why += ", %s of its %s" % (part(total.gpus), gpus(held[owner]))
        items.append(Item(action, owner, _places(rows, known), total, why, empty))
    items.sort(key=_order)
    made = [(name, tuple(item for item in items if item.action == name)) for name in ACTIONS]
    return tuple(Action(name, those, total_of(those)) for name, those in made if those)


def total_of(items: Sequence[Item]) -> Sum:
    """Return the sum of several items."""
    costs = [item.sum.cost_per_month for item in items if item.sum.cost_per_month is not None]
    return Sum(
        round(math.fsum(item.sum.gpus for item in items), 4),
        round(math.fsum(item.sum.gpu_hours for item in items), 2),
        math.fsum(costs) if costs else None,
    )


def _order(item: Item) -> tuple[bool, float, float, str, str]:
    return (not item.without_process, -(item.sum.cost_per_month or 0.0), -item.sum.gpus, item.places[0][0], item.name)


def _action(word: str, owner: Workload | None, works: bool) -> tuple[str, str]:
    """Return the action, and the reason if it does not depend on measurements."""
    if word == RESIZABLE:
        return RESIZE, ""
    if word != IDLE:
        return ASK, ""
    if owner is None:
        return ASK, "its holder is unknown"
    if works:
        return ASK, "it works on other GPUs, so it is not stopped"
    return (ASK if owner.kind in _NOT_STOPPED else STOP), ""


def _why(word: str, empty: bool, findings: Sequence[Finding], needed: float, unused: float) -> str:
    if word == RESIZABLE:
        return "needs %s of %s" % (part(needed), gpus(needed + unused))
    if word == STALLED:
        lasts = [found.holding.stalled_seconds for found in findings]
        return "busy without progress%s" % _since(lasts)
    quiet = [found.holding.quiet.seconds for found in findings if found.holding.quiet]
    since = _since(quiet if len(quiet) == len(findings) else ())
    if word == STANDBY:
        return "waits" + (", no sign of work%s" % since if since else "")
    return ("no process" if empty else "no sign of work") + since


def _since(seconds: Sequence[float]) -> str:
    return " for %s" % duration(min(seconds)) if seconds and min(seconds) > 0 else ""


def _places(rows: Sequence[Row], known: dict[str, Finding]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the names of the GPUs and instances by host, without duplicates."""
    places: dict[str, dict[str, None]] = defaultdict(dict)
    for row in rows:
        name = row.gpu_index or row.gpu_uuid
        if row.mig_instance:
            profile = known[row.finding].holding.subject.mig_profile if row.finding in known else ""
            name += " (%s)" % (profile or "instance %s" % row.mig_instance)
        places[row.host][name] = None
    return tuple((host, tuple(places[host])) for host in sorted(places))
