# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn decisions into packing problems, and choose among the solutions. Pure.

There is one problem per GPU model. If workloads may only move within their host, there is one per model and host.
Unless the inventory sets a mode or profile, a workload may keep its current share. So the packing only changes a
workload if that frees a GPU. The packing minimizes the number of GPUs first, moved workloads second, and destroyed
instances third.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Callable, Collection, Mapping, NamedTuple, Sequence

from ...module_utils.errors import FleetError
from ..counted import counted
from ..packing.check import by_gpu
from ..packing.geometry import geometry
from ..packing.layouts import layouts
from ..packing.model import WHOLE, FleetGpu, Packing, PackingError, Problem, Rules, Standing, Workload
from ..packing.pack import pack
from .model import Decision, GpuToday, Occupant


@dataclass(frozen=True)
class Limits:
    """Limits of the whole proposal.

    `rules` apply to each problem, without their limits for time, moved workloads and destroyed instances.
    """

    most_moved: int | None = None
    most_destroyed: int | None = None
    reach: str = "host"
    seconds: float = 60.0
    rules: Rules = field(default_factory=Rules)


@dataclass(frozen=True)
class Answer:
    """A problem with its solution."""

    problem: Problem
    packing: Packing
    saved: int
    moved: tuple[str, ...]
    destroyed: int
    #: Hosts whose layout changes, or to or from which workloads move.
    hosts: frozenset[str]
    #: GPUs whose layout entry changes, and the new entries of `gpu_layout` by host.
    changed: frozenset[tuple[str, int]]
    entries: Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Arrangement:
    """The chosen solutions, with notes."""

    answers: tuple[Answer, ...] = ()
    notes: tuple[str, ...] = ()

    def standing(self) -> dict[str, list[Standing]]:
        """Return each workload's new places in the chosen solutions."""
        found: dict[str, list[Standing]] = defaultdict(list)
        for answer in self.answers:
            for each in answer.packing.standing:
                if each.workload:
                    found[each.workload].append(each)
        return dict(found)

    def entries(self, host: str) -> tuple[list[dict[str, Any]], frozenset[int]]:
        """Return (`gpu_layout` entries, GPU indices) for a host's changed GPUs."""
        made: list[dict[str, Any]] = []
        changed: set[int] = set()
        for answer in (answer for answer in self.answers if host in answer.hosts):
            changed |= {index for name, index in answer.changed if name == host}
            for entry in answer.entries.get(host, ()):
                indices = [index for index in entry["gpus"] if (host, index) in answer.changed]
                if indices:
                    made.append({**entry, "gpus": indices})
        return sorted(made, key=lambda entry: entry["gpus"]), frozenset(changed)

    def hosts(self) -> set[str]:
        """Return all hosts of the chosen solutions."""
        return {host for answer in self.answers for host in answer.hosts}


def _changed(problem: Problem, packing: Packing) -> frozenset[tuple[str, int]]:
    then, today = by_gpu(packing.standing), by_gpu(problem.today)
    return frozenset(
        gpu.key
        for gpu in problem.gpus
        if _layout_of(then.get(gpu.key, ())) != _layout_of(today.get(gpu.key, ()))
        # Free instances do not matter if a GPU has no workload before and after the change.
        and any(each.workload for each in (*then.get(gpu.key, ()), *today.get(gpu.key, ())))
    )


def _tenant_name(workload: str) -> str:
    """Return the workload's name without the suffix `@HOST`."""
    return workload.partition("@")[0]


def _layout_of(standing: Sequence[Standing]) -> tuple:
    """Return a comparable value for the layout that these places need.

    Leaves out whole GPUs, whose layout is the same with and without a workload.
    """
    shapes = [each for each in standing if each.shape.kind != "whole"]
    quotas = tuple((each.shape, each.workload if each.shape.is_tenant else None) for each in shapes)
    return tuple(sorted(quotas, key=repr))


def rearrange(
    gpus: Sequence[GpuToday],
    decisions: Mapping[str, Decision],
    limits: Limits,
    check: Callable[[Arrangement, Collection[str]], None] = lambda arrangement, hosts: None,
    say: Callable[[str], None] = lambda line: None,
    teams: Sequence[Sequence[str]] = (),
) -> Arrangement:
    """Choose the proposal's changes, within the limits.

    `check` must raise FleetError if the planners would refuse an arrangement on one of the given hosts. The members of
    a team share a card by time slicing, unless the limits prevent this.
    """
    problems = _problems(gpus, decisions, limits, {member for team in teams for member in team})
    seconds = max(1.0, limits.seconds / max(1, len(problems)))
    notes: list[str] = []
    found = []
    for number, problem in enumerate(problems, 1):
        say("packing %d of %d: %s" % (number, len(problems), _name(problem, limits)))
        answer = _solve(problem, Bounds(seconds), decisions, notes, limits, teams)
        if answer:
            found.append(answer)
    # Take the best solutions first, because the limits apply to the whole proposal.
    found.sort(key=lambda answer: (-answer.saved / max(1, len(answer.moved)), _name(answer.problem, limits)))
    taken: list[Answer] = []
    moved, destroyed = limits.most_moved, limits.most_destroyed
    for first in found:
        answer: Answer | None = first
        if _beyond(first, moved, destroyed):
            answer = _solve(first.problem, Bounds(seconds, moved, destroyed), decisions, notes, limits)
            if answer is None or _beyond(answer, moved, destroyed):
                notes.append(
                    "%s: no further change frees a GPU within the limits (gpu_rightsize_max_moved, "
                    "gpu_rightsize_max_destroyed)." % _name(first.problem, limits)
                )
                continue
        try:
            check(Arrangement((*taken, answer)), answer.hosts)
        except FleetError as error:
            notes.append("%s is unchanged: %s" % (_name(first.problem, limits), error))
            continue
        taken.append(answer)
        moved = None if moved is None else moved - len(answer.moved)
        destroyed = None if destroyed is None else destroyed - answer.destroyed
    return Arrangement(tuple(taken), tuple(notes))


