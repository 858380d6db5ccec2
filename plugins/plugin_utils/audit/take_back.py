# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the GPUs that are reserved and unused by what to do about them. Pure.

The three actions are, the safest first: stop the workload, ask its owner, resize its part.
Each action lists the highest cost first, then the longest time without work.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Iterable, Mapping, Sequence

from ..idle.signals import CLIENTS, missing_groups
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
from .resting import duration, least_stop_seconds, quiet_time
from .workload_model import JOB, POD, PROCESS, TENANT, UNKNOWN_HOLDER, Workload
from .write_line import gpus, part

STOP, ASK, RESIZE = ACTIONS = ("stop", "ask", "resize")
#: Workloads that reclaim does not stop by default (docs/reclaim.md): a quota runs nothing, processes of a session belong to
#: their user, and schedulers own jobs and pods.
_NOT_STOPPED = (TENANT, PROCESS, UNKNOWN_HOLDER, JOB, POD)
_WITHOUT_PROCESS = "held_without_process"


@dataclass(frozen=True)
class Item:
    """A workload and its reserved and unused GPUs.

    `owner` is None if the workload is unknown. `places` has the names of GPUs and instances by host. `why` is a short reason,
    and `risks` has warnings for this action. `lasts_seconds` is the time without work. `findings` has IDs.
    """

    action: str
    owner: Workload | None
    places: tuple[tuple[str, tuple[str, ...]], ...]
    sum: Sum
    why: str
    risks: tuple[str, ...] = ()
    lasts_seconds: float = 0.0
    findings: tuple[str, ...] = ()

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
    """Workloads with the same action, in the order of the list."""

    name: str
    items: tuple[Item, ...]
    sum: Sum


def actions(book: Ledger, findings: Iterable[Finding], fits: Mapping[str, str] | None = None) -> tuple[Action, ...]:
    """Return the actions with at least one workload.

    Their sums add up to everything that is reserved and unused. `fits` has the smallest sufficient MIG profile by ID of the
    finding, or an empty text if no profile suffices.
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
        ids = tuple(dict.fromkeys(row.finding for row in rows if row.finding))
        of_rows = [known[name] for name in ids if name in known]
        action, note = _action(word, owner, owner in busy, of_rows)
        risks = _risks(action, empty, of_rows)
        if word == RESIZABLE:
            needed = math.fsum(needs[place] for place in {(row.finding, row.owner) for row in rows})
            why = "needs %s of %s%s" % (part(needed), gpus(needed + total.gpus), _fit(ids, fits or {}))
        else:
            why = ", ".join(filter(None, (_why(word, empty, of_rows), note)))
        if owner and word != RESIZABLE and held[owner] > total.gpus + 1 / GPU_UNITS:
            risks.append("ending it frees all %s" % gpus(held[owner]))
        lasts = [_lasts_seconds(word, found) for found in of_rows]
        items.append(Item(action, owner, _places(rows, known), total, why, tuple(risks), min(lasts, default=0.0), ids))
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


def _order(item: Item) -> tuple[float, float, float, str, str]:
    return (-(item.sum.cost_per_month or 0.0), -item.sum.gpus, -item.lasts_seconds, item.places[0][0], item.name)


def _action(word: str, owner: Workload | None, works: bool, findings: Sequence[Finding]) -> tuple[str, str]:
    """Return the action, and why an idle workload is not stopped."""
    if word == RESIZABLE:
        return RESIZE, ""
    if word != IDLE:
        return ASK, ""
    if owner is None:
        return ASK, "its holder is unknown"
    if works:
        return ASK, "it works on other GPUs"
    if owner.kind in _NOT_STOPPED:
        return ASK, ""
    least = max((least_stop_seconds(found.holding) for found in findings), default=0.0)
    if any(found.holding.quiet and found.holding.quiet.seconds < least for found in findings):
        return ASK, "not stopped before %s" % duration(least)
    return STOP, ""


def _why(word: str, empty: bool, findings: Sequence[Finding]) -> str:
    if word == STALLED:
        lasts = [found.holding.stalled_seconds for found in findings]
        return "stalled%s" % (" for %s" % duration(min(lasts)) if lasts and min(lasts) > 0 else "")
    quiets = [found.holding.quiet for found in findings if found.holding.quiet]
    text = "no work"
    if quiets and len(quiets) == len(findings):
        text += " for %s" % quiet_time(min(quiets, key=lambda quiet: quiet.seconds))
    limit = max((found.verdict.idle_after_seconds or 0.0 for found in findings), default=0.0)
    if limit and word == IDLE:
        text += " (limit %s)" % duration(limit)
    return {STANDBY: "standby, "}.get(word, "no process, " if empty else "") + text


def _lasts_seconds(word: str, found: Finding) -> float:
    if word == STALLED:
        return found.holding.stalled_seconds
    return found.holding.quiet.seconds if found.holding.quiet else 0.0


def _risks(action: str, empty: bool, findings: Sequence[Finding]) -> list[str]:
    """Return signals that are not measured, or how long a workload is quiet."""
    if action == STOP and not empty:
        groups: dict[str, None] = {}
        for found in findings:
            signals = list(found.holding.quiet.signals) if found.holding.quiet else []
            if any(holder.clients is not None for holder in found.holding.holders or ()):
                signals.append(CLIENTS.name)
            groups.update(dict.fromkeys(missing_groups(signals) if signals else ()))
        return ["not measured: %s" % ", ".join(groups)] if groups else []
    if action != RESIZE:
        return []
    known = {(found.holding.quiet, found.verdict.idle_after_seconds) for found in findings}
    return [
        "quiet for %s, idle after %s" % (duration(quiet.seconds), duration(after))
        for quiet, after in known
        if quiet and after
    ][:1]


def _fit(ids: Sequence[str], fits: Mapping[str, str]) -> str:
    """Return the MIG profiles that suffice, as the end of a reason."""
    known = [fits[name] for name in ids if name in fits]
    if not known or len(known) < len(ids):
        return ""
    names = list(dict.fromkeys(known))
    return ", no MIG profile suffices" if names == [""] else ", %s suffices" % " or ".join(filter(None, names))


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