def onto_free(problem: Problem, packing: Packing, occupied: Collection[tuple[str, int]]) -> Packing:
    """Move new content from GPUs in use to free GPUs of the same host.

    This applies to GPUs in use whose planned content is all new. On a free GPU, the new layout can be applied while the
    current workload still runs, which moves later.
    """
    then, today = by_gpu(packing.standing), by_gpu(problem.today)
    places: dict[tuple[str, int], tuple[str, int]] = {}
    free = [gpu for gpu in problem.gpus if gpu.key not in then and gpu.key not in today and gpu.key not in occupied]
    for gpu in problem.gpus:
        here = today.get(gpu.key, ())
        whole = gpu.key in occupied and all(each.shape.kind == "whole" for each in here)
        if whole and gpu.key in then and not _stays(then[gpu.key], here):
            spare = next((one for one in free if (one.host, one.model) == (gpu.host, gpu.model)), None)
            if spare is not None:
                free.remove(spare)
                places[gpu.key] = spare.key
    moved = (places.get(each.key, each.key) for each in packing.standing)
    standing = tuple(
        dataclasses.replace(each, host=host, index=index) for each, (host, index) in zip(packing.standing, moved)
    )
    return dataclasses.replace(packing, standing=standing)


def _stays(then: Sequence[Standing], today: Sequence[Standing]) -> bool:
    before = {(each.workload, each.shape, each.start) for each in today}
    return any((each.workload, each.shape, each.start) in before for each in then)


def _beyond(answer: Answer, moved: int | None, destroyed: int | None) -> bool:
    return (moved is not None and len(answer.moved) > moved) or (destroyed is not None and answer.destroyed > destroyed)


def _name(problem: Problem, limits: Limits) -> str:
    first = problem.gpus[0]
    return "%s: %s" % (first.host, first.model) if limits.reach == "host" else first.model


def _problems(
    gpus: Sequence[GpuToday], decisions: Mapping[str, Decision], limits: Limits, members: Collection[str]
) -> list[Problem]:
    groups: dict[tuple[str, ...], list[GpuToday]] = defaultdict(list)
    for gpu in gpus:
        if not gpu.left:
            groups[(gpu.model, gpu.host) if limits.reach == "host" else (gpu.model,)].append(gpu)
    made = []
    for key in sorted(groups):
        of_group = groups[key]
        workloads = tuple(_workload(one, gpu, decisions, limits) for gpu in of_group for one in gpu.occupants)
        today = tuple(each for gpu in of_group for each in (*(one.standing for one in gpu.occupants), *gpu.vacant))
        # A group without a workload that can change needs no packing.
        if any(
            workload.options != (each.shape,) or workload.name in members
            for workload, each in zip(workloads, _standings(of_group))
        ):
            rules = dataclasses.replace(limits.rules, reserve_gpus=_reserve(limits.rules, of_group))
            made.append(Problem(tuple(map(_gpu, of_group)), workloads, today, rules))
    return made


def _standings(gpus: Sequence[GpuToday]) -> list[Standing]:
    return [one.standing for gpu in gpus for one in gpu.occupants]


def _reserve(rules: Rules, gpus: Sequence[GpuToday]) -> dict[str, int]:
    """Return the number of reserved GPUs by model.

    It is at most the number of free GPUs, because no workload is evicted for the reserve.
    """
    free = sum(not gpu.used for gpu in gpus)
    model = gpus[0].model
    wanted = rules.reserve_gpus.get(model, 0)
    return {model: min(wanted, free)} if wanted else {}


def _gpu(gpu: GpuToday) -> FleetGpu:
    return FleetGpu(gpu.host, gpu.gpu.index, gpu.model, gpu.gpu.numa_node, 0 if gpu.gpu.nvlinks else None)


def _workload(one: Occupant, gpu: GpuToday, decisions: Mapping[str, Decision], limits: Limits) -> Workload:
    options: tuple = (one.shape,)
    decision = decisions.get(one.name)
    if decision and one.wish.forces:
        options = (decision.shape,)
    elif decision and smaller(decision, one, gpu.model):
        options = (decision.shape, one.shape)
    wish = one.wish
    apart = wish.apart if limits.reach == "fleet" or wish.apart_on == "gpu" else None
    return Workload(
        one.name,
        options,
        near=wish.near if limits.reach == "fleet" else None,
        apart=apart,
        apart_on=wish.apart_on,
        # A tenant's name is unique only on its host, so equal names on two hosts are two tenants.
        hosts=frozenset((gpu.host,)) if "@" in one.name else None,
    )


def smaller(decision: Decision, one: Occupant, model: str) -> bool:
    """Return whether the decision gives a workload a smaller share of a GPU.

    Shares are never enlarged: if a workload uses its whole share, the history does not show how much more it needs.
    """
    rules = geometry(model)
    return rules.load(decision.shape) < rules.load(one.shape)


class Bounds(NamedTuple):
    """Limits of a search: time in seconds, moved workloads and destroyed instances.

    None means no limit.
    """

    seconds: float
    moved: int | None = None
    destroyed: int | None = None


def _solve(
    problem: Problem,
    bounds: Bounds,
    decisions: Mapping[str, Decision],
    notes: list[str],
    limits: Limits,
    teams: Sequence[Sequence[str]] = (),
) -> Answer | None:
    """Return the solution, or None without one that is worth a change.

    A solution must free a GPU, unless the inventory requires a change.
    """
    before = {each.workload: each for each in problem.today if each.workload}
    mine = {"+".join(team): tuple(team) for team in teams if all(name in before for name in team)}
    rules = dataclasses.replace(
        problem.rules,
        seconds=bounds.seconds,
        most_moved=None if bounds.moved is None else max(0, bounds.moved),
        most_destroyed=None if bounds.destroyed is None else max(0, bounds.destroyed),
    )
    try:
        teamed = _teamed(dataclasses.replace(problem, rules=rules), mine)
        packing = pack(teamed)
    except PackingError as error:
        notes.append("%s is unchanged: %s" % (_name(problem, limits), error))
        return None
    notes += ["%s: %s." % (_name(problem, limits), note) for note in packing.notes]
    if packing.unplaced:
        first, why = sorted(packing.unplaced.items())[0]
        notes.append("%s is unchanged, because %s fits nowhere else: %s" % (_name(problem, limits), first, why))
        return None
    packing = onto_free(teamed, packing, {each.key for each in before.values()})
    packing = _apart(packing, mine, decisions)
    then = {(each.workload, each.key, each.shape, each.start) for each in packing.standing if each.workload}
    gone = tuple(sorted(name for name, each in before.items() if (name, each.key, each.shape, each.start) not in then))
    used = len({each.key for each in before.values()})
    saved = used - len({key for _name, key, _shape, _start in then})
    asked = {workload.name for workload in problem.workloads if before[workload.name].shape not in workload.options}
    if not gone or (saved <= 0 and not asked):
        return None
    if not packing.proven:
        notes.append(
            "%s: the plan uses %s, %s." % (_name(problem, limits), counted(packing.score.gpus, "GPU"), packing.claim)
        )
    if saved < 0:
        notes.append(
            "%s needs %s than today, because the inventory gives more to %s."
            % (_name(problem, limits), counted(-saved, "more GPU"), ", ".join(sorted(asked)[:4]))
        )
    changed, moving = _changed(problem, packing), set(gone)
    hosts = {host for host, _index in changed}
    hosts |= {each.host for each in (*problem.today, *packing.standing) if each.workload in moving}
    entries = layouts(problem, packing, _tenant_name)
    return Answer(problem, packing, saved, gone, packing.score.destroyed, frozenset(hosts), changed, entries)


def _teamed(problem: Problem, teams: Mapping[str, Sequence[str]]) -> Problem:
    """Return the problem with one workload in place of each team.

    This workload needs a whole GPU. Its current place is the place of the team's first member.
    """
    if not teams:
        return problem
    first = {team[0]: name for name, team in teams.items()}
    members = {member for team in teams.values() for member in team}
    workloads = [workload for workload in problem.workloads if workload.name not in members]
    today = [
        dataclasses.replace(each, workload=first.get(each.workload or "", each.workload))
        for each in problem.today
        if each.workload not in members or each.workload in first
    ]
    workloads += [Workload(name, (WHOLE,)) for name in teams]
    return dataclasses.replace(problem, workloads=tuple(workloads), today=tuple(today))


def _apart(packing: Packing, teams: Mapping[str, Sequence[str]], decisions: Mapping[str, Decision]) -> Packing:
    """Return the solution with the members in place of each team."""
    standing: list[Standing] = []
    for each in packing.standing:
        for member in teams.get(each.workload or "", ()):
            standing.append(dataclasses.replace(each, workload=member, shape=decisions[member].shape, new=True))
        if each.workload not in teams:
            standing.append(each)
    return dataclasses.replace(packing, standing=tuple(standing))
